"""How much a micro-batch reads: the rules for batch sizes."""

from springtide.policy.batch.read_limit import ReadLimit, floor_s

__all__ = ["ReadLimit", "floor_s"]
