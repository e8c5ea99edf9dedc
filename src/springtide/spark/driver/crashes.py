"""Finds the records that kill their Python workers, and decides which of them to set aside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from springtide.model.topology import Kind, OnCrash
from springtide.spark.driver.workers import Worker
from springtide.spark.shared.program import Program
from springtide.spark.shared.progress import NOWHERE, RecordPlace

DEATHS_BEFORE_ASIDE = 2
"""A record goes to the dead letters after it has killed this many workers. The kernel may have caused a single death, when
memory is short; Spark runs a task four times before a batch fails, so most records have killed four workers by then."""
MAX_SET_ASIDE = 100
"""Limits the records of one batch that are set aside. If more kill their workers, the operator is at fault, not the records;
each costs a restart of the query, one or two seconds."""


class Crashes:
    """Counts the deaths of workers in the failing batch by place, over all restarts of the query."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._batch: int | None = None
        self._deaths: Counter[RecordPlace] = Counter()
        self._aside: dict[RecordPlace, int] = {}

    def note(self, dead: Sequence[Worker]) -> str | None:
        """Count dead workers; returns a description of the worst place, None without dead workers."""
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

    def set_aside(self) -> RecordPlace | None:
        """Set aside the record that has killed the most workers, if its operator sends such records to the dead letters.

        Records that were set aside at later points of the batch are processed again: their indexes count the preceding records,
        of which there is now one less.
        """
        place, deaths = max(self._deaths.items(), key=lambda entry: entry[1], default=(None, 0))
        if place is None or deaths < DEATHS_BEFORE_ASIDE or not self._may_go(place) or len(self._aside) >= MAX_SET_ASIDE:
            return None
        self._aside = {other: n for other, n in self._aside.items() if not _follows(other, place)}
        self._aside[place] = deaths
        self._deaths.clear()
        return place

    def document(self) -> str | None:
        """The records that tasks have to leave out, as JSON; None if there are none."""
        if not self._aside:
            return None
        places = [[p.level, p.gate, p.task, p.operator, p.index, deaths] for p, deaths in self._aside.items()]
        return json.dumps({"batch": self._batch, "places": places})

    def remedy(self) -> str:
        """A remedy for the deaths, for an error message."""
        if len(self._aside) >= MAX_SET_ASIDE:
            return f"{MAX_SET_ASIDE} records of this batch are already set aside, which is the limit; mend the operator"
        if any(map(self._may_go, self._deaths)):
            return "mend the operator"
        return "mend the operator, or set on_crash='dead-letter' to send such records to the dead letters"

    def _may_go(self, place: RecordPlace) -> bool:
        if not 0 <= place.operator < len(self._program.nodes) or place.index == NOWHERE:
            return False
        return self._program.nodes[place.operator].on_crash is OnCrash.DEAD_LETTER


def where(program: Program, batch: int, place: RecordPlace) -> str:
    """A place in words, to follow a verb."""
    task = f"task {place.task} of batch {batch}"
    if not 0 <= place.operator < len(program.nodes):
        return f"in {task} (stage {place.level}), outside of any operator"
    node = program.nodes[place.operator]
    return f"in operator {node.name!r}, {_record(node.kind, place)} {task}"


def _record(kind: Kind, place: RecordPlace) -> str:
    if place.index == NOWHERE:
        return "before a record of" if kind is not Kind.STATEFUL else "on the keys of"
    if kind is Kind.STATEFUL:
        return f"at call {place.index} of"
    if kind is Kind.MAP_BATCHES:
        return f"at records {place.index} to {place.index + place.rows - 1} of"
    return f"at record {place.index} of"


def _follows(place: RecordPlace, other: RecordPlace) -> bool:
    """Whether a place may depend on another: it is in a later stage, or later in the same task."""
    if (place.level, place.gate) != (other.level, other.gate):
        return (place.level, place.gate) > (other.level, other.gate)
    return place.task == other.task and (place.step, place.index) > (other.step, other.index)
