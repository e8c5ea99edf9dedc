"""AUTOSCALE: forecasts the input of the next window through the whole graph, and divides it by a replica's capacity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from springtide.errors import OptionError, nearest
from springtide.model.plan import Request
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy.forecast.best_fit import BestFit
from springtide.policy.forecast.linear import Linear
from springtide.policy.forecast.many import next_windows
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State, changes

COMBINE = {"max": max, "min": min}

_NOISE = 1e-9  # 10 replicas computed as 10.000000000000002 are not 11
_MOST = 1e9  # replicas; a higher value is an error of measurement
_LEAST_INTERVAL_S = 1e-6


class Estimate(NamedTuple):
    """An operator's input in the next window and its backlog, in records; None: unknown."""

    coming: float
    pending: int | None

    @property
    def total(self) -> float:
        """EstimInput of equation 5, without an unknown backlog."""
        return self.coming + (self.pending or 0)


@dataclass(frozen=True)
class Autoscale(ScalePlugin):
    """DABS-Storm's predecessor (section 4): a linear forecast of each operator's input, and capacity by the time per record.

    The window Δ has ``window`` intervals, and moves on by one every interval. For each operator, in the order of the graph:

    - EstimR (equation 3): its forecast input, summed over the next window.
    - EstimInput (equation 5): EstimR combined with the expected output of its producers (equation 4: their EstimInput times the
      mean selectivity ᾱ of the window), plus its backlog. A source counts as a producer, like a spout in Storm.
    - idealK (equations 6, 10): EstimInput / (Δ / latency), with the mean time of work per record in the window as the latency.
    - The degree changes only outside the working interval [β·k, k] (equation 11), to ⌈idealK⌉ (equation 12).

    Nothing is measured while a change settles, and an operator does not change for a window after a change. A change counts
    when it takes effect, i.e. when the degree differs from that of the previous interval.

    In micro-batches records wait at the sources only, and each operator's backlog is its share of them. A producer's expected
    output therefore excludes its backlog: an operator would count the same records once per upstream operator otherwise.

    An unknown backlog makes the estimate too low: good enough to scale out, but not to scale in.

    Example: 1,000 records/s of 5 ms each, with 6,000 waiting, are 66,000 records in the next 60 s. A replica can process 12,000
    of them, so 5.5 replicas are needed: 6.
    """

    name = "autoscale"
    source = "AUTOSCALE (Kotto Kombi et al.), as DABS-Storm recalls it, section 4"
    summary = "a linear forecast through the graph, against the time that a record takes"

    window: int = parameter(
        6, "intervals", 3, 1_000, "length of the window, both backwards and ahead (DABS-Storm: 60 s in intervals of 10 s)"
    )
    beta: float = parameter(0.8, "", 0, 1, "scale in below this share of the degree (DABS-Storm: 0.8 in table 2, near 0 in §6)")
    combine: str = parameter("max", help="combine an operator's own forecast with its producers' by max (cautious) or min")
    settling: int = parameter(
        1, "intervals", 0, 1_000, "time after a change without measurements; at least the start-up time of a replica"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.combine not in COMBINE:
            raise OptionError(f"{self.name!r}: combine={self.combine!r} is not allowed; {nearest(self.combine, COMBINE)}")

    @cached_property
    def _forecaster(self) -> Linear | BestFit:
        return Linear(window=self.window)

    def _usable(self, snapshot: Snapshot) -> Mapping[str, float]:
        """The share of a core that each operator's replicas can use, if it is not a whole one; AUTOSCALE ignores CPU."""
        return {}

    @property
    def _share_for_sizing(self) -> float:
        """The share of a core that a replica provides in the computation of a new degree."""
        return 1.0

    def initial(self) -> State:
        """The state before the first interval.

        ``series``: a forecast for each source and operator. ``work``: by operator, busy seconds and served records; ``passed``:
        by operator and producer, records received and records that the producer served; both cover the last intervals with any.
        ``since``: intervals since an operator changed, up to a window. ``settling``: intervals that will not be measured.
        """
        return {"degrees": {}, "since": {}, "settling": 0, "series": {}, "work": {}, "passed": {}}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        if not _LEAST_INTERVAL_S <= snapshot.interval_s < math.inf:
            return state, ()  # nothing was measured
        state, measured = self._watched(state, snapshot)
        if not measured:
            return state, ()
        delta, usable, share = self.window * snapshot.interval_s, self._usable(snapshot), self._share_for_sizing
        wanted = {}
        for name, estimate in self._estimates(state, snapshot).items():
            latency = _ratio(state["work"].get(name, ()))
            if not latency or state["since"][name] < self.window:
                continue
            has, cpu = state["degrees"][name], usable.get(name, 1.0)
            needed = estimate.total * latency / delta  # in replicas with a core each
            degree = self._degree(has, needed / cpu, needed / share)
            if degree > has or (degree < has and estimate.pending is not None):
                wanted[name] = degree, self._reason(estimate, delta, latency, cpu, has)
        return state, changes(snapshot, wanted)

    def _degree(self, degree: int, ideal: float, sized: float) -> int:
        """Equations 11 and 12. A scale-out never removes replicas, and a scale-in never adds any, although the paper's formulas
        can: 7.5 of 10 replicas are below β·k = 8, and become 11 if sized by 0.7 of a core each."""
        new = max(1, math.ceil(min(sized, _MOST) - _NOISE)) if sized >= 0 else degree
        if ideal > degree + _NOISE:
            return max(degree, new)
        return min(degree, new) if ideal < self.beta * degree - _NOISE else degree

    def _reason(self, estimate: Estimate, delta: float, latency: float, cpu: float, degree: int) -> str:
        waiting = "unknown" if estimate.pending is None else f"{estimate.pending:,}"
        by_cpu = "" if cpu == 1.0 else f" × {cpu:.2f} of a core"
        sized = "" if self._share_for_sizing == 1.0 else f", sized by {self._share_for_sizing:.2f} of a core"
        ideal = estimate.total * latency / delta / cpu
        return (
            f"in {delta:g} s {estimate.coming:,.0f} will come, waiting {waiting}, {delta / latency:,.0f}{by_cpu} per replica:"
            f" {ideal:.2f}, outside {self.beta * degree:.2f} to {degree}{sized}"
        )

    def _watched(self, state: State, snapshot: Snapshot) -> tuple[State, bool]:
        """The state after another interval, and whether that was measured."""
        changed = {o.name for o in snapshot.operators if state["degrees"].get(o.name, o.degree) != o.degree}
        since = state["since"]
        settling = state["settling"]
        if changed:
            settling = max(self.settling, math.ceil(min((snapshot.starting_s or 0.0) / snapshot.interval_s, _MOST) - _NOISE))
        seen = {
            **state,
            "degrees": {o.name: o.degree for o in snapshot.operators},
            "since": {
                o.name: 1 if o.name in changed else min(self.window, since.get(o.name, self.window) + 1)
                for o in snapshot.operators
            },
            "settling": max(0, settling - 1),
        }
        return (seen, False) if settling else ({**seen, **self._measured(state, snapshot)}, True)

    def _measured(self, state: State, snapshot: Snapshot) -> dict[str, Any]:
        """Inputs, work and selectivities after another interval. Missing measurements change nothing."""
        rates = {s.name: None if s.rows is None else s.rows / snapshot.interval_s for s in snapshot.sources}
        taken = {s.name: s.rows for s in snapshot.sources}
        for o in snapshot.operators:
            rates[o.name] = o.rate
            taken[o.name] = o.rows_in if o.served is None else o.served
        series, work, passed = dict(state["series"]), dict(state["work"]), dict(state["passed"])
        known_rates = {name: rate for name, rate in rates.items() if rate is not None}
        states = [series.get(name) or self._forecaster.initial() for name in known_rates]
        series.update(zip(known_rates, self._forecaster.update_all(states, tuple(known_rates.values())), strict=True))
        for o in snapshot.operators:
            if o.cost_s is not None:
                work[o.name] = self._slid(work.get(o.name, ()), [o.busy_s, o.served])
            known = passed.get(o.name, {})
            fresh = {
                producer: self._slid(known.get(producer, ()), [came, taken[producer]])
                for producer, came in o.inputs
                if taken.get(producer)
            }
            if fresh:
                passed[o.name] = {**known, **fresh}
        return {"series": series, "work": work, "passed": passed}

    def _slid(self, pairs: Sequence[Sequence[float]], pair: Sequence[float | None]) -> list[Sequence[float | None]]:
        return [*pairs[max(0, len(pairs) + 1 - self.window) :], pair]

    def _estimates(self, state: State, snapshot: Snapshot) -> dict[str, Estimate]:
        """EstimInput of every operator whose input was measured."""
        sent = self._own(state, snapshot, [s.name for s in snapshot.sources if s.rows is not None])
        own = self._own(state, snapshot, [o.name for o in snapshot.operators if o.rate is not None])
        found: dict[str, Estimate] = {}
        combine, passed = COMBINE[self.combine], state["passed"]
        for operator in snapshot.operators:
            name = operator.name
            if operator.rate is None:
                continue
            produced = _produced(operator, passed.get(name, {}), sent)
            found[name] = estimate = Estimate(own[name] if produced is None else combine(own[name], produced), operator.backlog)
            sent[name] = estimate.coming if snapshot.batches else estimate.total
        return found

    def _own(self, state: State, snapshot: Snapshot, names: Sequence[str]) -> dict[str, float]:
        """EstimR of equation 3, in records: the fitted curve, evaluated at every step of the next window."""
        sums = next_windows([state["series"][name] for name in names], self.window)
        return {name: snapshot.interval_s * each for name, each in zip(names, sums, strict=True)}


def _produced(
    operator: OperatorSnapshot, passed: Mapping[str, Sequence[Sequence[float]]], sent: Mapping[str, float]
) -> float | None:
    """The sum of EstimOutput over the producers; None without producers, or if any of them is unknown."""
    outputs = []
    for name, _ in operator.inputs:
        selectivity = _ratio(passed.get(name, ()))
        if selectivity is None or name not in sent:
            return None
        outputs.append(sent[name] * selectivity)
    return sum(outputs) if outputs else None


def _ratio(pairs: Sequence[Sequence[float]]) -> float | None:
    """The ratio of sums over the window, so that every record counts the same; None without records."""
    above = below = 0.0
    for part, whole in pairs:
        above += part
        below += whole
    return above / below if below > 0 and above < math.inf else None
