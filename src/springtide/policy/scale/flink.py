"""The rule of Flink's autoscaler: capacity for the input, a restart and the lag, at a target utilisation.

Source: Apache Flink Kubernetes operator, module flink-autoscaler; the rule, not its code.

An operator that reads a source is a source in Flink's terms, and its lag is its backlog. Flink's queues between operators are
short, so records wait at the sources. In the continuous simulator they wait anywhere; there an operator's own queue is added to
the lag from upstream.
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
"""Cumulative counters at a moment; the difference of two marks is the measurement between them.

``at``: the time in seconds. ``batched``: whether there are micro-batches. ``operators``, by name: ``seconds``, ``rows``,
``busy`` and ``samples`` over all measured intervals; ``full``: seconds, rows and number of those with a long lag; ``inputs``:
rows by producer; ``lag``: the present lag.
"""


@dataclass(frozen=True)
class Flink(ScalePlugin):
    """CAP(u) = lag/catch-up + input·restart/catch-up + input/u; p' = ⌈CAP(target)/TPR · p⌉, TPR = rate / busy.

    **Times.** Flink's defaults suit jobs that run for days and restart at every change: catch-up 30 min, restart 5, stable 5,
    measured for 15, and a scale-down waits for an hour. Here every time is a number of intervals, shortened so that the policy
    can follow a trace of minutes: 2, 0, 1, 2 and 4. With Flink's own times, at a minute per interval (30, 5, 5, 15, 60), it was
    late for 63 % of psps_sbac's seconds; with these for 18 %. Nothing restarts here, so ``restart_time`` is 0.

    **When it acts.** After a change of any degree nothing is measured for ``stabilization_interval``; then a full
    ``metrics_window`` is collected. It acts if any operator that is to change is out of bounds, TPR < CAP(upper, without
    restart) or TPR > CAP(lower), and then makes all changes at once. While the lag exceeds ``backlog_processing_lag_threshold``
    the bounds are 1 and 0. A scale-down waits, and uses the largest p' of its wait.

    **What it measures.** Busy is that of the busiest replica if replicas are known. An operator with a long lag works at full
    speed, so its rate is its true rate (there is no back-pressure between replicas here). p' is rounded up to the next degree
    that distributes the operator's shards more evenly; an operator without shards is not aligned. An operator with a missing
    measurement retains its degree, and so do those that depend on its output.
    """

    name = "flink"
    source = "Apache Flink Kubernetes operator, autoscaler"
    summary = "capacity for input, restart and lag at a target utilisation, as Flink's autoscaler decides"

    utilization_target: float = parameter(0.7, "", 0.01, 1, help="the target utilisation of operators")
    target_utilization_boundary: float = parameter(0.3, "", 0, 1, help="the tolerated distance from the target, either way")
    catch_up_duration: float = parameter(2.0, "intervals", 0, help="time to clear a lag; 0: the lag is ignored")
    restart_time: float = parameter(
        0.0, "intervals", 0, help="time for which a change stops the job, whose input is caught up, too"
    )
    stabilization_interval: int = parameter(1, "intervals", 0, help="time after a change without measurements")
    metrics_window: int = parameter(2, "intervals", 1, help="time of measurement before a decision")
    scale_down_interval: int = parameter(4, "intervals", 0, help="waiting time of a scale-down")
    scale_down_max_factor: float = parameter(0.6, "", 0, 1, help="the largest share of an operator's replicas removed at once")
    scale_up_max_factor: float = parameter(100_000.0, "", 0, help="the largest increase at once, as a multiple")
    vertex_min_parallelism: int = parameter(1, "replicas", 1, help="minimum degree of every operator")
    vertex_max_parallelism: int = parameter(200, "replicas", 1, help="maximum degree of every operator")
    backlog_processing_lag_threshold: float = parameter(5.0, "intervals", 0, help="a lag of more input than this is a backlog")
    observed_true_processing_rate_lag_threshold: float = parameter(
        0.5, "intervals", 0, help="with a lag of more input than this, the observed rate is the true rate"
    )
    observed_true_processing_rate_min_observations: int = parameter(
        2, "intervals", 1, help="intervals with such a lag before it counts"
    )
    observed_true_processing_rate_switch_threshold: float = parameter(
        0.15, "", 0, help="the observed rate applies if the rate by busy time exceeds it by this share"
    )
    scaling_effectiveness_threshold: float = parameter(0.1, "", 0, 1, help="a scale-up that reached less of its aim has failed")
    scaling_effectiveness_detection_enabled: bool = parameter(False, help="no further scale-up after a failed one")

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
        """All changes if any of them is due, and the state with waiting scale-downs and past scale-ups."""
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
        """The bounds of an operator's utilisation; 1 and 0 with a backlog, when no operator counts as idle."""
        longest = self.backlog_processing_lag_threshold * window.interval_s
        if any(seen.lag > longest * seen.rate for seen in window.seen.values()):
            return 1.0, 0.0
        target, boundary = self.utilization_target, self.target_utilization_boundary
        return min(1.0, target + boundary), max(0.0, target - boundary)

    def _need(self, window: _Window, operator: OperatorSnapshot, upper: float, lower: float) -> _Need | None:
        """p', and whether TPR is out of bounds; None if a measurement is missing."""
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
        """TPR: the rate divided by the busy share, or the rate observed during a long lag; infinite without input."""
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
        """⌈factor · p⌉ within the limits, which never force a change by themselves; then aligned to the shards."""
        now = max(1, operator.degree)
        most = min(max(now, self.vertex_max_parallelism), operator.limit or 10**9, slots or 10**9)
        wanted = min(max(rounded_up(factor * now), min(now, self.vertex_min_parallelism)), most)
        if operator.shards is None or wanted == now:
            return wanted
        return aligned(wanted, operator.shards, most if wanted > now else min(now, most))

    def _waited(
        self, waiting: Mapping[str, Any] | None, tick: int, degree: int, outside: bool
    ) -> tuple[Mapping[str, Any], tuple[int, bool] | None]:
        """A waiting scale-down after another proposal; once its wait is over, also the largest proposal of that time.

        ``seen`` has the proposals that can still become the largest, so they decrease.
        """
        first, seen = (tick, []) if waiting is None else (waiting["first"], waiting["seen"])
        wishes = [wish for wish in seen if wish[1] > degree and wish[0] >= tick - self.scale_down_interval]
        wishes.append([tick, degree, outside])
        due = (wishes[0][1], wishes[0][2]) if tick - first >= self.scale_down_interval else None
        return {"first": first, "seen": wishes}, due


