"""Springtide's overhead over a hand-written query, and the gain from its session settings.

Three contenders run the same three light operators on 1,000 rows a batch: ``vanilla`` with Spark's defaults, ``vanilla`` with
Springtide's session settings, and Springtide. Sessions differ in settings of the JVM, so the first contender has a process of
its own. Only one process works at a time, the order rotates from round to round, and the first batches of every query are
dropped. A batch's time is that from its start to the start of the next, because all three run batches back to back.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from springtide.bench.statistics import quartiles, turned

ROWS_PER_BATCH = 1_000
SHAPES = ("chained", "shuffled")
SIDES = (("defaults", "vanilla"), ("springtide", "vanilla"), ("springtide", "springtide"))
"""Pairs of session settings and the runner of the query."""

Times = dict[tuple[str, str, str], list[list[float]]]


def measure(rounds: int, batches: int, progress: TextIO = sys.stderr) -> dict[str, Any]:
    """Run all contenders ``rounds`` times each, after a round to warm up."""
    times: Times = {}
    with _child("defaults") as defaults, _child("springtide") as springtide:
        children = {"defaults": defaults, "springtide": springtide}
        for number in range(rounds + 1):
            for shape in SHAPES:
                for settings, who in turned(SIDES, number):
                    periods = children[settings].run(shape, who, batches)
                    if number:
                        times.setdefault((shape, settings, who), []).append(periods)
            print(f"round {number} of {rounds}{' (warm-up)' if not number else ''}", file=progress, flush=True)
    return {
        "rows_per_batch": ROWS_PER_BATCH,
        "rounds": rounds,
        "batches_per_round": batches,
        **{shape: _compared(times, shape) for shape in SHAPES},
    }


def _compared(times: Times, shape: str) -> dict[str, Any]:
    """Medians of the rounds' medians, and ratios within a round with their quartiles."""
    defaults, vanilla, springtide = (
        [statistics.median(periods) for periods in times[(shape, settings, who)]] for settings, who in SIDES
    )
    ratios = [ours / theirs for ours, theirs in zip(springtide, vanilla, strict=True)]
    gains = [theirs / ours for ours, theirs in zip(springtide, defaults, strict=True)]
    return {
        "vanilla_defaults_ms": round(statistics.median(defaults), 1),
        "vanilla_ms": round(statistics.median(vanilla), 1),
        "springtide_ms": round(statistics.median(springtide), 1),
        "ratio": round(statistics.median(ratios), 3),
        "gain": round(statistics.median(gains), 3),
        "ratio_iqr": quartiles(ratios),
        "gain_iqr": quartiles(gains),
    }


class _Child:
    """A process with a Spark session. It runs the queries that it is sent, and answers with the times."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, shape: str, who: str, batches: int) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([shape, who, batches]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {who} ended with exit code {self._process.wait()}")
        times: list[float] = json.loads(answer)
        return times


@contextmanager
def _child(settings: str) -> Iterator[_Child]:
    command = [sys.executable, "-m", "springtide.bench.overhead_side", settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            yield _Child(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
