"""Tide: Springtide's own scaling policy. Its objective is a user's: a latency target, and a price of being late.

Every interval it

1. records the input, second by second, in blocks of a sixth of an interval. A block's value is its demand: the least constant
   capacity that would have kept its queue within the target, which is closer to the need than a mean;
2. forecasts the largest demand of the next interval, by an ensemble of forecasters of the blocks, and by what followed similar
   times in the past (``alike.py``), whichever has been right lately;
3. knows the errors of such forecasts and the shape of intervals: it retains the last intervals, each relative to its forecast.
   Scaled to the new forecast, and bent to begin at the present rate, they are possible inputs. Intervals at a similar level,
   and after forecasts with a similar error, weigh more. Surprises are few, and the next will differ from all of them, so each
   is played in several sizes;
4. plays each of them against every plausible number of replicas: a fluid queue that starts with the backlog, plus the random
   waits of M/M/k, or less if less was measured (``uneven.py``). The result is the number of late seconds;
5. chooses the cheapest candidate that keeps up: replicas for the interval, and late seconds at the price of ``late_price``.

A single price thus decides the size of the reserve, the speed of clearing a backlog, and the time of scaling in. The result
adapts by itself where forecasts are good, or replicas few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.forecast.ensemble import Ensemble
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, alike, changes
from springtide.policy.scale.demand import demand
from springtide.policy.scale.measured import arrival_rates, carried, shares
from springtide.policy.scale.tide import replay, uneven

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

ENSEMBLE = Ensemble(members="last, moving-average, best-fit, holt-winters")
BLOCKS = 6
"""Blocks of an interval. A single block shows a rise only after the interval; many blocks are noisy."""
RETAINED_INTERVALS = 240
"""Limits the intervals that are played again. With twice as many, in twice the state, NAB tweets are late for 2 % less time, at
0.2 % more cost."""
MAX_PARTS = 60
"""Limits the parts of an interval: seconds, up to a minute."""
HALF_LIFE = 160.0
"""Intervals after which the weight of an interval is half."""
LEVEL_WIDTH = 0.5
"""Width of the weight of intervals at another level, as a logarithm; far away it is 5 %."""
UNREST_WIDTH = 0.8
"""The same for the last forecasts' error, because errors come in clusters; far away it is 10 %. By a fluid model of
four operators: psps_sbac costs 1.097 of the clairvoyant's instead of 1.110, late for 3 s either way; EDF's taxis 1.089 instead
of 1.095, late for 124 s instead of 112."""
MIN_UNREST = 0.01
"""Smallest error, as a logarithm, that matters."""
SURPRISE = 1.5
"""An interval with more than this many times its forecast is a surprise, and ..."""
SIZES = (0.5, 1.0, 1.5)
"""... is played at these parts of its logarithm: four times the forecast also as twice and as eight times. By the
fluid model psps_dns is late for 106 s instead of 147 at 2.5 % more, NAB's tweets for 10,391 instead of 10,683 at 0.5 % more,
and S1 and S2 of DABS-Storm, as late, take 1.25 and 1.43 of the clairvoyant's replicas instead of 1.30 and 1.59."""
MAX_RATIO = 1e12
"""Limits an interval relative to its forecast, which may be near 0."""
PRIOR_RECORDS = 10.0
"""Records at the forecast's rate that are added to a block, because a few records say little about the rate."""
MAX_BEND = 4.0
"""Limits the factor by which a played interval is bent to begin at the present rate."""
PRIOR_RATIOS = (0.9, 1.0, 1.1, 1.2)
"""Possible inputs relative to the forecast, before any forecast was tested; their weight halves every four intervals."""
USUAL_INTERVALS = 1500
"""Intervals over which the usual number of replicas is averaged. A price that follows the load is high by day
and low by night: by a fluid model, NAB's tweets, as late, take 1.8 % less than with 300 intervals."""
INITIAL_WEIGHT = 300
"""Weight of the first interval in that mean, because a stream may begin with a rise."""
GROUP_SIZE = 8
"""Candidates that are played together: of up to 48, usually only the first one or two groups are played."""
COST_MEMORY = 0.5
"""Weight of the previous intervals in a record's cost."""
DEFAULT_TARGET_S = 1.0
"""The target of a run without one."""


