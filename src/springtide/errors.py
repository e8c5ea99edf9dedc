"""Everything that Springtide raises, in one tree.

    SpringtideError
    ├── TopologyError      the graph, a name, a schema or a function is wrong
    ├── OptionError        an option, a policy or a value that does not exist or does not fit
    ├── TraceError         a rate trace that cannot be read
    ├── SetupError         Java, Spark or the cluster cannot be used as it is
    ├── CheckpointError    a checkpoint belongs to another topology, or is in use
    │   └── DamageError    a file of a checkpoint differs from what Springtide wrote
    ├── RecordError        a record failed in an operator with on_error="stop"
    └── RunError           a query failed for good

The first five mean wrong use, and the command line exits with 2. They are raised before anything is started or changed, with
one exception: a running driver gets a CheckpointError when another driver takes over its checkpoint.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpringtideError(Exception):
    """The root of every error that Springtide raises on purpose."""


class TopologyError(SpringtideError):
    """A topology that cannot run: says which operator, what is wrong and how to mend it."""


class OptionError(SpringtideError):
    """An option, name or value that does not exist or does not fit."""


class TraceError(SpringtideError):
    """A rate trace that cannot be read: says file, line number and content."""


class SetupError(SpringtideError):
    """Java, Spark or the cluster cannot be used as it is."""


class CheckpointError(SpringtideError):
    """A checkpoint that belongs to another topology, or that another driver has locked."""


class DamageError(CheckpointError):
    """A file of a checkpoint differs from what Springtide wrote. Code that needs the file refuses to start; other code ignores
    the file."""

    def __init__(self, path: object, fault: str, remedy: str = "put that file back from a copy") -> None:
        super().__init__(f"{path} {fault}. {remedy[:1].upper()}{remedy[1:]}")
        self.path, self.fault, self.remedy = path, fault, remedy


class RecordError(SpringtideError):
    """A record failed in an operator whose ``on_error`` is ``"stop"``."""


class RunError(SpringtideError):
    """A query failed repeatedly, and its retries are used up."""


WRONG_USE = (TopologyError, OptionError, TraceError, SetupError, CheckpointError)


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The end of an error message: the allowed names, the closest ones first.

    >>> nearest("statik", ["static", "scripted"])
    "did you mean 'static'? Allowed: scripted, static"
    """
    names = sorted(allowed)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""
    return f"{hint}Allowed: {', '.join(names) or 'none'}"
