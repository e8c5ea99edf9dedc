"""The rule of Flink's autoscaler: enough capacity for the input, for a restart and for the lag, at a target utilisation.

Source: Apache Flink Kubernetes operator, module flink-autoscaler; the rule, not its code.

An operator that reads a source is what Flink calls a source, and its lag is what waits for it. Flink's queues between
operators are short, so whatever waits does so at the source. The continuous simulator lets records wait anywhere; there what
waits at an operator is added to the lag that comes to it from upstream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.measured import own_queue, queues, rounded_up, shares, shown

Mark = Mapping[str, Any]
"""What was counted up to a moment, so that the difference of two marks is what was measured between them.

``at``: the moment, in seconds. ``batched``: whether there are micro-batches. ``operators``, by name: ``seconds``, ``rows``,
``busy`` and ``samples`` in all intervals in which it was measured, ``full`` the seconds, rows and number of those with much
lag, ``inputs`` the rows from each producer, and ``lag`` what waits at that moment.
"""


@dataclass(frozen=True)
class Flink(ScalePlugin):
    """CAP(u) = lag/catch-up + input·restart/catch-up + input/u; p' = ⌈CAP(target)/TPR · p⌉, TPR = rate / busy.

    **Times.** Flink's defaults are for jobs that run for days and restart at every change: catch-up 30 min, restart 5, stable
    5, measured for 15, and a scale-down waits for an hour. Here every time is a number of intervals, shortened so that it can
    follow a trace of minutes: 2, 0, 1, 2 and 4. With its own, one of Flink's minutes an interval (30, 5, 5, 15, 60), it was
    late for 63 % of psps_sbac's seconds, with these for 18 %. Nothing restarts here, so ``restart_time`` is 0.

    **When it acts.** After a change of any degree nothing is measured for ``stabilization_interval``, then a full
    ``metrics_window`` is gathered. It acts if any operator that is to change is out of its bounds, TPR < CAP(upper, without
    restart) or TPR > CAP(lower), and then makes all changes at once. While the lag is longer than
    ``backlog_processing_lag_threshold`` the bounds are 1 and 0. A scale-down waits, and takes the largest p' of its wait.

    **Where it looks.** Busy is that of the busiest replica where replicas are known. An operator with much lag works as fast
    as it can, so its rate is its true rate (here a replica never waits for those after it, so there is no back-pressure to
    take out). p' goes up to the first degree that shares the operator's shards out better; one without shards is not
    aligned to anything.
    An operator of which something was not measured keeps its degree, and so do those whose input depends on it.
    """

    name = "flink"
    source = "Apache Flink Kubernetes operator, autoscaler"
    summary = "capacity for input, restart and lag at a target utilisation, as Flink's autoscaler decides"

    utilization_target: float = parameter(0.7, "", 0.01, 1, help="how busy operators are to be")
    target_utilization_boundary: float = parameter(0.3, "", 0, 1, help="how far from the target is left alone, either way")
    catch_up_duration: float = parameter(
        2.0, "intervals", 0, help="how long a lag may take to be worked off; 0: lag is ignored"
    )
    restart_time: float = parameter(0.0, "intervals", 0, help="how long a change stops the job; its input is caught up, too")
    stabilization_interval: int = parameter(1, "intervals", 0, help="after a change, nothing is measured for this long")
    metrics_window: int = parameter(2, "intervals", 1, help="how long is measured before a decision")
    scale_down_interval: int = parameter(4, "intervals", 0, help="how long a scale-down waits")
    scale_down_max_factor: float = parameter(0.6, "", 0, 1, help="the largest part of an operator taken at once")
    scale_up_max_factor: float = parameter(100_000.0, "", 0, help="the most added at once, as a multiple")
    vertex_min_parallelism: int = parameter(1, "replicas", 1, help="no operator is scaled below")
    vertex_max_parallelism: int = parameter(200, "replicas", 1, help="no operator is scaled above")
    backlog_processing_lag_threshold: float = parameter(5.0, "intervals", 0, help="a lag of more input than that is a backlog")
    observed_true_processing_rate_lag_threshold: float = parameter(
        0.5, "intervals", 0, help="with a lag of more input than that the rate is the true rate"
    )
    observed_true_processing_rate_min_observations: int = parameter(2, "intervals", 1, help="with such a lag, before it counts")
    observed_true_processing_rate_switch_threshold: float = parameter(
        0.15, "", 0, help="the observed rate is used when the rate by busy time is higher by more than this share"
    )
    scaling_effectiveness_threshold: float = parameter(0.1, "", 0, 1, help="a scale-up that gained less of its aim failed")
    scaling_effectiveness_detection_enabled: bool = parameter(False, help="do not scale up again after one that failed")

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not snapshot.interval_s > 0:
            return state, ()
        degrees = {operator.name: operator.degree for operator in snapshot.operators}
        after = {"marks": [], "downs": {}, "ups": {}, "tick": 0, **state, "degrees": degrees}
        if degrees != state.get("degrees"):
            after |= {"ignore": self.stabilization_interval, "marks": after["marks"][-1:], "downs": {}, "tick": 0}
        settling = after["ignore"] > 0 or not after["marks"]
        before = after["marks"][-1] if after["marks"] else None
        mark = _mark(before, snapshot, self.observed_true_processing_rate_lag_threshold, counts=not settling)
        after["marks"] = [mark] if settling else [*after["marks"], mark][-self.metrics_window - 1 :]
        after |= {"ignore": max(0, after["ignore"] - 1), "tick": after["tick"] + 1}
        if len(after["marks"]) <= self.metrics_window:
            return after, ()
        return self._act(after, snapshot)

    def _act(self, state: dict[str, Any], snapshot: Snapshot) -> tuple[State, tuple[Request, ...]]:
        """All changes if one of them is due, and the state with waiting scale-downs and past scale-ups."""
        window = _window(state["marks"], snapshot)
        upper, lower = self._bounds(window)
        downs, ups, changed = dict(state["downs"]), dict(state["ups"]), {}
        for operator in snapshot.operators:
            name = operator.name
            need = self._need(window, operator, upper, lower)
            if need is None:
                continue
            wanted, outside, note = need.degree, need.outside, ""
            if wanted >= operator.degree:
                downs.pop(name, None)
            else:
                downs[name], due = self._waited(downs.get(name), state["tick"], wanted, outside)
                wanted, outside = due or (operator.degree, False)
            if wanted > operator.degree:
                gained = _gained(ups.get(name), operator.degree, need.true_rate)
                if gained < self.scaling_effectiveness_threshold:
                    note = f"; the last scale-up gained {gained:.0%} of its aim"
                    wanted = operator.degree if self.scaling_effectiveness_detection_enabled else wanted
            if wanted != operator.degree:
                changed[name] = wanted, outside, f"{need.reason(operator.degree)}{note}", need
        if not any(outside for _, outside, _, _ in changed.values()):
            return {**state, "downs": downs}, ()
        ups |= {n: [p, need.true_rate, need.expected] for n, (p, _, _, need) in changed.items() if p > snapshot[n].degree}
        requests = changes(snapshot, {name: (degree, reason) for name, (degree, _, reason, _) in changed.items()})
        return {**state, "downs": downs, "ups": ups}, requests

    def _bounds(self, window: _Window) -> tuple[float, float]:
        """The bounds of an operator's utilisation; with a backlog 1 and 0, because no operator is then too idle."""
        longest = self.backlog_processing_lag_threshold * window.interval_s
        if any(seen.lag > longest * seen.rate for seen in window.seen.values()):
            return 1.0, 0.0
        target, boundary = self.utilization_target, self.target_utilization_boundary
        return min(1.0, target + boundary), max(0.0, target - boundary)

    def _need(self, window: _Window, operator: OperatorSnapshot, upper: float, lower: float) -> _Need | None:
        """p', and whether TPR is out of the bounds; None when something was not measured."""
        seen, flow = window.seen.get(operator.name), window.flows.get(operator.name)
        if seen is None or flow is None or operator.served is None or operator.utilisation is None:
            return None
        rate = self._true_rate(seen)
        capacity = self.capacity(flow, window.interval_s, self.utilization_target)
        outside = rate < self.capacity(flow, window.interval_s, upper, restart=False)
        outside = outside or rate > self.capacity(flow, window.interval_s, lower)
        factor = min(max(capacity / rate, 1 - self.scale_down_max_factor), 1 + self.scale_up_max_factor)
        degree = self._degree(operator, factor, window.slots)
        return _Need(degree, outside, rate, rate * factor, capacity, flow)

    def _true_rate(self, seen: _Seen) -> float:
        """TPR: what it did by how busy it was, or what it did while much was waiting; infinite while nothing comes."""
        rate = seen.rate / seen.busy if seen.rate > 0 and seen.busy > 0 else math.inf
        if not seen.reads_source or seen.observations < self.observed_true_processing_rate_min_observations:
            return rate
        return seen.observed if rate > seen.observed * (1 + self.observed_true_processing_rate_switch_threshold) else rate

    def capacity(self, flow: _Flow, interval_s: float, utilisation: float, *, restart: bool = True) -> float:
        """CAP in records/s.

        >>> oracle = Flink(utilization_target=0.8, catch_up_duration=2, restart_time=1)
        >>> oracle.capacity(_Flow(target=500.0, lag=2_000.0), 1.0, 0.8)  # 1,000 + 250 + 625
        1875.0
        """
        if utilisation <= 0:
            return math.inf
        catch_up_s = self.catch_up_duration * interval_s
        stopped = self.restart_time * interval_s * flow.target if restart else 0.0
        return ((flow.lag + stopped) / catch_up_s if catch_up_s > 0 else 0.0) + flow.target / utilisation

    def _degree(self, operator: OperatorSnapshot, factor: float, slots: int | None) -> int:
        """⌈factor · p⌉ between the limits, which never force a change by themselves; then aligned to the shards."""
        now = max(1, operator.degree)
        most = min(max(now, self.vertex_max_parallelism), operator.limit or 10**9, slots or 10**9)
        wanted = min(max(rounded_up(factor * now), min(now, self.vertex_min_parallelism)), most)
        if operator.shards is None or wanted == now:
            return wanted
        return aligned(wanted, operator.shards, most if wanted > now else min(now, most))

    def _waited(
        self, waiting: Mapping[str, Any] | None, tick: int, degree: int, outside: bool
    ) -> tuple[Mapping[str, Any], tuple[int, bool] | None]:
        """A waiting scale-down with another wish; after its wait, the largest wish of that time.

        ``seen`` has only wishes that can still be the largest, so they fall from the first to the last.
        """
        first, seen = (tick, []) if waiting is None else (waiting["first"], waiting["seen"])
        wishes = [wish for wish in seen if wish[1] > degree and wish[0] >= tick - self.scale_down_interval]
        wishes.append([tick, degree, outside])
        due = (wishes[0][1], wishes[0][2]) if tick - first >= self.scale_down_interval else None
        return {"first": first, "seen": wishes}, due


