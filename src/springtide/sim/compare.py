"""Policies side by side: the same records, the same cluster, one policy after another, several at a time.

Every policy starts from one replica of each operator, and the first intervals are not scored. ``cost_vs_clairvoyant`` is
replica-seconds over those of the clairvoyant, which knows the trace; a policy that violates the target can cost less than it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.rate import Rate
from springtide.model.topology import Topology
from springtide.policy import chosen as policies_chosen
from springtide.policy import registry
from springtide.policy.scale.clairvoyant import Clairvoyant, Foreseen
from springtide.sim.entry import simulate
from springtide.sim.future import future_of
from springtide.sim.model import Model
from springtide.sim.setup import METRICS, Outcome

BOUND = "clairvoyant"
STARTS = 2
"""Intervals that are not scored: the first measurement is in at the end of the first, and its decision shows in the second."""

Progress = Callable[[str, int, int], None]
"""Told which policy is done, and how many of how many."""


@dataclass(frozen=True)
class Comparison:
    """What came of it: the document that ``springtide compare --json`` prints, and rates and replicas over time for a plot."""

    document: Mapping[str, Any]
    rate: Rate
    replicas: Mapping[str, tuple[tuple[float, int], ...]] = field(repr=False)
    """By policy, from which second on it had how many replicas."""


def compare(
    what: Model | Topology, rate: Rate, *, policies: Sequence[str] | None = None, interval: str | float = "30s",
    target: str | float = "250ms", seed: int = 0, starting: str | float = 0.0, max_slots: int | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None, processes: int | None = None, progress: Progress | None = None,
    **options: Any,
) -> Comparison:  # fmt: skip
    """Run each policy on the same trace. ``settings``: by policy; ``options`` are those of ``simulate``.

    ``static`` is given the trace's peak need, if its settings say nothing else.
    """
    names = list(policies or (cls.name for cls in registry.available("scale") if cls.name != "scripted"))
    for name in settings or {}:
        if name not in names:
            raise OptionError(f"settings for {name!r}, which is not compared; {nearest(name, names)}")
    chosen = {name: dict((settings or {}).get(name, {})) for name in names}
    topology = what.topology if isinstance(what, Model) else what
    for name, given in chosen.items():  # what is wrong fails before anything is run
        policies_chosen.chosen(name, given, (), [operator.name for operator in topology.scalable])
    interval_s, target_s = seconds(interval, "interval"), seconds(target, "target")
    if not math.isfinite(rate.end):
        raise OptionError(f"the rate {rate} has no end; a comparison needs one that ends, such as a trace")
    if rate.end <= STARTS * interval_s:
        raise OptionError(
            f"{rate} ends after {rate.end:g} s, and the first {STARTS} intervals of {interval_s:g} s do not count"
        )
    common = {
        "trace": rate, "interval": interval_s, "target": target_s, "seed": seed, "starting": starting, "max_slots": max_slots,
        "warmup": STARTS * interval_s, **options,
    }  # fmt: skip
    bound: Any = BOUND
    if isinstance(what, Model):  # its future is known before anything is run, and tells the peak need too
        bound = Clairvoyant().told(future_of(what.with_rate(rate), rate.end, seed, max_slots or 10**6), interval_s, target_s)
        if "static" in chosen and not chosen["static"]:
            chosen["static"] = {"degrees": ",".join(f"{name}={max(each)}" for name, each in bound.degrees.items())}
    jobs = {name: (bound if name == BOUND else name, given) for name, given in {BOUND: {}, **chosen}.items()}
    outcomes = _run(what, jobs, common, processes, progress)
    least = outcomes[BOUND].summary["replica_seconds"]
    rows = [_row(name, outcomes[name].summary, least) for name in dict.fromkeys([BOUND, *names])]
    document = {
        "topology": what.name, "trace": str(rate), "interval_s": interval_s, "target_ms": 1000 * target_s, "seed": seed,
        "starting_s": seconds(starting, "starting"), "rows": rows,
    }  # fmt: skip
    return Comparison(document, rate, {name: _replicas(outcome) for name, outcome in outcomes.items()})


def _run(
    what: Model | Topology, jobs: Mapping[str, tuple[str | Foreseen, Mapping[str, object]]], common: Mapping[str, Any],
    processes: int | None, progress: Progress | None,
) -> dict[str, Outcome]:  # fmt: skip
    """All of them, in as many processes as there are cores; they are forked, so that a user's own functions come along."""
    outcomes: dict[str, Outcome] = {}
    workers = min(processes or os.cpu_count() or 1, len(jobs))
    if workers == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for name, (policy, given) in jobs.items():
            outcomes[name] = _one(what, policy, given, common)
            if progress is not None:
                progress(name, len(outcomes), len(jobs))
        return outcomes
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        running = {pool.submit(_one, what, policy, given, common): name for name, (policy, given) in jobs.items()}
        for done in as_completed(running):
            outcomes[running[done]] = done.result()
            if progress is not None:
                progress(running[done], len(outcomes), len(jobs))
    return outcomes


def _one(
    what: Model | Topology, policy: str | Foreseen, given: Mapping[str, object], common: Mapping[str, Any]
) -> Outcome:  # fmt: skip
    return simulate(what, policy=policy, settings=given, **common)


def _row(name: str, summary: Mapping[str, Any], least: float) -> dict[str, Any]:
    metrics = {metric: summary[metric] for metric in METRICS}
    cost = summary["replica_seconds"] / least if least > 0 else None
    first = {"policy": name, "violation_ratio": metrics["violation_ratio"], "cost_vs_clairvoyant": cost}
    return {**first, **metrics}


def _replicas(outcome: Outcome) -> tuple[tuple[float, int], ...]:
    return tuple((snapshot.at, sum(snapshot.plan.degrees.values())) for snapshot in outcome.snapshots)