@dataclass(frozen=True)
class Tide(ScalePlugin):
    """The cheapest degrees for the possible inputs of the next interval, including the price of late seconds."""

    name = "tide"
    source = "Springtide"
    summary = "forecasts the peak demand, and weighs the price of replicas against that of being late"

    late_price: float = parameter(
        30.0, "s", minimum=0.1, help="the price of a second above the target, in seconds of the usual number of replicas"
    )

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not snapshot.interval_s > 0:
            return state, ()
        target_s = replay.reachable(snapshot.target_s or DEFAULT_TARGET_S, snapshot.batch_overhead_s)
        theta = shares(state.get("shares", {}), snapshot)
        costs = _smoothed(state.get("costs", {}), snapshot)
        waits = uneven.followed(state.get("waits", {}), snapshot, target_s)
        known = {**state, "shares": theta, "costs": costs, "waits": waits}
        seconds = _arrivals(snapshot)
        if not len(seconds):
            return known, ()
        past = _followed(known, seconds, target_s)
        graph = _graph(snapshot, theta, {name: cost for name, (cost, _) in costs.items()}, waits)
        if not graph.names:
            return past, ()
        came = _demanded(seconds, target_s)
        usual, counted = _usual(known, float(np.maximum(1, np.ceil(came * graph.work_s)).sum()))
        best = self._cheapest(snapshot, graph, past, usual, target_s)
        reason = (
            f"demand {past['forecast']:,.0f}/s forecast after {came:,.0f},"
            f" {'backlog unknown' if snapshot.backlog is None else f'backlog {graph.backlog:,.0f}'},"
            f" {best.late_s:.1f} s likely late"
        )
        wanted = {
            name: (degree, f"{reason}: {share:.3g} replicas of work, {degree}")
            for name, degree, share in zip(graph.names, best.degrees, past["forecast"] * graph.work_s, strict=True)
        }
        after = {"usual": usual, "counted": counted, "regret": best.regret, "had": graph.degrees.tolist()}
        return {**past, **after}, changes(snapshot, wanted)

    def _cheapest(self, snapshot: Snapshot, graph: replay.Graph, past: State, usual: float, target_s: float) -> _Choice:
        """Play the possible inputs against all plausible numbers of replicas."""
        forecast, after = past["forecast"], past["after"]
        coming, weights = _scenarios(past, forecast, after, snapshot.interval_s, snapshot.starting_s or 0.0)
        in_turns = bool(snapshot.batches)
        degrees = replay.candidates(graph, forecast, snapshot.slots, in_turns)
        model = replay.in_batches if in_turns else replay.record_by_record
        capacity, latency = model(snapshot, graph, degrees, forecast, target_s)
        length = snapshot.interval_s / past["bins"]
        paid = replay.paid(graph, degrees, forecast, in_turns)
        there = snapshot.there / paid if in_turns and snapshot.there else None
        available = replay.available(graph, capacity, there, round((snapshot.starting_s or 0.0) / length), coming.shape[1])
        allowed = (replay.TARGET_SHARE * target_s - latency) / length
        price = self.late_price * usual
        most = min(int(graph.limits.sum()), snapshot.slots or 10**9) - forecast * float(graph.work_s.sum())
        likely = _median(coming[:, : past["bins"]].mean(axis=1), weights)
        keeps_up = (capacity >= likely) | (capacity == capacity.max())  # even if the target allows a queue, it must not grow
        stays = (degrees == graph.degrees).all(axis=1)
        pause = price * (snapshot.pause_s or 0.0)
        cost, late = np.full(len(degrees), np.inf), np.zeros(len(degrees))
        played = np.ascontiguousarray(coming.T) * length
        for some in _cheapest_first(paid, keeps_up):
            if paid[some[0]] * snapshot.interval_s >= cost.min() + pause and not stays[some].any():
                continue  # more expensive than the best so far even if never late
            parts, left = replay.late(played, available[some] * length, graph.backlog, allowed[some])
            late[some] = parts @ weights * length
            clearing = replay.clearing(left * float(graph.work_s.sum()), price, snapshot.interval_s, max(most, 1.0)) @ weights
            cost[some] = paid[some] * snapshot.interval_s + price * late[some] + clearing
        regret = _regret(past, graph, float(cost[stays].min() - cost.min()) if stays.any() else pause, pause)
        best = int(np.argmin(cost + (pause - regret) * ~stays))
        return _Choice([int(degree) for degree in degrees[best]], float(late[best]), regret)


class _Choice(NamedTuple):
    degrees: list[int]
    late_s: float
    regret: float


