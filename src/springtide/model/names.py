"""Names that become file names: those of operators, sinks and topologies, and those in a checkpoint's documents."""

from __future__ import annotations

MAX_BYTES = 180
"""The longest name of an operator or a topology, in bytes of UTF-8. File systems allow 255 bytes, and a staged file adds up to
60 to a sink's name: the checkpoint's identity, batch, level, gate, task, attempt and format."""
ALLOWED = "a name is not empty, '.' or '..', and has no '/', '\\' or NUL"
"""The rule of ``is_plain``, for messages."""


def is_plain(name: object) -> bool:
    """Whether a path that is made of a folder and this name stays inside the folder.

    >>> [is_plain(name) for name in ("part-1.csv", "..", "a/b", "", 7)]
    [True, False, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not any(c in "/\\\0" for c in name)


def is_short(name: str) -> bool:
    """Whether a file name has room for this name and for the parts that Springtide adds."""
    return len(name.encode("utf-8", "surrogatepass")) <= MAX_BYTES