def aligned(degree: int, parts: int, most: int) -> int:
    """The first degree from ``degree`` to ``most`` that divides the parts evenly, or that leaves each fewer.

    >>> [aligned(degree, parts=24, most=24) for degree in (3, 5, 7, 9, 13)]
    [3, 6, 8, 12, 24]
    """
    for better in range(degree, min(most, parts) + 1):
        if parts % better == 0 or parts // better < parts // degree:
            return better
    return degree


class _Flow(NamedTuple):
    """What comes to an operator: records/s at the sources' full rate, and the records that wait for it or upstream of it."""

    target: float
    lag: float


class _Seen(NamedTuple):
    """What an operator did in the window; ``growth`` of its own lag, in records/s, ``inputs`` in records/s by producer."""

    rate: float
    busy: float
    lag: float
    growth: float
    observed: float
    observations: int
    reads_source: bool
    inputs: tuple[tuple[str, float], ...]


class _Window(NamedTuple):
    interval_s: float
    slots: int | None
    seen: Mapping[str, _Seen]
    flows: Mapping[str, _Flow]


class _Need(NamedTuple):
    degree: int
    outside: bool
    true_rate: float
    expected: float
    capacity: float
    flow: _Flow

    def reason(self, now: int) -> str:
        """In words, beside the degree that it has; only asked for when that changes."""
        target, lag = shown(self.flow.target), shown(self.flow.lag)
        need = f"capacity {shown(self.capacity)}/s for an input of {target}/s and a lag of {lag}"
        return f"{need}, {now} can do {shown(self.true_rate)}/s: {self.degree}"


