"""How many records a batch may read: a backlog is worked off in batches that meet the target, not in one.

The time of a batch of n records is taken as F + c·n: F is what every batch costs (planning, stages, commit),
c what a record adds. Both are learned from the batches that ran.

**The limit.** A record that comes just after a batch has started waits for that batch to end, and then goes
through its own. With both as large as allowed it takes 2·(F + c·n). So n is the most with 2·(F + c·n) ≤ share
· target: one batch may take half of the target, less a margin for what the estimate does not know. Without a
backlog a batch reads what has come and the limit plays no part; so the rule need not know whether there is
one.

**Progress.** A small batch spends its time on F. When F alone comes near half of the target the rule above
would ask for batches of hardly a record, and the backlog would grow for ever: the target would be missed by
more with every batch. Records leave in order, so while there is a backlog throughput serves the target better
than short batches. So a share e of a batch's time goes to records, c·n / (F + c·n) ≥ e, which is n ≥ e/(1 −
e) · F/c, and throughput is at least e/c. e = 0.3 makes no batch longer than 1.43·F. Where the rate of arrival
λ is known, e is at least 1.25·λ·c, a quarter more than keeps up, so that a backlog shrinks; and at most 0.9,
for what is left to win beyond is for more replicas to bring.

**Caution.** The limit is never above four times the largest batch seen (which counts 1 % less with every
later batch), and after a batch that was too long for the target never above 1.25 times that batch; only
``first`` is always allowed. Nor does c move further than fourfold at once. A wrong estimate then costs one
batch four times too long, which teaches the truth; without the guard, ten quiet batches with c ≈ 0 by chance
let the next one swallow a backlog of a million records.

**Change.** Batches of equal size cannot tell a larger F from a larger c, and under a backlog all are as large
as the limit. So a batch that stalls counts for little, but three in a row that all took 1.5 times longer than
foretold, or shorter, mean that the world changed (degrees did, most likely): what came before is forgotten,
and F and c both change by the factor that the three show. With the older batches kept, a sixteenfold slowdown
was put down to F and the limit grew: the longest batch took 46 s in simulation, and 13 s with this rule,
which is what the first slow batch takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError

State = Mapping[str, Any]
Batches = Sequence[tuple[int, float]]
"""Of each batch, in the order in which they ran: records, seconds."""

_Array = npt.NDArray[np.float64]

_MAX_BATCHES = 30  # limits the batches of an estimate
_HALF_LIFE = 5.0  # batches after which the weight of a batch is half
_MAX_GROWTH = 4.0  # limits n, relative to the largest batch, and the change of c
_MAX_GROWTH_WHEN_LATE = 1.25  # limits n, relative to a batch that was too long for the target
_MAX_EFFICIENCY = 0.9
_HEADROOM = 1.25
_IN_A_ROW = 3
_CHANGED = 1.5
_FEW = 5
_FLOOR_QUANTILE = 0.1
_MAX_ROWS, _MIN_SECONDS, _MAX_SECONDS = 10**12, 1e-6, 1e6  # beyond these a measurement is an error


@dataclass(frozen=True)
class ReadLimit:
    """The most records that a batch may read.

    ``target_s``: the latency that a record should keep, in seconds; None sets no limit. ``share``: how much
    of the target may be planned for. ``first``: the limit in records before any batch was measured.
    ``minimum``: the least limit, in records. ``efficiency``: the least share of a batch's time that goes to
    records.

    A batch of 0.2 s and 1 ms a record, with a target of 2 s: 2·(0.2 + 0.001·n) ≤ 0.8·2 allows 600 records.

    >>> rule = ReadLimit(target_s=2.0)
    >>> state, limit = rule.decide(rule.initial(), [])
    >>> limit
    1000
    >>> for _ in range(8):
    ...     state, limit = rule.decide(state, [(limit, 0.2 + 0.001 * limit)])
    >>> 590 < limit < 610
    True
    """

    target_s: float | None
    share: float = 0.8
    first: int = 1_000
    minimum: int = 1
    efficiency: float = 0.3

    def __post_init__(self) -> None:
        if self.target_s is not None and not 0 < self.target_s < math.inf:
            raise OptionError(f"target_s={self.target_s} of a read limit: give seconds above 0, or None for no limit")
        if not (0 < self.share <= 1 and 0 <= self.efficiency <= _MAX_EFFICIENCY):
            raise OptionError(
                f"share={self.share}, efficiency={self.efficiency} of a read limit: share is above 0"
                f" and at most 1, efficiency from 0 to {_MAX_EFFICIENCY}"
            )
        if not 1 <= self.minimum <= self.first:
            raise OptionError(f"minimum={self.minimum}, first={self.first} of a read limit: 1 ≤ minimum ≤ first")

    def initial(self) -> State:
        """The state before the first batch."""
        return {"recent": [], "largest": 0.0, "fixed_s": None, "per_record_s": None}

    def decide(self, state: State, batches: Batches, rate: float | None = None, wider: float = 1.0) -> tuple[State, int | None]:
        """The new state, and the most records that a batch may read, None for no limit.

        ``batches``: those that ended since the last decision; what cannot be a measurement (none or less,
        NaN, infinite) is ignored. ``rate``: records/s arriving, None where it is not known. ``wider``: the next batches
        run in so many times as many tasks as those did.
        """
        fresh = _sound(batches)
        if fresh:
            state = _learned(state, fresh)
        state = _widened(state, wider)
        return state, None if self.target_s is None else self._limit(state, rate)

    def _limit(self, state: State, rate: float | None) -> int:
        fixed, each = state.get("fixed_s"), state.get("per_record_s")
        if fixed is None or each is None:
            return self.first
        assert self.target_s is not None
        allowed_s = self.share * self.target_s / 2
        busy = self._efficiency(each, rate)
        progress = busy / (1 - busy) * fixed / each
        last, took_s = state["recent"][-1]
        cap = max(self.first, _MAX_GROWTH * state["largest"] if took_s <= 1.1 * allowed_s else _MAX_GROWTH_WHEN_LATE * last)
        return max(self.minimum, int(min(max((allowed_s - fixed) / each, progress), cap)))

    def _efficiency(self, each: float, rate: float | None) -> float:
        if rate is None or not 0 <= rate < math.inf:
            return self.efficiency
        return min(max(self.efficiency, _HEADROOM * rate * each), _MAX_EFFICIENCY)


def _widened(state: State, factor: float) -> State:
    """What was learned, for batches that run in so many times as many tasks: what is of records takes that much less.

    With three times the executors, a limit from before would leave two of three idle until batches have told.
    """
    fixed, each = state.get("fixed_s"), state.get("per_record_s")
    if fixed is None or each is None or factor == 1.0:
        return state
    recent = [[n, fixed + (t - fixed) / factor if t > fixed else t] for n, t in state["recent"]]
    return {**state, "recent": recent, "per_record_s": each / factor}


def floor_s(batches: Batches) -> float | None:
    """What a batch takes, in seconds, however few its records: no target below it can be met.

    None with fewer than five batches. The 10 % quantile of the times less c·n: low, as warm-up and stalls are
    above the floor, and not the least, as a clock may err. c counts only as far as batches of different sizes
    show it; with one size, the floor is what no batch undercut.

    >>> floor_s([(n, 0.3 + 0.001 * n) for n in (100, 200, 400, 300, 800, 500)]) > 0.28
    True
    """
    recent = np.array(_sound(batches), dtype=np.float64).reshape(-1, 2)
    if len(recent) < _FEW:
        return None
    rows, times = recent.T
    _, each = _fit(rows, times, np.ones(len(rows)), 0.0, float(np.median(times / rows)))
    return float(max(0.0, np.quantile(times - each * rows, _FLOOR_QUANTILE)))


def _sound(batches: Batches) -> list[tuple[int, float]]:
    """The batches whose numbers can be true."""
    return [(int(n), float(t)) for n, t in batches if 1 <= n <= _MAX_ROWS and _MIN_SECONDS <= t <= _MAX_SECONDS]


def _learned(state: State, fresh: list[tuple[int, float]]) -> State:
    """The state after some more batches."""
    largest = float(state.get("largest", 0.0))
    for n, _ in fresh:
        largest = max(float(n), 0.99 * largest)
    recent = [*state.get("recent", ()), *([n, t] for n, t in fresh)][-_MAX_BATCHES:]
    rows, times = np.array(recent, dtype=np.float64).T
    prior = float(np.median(times / rows))  # at first, all time is put down to records
    if state.get("per_record_s") is not None:
        change = _change(state, rows, times)
        prior = state["per_record_s"] * change
        if change != 1.0:
            recent, rows, times = recent[-_IN_A_ROW:], rows[-_IN_A_ROW:], times[-_IN_A_ROW:]
    weights = 0.5 ** (np.arange(len(rows))[::-1] / _HALF_LIFE)
    fixed, each = _fit(rows, times, weights, prior, prior)
    # Below a hundredth of a batch's time c decides nothing: the cap does. From 0 it could never rise again.
    lowest = 0.01 * float(np.median(times)) / largest
    each = max(lowest, min(max(each, prior / _MAX_GROWTH), prior * _MAX_GROWTH))
    return {"recent": recent, "largest": largest, "fixed_s": fixed, "per_record_s": each}


def _change(state: State, rows: _Array, times: _Array) -> float:
    """By which factor batches became slower or faster, when the last three all say so; else 1."""
    ratios = times[-_IN_A_ROW:] / (state["fixed_s"] + state["per_record_s"] * rows[-_IN_A_ROW:])
    changed = len(ratios) == _IN_A_ROW and (ratios.min() > _CHANGED or ratios.max() < 1 / _CHANGED)
    return float(np.median(ratios)) if changed else 1.0


def _fit(rows: _Array, times: _Array, weights: _Array, prior: float, spread: float) -> tuple[float, float]:
    """F and c by weighted least squares with Huber's weights, not negative; c is drawn to prior ± spread.

    With few or equal sizes the sum of squares is small and the prior prevails; with sizes far apart the
    batches do.
    """
    each, fixed = prior, _middle(times - prior * rows, weights)
    for _ in range(10):
        misses = np.abs(times - fixed - each * rows)
        sigma = max(1.48 * _middle(misses, weights), 0.05 * float(np.median(times)))
        trusted = weights * np.minimum(1.0, 1.5 * sigma / np.maximum(misses, sigma))
        pull = (sigma / spread) ** 2
        total = float(trusted.sum())
        n, t = float(trusted @ rows) / total, float(trusted @ times) / total
        apart = trusted * (rows - n)
        each = max(0.0, (float(apart @ (times - t)) + pull * prior) / (float(apart @ (rows - n)) + pull))
        fixed = t - each * n
        if fixed < 0:
            fixed, each = 0.0, float((trusted * rows) @ times) / float((trusted * rows) @ rows)
    return fixed, each


def _middle(values: _Array, weights: _Array) -> float:
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(shares, shares[-1] / 2)])
