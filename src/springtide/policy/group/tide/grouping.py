"""Tide: Springtide's own grouping, by the expected costs of records.

From POSG it has the greedy scheduler and the sketches of costs by key. The differences:

- The reports of all replicas are merged, so a key has to be measured once, not once per replica; a replica differs from others
  by its speed factor only. Estimates are used from the first report on.
- The most expensive keys are stored exactly, each with its mean; the others share a Count-Min pair.
- A key's own mean counts in its estimate as far as keys differ more than the records of a key (Bühlmann and Straub,
  Glaubwürdigkeit für Schadensätze, 1970): where costs do not depend on the key, all estimates are the same, and records are
  routed in turn.
- Measurements age, by half every ``half_life`` records.
- A whole micro-batch is known at once, so its longest records are placed first. Record by record, an idle replica counts as
  free from now on, and every report corrects a replica's backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes, TaskCosts
from springtide.policy.group import GroupPlugin, Online, Share, State, Table, Targets, count_min
from springtide.policy.group.greedy import in_turn, longest_first
from springtide.policy.group.tide import online as tide_online
from springtide.policy.registry import parameter

Floats = npt.NDArray[np.float64]

SPEED_BATCHES = 20
"""Batches over which a replica's speed is averaged."""
SIGNIFICANT_ERRORS = 3.0
"""Ignore a replica's speed unless it differs from the others' by this many standard errors. Its records of a batch may be off
by a tenth, and a factor that follows that makes the next batch uneven."""

AGEING = ("weights", "seconds", "F", "W", "noise")
MIN_COST_S = 1e-6
"""Shorter times count as this: calling a function takes no less."""
EQUAL_SPREAD = 0.05
"""Costs with a smaller standard deviation, relative to their mean, count as equal, and records are routed in turn."""


