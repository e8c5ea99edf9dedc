"""The groupings' knowledge of costs: learned from reports, and published to the tasks in numbered editions.

A plan names an edition, and an edition never changes, so a replayed batch routes records as before. An edition is saved before
a plan can name it. Learning has its own thread: no batch waits for it. A grouping that fails to learn retains its knowledge.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from springtide.control.ports import Clock
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.model.topology import Topology
from springtide.once import Once
from springtide.policy.group import Grouping, Learner, Route, State, Table
from springtide.policy.group.cost_key import Search

log = logging.getLogger("springtide.control")

Arrays = Mapping[str, npt.NDArray[Any]]

PUBLISH_GROWTH = 0.25
"""Publish an edition when the learned records have grown by this share: 30 editions for the first 50,000 records."""
PUBLISH_AFTER_S = 10.0
"""Publish any change after this long, because costs drift."""
COST_TOLERANCE = 0.02
"""Costs that differ by less than this share are equal: an edition costs the tasks a transfer."""
RETAINED_EDITIONS = 8
MAX_WAITING_REPORTS = 8


class EditionStore(Protocol):
    """Where editions are saved."""

    def save(self, edition: int, arrays: Arrays) -> None: ...

    def load(self, edition: int) -> Arrays | None: ...

    def latest(self) -> int:
        """The number of the last edition, 0 without any."""


@dataclass(frozen=True, eq=False)
class OperatorKnowledge:
    """The state of an operator's grouping, the grouping with its parameters, and the key."""

    grouping: str
    key: tuple[str, ...]
    state: State


Edition = Mapping[str, OperatorKnowledge]


