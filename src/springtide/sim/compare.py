"""Policies side by side, on the same records and the same cluster, in several processes.

Every policy starts with one replica of each operator, and the first intervals are not scored. ``cost_vs_clairvoyant`` divides
replica-seconds by those of the clairvoyant, which knows the trace; a policy that violates the target can cost less.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.rate import Rate
from springtide.model.topology import Topology
from springtide.options import positive_s
from springtide.policy import chosen as policies_chosen
from springtide.policy import registry
from springtide.policy.scale.clairvoyant import Clairvoyant
from springtide.sim.entry import simulated
from springtide.sim.future import foreseen
from springtide.sim.model import Model
from springtide.sim.options import NO_LIMIT, SimulationOptions, modelled
from springtide.sim.setup import METRICS, Outcome

BOUND = Clairvoyant.name
STARTS = 2
"""Intervals that are not scored: the first ends with the first measurement, and its decision shows in the second."""

Progress = Callable[[str, int, int], None]
"""Receives the policy that has finished, the number of finished policies, and their total."""


@dataclass(frozen=True)
class Comparison:
    """The results: the document that ``springtide compare --json`` prints, and rates and replicas over time for a plot."""

    document: Mapping[str, Any]
    rate: Rate
    replicas: Mapping[str, tuple[tuple[float, int], ...]] = field(repr=False)
    """By policy: each change as a time in seconds and the replicas from then on."""


def compare(
    what: Model | Topology, rate: Rate, *, policies: Sequence[str] | None = None, interval: str | float = "30s",
    target: str | float = "250ms", seed: int = 0, starting: str | float = 0.0, max_slots: int | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None, processes: int | None = None, progress: Progress | None = None,
    costs: str | Path | None = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Run each policy on the same trace. ``settings``: by policy; ``options``: those of ``simulate``.

    A topology's costs are measured once, or read from the file ``costs``. Without settings, ``static`` gets the peak need of
    the trace.
    """
    names = list(policies or (cls.name for cls in registry.available("scale") if cls.name != "scripted"))
    for name in settings or {}:
        if name not in names:
            raise OptionError(f"settings for {name!r}, which is not compared; {nearest(name, names)}")
    chosen = {name: dict((settings or {}).get(name, {})) for name in names}
    topology = what.topology if isinstance(what, Model) else what
    for name, given in chosen.items():  # errors come before any simulation
        policies_chosen.chosen(name, given, (), [operator.name for operator in topology.scalable])
    asked = SimulationOptions.of({
        "trace": rate, "interval": interval, "target": target, "seed": seed, "starting": starting, "max_slots": max_slots,
        "warmup": STARTS * positive_s(interval, "interval"), **options,
    })  # fmt: skip
    goals, target_s = asked.goals, seconds(target, "target")
    if not math.isfinite(rate.end):
        raise OptionError(f"the rate {rate} has no end; a comparison needs one that ends, such as a trace")
    if rate.end <= STARTS * goals.interval_s:
        raise OptionError(
            f"{rate} ends after {rate.end:g} s, and the first {STARTS} intervals of {goals.interval_s:g} s do not count"
        )
    model = modelled(what, rate, costs)
    bound = foreseen(Clairvoyant(), model, rate.end, seed, max_slots or NO_LIMIT, goals.interval_s, target_s)
    if "static" in chosen and not chosen["static"]:
        chosen["static"] = {"degrees": ",".join(f"{name}={max(each)}" for name, each in bound.degrees.items())}
    jobs = {name: asked.with_policy(bound if name == BOUND else name, given) for name, given in {BOUND: {}, **chosen}.items()}
    outcomes = _run(Work(model, jobs), processes, progress)
    least = outcomes[BOUND].summary["replica_seconds"]
    rows = [_row(name, outcomes[name].summary, least) for name in dict.fromkeys([BOUND, *names])]
    document = {
        "topology": what.name, "trace": str(rate), "interval_s": goals.interval_s, "target_ms": 1000 * target_s, "seed": seed,
        "starting_s": goals.starting_s, **({"grouping": asked.grouping.name} if "grouping" in options else {}), "rows": rows,
    }  # fmt: skip
    return Comparison(document, rate, {name: _replicas(outcome) for name, outcome in outcomes.items()})


@dataclass(frozen=True)
class Work:
    """The model, and the options of each simulation by policy."""

    model: Model
    jobs: Mapping[str, SimulationOptions]

    def simulate(self, name: str) -> Outcome:
        return simulated(self.model, self.jobs[name])


def _run(work: Work, processes: int | None, progress: Progress | None) -> dict[str, Outcome]:
    """Run all simulations. Processes are forked, because a user's functions may not be picklable."""
    outcomes: dict[str, Outcome] = {}
    workers = min(processes or os.cpu_count() or 1, len(work.jobs))
    if workers == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for name in work.jobs:
            outcomes[name] = work.simulate(name)
            if progress is not None:
                progress(name, len(outcomes), len(work.jobs))
        return outcomes
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=forked, initializer=_begin, initargs=(work,)) as pool:
        running = {pool.submit(_in_worker, name): name for name in work.jobs}
        for done in as_completed(running):
            outcomes[running[done]] = done.result()
            if progress is not None:
                progress(running[done], len(outcomes), len(work.jobs))
    return outcomes


_of_worker: list[Work] = []
"""The work of this worker process, inherited by the fork."""


def _begin(work: Work) -> None:
    _of_worker[:] = [work]


def _in_worker(name: str) -> Outcome:
    return _of_worker[0].simulate(name)


def _row(name: str, summary: Mapping[str, Any], least: float) -> dict[str, Any]:
    metrics = {metric: summary[metric] for metric in METRICS}
    cost = summary["replica_seconds"] / least if least > 0 else None
    first = {"policy": name, "violation_ratio": metrics["violation_ratio"], "cost_vs_clairvoyant": cost}
    return {**first, **metrics}


def _replicas(outcome: Outcome) -> tuple[tuple[float, int], ...]:
    return tuple((snapshot.at, sum(snapshot.plan.degrees.values())) for snapshot in outcome.snapshots)
