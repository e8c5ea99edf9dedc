"""Records that kill the Python workers that process them: which ones they are, and which ones are put aside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from springtide.model.topology import Kind, OnCrash
from springtide.spark.driver.workers import Worker
from springtide.spark.shared.program import Program
from springtide.spark.shared.progress import NOWHERE, Place

DEATHS_BEFORE_ASIDE = 2
"""How many workers a record kills before it goes to the dead letters. One death may be the kernel's choice when memory is
short; Spark runs a task four times before a batch fails, so that most records have killed four by then."""
MOST_ASIDE = 100
"""The most records of one batch that are put aside. If more kill their workers, the operator is at fault, not the records; each
costs a restart of the query, a second or two."""


class Crashes:
    """The deaths of workers in the batch that fails now, counted by place, over all restarts of the query."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._batch: int | None = None
        self._deaths: Counter[Place] = Counter()
        self._aside: dict[Place, int] = {}

    def note(self, dead: Sequence[Worker]) -> str | None:
        """Count the workers that died, and say where; None if none did."""
        if not dead:
            return None
        batch = max(worker.batch for worker in dead)
        if batch != self._batch:
            self._batch, self._deaths, self._aside = batch, Counter(), {}
        own = [worker for worker in dead if worker.batch == batch]
        self._deaths.update(worker.place for worker in own)
        worst = max(own, key=lambda worker: self._deaths[worker.place])
        deaths = self._deaths[worst.place]
        how = f", of {worst.fault}" if worst.fault else ""
        died = "the death of a Python worker" if deaths == 1 else f"the death of {deaths} Python workers"
        return f"{died} {where(self._program, batch, worst.place)}{how}"

    def put_aside(self) -> Place | None:
        """The record that has killed the most workers, if its operator lets such records go to the dead letters.

        Records that were put aside at later points of the batch are processed again: their indexes count the records before
        them, of which there is one less now.
        """
        place, deaths = max(self._deaths.items(), key=lambda one: one[1], default=(None, 0))
        if place is None or deaths < DEATHS_BEFORE_ASIDE or not self._may_go(place) or len(self._aside) >= MOST_ASIDE:
            return None
        self._aside = {other: n for other, n in self._aside.items() if not _follows(other, place)}
        self._aside[place] = deaths
        self._deaths.clear()
        return place

    def document(self) -> str | None:
        """What tasks have to know of it."""
        if not self._aside:
            return None
        places = [[p.level, p.gate, p.task, p.operator, p.index, deaths] for p, deaths in self._aside.items()]
        return json.dumps({"batch": self._batch, "places": places})

    def way_out(self) -> str:
        """What a user can do about the deaths."""
        if len(self._aside) >= MOST_ASIDE:
            return f"{MOST_ASIDE} records of this batch were already put aside, the limit; mend the operator"
        if any(map(self._may_go, self._deaths)):
            return "mend the operator"
        return "mend the operator, or set on_crash='dead-letter' to send such records to the dead letters"

    def _may_go(self, place: Place) -> bool:
        if not 0 <= place.operator < len(self._program.nodes) or place.index == NOWHERE:
            return False
        return self._program.nodes[place.operator].on_crash is OnCrash.DEAD_LETTER


def where(program: Program, batch: int, place: Place) -> str:
    """A place in words, behind a verb."""
    task = f"task {place.task} of batch {batch}"
    if not 0 <= place.operator < len(program.nodes):
        return f"in {task} (stage {place.level}), outside of any operator"
    node = program.nodes[place.operator]
    return f"in operator {node.name!r}, {_record(node.kind, place)} {task}"


def _record(kind: Kind, place: Place) -> str:
    if place.index == NOWHERE:
        return "before a record of" if kind is not Kind.STATEFUL else "on the keys of"
    if kind is Kind.STATEFUL:
        return f"at call {place.index} of"
    if kind is Kind.MAP_BATCHES:
        return f"at records {place.index} to {place.index + place.rows - 1} of"
    return f"at record {place.index} of"


def _follows(one: Place, other: Place) -> bool:
    """Whether a point of a batch may depend on another: it is in a later stage, or later in the same task."""
    if (one.level, one.gate) != (other.level, other.gate):
        return (one.level, one.gate) > (other.level, other.gate)
    return one.task == other.task and (one.step, one.index) > (other.step, other.index)
