"""One case: the moment is put back, the harm done, the run started again, and what it leaves compared."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from damage import harm, moments, outputs, verdict
from damage.harm import Case
from damage.moments import Moments
from damage.verdict import Ending, Judged, Verdict
from springtide.errors import SpringtideError

TIME_LIMIT_S = 240.0
"""A case takes 2 s on two free cores, and took 128 s as the first of a session on two cores with a load of 20."""
SAMPLED_DEPTH = 3
"""Folders below ``checkpoint/springtide/state`` and the like are left to the long test."""
GRACE_S = 15.0
"""A run that hangs is asked to stop, and given this long before its session is given up."""


@dataclass(frozen=True)
class Tried:
    """A case with its verdict."""

    case: Case
    verdict: Verdict
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.case}  {self.text}"


class Lab:
    """Tries cases one after another on one session. ``session`` gives the session, and a new one after one was broken."""

    def __init__(self, made: Moments, session: Callable[[bool], Any]) -> None:
        self._made, self._session = made, session
        self._expected = outputs.expected()
        self._broken = False

    def cases(self, moment: str) -> list[Case]:
        return harm.cases(self._made[moment], self._made.older)

    def all(self, cases: Iterable[Case]) -> Iterator[Tried]:
        return map(self.tried, cases)

    def tried(self, case: Case) -> Tried:
        begun = time.monotonic()
        self._made.put_back(self._made[case.moment])
        within = harm.apply(case, self._made.place.life, self._made.older)
        judged = self._judged(case, within)
        return Tried(case, judged.verdict, judged.text, time.monotonic() - begun)

    def undamaged(self, moment: str) -> Ending:
        """How the run goes on from a moment that nobody has damaged."""
        self._made.put_back(self._made[moment])
        return self._start(None)

    def _judged(self, case: Case, within: list[Any]) -> Judged:
        return verdict.attempt(lambda: self._start(case), self._made.place.life / case.path, within)

    def _start(self, case: Case | None) -> Ending:
        """Go on to the last record, in a thread that can be given up."""
        session, stop, errors = self._session(self._broken), threading.Event(), list[BaseException]()
        self._broken = False

        def go_on() -> None:
            try:
                with moments.quick():
                    moments.run(self._made.place, session, available_now=True, stop=stop)
            except BaseException as error:  # noqa: BLE001  whatever it is, it is judged
                errors.append(error)

        thread = threading.Thread(target=go_on, name="damaged-run", daemon=True)
        thread.start()
        thread.join(TIME_LIMIT_S)
        if thread.is_alive():
            stop.set()
            thread.join(GRACE_S)
            self._broken = thread.is_alive()
            return Ending(hung=True)
        if errors:
            return Ending(error=errors[0])
        self._give_readers_theirs(case)
        return self._compared()

    def _give_readers_theirs(self, case: Case | None) -> None:
        """Dead letters that were published before the harm are their readers', as all published output. What the harm did to
        them is undone before the comparison; what the run did is not."""
        if case is None:
            return
        life, copy = self._made.place.life, self._made[case.moment].copy
        for file in outputs.visible(copy / self._made.place.dead_letters.relative_to(life)):
            path = file.relative_to(copy)
            if path.is_relative_to(case.path):
                (life / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, life / path)

    def _compared(self) -> Ending:
        try:
            return Ending(outputs.difference(outputs.found(self._made.place), self._expected))
        except SpringtideError as error:  # state that no batch has read: the damage is told when somebody reads it
            return Ending(error=error)
        except Exception as error:  # noqa: BLE001  published files may hold anything
            return Ending(f"the output cannot be read: {type(error).__name__}: {error}")


def sample(cases: Iterable[Case], seed: int) -> list[Case]:
    """One case of each kind of file, and of each folder down to ``SAMPLED_DEPTH``. A kind has another harm at another moment,
    in an order that the seed decides."""
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        if not case.folder or case.path.count("/") < SAMPLED_DEPTH:
            kinds.setdefault(case.kind, []).append(case)
    return [_one(kind, own, seed) for kind, own in sorted(kinds.items())]


def _one(kind: str, cases: list[Case], seed: int) -> Case:
    rng = random.Random(f"{seed} {kind}")
    harms = rng.sample(harm.HARMS, len(harm.HARMS))
    turn = moments.NAMES.index(cases[0].moment) * len(harms) // len(moments.NAMES)
    wanted = [*harms[turn:], *harms[:turn]]
    first = next(one for one in wanted if any(case.harm == one for case in cases))
    return rng.choice([case for case in cases if case.harm == first])