@dataclass(frozen=True)
class Tide(GroupPlugin):
    """Routes each record to the target that is expected to be free first; the longest records come first.

    >>> tide = Tide()
    >>> seen = TaskCosts.of(0, np.array([1, 2, 3], dtype=np.uint64), np.array([0.030, 0.010, 0.020]))
    >>> table = tide.table(tide.learn(tide.initial(), 2, [seen]), 2)
    >>> tide.route(Share(3, width=2, hashes=lambda: np.array([2, 3, 1], dtype=np.uint64)), table).tolist()
    [1, 1, 0]
    """

    name = "tide"
    source = "Springtide"
    summary = "by expected cost, learned by key: the longest record first, to the task that is free first"

    half_life: float = parameter(
        100_000.0, unit="records", minimum=1, help="records after which the weight of a measurement is half"
    )
    exact: int = parameter(16_384, unit="keys", minimum=8, help="how many keys are stored exactly; the others are sketched")
    epsilon: float = parameter(0.005, minimum=1e-6, maximum=1, help="the sketch has e/epsilon columns")
    delta: float = parameter(0.1, minimum=1e-9, maximum=0.5, help="the sketch has log2(1/delta) rows")
    report_every: int = parameter(
        16, unit="records", minimum=1, help="record by record: how many a replica processes between two reports"
    )

    def route(self, share: Share, table: Table) -> Targets:
        if not table or not share.keyed or share.width == 1:
            return in_turn(share)
        costs = self._estimates(table, share.keys)
        return longest_first(costs, share, table["factors"])

    def initial(self) -> State:
        counted, summed = count_min.empty(self._rows, self._columns)
        none = np.zeros(0)
        return {
            "keys": np.zeros(0, dtype=np.uint64), "weights": none, "seconds": none,  # the exact ones
            "F": counted, "W": summed,  # the others
            "noise": np.zeros(2),  # squared deviations of records from their key's mean, and their number
            "speed": none, "speed_squared": none, "batches": none,  # of each replica: log(seconds / expected), on average
        }  # fmt: skip

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        tasks = [task for task in costs if task.rows > 0 and 0 <= task.task < width]
        if not tasks:
            return state
        aged = self._aged(state, sum(task.rows for task in tasks))
        speeds = _speeds(state, width, tasks)
        factors = _factors(speeds, width)
        keys, places = np.unique(np.concatenate([task.keys for task in tasks]), return_inverse=True)
        counts = _sums(places, [task.counts for task in tasks])
        seconds = _sums(places, [task.seconds / factors[task.task] for task in tasks])
        noise = aged["noise"] + _surprise(state, keys, counts, seconds)
        return self._bounded({**aged, **speeds, **_added(aged, keys, counts, seconds), "noise": noise})

    def table(self, state: State, width: int) -> Table:
        if not len(state["keys"]):
            return {}
        costs, prior = _believed(state)
        factors = _factors(state, width)
        if max(_spread(costs, state["weights"]), _spread(factors, np.ones(width))) < EQUAL_SPREAD:
            return {}
        table = {"keys": state["keys"], "costs": costs.astype(np.float32), "prior": np.array([prior]), "factors": factors}
        if state["F"].any():
            table |= {"F": state["F"].astype(np.float32), "W": state["W"].astype(np.float32)}
        return table

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        state = tide_online.begin(k, self.exact, self._rows, self._columns, self.half_life, self.report_every, before)
        return Online(state, tide_online.choose, tide_online.completed)

    @property
    def _rows(self) -> int:
        return count_min.rows(self.delta)

    @property
    def _columns(self) -> int:
        return count_min.columns(self.epsilon)

    def _places(self, keys: Hashes) -> count_min.Cells:
        return count_min.cells(count_min.row_hashes(self._rows, seed=0), self._columns, keys)

    def _estimates(self, table: Table, keys: Hashes) -> Floats:
        """The expected cost of each record."""
        costs: Floats = np.full(len(keys), table["prior"][0])
        at, known = _found(table["keys"], keys)
        costs[known] = table["costs"][at[known]]
        if "F" in table and not known.all():
            rest = ~known
            costs[rest] = count_min.estimate(table["F"], table["W"], self._places(keys[rest]), table["prior"][0])
        return costs

    def _aged(self, state: State, records: int) -> dict[str, Any]:
        """The state, aged by this many records."""
        decay = 0.5 ** (records / self.half_life)
        return {name: values * decay if name in AGEING else values for name, values in state.items()}

    def _bounded(self, state: dict[str, Any]) -> State:
        """Above the limit of exact keys, the cheapest of them move into the sketch, a tenth at a time."""
        if len(state["keys"]) <= self.exact:
            return state
        excess = len(state["keys"]) - self.exact * 9 // 10
        moved = np.argpartition(state["seconds"], excess)[:excess]
        counted, summed = state["F"].copy(), state["W"].copy()
        count_min.update(counted, summed, self._places(state["keys"][moved]), state["weights"][moved], state["seconds"][moved])
        exact = {name: np.delete(state[name], moved) for name in ("keys", "weights", "seconds")}
        return {**state, **exact, "F": counted, "W": summed}


def _sums(places: npt.NDArray[np.int64], parts: Sequence[npt.NDArray[Any]]) -> Floats:
    return np.bincount(places, np.concatenate(parts)).astype(np.float64)