def _mark(before: Mark | None, snapshot: Snapshot, threshold: float, *, counts: bool) -> Mark:
    """What was counted up to now: since ``before``, or with ``counts`` off nothing yet, but the lag that it begins with."""
    theta, queued = shares({}, snapshot), queues(snapshot)
    operators = {}
    for operator in snapshot.operators:
        count = before["operators"].get(operator.name) if before else None
        lag = own_queue(operator, theta, queued, snapshot)
        if lag is None and count and _unmeasured(operator):  # an interval without a batch: what waited still does
            lag = count["lag"]
        if not counts or count is None or len(count["inputs"]) != len(operator.inputs):
            zero = [0.0] * len(operator.inputs)
            count = {"seconds": 0.0, "rows": 0, "busy": 0.0, "samples": 0, "full": [0.0, 0, 0], "inputs": zero}
        if counts:
            count = _counted(count, operator, lag, snapshot, threshold)
        operators[operator.name] = {**count, "lag": lag}
    batched = bool(snapshot.batches) or (before is not None and before["batched"])
    at = before["at"] + snapshot.interval_s if before and counts else 0.0
    return {"at": at, "batched": batched, "operators": operators}


def _counted(
    count: Mapping[str, Any], operator: OperatorSnapshot, lag: float | None, snapshot: Snapshot, threshold: float
) -> Mapping[str, Any]:
    """With this interval added, if the operator was measured in it."""
    busy, rows = busy_of(operator), operator.served
    if busy is None or rows is None:
        return count
    added: dict[str, Any] = {
        "seconds": count["seconds"] + snapshot.interval_s,
        "rows": count["rows"] + rows,
        "busy": count["busy"] + busy,
        "samples": count["samples"] + 1,
        "full": count["full"],
        "inputs": [all_rows + came for all_rows, (_, came) in zip(count["inputs"], operator.inputs, strict=True)],
    }
    # In micro-batches what came during one waits for the next: a backlog of one batch is no lag, the source keeps up.
    usual = rows / len(snapshot.batches) if snapshot.batches else 0.0
    if rows and lag is not None and lag - usual >= threshold * rows:
        seconds, served, times = count["full"]
        added["full"] = [seconds + snapshot.interval_s, served + rows, times + 1]
    return added


