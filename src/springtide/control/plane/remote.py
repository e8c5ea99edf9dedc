"""A policy that decides in a separate process: the driver's side.

The process gets the newest snapshot whenever it is free, and skips those that came while it was busy. Its answer is used by
the call that asked or, when it is late, by the next call, which may have its own answer too: for each operator or executor the
newest request counts. A watchdog, which is a thread of the driver, talks to the process, and starts another when it died, hangs
or gives an invalid answer: with the policy's last state, and after a pause that doubles each time.

Only ``decide`` runs there. The policy is made here too, so that errors in its options show before anything starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from springtide.control.plane.child import Child, Lost
from springtide.control.plane.spec import Spec, make
from springtide.model.plan import Request
from springtide.model.request import RemoveExecutor, Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import Once
from springtide.policy.scale import State

log = logging.getLogger("springtide.control")

CHECK_EVERY_S = 1.0
"""How often an idle process is checked."""

REFUSALS = 1_000
"""Limits the refusals that wait for the control loop. The oldest are dropped."""


@dataclass(frozen=True)
class Patience:
    """Time limits. ``answer_s``: of a call of ``decide``; the loop then goes on without the answer.

    ``first_s``: of the process's start, with all its imports, and of the decision before the run starts. ``hang_s``: without
    an answer for this long, the process hangs. ``pause_s``: before a restart, doubled each time up to ``longest_pause_s``, and
    reset by a process that lived that long. ``state_s``: between two requests of its state. ``end_s``: of the last of them.
    """

    answer_s: float = 0.5
    first_s: float = 20.0
    hang_s: float = 10.0
    pause_s: float = 1.0
    longest_pause_s: float = 30.0
    state_s: float = 10.0
    end_s: float = 2.0

    @classmethod
    def of(cls, interval_s: float) -> Patience:
        """At most half the time between two decisions, so that the other half is left for the rest of the cycle."""
        return cls(answer_s=min(cls.answer_s, interval_s / 2))


class PolicyFailed(Exception):
    """A policy raised in its process; the text is its traceback."""


@dataclass(frozen=True)
class _Asked:
    number: int
    snapshot: Snapshot


@dataclass(frozen=True)
class _Answer:
    """An answer, and the time of the snapshot that it is about."""

    at: float
    requests: tuple[Request, ...] = ()
    error: str | None = None


class RemotePolicy:
    """A host for the control loop. The policy's state and its random source are in the process.

    ``decide`` returns the state that the process sent last, and takes only the first that it gets. ``restarts``: the number of
    restarts of the process. Call ``close`` at the end of the run.
    """

    if TYPE_CHECKING:
        name: ClassVar[str]

    def __init__(self, spec: Spec, patience: Patience | None = None, start: Callable[[], Child] = Child) -> None:
        self._spec, self._patience, self._start = spec, patience or Patience(), start
        self._policy = make(spec).policy
        if not TYPE_CHECKING:
            self.name = self._policy.name
        self.restarts = 0
        self._changed = threading.Condition()  # guards all below
        self._number = self._done = 0  # the last question; the last question that was answered or lost
        self._asked: _Asked | None = None  # the newest question that the process has not got yet
        self._answers: list[_Answer] = []  # answers that ``decide`` has not returned yet, the newest last
        self._refusals: deque[Verdict] = deque(maxlen=REFUSALS)
        self._state: State | None = None
        self._rng: Any = None
        self._state_at = time.monotonic()
        self._alive, self._closing, self._unsaved = True, False, Once()
        self._reset = False  # reset the process's state before its next decision
        self._child: Child | None = None
        self._watchdog = threading.Thread(target=self._watch, name="springtide-watchdog", daemon=True)
        self._watchdog.start()

    @property
    def pid(self) -> int | None:
        """The process's pid; None while there is none."""
        child = self._child
        return None if child is None else child.pid

    def initial(self) -> State:
        return self._policy.initial()

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        """Ask the process, and wait a little. Raises PolicyFailed when the policy fails; no answer is no request."""
        with self._changed:
            known = self._state = state if self._state is None else self._state
            if self._closing:
                return known, ()
            self._number += 1
            number, first = self._number, self._number == 1 and snapshot.interval_s == 0
            self._asked = _Asked(number, snapshot)
            self._changed.notify_all()
            patience_s = self._patience.first_s if first else self._patience.answer_s
            self._changed.wait_for(lambda: self._done >= number or self._closing or not self._alive, patience_s)
            # old answers, as after a time without questions, no longer fit
            longest_s = self._patience.hang_s + snapshot.interval_s
            answers = [answer for answer in self._answers if snapshot.at - answer.at <= longest_s]
            error = answers[-1].error if answers else None
            self._answers = [] if error is None else answers[:-1]
            known = self._state
        if error is not None:
            raise PolicyFailed(error)
        return known, _together(answers)

    def forget(self) -> None:
        """Reset the process's state before its next decision."""
        with self._changed:
            self._state, self._rng, self._reset = self._policy.initial(), None, True

    def refusals(self, state: State) -> list[Verdict]:
        """The new refusals of guards and managers since the last call."""
        with self._changed:
            found = list(self._refusals)
            self._refusals.clear()
            return found

    def close(self) -> State | None:
        """End the process; returns the policy's state, the last one if the process sends it in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._watchdog.join(self._patience.end_s)
        child = self._child
        if child is not None:
            child.end()  # so that the watchdog's read ends
        self._watchdog.join(self._patience.end_s)
        return self._state

    def _watch(self) -> None:
        """The watchdog: starts a process, and another after its end."""
        pause_s = self._patience.pause_s
        while not self._closing:
            born, why, code = time.monotonic(), "", None
            try:
                self._child = child = self._start()
                try:
                    self._serve(child)
                finally:
                    self._child, code = None, child.end()
                    child.close()
            except Exception as fault:  # noqa: BLE001  whatever it is, the next process may work
                why = str(fault) if isinstance(fault, Lost) else repr(fault)
            if self._closing:
                return
            if time.monotonic() - born > self._patience.longest_pause_s:
                pause_s = self._patience.pause_s
            log.warning(
                "the control process of policy %s is lost, exit code %s: %s; the plan stays in force, another starts in %g s",
                self._policy.name, code, why, pause_s,
            )  # fmt: skip
            self.restarts += 1
            self._pause(pause_s)
            pause_s = min(2 * pause_s, self._patience.longest_pause_s)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._done, self._alive = self._number, False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing, seconds)
            self._alive = True

    def _serve(self, child: Child) -> None:
        """Send questions and take answers, until the end or until the process is lost."""
        self._await(child, lambda: self._state is not None)
        if self._closing:
            return
        self._begin(child)
        while (asked := self._next(child)) is not None:
            if self._reset:
                self._begin(child)
            self._decide(child, asked)
            if time.monotonic() - self._state_at >= self._patience.state_s:
                self._fetch_state(child, self._patience.hang_s)
        self._fetch_state(child, self._patience.end_s)

    def _await(self, child: Child, happened: Callable[[], bool]) -> None:
        """Wait until it happened, or for the end. Raises Lost if the process dies meanwhile."""
        with self._changed:
            while not (self._closing or happened()):
                self._changed.wait(CHECK_EVERY_S)
                child.check()

    def _next(self, child: Child) -> _Asked | None:
        """The newest question; None at the end."""
        self._await(child, lambda: self._asked is not None)
        with self._changed:
            asked, self._asked = self._asked, None
            return None if self._closing else asked

    def _begin(self, child: Child) -> None:
        with self._changed:
            self._reset = False
            begin = {"message": "begin", "spec": self._spec.to_json(), "state": self._state, "rng": self._rng}
        answer = child.ask(begin, self._patience.first_s)
        if "begun" not in answer:
            raise Lost(f"it could not begin: {_last_line(answer)}")

    def _decide(self, child: Child, asked: _Asked) -> None:
        question = {"message": "decide", "number": asked.number, "snapshot": asked.snapshot.to_json()}
        answer = child.ask(question, self._patience.hang_s)
        try:
            if answer["number"] != asked.number:
                raise ValueError(f"an answer to {answer['number']}, not to {asked.number}")
            error = str(answer["error"]) if "error" in answer else None
            requests = () if error is not None else tuple(map(Request.from_json, answer["requests"]))
            refused = list(map(Verdict.of_refusal, answer.get("refused", ())))
        except (KeyError, TypeError, ValueError) as fault:
            raise Lost(f"it answered nonsense: {fault!r}") from None
        with self._changed:
            self._refusals += refused
            self._answers.append(_Answer(asked.snapshot.at, requests, error))
            self._done = max(self._done, asked.number)
            self._changed.notify_all()

    def _fetch_state(self, child: Child, timeout_s: float) -> None:
        """Fetch the policy's state. If JSON cannot carry it, the last state stays."""
        answer = child.ask({"message": "state"}, timeout_s)
        with self._changed:
            self._state_at = time.monotonic()
            if self._reset:
                return
            if isinstance(answer.get("state"), dict):
                self._state, self._rng = answer["state"], answer.get("rng")
                return
        if self._unsaved.begins():
            log.warning("the state of policy %s cannot be saved: %s", self._policy.name, _last_line(answer))


def _together(answers: Sequence[_Answer]) -> tuple[Request, ...]:
    """The requests of all answers; for the same operator or executor, those of the newest."""
    found: tuple[Request, ...] = ()
    for answer in answers:
        anew = {_about(request) for request in answer.requests}
        found = *(request for request in found if _about(request) not in anew), *answer.requests
    return found


def _about(request: Request) -> tuple[str, str]:
    action = request.action
    if isinstance(action, RemoveExecutor):
        return "executor", action.executor
    return "operator", request.operator or getattr(action, "operator", "")


def _last_line(answer: Mapping[str, Any]) -> str:
    """The error at the end of a traceback."""
    return str(answer.get("error", answer)).strip().rpartition("\n")[2]
