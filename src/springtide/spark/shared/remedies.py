"""The remedies for a checkpoint that a run refuses, for the end of the error message."""

from __future__ import annotations

PUT_BACK = "put that file back from a copy"
EITHER = "put that file, or this one, back from a copy"
EXPORT = (
    "export the state with `springtide state export` and import it into a new checkpoint with `springtide state import"
    " --accept-recount`: state is kept, but the sources are read from their start, so that records may be counted twice"
)
ANEW = "start with a new checkpoint: state and progress are lost, and the sources are read from their start"


def ways_out(*ways: str) -> str:
    """
    >>> ways_out("wait", "run")
    'Ways out, the cheapest first: 1. wait; 2. run'
    """
    return "Ways out, the cheapest first: " + "; ".join(f"{number}. {way}" for number, way in enumerate(ways, start=1))
