"""Which chunks of a segment were seen to be right on this node since it was started: an attribute of the file itself.

A checksum goes over a whole chunk, and a batch looks up a few keys in each: of 100 MB of state it takes 70 ms of a core.
Without this every worker would do that by itself, six at once where an operator goes from two tasks to eight, and all of them
again after a merge. A file that was changed has another time, a copy another inode, and what another node has seen does not
count here. Merges, which read everything, try everything. Where a file system has no such attributes, every worker tries for
itself.
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
"""Of smaller files a checksum takes no longer than the attribute."""
MOST_CHUNKS = 8 * 2_000
"""An attribute has about 4 kB at most."""


def seen(path: str, told: os.stat_result) -> int:
    """The chunks that were seen to be right, a bit for each."""
    if told.st_size < LEAST_BYTES:
        return 0
    try:
        value = os.getxattr(path, ATTRIBUTE)
    except (OSError, AttributeError):
        return 0
    mark = _identity(told)
    return int.from_bytes(value[len(mark) :], "little") if value.startswith(mark) else 0


def remember(path: str, told: os.stat_result, bits: int) -> None:
    """These chunks were seen to be right, or were written just now. Of two processes that say so at once, one may be missed."""
    if told.st_size >= LEAST_BYTES and bits.bit_length() <= MOST_CHUNKS:
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(path, ATTRIBUTE, _identity(told) + bits.to_bytes(bits.bit_length() // 8 + 1, "little"))


def _identity(told: os.stat_result) -> bytes:
    """This file as it is, on this node, since its start."""
    known = (_boot(), told.st_dev, told.st_ino, told.st_mtime_ns, told.st_size)
    return hashlib.blake2b(repr(known).encode(), digest_size=16).digest()


@functools.cache
def _boot() -> str:
    """Another one after every start of the machine: what is in its memory may then not be what reached the disk."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return f"{socket.gethostname()} {os.getppid()}"
