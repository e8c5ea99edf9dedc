"""Derives from a checkpoint's secret the seeds that keys are hashed with, and the mark that stored hashes carry."""

from __future__ import annotations

import hashlib

from springtide.policy.group.keys import HASHING


def routing_seed(secret: str) -> int:
    """Of the hash by which groupings route and learn. Whoever does not know it cannot choose keys of one task."""
    return int.from_bytes(_digest(f"{secret}/", 8), "little")  # no operator's: they have names


def state_seeds(secret: str, operator: str) -> tuple[int, int]:
    """Of the two hashes by which a key of an operator's state is found."""
    digest = _digest(f"{secret}/{operator}", 16)
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def hashing_mark(*seeds: int) -> str:
    """Names a way of hashing: its version, and a fingerprint of its seeds, which does not give them away. What was stored
    under another mark has other hashes.

    >>> hashing_mark(1, 2)
    '2:f1a06d46872c9547'
    """
    return f"{HASHING}:{_digest('/'.join(map(str, seeds)), 8).hex()}"


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()