def _found(known: Hashes, keys: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where each key is among the known ones, which are in order, and whether it is."""
    if not len(known):
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return at, known[at] == keys


def _log_means(seconds: Floats, weights: Floats) -> Floats:
    return np.log(np.maximum(seconds / np.maximum(weights, 1e-9), MIN_COST_S))


def _added(state: State, keys: Hashes, counts: Floats, seconds: Floats) -> dict[str, Any]:
    """The exact keys with these records added, still in order.

    A key's mean is the geometric mean of its reports: otherwise a record that a pause of its worker delays for a second
    would make its key seem expensive for a long time.
    """
    at, known = _found(state["keys"], keys)
    weights, sums = state["weights"].copy(), state["seconds"].copy()
    weights[at[known]] += counts[known]
    lean = counts[known] / weights[at[known]]
    logs = (1 - lean) * _log_means(state["seconds"], state["weights"])[at[known]]
    logs += lean * _log_means(seconds[known], counts[known])
    sums[at[known]] = np.exp(logs) * weights[at[known]]
    new = ~known
    place = np.searchsorted(state["keys"], keys[new])
    return {
        "keys": np.insert(state["keys"], place, keys[new]),
        "weights": np.insert(weights, place, counts[new]),
        "seconds": np.insert(sums, place, seconds[new]),
    }


def _surprise(state: State, keys: Hashes, counts: Floats, seconds: Floats) -> Floats:
    """The deviations of known keys' records from their key's mean: squares, as of single records, and the number of keys.

    A mean of n records differs from one of w records by a variance of σ²(1/n + 1/w). All in logarithms, so that a record
    that took a hundred times as long does not outweigh all others.
    """
    at, known = _found(state["keys"], keys)
    weights = np.maximum(state["weights"][at[known]], 1e-9)
    off = _log_means(seconds[known], counts[known]) - _log_means(state["seconds"], state["weights"])[at[known]]
    return np.array([float((off**2 / (1 / counts[known] + 1 / weights)).sum()), float(known.sum())])


def _believed(state: State) -> tuple[Floats, float]:
    """The expected cost of a record of each exact key, and of a record of a new key."""
    prior, credit = _credibility(state)
    return (state["seconds"] + credit * prior) / (state["weights"] + credit), prior


def _credibility(state: State) -> tuple[float, float]:
    """The mean of the keys' means, and the records that a key needs for its own mean to count as much as that.

    κ = σ² within a key / variance between keys. The keys' means vary by the latter and by σ²/w.
    """
    logs = _log_means(state["seconds"], state["weights"])
    prior = float(np.exp(logs).mean())
    squares, count = state["noise"]
    if count < 1 or len(logs) < 2:
        return prior, 0.0
    within = squares / count
    between = float(logs.var()) - within * float((1 / np.maximum(state["weights"], 1.0)).mean())
    return prior, min(within / between, 1e9) if between > 0 else 1e9


def _spread(values: Floats, weights: Floats) -> float:
    """The standard deviation over the mean."""
    mean = float(np.average(values, weights=weights))
    return float(np.average((values - mean) ** 2, weights=weights) ** 0.5 / mean) if mean > 0 else 0.0


def _speeds(state: State, width: int, tasks: Sequence[TaskCosts]) -> dict[str, Floats]:
    """How much longer than expected each replica took, relative to the others, averaged over the last batches."""
    names = ("speed", "speed_squared", "batches")
    mean, squared, batches = (_resized(state[name], width) for name in names)
    if len(state["keys"]):
        costs, _ = _believed(state)
        took, thought = np.zeros(width), np.zeros(width)
        for task in tasks:
            at, known = _found(state["keys"], task.keys)
            took[task.task] += task.seconds[known].sum()
            thought[task.task] += task.counts[known] @ costs[at[known]]
        seen = np.flatnonzero((took > 0) & (thought > 0))
        if len(seen) > 1:
            off = np.log(took[seen] / thought[seen])
            off -= off.mean()
            batches[seen] = np.minimum(batches[seen] + 1, SPEED_BATCHES)
            mean[seen] += (off - mean[seen]) / batches[seen]
            squared[seen] += (off**2 - squared[seen]) / batches[seen]
    return dict(zip(names, (mean, squared, batches), strict=True))


def _resized(values: Floats, width: int) -> Floats:
    sized = np.zeros(width)
    sized[: min(width, len(values))] = values[:width]
    return sized


def _factors(state: State, width: int) -> Floats:
    """Each replica's speed factor: 1 unless it was significantly slower or faster than the others."""
    mean, squared, batches = (_resized(state[name], width) for name in ("speed", "speed_squared", "batches"))
    error = np.sqrt(np.maximum(squared - mean**2, 0.0) / np.maximum(batches, 1.0))
    sure = (batches >= SPEED_BATCHES / 2) & (np.abs(mean) > SIGNIFICANT_ERRORS * error)
    factors = np.exp(np.clip(np.where(sure, mean, 0.0), -2.3, 2.3))
    return np.asarray(factors / factors.mean())
