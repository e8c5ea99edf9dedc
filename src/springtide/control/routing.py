"""What groupings know of the costs: learned from the reports, and handed to the tasks in numbered editions.

A plan names an edition, and an edition never changes, so a batch that is replayed routes as it did. An edition is saved
before a plan can name it. Learning has a thread of its own: no batch waits for it, and a grouping that fails to learn
keeps what it knew.
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

GROWTH = 0.25
"""A new edition pays when so much more was learned than by the last one: 30 editions for the first 50,000 records."""
OLDEST_S = 10.0
"""After so long, a new edition pays for whatever changed: costs drift."""
SAME = 0.02
"""Tables that differ by less than this are the same: an edition costs the tasks a transfer."""
KEPT = 8
WAITING = 8


class Store(Protocol):
    """Where editions outlive the run."""

    def save(self, edition: int, arrays: Arrays) -> None: ...

    def load(self, edition: int) -> Arrays | None: ...

    def latest(self) -> int:
        """The number of the last edition, 0 if there is none."""
        ...


@dataclass(frozen=True, eq=False)
class Known:
    """What one operator's grouping knows, and whose knowledge it is: the grouping with its parameters, and the key."""

    grouping: str
    key: tuple[str, ...]
    state: State


Edition = Mapping[str, Known]


class Routing:
    """The groupings of one run that learn, and what they know."""

    def __init__(
        self, topology: Topology, groupings: Mapping[str, Grouping], store: Store | None, clock: Clock = time.monotonic, *,
        wait: bool = False, keys: Mapping[str, tuple[str, ...]] | None = None, hashing: str = "",
    ) -> None:  # fmt: skip
        """``wait``: learn before ``report`` returns, as a simulator wants; ``keys``: instead of the topology's; ``hashing``:
        how keys are hashed, as what was learned by other hashes is of no use."""
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
        self._waiting = threading.BoundedSemaphore(WAITING)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="springtide-routing")
        self._closed = False
        self._editions: dict[int, Edition] = {}
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
        routes = {name: Route(key if key or not self._by_key(name) else None) for name, key in self._given.items()}
        for name, known in self._recall(plan.knowledge).items():
            if self._fits(name, known):
                routes[name] = Route(known.key, self._table(name, known.state, plan.widths.get(name, 1)))
        return routes

    def close(self) -> None:
        """Learn what is left to learn, and save it for the next run."""
        self._closed = True
        self._thread.shutdown(wait=True)
        if self._learned > self._published:
            self._publish()

    def _by_key(self, name: str) -> bool:
        """Whether a grouping learns what keys cost; others, such as by utilisation, learn of their tasks alone."""
        return name in self._learners and getattr(self._learners[name], "by_key", True)

    def _learn(self, report: BatchReport) -> None:
        for name, learner in self._learners.items():
            costs = report.costs.get(name, ())
            try:
                self._find_key(name, report)
                if costs:
                    self._states[name] = learner.learn(self._states[name], report.plan.widths.get(name, 1), costs)
                    self._learned += sum(task.rows for task in costs)
            except Exception:  # noqa: BLE001  a grouping is anybody's code; it must not end the learning of others
                self._tell_once(name, "failed to learn; it keeps what it knew")
        if self._is_due(report.plan):
            self._publish()

    def _find_key(self, name: str, report: BatchReport) -> None:
        """Look for the column that drives the cost, until one is found or none can be."""
        if name in self._keys or name not in report.variances:
            return
        found = self._searches[name].add(report.variances[name])
        if found is None:
            return
        self._keys[name] = found.key
        log.info("operator %r: %s", name, found.reason)
        self._publish()

    def _is_due(self, plan: Plan) -> bool:
        """Whether so much was learned that the tasks should know, and it makes a difference to them."""
        news = self._learned - self._published
        if not news or (news < GROWTH * self._published and self._clock() - self._published_at < OLDEST_S):
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
            name: Known(self._described(name), self._keys[name], state)
            for name, state in self._states.items()
            if name in self._keys
        }
        if self._store is not None:
            try:
                self._store.save(number, _flat(contents))
            except Exception as error:  # noqa: BLE001  a full disk, or a state that is no arrays, must not stop the run
                self._tell_once("", f"what groupings learned cannot be saved ({error!r}); the last edition stays in force")
                return
        self._editions[number] = contents
        for old in sorted(self._editions)[:-KEPT]:
            del self._editions[old]
        self._published, self._published_at = self._learned, self._clock()
        self.edition = number

    def _table(self, name: str, state: State, width: int) -> Table:
        try:
            return self._learners[name].table(state, width)
        except Exception:  # noqa: BLE001
            self._tell_once(name, "cannot tell what it knows; it routes without it")
            return {}

    def _tell_once(self, name: str, trouble: str) -> None:
        if self._failing.begins((name, trouble)):
            log.warning("%s%s", f"the grouping of operator {name!r} " if name else "", trouble, exc_info=bool(name))

    def _fits(self, name: str, known: Known) -> bool:
        """Whether what is known is of this grouping, with these parameters, and by this key."""
        own = name in self._learners and known.grouping == self._described(name)
        return own and self._given[name] in ((), known.key)

    def _described(self, name: str) -> str:
        """A grouping with its parameters, and how the keys are hashed that it learns by."""
        grouping = repr(self._learners[name])
        return f"{grouping} {self._hashing}" if self._hashing and self._by_key(name) else grouping

    def _recall(self, edition: int) -> Edition:
        found = self._editions.get(edition)
        if found is not None or edition == 0:
            return found or {}
        arrays = self._store.load(edition) if self._store else None
        if arrays is None:  # nothing of that batch was committed, so another route is as good
            log.warning("edition %d of what groupings learned is gone; its batch is routed without it", edition)
            return {}
        return _nested(arrays)

    def _restore(self) -> None:
        """Go on from the last edition that can be read, as far as it fits. A search that found nothing begins anew."""
        self.edition = last = self._store.latest() if self._store else 0
        for number in range(last, max(0, last - KEPT), -1):
            arrays = self._store.load(number) if self._store else None
            if arrays is None:
                continue
            self._editions[last] = {n: known for n, known in _nested(arrays).items() if self._fits(n, known)}
            for name, known in self._editions[last].items():
                if known.key or not self._by_key(name):
                    self._states[name], self._keys[name] = known.state, known.key
            return


def _same(one: Table, other: Table) -> bool:
    """Whether two tables route all but alike: the same keys, and costs that are nearly the same."""
    if one.keys() != other.keys():
        return False
    return all(one[name].shape == other[name].shape and _near(one[name], other[name]) for name in one)


def _near(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    whole = one.dtype.kind != "f"
    return bool((one == other).all()) if whole else np.allclose(one, other, rtol=SAME, atol=1e-12)


def _flat(contents: Edition) -> dict[str, npt.NDArray[Any]]:
    """Everything in one mapping of arrays, as a file holds it."""
    flat: dict[str, npt.NDArray[Any]] = {}
    for name, known in contents.items():
        flat[f"{name}/"] = np.array([known.grouping, *known.key], dtype=np.str_)
        flat.update({f"{name}/{part}": array for part, array in known.state.items()})
    return flat


def _nested(arrays: Arrays) -> dict[str, Known]:
    contents: dict[str, Known] = {}
    for name in (path[:-1] for path in arrays if path.endswith("/")):
        parts = {path.removeprefix(f"{name}/"): array for path, array in arrays.items() if path.startswith(f"{name}/")}
        grouping, *key = map(str, parts.pop(""))
        contents[name] = Known(grouping, tuple(key), parts)
    return contents
