"""State side by side: Spark's ``transformWithState`` and built-in aggregation, and Springtide's shards. Three questions:

- throughput: how many rows a second are counted, 2,000 a batch over 1,000 keys, and 100,000 over 50,000
- pause: how long no batch ends while a state of 100 MB is spread from 2 tasks to 8, and back
- skew: what is left of the throughput when the popular keys change (Elasticutor, figure 6)

Each part has a process and a session of its own, with the same settings for all sides of it; where pauses are measured, each
side in each round. A batch's time is that from its start to the start of the next, as all run back to back.
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
    """Rows a batch, over so many keys; batches that are measured, after so many that are not."""

    rows: int
    keys: int
    measured: int
    dropped: int


LOADS = (Load(2_000, 1_000, 12, 6), Load(100_000, 50_000, 4, 2))
"""With which throughput is measured."""
OMEGAS = (0, 2, 8, 16)
"""How many times a minute the popular keys change where skew is measured."""


def measure(
    parts: Sequence[str] = PARTS, rounds: int = 3, rows: int | None = None, omega: int | None = None,
    progress: TextIO = sys.stderr,
) -> dict[str, Any]:  # fmt: skip
    """Run the parts, one after the other. ``rows``: throughput only with so many a batch; ``omega``: skew only with that."""
    for part in parts:
        if part not in PARTS:
            raise OptionError(f"no part {part!r}; {nearest(part, PARTS)}")
    if rows not in (None, *(load.rows for load in LOADS)):
        known = " or ".join(str(load.rows) for load in LOADS)
        raise OptionError(f"throughput is measured with batches of {known} rows; {rows} came")
    if omega not in (None, *OMEGAS):
        raise OptionError(f"skew is measured with keys that change {', '.join(map(str, OMEGAS))} times a minute; {omega} came")
    chosen = {"throughput": rows, "skew": omega}
    found = {}
    for part in parts:
        print(f"{part}:", file=progress, flush=True)
        only = chosen.get(part)
        found[part] = answer_of(f"state_{part}", rounds, *([] if only is None else [only]))
    document: dict[str, Any] = {}
    if "throughput" in found:
        document["throughput"] = found["throughput"]
        document["ratios"] = ratios(found["throughput"])
    if "pause" in found:
        document["pause"] = found["pause"]
        usual = max(found["pause"]["springtide_s"], found["pause"]["usual_batch_s"])
        document["pause_ratio"] = round(found["pause"]["spark_s"] / usual, 2)
    if "skew" in found:
        document["work"] = "wait"
        document["skew"] = found["skew"]
    return document


def answer_of(module: str, *arguments: object) -> Any:
    """What a module of the benchmark answers, in a process of its own."""
    command = [sys.executable, "-m", f"springtide.bench.{module}", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=None, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        answer = process.stdout.read()
        if process.wait():
            raise RuntimeError(f"the process of {module} ended with exit code {process.returncode}")
    return json.loads(answer)


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Springtide's rows a second over those of the others, each at its best, and the built-in's at 16 partitions; by rounds."""
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
