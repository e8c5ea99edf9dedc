"""EDF's table 1 (section 9), measured again: 15 configurations, six numbers each, and the orders that the paper concludes.

A number within a fifth of the published number is reproduced; so are replicas within 0.75, downtime within 0.5 points and
violations within 2 points, if that is more. A lower number than the published is not better, because these are the same
systems, and most of them are baselines. Rows of numbers that the set-up was calibrated to say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from springtide.model.rate import Rate
from springtide.papers.edf_setup import SKIPS_S, Configuration, Measured, run
from springtide.papers.rows import Claim, Row, row

PAPER, TABLE, ORDERS = "edf", "table 1", "orders"
Progress = Callable[[str], None]

METRICS = {
    "mean": ("ms", "mean_ms"), "median": ("ms", "median_ms"), "p95": ("ms", "p95_ms"), "replicas": ("replicas", "replicas"),
    "downtime": ("%", "downtime_percent"), "violations": ("%", "violations_percent"),
}  # fmt: skip
"""The columns of table 1: the unit, and the field of ``Measured``."""
TOLERANCE = {"replicas": 0.75, "downtime": 0.5, "violations": 2.0}
"""The absolute difference up to which a number is reproduced in any case."""

SAVING, STEADY = {"w_perf": 0.4, "w_res": 0.4, "w_rcf": 0.2}, {"w_perf": 0.4, "w_res": 0.2, "w_rcf": 0.4}
BUCKET = ", token bucket"


def _threshold(utilisation: float, bucket: bool = False) -> Configuration:
    label = f"TH {utilisation}{BUCKET if bucket else ''}"
    return Configuration(label, "threshold", {"utilisation": utilisation}, bucket)


def _learner(short: str, policy: str, weights: Mapping[str, float], bucket: bool = False) -> Configuration:
    shown = ", ".join(f"{weight:g}".removeprefix("0") for weight in weights.values())
    return Configuration(f"{short} ({shown}){BUCKET if bucket else ''}", policy, weights, bucket)


def _both(short: str, policy: str, weights: Mapping[str, float]) -> tuple[Configuration, Configuration]:
    return _learner(short, policy, weights), _learner(short, policy, weights, bucket=True)


QL_1, QL_1_BUCKET = _both("QL", "q-learning", SAVING)
QL_2, QL_2_BUCKET = _both("QL", "q-learning", STEADY)
MB_1, MB_1_BUCKET = _both("MB", "model-based", SAVING)
MB_2, MB_2_BUCKET = _both("MB", "model-based", STEADY)

PUBLISHED = {
    _threshold(0.7): (363.0, 320.6, 686.8, 8.69, 1.25, 82.17),
    _threshold(0.6): (324.6, 300.0, 507.7, 8.75, 0.97, 77.76),
    _threshold(0.5): (295.0, 279.7, 457.9, 8.87, 1.48, 69.25),
    _threshold(0.4): (230.0, 229.9, 334.0, 9.61, 3.38, 35.68),
    _threshold(0.4, bucket=True): (211.4, 209.8, 302.3, 9.50, 1.23, 25.19),
    _threshold(0.3): (161.6, 152.3, 274.6, 12.40, 6.12, 7.48),
    _threshold(0.3, bucket=True): (164.1, 158.3, 239.4, 10.51, 3.18, 3.62),
    QL_1: (474.9, 145.9, 691.7, 13.78, 10.96, 17.99),
    QL_1_BUCKET: (144.0, 137.8, 216.9, 11.46, 1.56, 1.31),
    QL_2: (492.5, 138.5, 789.8, 13.89, 10.84, 14.97),
    QL_2_BUCKET: (138.1, 133.4, 205.0, 12.21, 1.16, 0.81),
    MB_1: (176.4, 154.7, 271.9, 10.13, 3.20, 6.92),
    MB_1_BUCKET: (168.4, 161.9, 240.4, 9.87, 1.40, 3.06),
    MB_2: (94.0, 89.3, 138.9, 12.00, 0.00, 0.01),
    MB_2_BUCKET: (93.8, 89.3, 137.8, 12.00, 0.00, 0.00),
}
"""Mean, median and 95th percentile of the response time (ms), mean replicas, downtime (%), R_max violations (%)."""

# Observations here with seed 0, and conjectures about the prototype, which say "perhaps".
_QUIET = "perhaps the nights: 24 % of the trace is below the paper's least rate of 150 tuples/s"
_STEADIER = "fewer changes than the prototype made; perhaps its CPU measurement wavered, while here it follows trace and bursts"
_TWO = "partialRank has two replicas for 62 % of the time, and is late then; perhaps the prototype had three for longer"
_STAY = (
    "the bucket leaves the four other operators at 1.6 replicas each, as without it; why it saved two in the prototype is open"
)
_RECOVERY = "a mean of three times the median: perhaps the prototype's samples have recoveries in them, which are left out here"
_LUCK = "with five seeds 55 to 102 changes, 0.97 to 1.9 % of the requests; seed 0 with (.4, .4, .2) has the fewest"
_FEWER = "with five seeds 7.6 to 10.7 for (.4, .2, .4), 9.8 to 17.6 for (.4, .4, .2)"
_FIVE = (
    "12 replicas and 89 ms fit five of partialRank; here it has three for 60 % of the time and never five: another one costs"
    " w_res/6 = 0.033 an interval and being late 0.4, so that the learner bears being late in 8 % of them"
)
_CALM = "fewer changes than the prototype's, whose oscillations figure 5e shows; perhaps its measured rates wavered more"


def _reason(line: Configuration, metric: str) -> str:
    """The reason why a number of this line may not be reproduced."""
    if line.policy == "model-based":
        return _FIVE if line in (MB_2, MB_2_BUCKET) else _CALM
    if line.policy == "q-learning":
        return _LUCK if line.bucket else _RECOVERY
    if metric == "downtime":
        return _STEADIER
    if line.settings["utilisation"] == 0.3:
        return _STAY if line.bucket and metric == "replicas" else _TWO
    return _QUIET


def _calibrated(line: Configuration, metric: str) -> bool:
    thresholds = line.policy == "threshold" and not line.bucket and metric in ("median", "p95", "violations")
    return thresholds or (line.label, metric) in (("TH 0.4", "replicas"), (QL_1.label, "downtime"))


def claim_of(line: Configuration, metric: str, results: Sequence[Measured]) -> Claim:
    published = PUBLISHED[line][list(METRICS).index(metric)]
    by = max(0.2 * published, TOLERANCE.get(metric, 0.0)) if metric != "replicas" else TOLERANCE["replicas"]
    notes = [f"within {by:.3g}"] + ["calibrated on it"] * _calibrated(line, metric)
    skips = {result.skip_s for result in results} - {SKIPS_S[0]}
    if skips and metric in ("mean", "median", "p95", "violations"):
        share = np.mean([result.sampled for result in results])
        notes.append(f"2 minutes after a change nothing is left: measured from {min(skips):g} s on, {share:.0%} of the time")
    lower = np.mean([getattr(result, METRICS[metric][1]) for result in results]) < published
    return Claim(
        published, published - by, published + by, "; ".join(notes), _reason(line, metric),
        more_is_better=bool(lower),  # so that neither side counts as better
    )  # fmt: skip


@dataclass
class Bench:
    """Runs every configuration once with each seed, and caches the results. It calls ``progress`` before every run."""

    rate: Rate
    seeds: int = 1
    progress: Progress = lambda _: None
    _results: dict[str, list[Measured]] = field(default_factory=dict)

    def results(self, line: Configuration) -> list[Measured]:
        if line.label not in self._results:
            self._results[line.label] = [self._run(line, seed) for seed in range(self.seeds)]
        return self._results[line.label]

    def _run(self, line: Configuration, seed: int) -> Measured:
        self.progress(f"{line.label}, seed {seed}")
        return run(line, self.rate, seed)

    def mean(self, line: Configuration, metric: str) -> float:
        return float(np.mean([getattr(result, METRICS[metric][1]) for result in self.results(line)]))


def table(bench: Bench) -> list[Row]:
    """Six rows for each configuration; the series is the column."""
    made = []
    for line in PUBLISHED:
        results = bench.results(line)
        for metric, (unit, name) in METRICS.items():
            values = [float(getattr(result, name)) for result in results]
            made.append(row(PAPER, TABLE, line.label, metric, None, values, unit, claim_of(line, metric, results)))
    return made


def orders(bench: Bench) -> list[Row]:
    """The paper's conclusions from the table, and its claims about requests."""
    return [*_beaten(bench), *_bucket(bench), *_least(bench)]


