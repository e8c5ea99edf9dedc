"""Names that become names of files: of operators, sinks and topologies, and those that a checkpoint's documents hold."""

from __future__ import annotations

MAX_BYTES = 180
"""The longest name of an operator or a topology, in UTF-8. File systems allow 255 bytes, and a staged file adds up to 60 to a
sink's name: the checkpoint's identity, batch, level, gate, task, attempt and format."""
ALLOWED = "a name is not empty, '.' or '..', and has no '/', '\\' or NUL"
"""What ``is_plain`` asks for, for messages."""


def is_plain(name: object) -> bool:
    """Whether a name stays inside the folder that it is joined to.

    >>> [is_plain(name) for name in ("part-1.csv", "..", "a/b", "", 7)]
    [True, False, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not any(c in "/\\\0" for c in name)


def is_short(name: str) -> bool:
    """Whether a file's name has room for this one and for what Springtide adds to it."""
    return len(name.encode("utf-8", "surrogatepass")) <= MAX_BYTES
