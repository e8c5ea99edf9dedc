"""What groupings know of the costs: learned from the reports, and handed to the tasks in numbered editions.

A plan names an edition, and an edition never changes, so a batch that is replayed routes as it did. An edition is saved
before a plan can name it. Learning has a thread of its own: no batch waits for it, and a grouping that fails to learn
keeps what it knew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from springtide.control.ports import Clock
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.model.topology import Topology
from springtide.policy.group import Grouping, Learner, Route, State, Table
from springtide.policy.group.cost_key import NOTHING, Variance, choose

log = logging.getLogger("springtide.control")

Arrays = Mapping[str, npt.NDArray[Any]]

GROWTH = 0.25
"""A new edition pays when so much more was learned than by the last one: 30 editions for the first 50,000 records."""
OLDEST_S = 10.0
"""After so long, a new edition pays for whatever changed: costs drift."""
SAME = 0.02
"""Tables that differ by less than this are the same: an edition costs the tasks a transfer."""
LOOKED_AT = 20_000
"""Records after which the search for the column that drives the cost is given up."""
KEPT = 4
WAITING = 8


class Store(Protocol):
    """Where editions outlive the run."""

    def save(self, edition: int, arrays: Arrays) -> None: ...

    def load(self, edition: int) -> Arrays | None: ...

    def latest(self) -> int:
        """The number of the last edition, 0 if there is none."""
        ...


class Routing:
    """The groupings of one run that learn, and what they know."""

    def __init__(
        self, topology: Topology, groupings: Mapping[str, Grouping], store: Store | None, clock: Clock, *,
        wait: bool = False, keys: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        """``wait``: learn before ``report`` returns, as a simulator wants; ``keys``: instead of the topology's."""
        self._learners: dict[str, Learner] = {name: g for name, g in groupings.items() if isinstance(g, Learner)}
        given = keys or {}
        self._given = {name: given.get(name) or topology[name].key or topology[name].by for name in groupings}
        self._store, self._clock, self._wait = store, clock, wait
        self._states: dict[str, State] = {name: learner.initial() for name, learner in self._learners.items()}
        self._keys: dict[str, tuple[str, ...]] = {name: key for name, key in self._given.items() if key}
        self._columns: dict[str, dict[str, Variance]] = {}
        self._learned = self._published = 0.0
        self._published_at = clock()
        self._failing: set[str] = set()
        self._waiting = threading.BoundedSemaphore(WAITING)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-routing")
        self._editions: dict[int, Mapping[str, tuple[tuple[str, ...], State]]] = {}
        self._closed = False
        self.edition = 0
        self._restore()

    def report(self, report: BatchReport) -> None:
        """Learn from a batch, soon. When reports come faster than they are learned from, some are left out."""
        if not self._learners or not (report.costs or report.variances):
            return
        if self._wait:
            self._learn(report)
        elif not self._closed and self._waiting.acquire(blocking=False):
            self._thread.submit(self._learn, report).add_done_callback(lambda _: self._waiting.release())

    def routes(self, plan: Plan) -> dict[str, Route]:
        """What upstream tasks need to route to each operator under this plan."""
        routes = {name: Route(key or (None if name in self._learners else ())) for name, key in self._given.items()}
        for name, (key, state) in self._recall(plan.knowledge).items():
            if name in self._learners:
                routes[name] = Route(key, self._table(name, state, plan.widths.get(name, 1)))
        return routes

    def close(self) -> None:
        """Learn what is left to learn, and save it for the next run."""
        self._closed = True
        self._thread.shutdown(wait=True)
        if self._learned > self._published:
            self._publish()

    def _learn(self, report: BatchReport) -> None:
        for name, learner in self._learners.items():
            try:
                self._find_key(name, report)
                costs = report.costs.get(name, ())
                if costs:
                    self._states[name] = learner.learn(self._states[name], report.plan.widths.get(name, 1), costs)
                    self._learned += sum(task.rows for task in costs)
                self._failing.discard(name)
            except Exception:  # a grouping is anybody's code; whatever it raises must not end the learning of others
                if name not in self._failing:
                    log.exception("the grouping of operator %r failed to learn; it keeps what it knew", name)
                self._failing.add(name)
        if self._is_due():
            self._publish()

    def _find_key(self, name: str, report: BatchReport) -> None:
        """Add up what each column explains, until one explains enough."""
        if name in self._keys or name not in report.variances:
            return
        sums = self._columns.setdefault(name, {})
        for column, more in report.variances[name].items():
            sums[column] = sums.get(column, NOTHING).plus(Variance(*more))
        found = choose(sums)
        seen = max((one.records for one in sums.values()), default=0)
        if found is not None:
            column, share = found
            log.info("operator %r: column %r explains %.0f %% of its records' costs", name, column, 100 * share)
            self._keys[name] = (column,)
            self._publish()
        elif seen >= LOOKED_AT:
            log.info("operator %r: no column explains its records' costs; they are dealt out in turn", name)
            self._keys[name] = ()
            self._publish()

    def _is_due(self) -> bool:
        news = self._learned - self._published
        if not news or (news < GROWTH * self._published and self._clock() - self._published_at < OLDEST_S):
            return False
        before = self._editions.get(self.edition, {})
        for name, state in self._states.items():
            if name not in before or not _same(self._table(name, state, 1), self._table(name, before[name][1], 1)):
                return True
        self._published, self._published_at = self._learned, self._clock()
        return False

    def _publish(self) -> None:
        number = self.edition + 1
        contents = {name: (self._keys[name], state) for name, state in self._states.items() if name in self._keys}
        if self._store is not None:
            try:
                self._store.save(number, _flat(contents))
            except OSError as error:  # a full disk must not stop the run
                log.warning("what groupings learned cannot be saved (%s); the last edition stays in force", error)
                return
        self._editions[number] = contents
        for old in sorted(self._editions)[:-KEPT]:
            del self._editions[old]
        self._published, self._published_at = self._learned, self._clock()
        self.edition = number

    def _table(self, name: str, state: State, width: int) -> Table:
        try:
            return self._learners[name].table(state, width)
        except Exception:
            log.exception("the grouping of operator %r cannot tell what it knows; it starts from nothing", name)
            return {}

    def _recall(self, edition: int) -> Mapping[str, tuple[tuple[str, ...], State]]:
        if edition in self._editions or edition == 0:
            return self._editions.get(edition, {})
        arrays = self._store.load(edition) if self._store else None
        if arrays is None:  # nothing of that batch was committed, so another route is as good
            log.warning("edition %d of what groupings learned is gone; its batch is routed without it", edition)
            return {}
        return _nested(arrays)

    def _restore(self) -> None:
        """Go on from the last edition, as far as it fits."""
        last = self._store.latest() if self._store else 0
        if not last:
            return
        self.edition = last
        contents = self._recall(last)
        self._editions[last] = contents
        for name, (key, state) in contents.items():
            if name in self._learners and self._given[name] in ((), key) and state.keys() == self._states[name].keys():
                self._states[name] = state
                self._keys.setdefault(name, key)


def _same(one: Table, other: Table) -> bool:
    if one.keys() != other.keys():
        return False
    return all(
        one[name].shape == other[name].shape and np.allclose(one[name], other[name], rtol=SAME, atol=1e-12) for name in one
    )


def _flat(contents: Mapping[str, tuple[tuple[str, ...], State]]) -> dict[str, npt.NDArray[Any]]:
    """Everything in one mapping of arrays, as a file holds it."""
    flat: dict[str, npt.NDArray[Any]] = {}
    for name, (key, state) in contents.items():
        flat[f"{name}/"] = np.array(key, dtype=np.str_)
        flat.update({f"{name}/{part}": array for part, array in state.items()})
    return flat


def _nested(arrays: Arrays) -> dict[str, tuple[tuple[str, ...], State]]:
    contents: dict[str, tuple[tuple[str, ...], State]] = {}
    for name in (path[:-1] for path in arrays if path.endswith("/")):
        parts = {path.removeprefix(f"{name}/"): array for path, array in arrays.items() if path.startswith(f"{name}/")}
        contents[name] = (tuple(map(str, parts.pop(""))), parts)
    return contents
