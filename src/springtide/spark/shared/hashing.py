"""Derives the seeds of keys' hashes, and the mark of stored hashes, from a checkpoint's secret."""

from __future__ import annotations

import hashlib

from springtide.policy.group.keys import HASHING


def routing_seed(secret: str) -> int:
    """The seed of the hash by which groupings route and learn. Without it nobody can choose keys of the same task."""
    return int.from_bytes(_digest(f"{secret}/", 8), "little")  # differs from all operators' seeds, as operators have names


def state_seeds(secret: str, operator: str) -> tuple[int, int]:
    """The seeds of the two hashes that identify a key in an operator's state."""
    digest = _digest(f"{secret}/{operator}", 16)
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def hashing_mark(*seeds: int) -> str:
    """Identifies a hash function by its version and a fingerprint of its seeds, which does not reveal them. Data with another
    mark has other hashes.

    >>> hashing_mark(1, 2)
    '2:f1a06d46872c9547'
    """
    return f"{HASHING}:{_digest('/'.join(map(str, seeds)), 8).hex()}"


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