def _beaten(bench: Bench) -> list[Row]:
    """The violations of model-based, compared with policies that use more replicas; those have to use more here too."""
    made = []
    for own in (MB_1, MB_2):
        for line in (_threshold(0.3), QL_1, QL_2):
            less = [b.violations_percent - a.violations_percent for a, b in _pairs(bench, own, line)]
            used, more = bench.mean(own, "replicas"), bench.mean(line, "replicas")
            note = f"above 0, at no more replicas: {used:.1f} for {more:.1f}"
            published = PUBLISHED[line][5] - PUBLISHED[own][5]
            claim = Claim(published, 0.0 if used <= more else math.inf, math.inf, note)
            made.append(row(PAPER, ORDERS, f"{own.label} beats {line.label}", "violations", None, less, "points", claim))
    return made


def _bucket(bench: Bench) -> list[Row]:
    made = []
    for without, bucket in ((QL_1, QL_1_BUCKET), (QL_2, QL_2_BUCKET)):
        fewer = [a.granted / max(1, b.granted) for a, b in _pairs(bench, without, bucket)]
        shorter = [a.changes / max(1, b.changes) for a, b in _pairs(bench, without, bucket)]  # each pauses for as long
        published = PUBLISHED[without][4] / PUBLISHED[bucket][4]
        percent = [100 * result.granted / max(1, result.proposed) for result in bench.results(bucket)]
        many = Claim(None, 10.0, math.inf, f"granted without bucket over those with it, at least 10; {_FEWER}")
        less = Claim(
            published, 0.8 * published, 1.2 * published, "downtime without bucket over that with it, within a fifth", _LUCK
        )
        few = Claim(1.0, 0.0, 1.0, f"the paper: less than 1 %; {_LUCK}", more_is_better=False)
        made += [
            row(PAPER, ORDERS, f"{bucket.label} cuts reconfigurations", "reconfigurations", None, fewer, "ratio", many),
            row(PAPER, ORDERS, f"{bucket.label} cuts downtime", "downtime", None, shorter, "ratio", less),
            row(PAPER, ORDERS, f"{bucket.label}: requests granted", "granted", None, percent, "%", few),
        ]
    return made


def _least(bench: Bench) -> list[Row]:
    """The violations of model-based (.4, .2, .4), compared with the best of the others, without and with bucket."""
    made = []
    for own in (MB_2, MB_2_BUCKET):
        others = [line for line in PUBLISHED if line.bucket == own.bucket and line is not own]
        best = min(others, key=lambda line: bench.mean(line, "violations"))
        less = [b.violations_percent - a.violations_percent for a, b in _pairs(bench, own, best)]
        published = min(PUBLISHED[line][5] for line in others) - PUBLISHED[own][5]
        note = f"above 0; the least of the others here: {best.label}, with {bench.mean(best, 'replicas'):.1f} replicas for"
        claim = Claim(published, 0.0, math.inf, f"{note} {bench.mean(own, 'replicas'):.1f}", _FIVE)
        made.append(row(PAPER, ORDERS, f"{own.label} violates least", "violations", None, less, "points", claim))
    return made


def _pairs(bench: Bench, first: Configuration, second: Configuration) -> list[tuple[Measured, Measured]]:
    return list(zip(bench.results(first), bench.results(second), strict=True))