def _unmeasured(operator: OperatorSnapshot) -> bool:
    return operator.served is None or busy_of(operator) is None


def busy_of(operator: OperatorSnapshot) -> float | None:
    """The utilisation of the busiest replica; unless those of all replicas are known, their mean."""
    known = [replica.utilisation for replica in operator.replicas if replica.utilisation is not None]
    return max(known) if known and len(known) == len(operator.replicas) else operator.utilisation


def _window(marks: Sequence[Mark], snapshot: Snapshot) -> _Window:
    """What was seen between the first mark and the last, and what comes to each operator, in the order of the graph."""
    first, last = marks[0], marks[-1]
    passed = last["at"] - first["at"]
    seen: dict[str, _Seen] = {}
    flows: dict[str, _Flow] = {}
    for operator in snapshot.operators:
        begin, end = first["operators"].get(operator.name), last["operators"].get(operator.name)
        found = _seen(begin, end, operator, snapshot, passed) if begin and end else None
        if found is not None:
            seen[operator.name] = found
            flow = _flow(found, seen, flows, snapshot, last["batched"])
            if flow is not None:
                flows[operator.name] = flow
    return _Window(passed / (len(marks) - 1), snapshot.slots, seen, flows)


def _seen(
    begin: Mapping[str, Any], end: Mapping[str, Any], operator: OperatorSnapshot, snapshot: Snapshot, passed: float
) -> _Seen | None:
    """The measurements of an operator; None without any, without its inputs, or without its lag."""
    samples, seconds = end["samples"] - begin["samples"], end["seconds"] - begin["seconds"]
    known = begin["lag"] is not None and end["lag"] is not None
    same_inputs = len(operator.inputs) == len(begin["inputs"]) == len(end["inputs"]) > 0  # inputs may be missing at times
    if samples < 1 or not seconds > 0 or not known or not same_inputs:
        return None
    full_s, full_rows, observations = (now - then for now, then in zip(end["full"], begin["full"], strict=True))
    came = zip(operator.inputs, end["inputs"], begin["inputs"], strict=True)
    return _Seen(
        rate=(end["rows"] - begin["rows"]) / seconds,
        busy=(end["busy"] - begin["busy"]) / samples,
        lag=end["lag"],
        growth=(end["lag"] - begin["lag"]) / passed,
        observed=full_rows / full_s if full_s > 0 else 0.0,
        observations=observations,
        reads_source=any(producer not in snapshot.by_name for producer, _ in operator.inputs),
        inputs=tuple((producer, (now - then) / seconds) for (producer, _), now, then in came),
    )


def _flow(
    found: _Seen, seen: Mapping[str, _Seen], flows: Mapping[str, _Flow], snapshot: Snapshot, batched: bool
) -> _Flow | None:
    """TARGET and the lag behind CATCHUP: of a source by its own rate and lag, else upstream's by how much of it comes here."""
    upstream = [(producer, rate) for producer, rate in found.inputs if producer in snapshot.by_name]
    total = sum(rate for _, rate in found.inputs)
    fresh = 1 - sum(rate for _, rate in upstream) / total if total > 0 else float(found.reads_source)
    target = max(0.0, found.rate + found.growth) * fresh
    lag = found.lag * fresh if batched else found.lag  # in micro-batches all of it waits at the source
    for producer, rate in upstream:
        if producer not in flows:
            return None
        whole = seen[producer].rate
        if not whole > 0 and any(flows[producer]):
            return None
        share = rate / whole if whole > 0 else 0.0
        target, lag = target + flows[producer].target * share, lag + flows[producer].lag * share
    return _Flow(target, lag)


def _gained(last: Sequence[float] | None, degree: int, true_rate: float) -> float:
    """Which part of its aim the last scale-up reached; infinite when there was none, or its degree is not in force."""
    if last is None or last[0] != degree or not last[2] > last[1]:
        return math.inf
    return (true_rate - last[1]) / (last[2] - last[1])
