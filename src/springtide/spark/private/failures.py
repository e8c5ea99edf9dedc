"""Why a query failed, by the texts of Spark's errors.

Why: what a Python worker raised, or that it died, reaches the driver as a part of the JVM's message.
Seen to work on: Spark 4.2 and 4.3.
Without it: a cause is the last line that names an error. A record that kills its worker is not put aside, and what would end
the run at once (a damaged state file, a generator that fails, a missing module) is tried again as any other failure.
"""

from __future__ import annotations

import re

DIED = "Python worker exited unexpectedly"
"""Part of Spark's message when the socket to a worker ends in the middle of a task."""
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""What a traceback ends with: any exception, with whatever name."""


def worker_died(error: Exception) -> bool:
    return DIED in str(error)


def failed_record(error: Exception) -> str | None:
    """What a generator said of a record that it could not make: it fails on the same record every time."""
    return _found(r"springtide\.errors\.RecordError: (.+)", error)


def missing_module(error: Exception) -> str | None:
    """The module that an executor lacks."""
    return _found(r"No module named '([\w.]+)'", error)


def damaged_state_file(error: Exception) -> str | None:
    """The path of the state file that a task found damaged."""
    return _found(r"state file (.+?) is damaged", error)


def cause_of(error: Exception, died: str | None = None) -> str:
    """The line that tells most of Spark's long messages: what a Python worker raised, or the last one that names an error.
    ``died``: what is known of workers that died meanwhile, which may be the cause."""
    before, _, worker = str(error).rpartition("PythonException: ")
    raised = _RAISED.findall(worker) if before else []
    if raised:
        return str(raised[-1][:500])  # of a chain, the last is what the others led to
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