def _smoothed(before: Mapping[str, Sequence[float]], snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """By operator: the seconds of work per record and the records measured, with the most weight on the last ones."""
    found = {name: (cost, weight) for name, (cost, weight) in before.items()}
    for operator in snapshot.operators:
        if operator.cost_s is not None and operator.served:
            cost, weight = found.get(operator.name, (0.0, 0.0))
            total = COST_MEMORY * weight + operator.served
            found[operator.name] = ((COST_MEMORY * weight * cost + operator.served * operator.cost_s) / total, total)
    return found


def _arrivals(snapshot: Snapshot) -> Floats:
    """The records/s of all sources together, in parts of the interval; unknown creation times count as evenly spread."""
    rates = arrival_rates(snapshot)
    lines = [source.arrivals or (rates[source.name],) for source in snapshot.sources if source.name in rates]
    if not lines:
        return np.zeros(0)
    bins = max(1, min(MAX_PARTS, round(snapshot.interval_s)))  # batches cover more or fewer seconds than the interval
    total: Floats = np.zeros(bins)
    for line in lines:
        total = total + _resampled(np.asarray(line, dtype=np.float64), bins)
    return total


def _resampled(values: Floats, bins: int) -> Floats:
    """Resample to another number of parts, as means."""
    if len(values) == bins:
        return values
    sums = np.interp(np.linspace(0, len(values), bins + 1), np.arange(len(values) + 1), np.append(0.0, np.cumsum(values)))
    means: Floats = np.diff(sums) * bins / len(values)
    return means


def _blocks(seconds: Floats) -> list[Floats]:
    """Blocks of the same length, the last of which ends with the interval."""
    length = math.ceil(len(seconds) / BLOCKS)
    first = len(seconds) % length
    return [seconds[begin : begin + length] for begin in range(first, len(seconds), length)]


def _demanded(seconds: Floats, target_s: float) -> float:
    """The demand of arrivals, at least their mean rate: in a short time even a full queue need not be late."""
    return max(demand(seconds, target_s), float(seconds.mean()))


def _followed(state: State, seconds: Floats, target_s: float) -> dict[str, Any]:
    """The state after this interval: the series with its blocks, the interval relative to its forecast, the next forecast."""
    series, forecast = state.get("series", ENSEMBLE.initial()), state.get("forecast", 0.0)
    intervals, levels, unrests = (list(state.get(name, ())) for name in ("intervals", "levels", "unrests"))
    unrests = [math.log(MIN_UNREST)] * (len(levels) - len(unrests)) + unrests  # states of earlier versions have no unrests
    unrest, blocks = float(state.get("unrest", MIN_UNREST)), _blocks(seconds)
    demands = [_demanded(block, target_s) for block in blocks]
    peak = max(demands)
    as_before = len(seconds) == state.get("bins", len(seconds))
    if not as_before:  # the interval has another length
        intervals = [_resampled(np.array(interval), len(seconds)).tolist() for interval in intervals]
    elif forecast > 0:
        intervals.append((seconds / forecast).round(3).tolist())  # takes a quarter of the characters
        levels.append(round(math.log(forecast), 4))
        unrests.append(round(math.log(unrest), 3))
        unrest = _unrest(unrest, peak, forecast)
    for demanded in demands:
        series = ENSEMBLE.update(series, demanded)
    ahead = [_countable(ENSEMBLE.ahead(series, step)) for step in range(1, 2 * len(blocks) + 1)]
    by_blocks = max(ahead[: len(blocks)]), max(ahead[len(blocks) :])
    long = alike.followed(state.get("long", {}), demands[-1], peak, by_blocks[0])
    return {
        **state, "series": series, "bins": len(seconds), "intervals": intervals[-RETAINED_INTERVALS:],
        "levels": levels[-RETAINED_INTERVALS:],
        "unrests": unrests[-RETAINED_INTERVALS:], "unrest": unrest,
        "long": long, "forecast": alike.mixed(long, by_blocks[0], 1), "after": alike.mixed(long, by_blocks[1], 2),
        "shape": (seconds / peak).tolist() if peak > 0 else [1.0] * len(seconds), "end": float(blocks[-1].mean()),
    }  # fmt: skip


def _unrest(before: float, peak: float, forecast: float) -> float:
    """The recent error of forecasts: a mean of |ln(actual/forecast)| in which the last error has weight 1/2."""
    missed = abs(math.log(max(peak, 1e-8) / forecast))
    return max(MIN_UNREST, (before + min(missed, alike.MAX_GROWTH)) / 2)


def _countable(forecast: float | None) -> float:
    """A forecast, or 0 for less than a record in a year: inputs relative to it would be unbounded."""
    return forecast if forecast is not None and forecast > 1e-8 else 0.0


def _graph(
    snapshot: Snapshot, theta: Mapping[str, Mapping[str, float]], costs: Mapping[str, float],
    waits: Mapping[str, Sequence[float]],
) -> replay.Graph:  # fmt: skip
    rows = {source.name: float(source.rows or 0) for source in snapshot.sources}
    total = sum(rows.values())
    mix = {name: amount / total if total else 1 / len(rows) for name, amount in rows.items()}
    reach = carried(snapshot, theta, mix)
    known = [operator for operator in snapshot.operators if operator.name in reach and operator.name in costs]
    costs = {name: max(cost, 1e-12) for name, cost in costs.items()}
    waiting = sum((o.backlog or 0) / reach[o.name] for o in known if reach[o.name] > 0)
    return replay.Graph(
        [o.name for o in known],
        np.array([reach[o.name] * costs[o.name] for o in known]),
        np.array([costs[o.name] for o in known]),
        np.array([min(o.limit or 10**6, snapshot.slots or 10**6) for o in known], dtype=np.int64),
        np.array([o.degree for o in known], dtype=np.int64),
        np.array([uneven.part(waits.get(o.name)) for o in known]),
        float(snapshot.backlog or 0) if snapshot.batches else waiting,
    )


def _usual(state: State, need: float) -> tuple[float, int]:
    """The usual number of replicas, which scales the price of being late, and the number of intervals in that mean."""
    before, counted = float(state.get("usual", need)), min(USUAL_INTERVALS, state.get("counted", INITIAL_WEIGHT - 1) + 1)
    return before + (need - before) / counted, counted


def _scenarios(past: State, forecast: float, after: float, interval_s: float, starting_s: float) -> tuple[Floats, Floats]:
    """[scenarios, parts] Possible inputs in records/s, and their weights. Replicas that are requested at the end of the next
    interval start ``starting_s`` later, so the present choice has to suffice until then."""
    shape = np.array(past["shape"])
    doubts, intervals = np.outer(PRIOR_RATIOS, shape), np.array(past["intervals"]).reshape(-1, len(shape))
    ages = np.arange(len(past["intervals"]))[::-1]
    near = np.exp(-((np.array(past["levels"]) - math.log(max(forecast, 1e-9))) ** 2) / (2 * LEVEL_WIDTH**2))
    as_restless = np.exp(-((np.array(past["unrests"]) - math.log(past["unrest"])) ** 2) / (2 * UNREST_WIDTH**2))
    doubt = 0.5 ** (len(ages) / 4)
    weights = np.concatenate(
        [np.full(len(PRIOR_RATIOS), doubt), 0.5 ** (ages / HALF_LIFE) * (0.05 + near) * (0.1 + as_restless)]
    )
    lines, weights = _spread(np.concatenate([doubts, intervals]), weights)
    more = round(starting_s / interval_s * len(shape))
    later = np.tile(lines, math.ceil(more / len(shape)))[:, :more] * after  # a start may take longer than an interval
    coming = _from_now(lines, past["end"], forecast, interval_s) * forecast
    return np.concatenate([coming, later], axis=1), weights / weights.sum()


def _cheapest_first(paid: Ints, keeps_up: npt.NDArray[np.bool_]) -> list[Ints]:
    """The candidates that keep up, in groups by price: after the first groups the others are usually too expensive."""
    those = np.flatnonzero(keeps_up)
    order = those[np.argsort(paid[those], kind="stable")]
    return [order[first : first + GROUP_SIZE] for first in range(0, len(order), GROUP_SIZE)]


def _regret(past: State, graph: replay.Graph, more: float, pause: float) -> float:
    """The cost of staying since the last change, this interval included, limited to the price of a change's pause.

    The future benefit of a change is unknown. By the ski rental rule, changing once staying has cost as much as the pause costs
    at most twice the optimum.
    """
    before = float(past.get("regret", 0.0)) if past.get("had") == graph.degrees.tolist() else 0.0
    return min(pause, before + more)


def _median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    return float(values[order][np.searchsorted(np.cumsum(weights[order]), 0.5 * weights.sum())])


def _spread(lines: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The intervals, with each surprise in several sizes, as the next surprise will have another size."""
    surprising = lines.max(axis=1) > SURPRISE
    some, share = np.minimum(lines[surprising], MAX_RATIO), weights[surprising] / len(SIZES)
    sizes = [some**size for size in SIZES]
    return np.concatenate([lines[~surprising], *sizes]), np.concatenate([weights[~surprising], *[share for _ in SIZES]])


def _from_now(lines: Floats, now: float, forecast: float, interval_s: float) -> Floats:
    """Bend the intervals so that they begin at the present rate; their ends do not change."""
    block = math.ceil(lines.shape[1] / BLOCKS)
    block_s = interval_s * block / lines.shape[1]
    first = lines[:, :block].mean(axis=1) * forecast
    bend = np.clip((now * block_s + PRIOR_RECORDS) / (first * block_s + PRIOR_RECORDS), 1 / MAX_BEND, MAX_BEND)
    bent: Floats = lines * bend[:, None] ** np.linspace(1, 0, lines.shape[1])
    return bent
