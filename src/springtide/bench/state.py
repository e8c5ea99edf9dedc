"""Stateful operators: Springtide's shards, Spark's ``transformWithState`` and its built-in aggregation. Three measurements:

- throughput: rows counted a second, with batches of 2,000 rows over 1,000 keys, and of 100,000 over 50,000
- pause: the time without a finished batch while a state of 100 MB is rescaled from 2 tasks to 8, and back
- skew: the throughput when the popular keys change (Elasticutor, figure 6)

Each part has its own process and session, with the same settings for all contenders; for pauses, so has each contender in each
round. A batch's time is that from its start to the start of the next, because all run batches back to back.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from springtide.bench.statistics import quartiles
from springtide.errors import OptionError, nearest

PARTS = ("throughput", "pause", "skew")


@dataclass(frozen=True)
class Load:
    """The rows and the keys of a batch, the number of batches that are measured, and of those before them that are not."""

    rows: int
    keys: int
    measured: int
    dropped: int


LOADS = (Load(2_000, 1_000, 12, 6), Load(100_000, 50_000, 4, 2))
"""The loads of the throughput part."""
OMEGAS = (0, 2, 8, 16)
"""Changes of the popular keys a minute, in the skew part."""


def measure(
    parts: Sequence[str] | None = None, rounds: int = 3, rows: int | None = None, omega: int | None = None,
    progress: TextIO = sys.stderr,
) -> dict[str, Any]:  # fmt: skip
    """Run the parts, one after the other. ``rows``: limits throughput to batches of this size; ``omega``: limits skew to it."""
    parts = parts or PARTS
    for part in parts:
        if part not in PARTS:
            raise OptionError(f"no part {part!r}; {nearest(part, PARTS)}")
    if rows not in (None, *(load.rows for load in LOADS)):
        known = " or ".join(str(load.rows) for load in LOADS)
        raise OptionError(f"rows={rows} is not allowed; give {known} rows a batch")
    if omega not in (None, *OMEGAS):
        raise OptionError(f"omega={omega} is not allowed; give {', '.join(map(str, OMEGAS))} changes of the keys a minute")
    chosen = {"throughput": rows, "skew": omega}
    answers = {}
    for part in parts:
        print(f"{part}:", file=progress, flush=True)
        only = chosen.get(part)
        answers[part] = answer_of(f"state_{part}", rounds, *([] if only is None else [only]))
    document: dict[str, Any] = {}
    if "throughput" in answers:
        document["throughput"] = answers["throughput"]
        document["ratios"] = ratios(answers["throughput"])
    if "pause" in answers:
        document["pause"] = answers["pause"]
        usual = max(answers["pause"]["springtide_s"], answers["pause"]["usual_batch_s"])
        document["pause_ratio"] = round(answers["pause"]["spark_s"] / usual, 2)
    if "skew" in answers:
        document["work"] = "wait"
        document["skew"] = answers["skew"]
    return document


def answer_of(module: str, *arguments: object) -> Any:
    """The JSON that a module of the benchmark prints, run in a process of its own."""
    command = [sys.executable, "-m", f"springtide.bench.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        answer = process.stdout.read()
        if process.wait():
            raise RuntimeError(f"the process of {module} ended with exit code {process.returncode}")
    return json.loads(answer)


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Springtide's rows a second over those of the others, each at its best parallelism, and the built-in at 16 partitions."""
    found = []
    for size in sorted({(row["rows"], row["keys"]) for row in rows}):
        mine = _best(rows, size, ("springtide",))
        for name, engines, parallelism in (
            ("tws", ("tws-pandas", "tws-row"), None), ("builtin", ("builtin",), None), ("builtin at 16", ("builtin",), 16),
        ):  # fmt: skip
            other = _best(rows, size, engines, parallelism)
            if mine is None or other is None:
                continue
            each = [theirs / ours for ours, theirs in zip(mine["rounds_ms"], other["rounds_ms"], strict=True)]
            found.append({"rows": size[0], "keys": size[1], "over": name, "engine": other["engine"],
                          "parallelism": other["parallelism"], "ratio": round(statistics.median(each), 2),
                          "ratio_iqr": quartiles(each)})  # fmt: skip
    return found


def _best(
    rows: Sequence[dict[str, Any]], size: tuple[int, int], engines: Sequence[str], parallelism: int | None = None
) -> dict[str, Any] | None:
    of = [row for row in rows if (row["rows"], row["keys"]) == size and row["engine"] in engines]
    return min((row for row in of if parallelism in (None, row["parallelism"])), key=lambda row: row["batch_ms"], default=None)
