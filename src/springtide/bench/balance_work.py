"""The records, costs and operators of ``springtide bench balance``, which run in Spark's tasks for every contender."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.apps import tweets
from springtide.policy.group import GroupPlugin, Share, Table, Targets
from springtide.policy.group.greedy import longest_first

POSG_ITEMS, POSG_COSTS_MS = 4_096, range(1, 65)
CONSTANT_MS = 16.0


@dataclass(frozen=True)
class Item:
    """A record: its key and its cost. Only the work itself and ``lpt-true`` use the cost."""

    key: int
    seconds: float


def wait(item: Item) -> Item:
    """An external call: the task occupies its slot, but no core."""
    time.sleep(item.seconds)
    return item


def burn(item: Item) -> Item:
    """Burn CPU time of this thread."""
    end = time.thread_time() + item.seconds
    while time.thread_time() < end:
        pass
    return item


WORK: dict[str, Callable[[Item], Item]] = {"wait": wait, "cpu": burn}


def spark_task(work: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The operator as a user of ``mapInArrow`` writes it. It returns a single row with the times of its task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begin, done, rows = time.perf_counter(), 0.0, 0
        started = time.time()
        for batch in batches:
            for key, seconds in zip(*(batch.column(name).to_pylist() for name in ("key", "seconds")), strict=True):
                WORK[work](Item(key, seconds))
                done += time.time()
                rows += 1
        busy = time.perf_counter() - begin
        yield pa.RecordBatch.from_pydict({"started": [started], "busy": [busy], "done": [done], "rows": [rows]})

    return run


TASK_SCHEMA = "started double, busy double, done double, rows long"


@dataclass(frozen=True)
class LptTrue(GroupPlugin):
    """Longest processing time first, with the true costs: a bound for groupings that have to learn them."""

    name = "lpt-true"
    source = "Graham 1969"
    summary = "the longest record first, by its true cost: a bound"

    def route(self, share: Share, table: Table) -> Targets:
        assert share.records is not None
        return longest_first(share.records.column("seconds").to_numpy(), share, np.ones(share.width))


@dataclass(frozen=True)
class KeyCosts:
    """The probability of each key, and its cost in seconds."""

    chances: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]

    def drawn(self, rows: int, rng: np.random.Generator) -> pa.Table:
        keys = rng.choice(len(self.chances), rows, p=self.chances)
        return pa.table({"key": keys.astype(np.int64), "seconds": self.seconds[keys]})


def stream(costs: str, divided_by: float, rng: np.random.Generator) -> KeyCosts:
    """Keys and costs. POSG: 4,096 items by Zipf-1.0, 1 to 64 ms; tweets: by the entity's kind; constant: 16 ms an item."""
    if costs == "tweets":
        seconds = np.array([tweets.WAIT_S[tweets.kind_of(entity)] for entity in range(tweets.ENTITIES)])
        return KeyCosts(_zipf(tweets.ENTITIES, tweets.EXPONENT), seconds / divided_by)
    chances = _zipf(POSG_ITEMS, 1.0)
    if costs == "constant":
        return KeyCosts(chances, np.full(POSG_ITEMS, CONSTANT_MS / 1000 / divided_by))
    each = np.repeat(np.array(POSG_COSTS_MS) / 1000, POSG_ITEMS // len(POSG_COSTS_MS))
    return KeyCosts(chances, rng.permutation(each) / divided_by)


def _zipf(size: int, exponent: float) -> npt.NDArray[np.float64]:
    weights = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())
