"""The rules for the size of a micro-batch."""

from springtide.policy.batch.read_limit import ReadLimit, floor_s

__all__ = ["ReadLimit", "floor_s"]