def aligned(degree: int, parts: int, most: int) -> int:
    """The first degree from ``degree`` to ``most`` that divides the parts evenly, or that gives each fewer of them.

    >>> [aligned(degree, parts=24, most=24) for degree in (3, 5, 7, 9, 13)]
    [3, 6, 8, 12, 24]
    """
    for better in range(degree, min(most, parts) + 1):
        if parts % better == 0 or parts // better < parts // degree:
            return better
    return degree


class _Flow(NamedTuple):
    """An operator's input: records/s at the sources' full rate, and the records that wait for it or upstream."""

    target: float
    lag: float


class _Seen(NamedTuple):
    """An operator's measurements in the window; ``growth`` of its own lag in records/s, ``inputs`` in records/s by producer."""

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
        """The reason for a change from the degree ``now``."""
        target, lag = shown(self.flow.target), shown(self.flow.lag)
        need = f"capacity {shown(self.capacity)}/s for an input of {target}/s and a lag of {lag}"
        return f"{need}, {now} can do {shown(self.true_rate)}/s: {self.degree}"


def _mark(before: Mark | None, snapshot: Snapshot, threshold: float, *, counts: bool) -> Mark:
    """The counters up to now, starting from ``before``. Without ``counts`` they are zero, with the initial lag."""
    theta, queued = shares({}, snapshot), queues(snapshot)
    operators = {}
    for operator in snapshot.operators:
        count = before["operators"].get(operator.name) if before else None
        lag = own_queue(operator, theta, queued, snapshot)
        if lag is None and count and _unmeasured(operator):  # an interval without a batch: the lag is unchanged
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
    """The counters with this interval, if the operator was measured in it."""
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
    # In micro-batches, arrivals during a batch wait for the next: a backlog of one batch is no lag, as the source keeps up.
    usual = rows / len(snapshot.batches) if snapshot.batches else 0.0
    if rows and lag is not None and lag - usual >= threshold * rows:
        seconds, served, times = count["full"]
        added["full"] = [seconds + snapshot.interval_s, served + rows, times + 1]
    return added


def _unmeasured(operator: OperatorSnapshot) -> bool:
    return operator.served is None or busy_of(operator) is None


def busy_of(operator: OperatorSnapshot) -> float | None:
    """The utilisation of the busiest replica if all are known; else the mean."""
    known = [replica.utilisation for replica in operator.replicas if replica.utilisation is not None]
    return max(known) if known and len(known) == len(operator.replicas) else operator.utilisation


def _window(marks: Sequence[Mark], snapshot: Snapshot) -> _Window:
    """The measurements between the first and the last mark, and the inputs of all operators, in the order of the graph."""
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
    """TARGET and the lag of CATCHUP: a source's own rate and lag, or the share of those upstream that arrives here."""
    upstream = [(producer, rate) for producer, rate in found.inputs if producer in snapshot.by_name]
    total = sum(rate for _, rate in found.inputs)
    fresh = 1 - sum(rate for _, rate in upstream) / total if total > 0 else float(found.reads_source)
    target = max(0.0, found.rate + found.growth) * fresh
    lag = found.lag * fresh if batched else found.lag  # in micro-batches all records wait at the source
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
    """The share of its aim that the last scale-up reached; infinite without a scale-up, or if its degree is not in force."""
    if last is None or last[0] != degree or not last[2] > last[1]:
        return math.inf
    return (true_rate - last[1]) / (last[2] - last[1])
