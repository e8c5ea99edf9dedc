"""What a supervisor does about the failures of a data plane, with one in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from springtide.control import supervisor
from springtide.control.ports import Failure
from springtide.control.supervisor import Supervisor
from springtide.errors import OptionError, RunError
from springtide.model.ending import Ended, Ending


@dataclass
class Plane:
    """Ends as it is given, one way after the other."""

    ends: Sequence[Ended | Exception | None]
    asked: list[Ending] = field(default_factory=list)

    def open(self) -> None: ...

    def carry(self, ending: Ending) -> Ended | None:
        end = self.ends[len(self.asked)]
        self.asked.append(ending)
        if isinstance(end, Exception):
            raise end
        return end

    def close(self) -> None: ...


class Stop(threading.Event):
    """Notes how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return self.is_set()


def failure(*, progressed: bool = False, mended: bool = False, way_out: str = "") -> Failure:
    return Failure("a cause", progressed=progressed, mended=mended, way_out=way_out)


def supervised(*ends: Ended | Exception | None) -> tuple[Ended, int, list[float | None]]:
    """Why the run ended, its restarts and its pauses."""
    stop, plane = Stop(), Plane(ends)
    supervised = Supervisor(plane, stop)
    ended = supervised.run(Ending(batches=7))
    assert plane.asked == [Ending(batches=7)] * len(ends)
    return ended, supervised.restarts, stop.waits


def test_a_plane_that_may_have_more_is_called_again() -> None:
    assert supervised(None, None, Ended.AVAILABLE) == (Ended.AVAILABLE, 0, [])


def test_pauses_grow_with_failures_in_a_row() -> None:
    assert supervised(failure(), failure(), failure(), Ended.BATCHES) == (Ended.BATCHES, 3, [1.0, 2.0, 4.0])


def test_a_failure_after_progress_is_the_first_of_a_row() -> None:
    row = [failure(), failure(), failure(progressed=True)]
    assert supervised(*row, *row, Ended.EXHAUSTED) == (Ended.EXHAUSTED, 6, [1.0, 2.0, 1.0, 2.0, 4.0, 1.0])


def test_a_failure_whose_cause_is_gone_does_not_count() -> None:
    row = [failure(), failure(), failure(mended=True), failure()]
    assert supervised(*row, Ended.DURATION) == (Ended.DURATION, 4, [1.0, 2.0, 1.0])


def test_a_plane_that_fails_too_often_is_given_up() -> None:
    last = failure(way_out="mend it")
    last.__cause__ = ValueError("what it was")
    with pytest.raises(RunError, match=r"failed 4 times in a row, the last time with a cause; mend it$") as raised:
        supervised(failure(), failure(), failure(), last)
    assert raised.value.__cause__ is last.__cause__


def test_any_other_error_is_final() -> None:
    with pytest.raises(OptionError):
        supervised(OptionError("no"))


def test_a_run_that_is_to_stop_does_not_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, plane = Stop(), Plane([failure()])
    monkeypatch.setattr(supervisor.log, "warning", lambda *_: stop.set())
    assert Supervisor(plane, stop).run(Ending()) is Ended.STOPPED
    assert len(plane.asked) == 1
