"""Why a query failed, by the texts of Spark's errors.

Why: the exception or the death of a Python worker reaches the driver as a part of the JVM's message.
Seen to work on: Spark 4.2 and 4.3.
Without it: a cause is the last line that names an error. A record that kills its worker is not set aside, and failures that
would end the run at once (a damaged state file, a failing generator, a missing module) are retried as any other failure.
"""

from __future__ import annotations

import re

DIED = "Python worker exited unexpectedly"
"""Part of Spark's message when the socket of a worker closes during a task."""
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""The last line of a traceback, with an exception of any name."""


def worker_died(error: Exception) -> bool:
    return DIED in str(error)


def failed_record(error: Exception) -> str | None:
    """The error of a source that cannot make a record. It fails on the same record every time."""
    return _found(r"springtide\.errors\.RecordError: (.+)", error)


def final_error(error: Exception) -> str | None:
    """The error of a source that no repetition mends, for example because unread records were deleted."""
    return _found(r"springtide\.model\.source\.SourceFailed: (.+)", error)


def missing_module(error: Exception) -> str | None:
    return _found(r"No module named '([\w.]+)'", error)


def damaged_state_file(error: Exception) -> str | None:
    return _found(r"state file (.+?) is damaged", error)


def cause_of(error: Exception, died: str | None = None) -> str:
    """The most informative line of Spark's long message: the exception of a Python worker, or the last line with an error.
    ``died``: a description of workers that died meanwhile, which may be the cause."""
    before, _, worker = str(error).rpartition("PythonException: ")
    raised = _RAISED.findall(worker) if before else []
    if raised:
        return str(raised[-1][:500])  # the last exception of a chain is the result of the others
    if died is not None:
        return died
    if worker_died(error):
        return "the death of a Python worker outside of the operators, or on a node that cannot write to the checkpoint"
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines()]  # Py4J puts a colon before the error
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b.*:", line)]
    return (named or [line for line in lines if line] or [type(error).__name__])[-1 if named else 0][:500]


def _found(pattern: str, error: Exception) -> str | None:
    found = re.search(pattern, str(error))
    return None if found is None else found[1]
