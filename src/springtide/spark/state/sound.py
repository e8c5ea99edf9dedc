"""Remembers which chunks of a segment have been verified on this node since its start, in an attribute of the file.

A checksum covers a whole chunk, although a batch looks up only a few keys in it: for 100 MB of state it takes 70 ms of a core.
Without the attribute every worker would verify all chunks: six at once when an operator scales out from two tasks to eight,
and all of them after a merge. The attribute does not apply to a changed file, a copy or another node. Merges, which read all
data, verify all chunks. On a file system without such attributes every worker verifies for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
from pathlib import Path

ATTRIBUTE = "user.springtide.sound"
LEAST_BYTES = 64 << 10
"""Smaller files have no attribute: reading it takes as long as the checksum."""
MOST_CHUNKS = 8 * 2_000
"""Limits the bits of an attribute: file systems allow about 4 kB."""


def seen(path: str, status: os.stat_result) -> int:
    """The verified chunks, as bits."""
    if status.st_size < LEAST_BYTES:
        return 0
    try:
        value = os.getxattr(path, ATTRIBUTE)
    except (OSError, AttributeError):
        return 0
    mark = _identity(status)
    return int.from_bytes(value[len(mark) :], "little") if value.startswith(mark) else 0


def remember(path: str, status: os.stat_result, bits: int) -> None:
    """Store that these chunks have been verified or written. Of two concurrent calls, one may be lost."""
    if status.st_size >= LEAST_BYTES and bits.bit_length() <= MOST_CHUNKS:
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(path, ATTRIBUTE, _identity(status) + bits.to_bytes(bits.bit_length() // 8 + 1, "little"))


def _identity(status: os.stat_result) -> bytes:
    """Identifies this version of the file, on this node, since its start."""
    known = (_boot(), status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return hashlib.blake2b(repr(known).encode(), digest_size=16).digest()


@functools.cache
def _boot() -> str:
    """Identifies the machine's start: at a restart, data in memory may not have reached the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{socket.gethostname()} {os.getppid()}"