class Routing:
    """The learning groupings of a run, and their knowledge."""

    def __init__(
        self, topology: Topology, groupings: Mapping[str, Grouping], store: EditionStore | None, clock: Clock = time.monotonic,
        *, wait: bool = False, keys: Mapping[str, tuple[str, ...]] | None = None, hashing: str = "",
    ) -> None:  # fmt: skip
        """``wait``: learn before ``report`` returns, as a simulator needs; ``keys``: instead of the topology's; ``hashing``:
        how keys are hashed, because knowledge by other hashes is of no use."""
        self._hashing = hashing
        self._learners: dict[str, Learner] = {name: g for name, g in groupings.items() if isinstance(g, Learner)}
        given = keys or {}
        self._given = {name: given.get(name) or topology[name].key or topology[name].by for name in groupings}
        self._store, self._clock, self._wait = store, clock, wait
        self._states: dict[str, State] = {name: learner.initial() for name, learner in self._learners.items()}
        self._keys: dict[str, tuple[str, ...]] = {n: k for n, k in self._given.items() if k or not self._by_key(n)}
        self._searches: dict[str, Search] = {name: Search() for name in self._learners if name not in self._keys}
        self._learned = self._published = 0.0
        self._published_at = clock()
        self._failing = Once()
        self._waiting = threading.BoundedSemaphore(MAX_WAITING_REPORTS)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-routing")
        self._closed = False
        self._editions: dict[int, Edition] = {}
        self.edition = 0
        self._restore()

    def report(self, report: BatchReport) -> None:
        """Learn from a batch, in the learning thread. Reports are dropped if they come faster than it learns."""
        if not self._learners or not (report.costs or report.variances):
            return
        if self._wait:
            self._learn(report)
        elif not self._closed and self._waiting.acquire(blocking=False):
            self._thread.submit(self._learn, report).add_done_callback(lambda _: self._waiting.release())

    def routes(self, plan: Plan) -> dict[str, Route]:
        """The data that upstream tasks need to route to each operator under this plan."""
        routes = {name: Route(key if key or not self._by_key(name) else None) for name, key in self._given.items()}
        for name, knowledge in self._recall(plan.knowledge).items():
            if self._fits(name, knowledge):
                routes[name] = Route(knowledge.key, self._table(name, knowledge.state, plan.widths.get(name, 1)))
        return routes

    def close(self) -> None:
        """Learn from the waiting reports, and save the knowledge for the next run."""
        self._closed = True
        self._thread.shutdown(wait=True)
        if self._learned > self._published:
            self._publish()

    def _by_key(self, name: str) -> bool:
        """Whether a grouping learns the costs of keys; others learn about their tasks alone, such as their utilisation."""
        return name in self._learners and getattr(self._learners[name], "by_key", True)

    def _learn(self, report: BatchReport) -> None:
        for name, learner in self._learners.items():
            costs = report.costs.get(name, ())
            try:
                self._find_key(name, report)
                if costs:
                    self._states[name] = learner.learn(self._states[name], report.plan.widths.get(name, 1), costs)
                    self._learned += sum(task.rows for task in costs)
            except Exception:  # noqa: BLE001  a grouping may raise anything; the others go on learning
                self._warn_once(name, "failed to learn; it retains its knowledge")
        if self._is_due(report.plan):
            self._publish()

    def _find_key(self, name: str, report: BatchReport) -> None:
        """Look for the column that determines the cost, until it is found or the search has failed."""
        if name in self._keys or name not in report.variances:
            return
        found = self._searches[name].add(report.variances[name])
        if found is None:
            return
        self._keys[name] = found.key
        log.info("operator %r: %s", name, found.reason)
        self._publish()

    def _is_due(self, plan: Plan) -> bool:
        """Whether an edition is worth its transfer: enough was learned, and it changes a table."""
        news = self._learned - self._published
        if not news or (news < PUBLISH_GROWTH * self._published and self._clock() - self._published_at < PUBLISH_AFTER_S):
            return False
        before = self._editions.get(self.edition, {})
        for name in (name for name in self._states if name in self._keys):
            width = plan.widths.get(name, 1)
            old = self._table(name, before[name].state, width) if name in before else {}
            if not _same(self._table(name, self._states[name], width), old):
                return True
        self._published, self._published_at = self._learned, self._clock()
        return False

    def _publish(self) -> None:
        number = self.edition + 1
        contents = {
            name: OperatorKnowledge(self._described(name), self._keys[name], state)
            for name, state in self._states.items()
            if name in self._keys
        }
        if self._store is not None:
            try:
                self._store.save(number, _flat(contents))
            except Exception as error:  # noqa: BLE001  a full disk, or a state without arrays, must not stop the run
                self._warn_once("", f"the groupings' knowledge cannot be saved ({error!r}); the last edition stays in force")
                return
        self._editions[number] = contents
        for old in sorted(self._editions)[:-RETAINED_EDITIONS]:
            del self._editions[old]
        self._published, self._published_at = self._learned, self._clock()
        self.edition = number

    def _table(self, name: str, state: State, width: int) -> Table:
        try:
            return self._learners[name].table(state, width)
        except Exception:  # noqa: BLE001
            self._warn_once(name, "failed to make its table; it routes without it")
            return {}

    def _warn_once(self, name: str, trouble: str) -> None:
        if self._failing.begins((name, trouble)):
            log.warning("%s%s", f"the grouping of operator {name!r} " if name else "", trouble, exc_info=bool(name))

    def _fits(self, name: str, knowledge: OperatorKnowledge) -> bool:
        """Whether the knowledge is by this grouping, with these parameters, and by this key."""
        own = name in self._learners and knowledge.grouping == self._described(name)
        return own and self._given[name] in ((), knowledge.key)

    def _described(self, name: str) -> str:
        """A grouping with its parameters, and how its keys are hashed."""
        grouping = repr(self._learners[name])
        return f"{grouping} {self._hashing}" if self._hashing and self._by_key(name) else grouping

    def _recall(self, edition: int) -> Edition:
        found = self._editions.get(edition)
        if found is not None or edition == 0:
            return found or {}
        arrays = self._store.load(edition) if self._store else None
        if arrays is None:  # nothing of that batch is committed, so its records may take other routes
            log.warning("edition %d of the groupings' knowledge is gone; its batch is routed without it", edition)
            return {}
        return _nested(arrays)

    def _restore(self) -> None:
        """Restore the last readable edition, as far as it fits. A search without a result starts again."""
        self.edition = last = self._store.latest() if self._store else 0
        for number in range(last, max(0, last - RETAINED_EDITIONS), -1):
            arrays = self._store.load(number) if self._store else None
            if arrays is None:
                continue
            self._editions[last] = {n: knowledge for n, knowledge in _nested(arrays).items() if self._fits(n, knowledge)}
            for name, knowledge in self._editions[last].items():
                if knowledge.key or not self._by_key(name):
                    self._states[name], self._keys[name] = knowledge.state, knowledge.key
            return


def _same(new: Table, old: Table) -> bool:
    """Whether two tables have the same keys, and nearly the same costs."""
    return new.keys() == old.keys() and all(_near(new[name], old[name]) for name in new)


def _near(new: npt.NDArray[Any], old: npt.NDArray[Any]) -> bool:
    if new.dtype.kind != "f" or new.shape != old.shape:
        return np.array_equal(new, old)
    return np.allclose(new, old, rtol=COST_TOLERANCE, atol=1e-12)


def _flat(contents: Edition) -> dict[str, npt.NDArray[Any]]:
    """All in one mapping of arrays, as in a file."""
    flat: dict[str, npt.NDArray[Any]] = {}
    for name, knowledge in contents.items():
        flat[f"{name}/"] = np.array([knowledge.grouping, *knowledge.key], dtype=np.str_)
        flat.update({f"{name}/{part}": array for part, array in knowledge.state.items()})
    return flat


def _nested(arrays: Arrays) -> dict[str, OperatorKnowledge]:
    contents: dict[str, OperatorKnowledge] = {}
    for name in (path[:-1] for path in arrays if path.endswith("/")):
        parts = {path.removeprefix(f"{name}/"): array for path, array in arrays.items() if path.startswith(f"{name}/")}
        grouping, *key = map(str, parts.pop(""))
        contents[name] = OperatorKnowledge(grouping, tuple(key), parts)
    return contents
