"""What the job has to leave, worked out in plain Python, and what it did leave for readers."""

from __future__ import annotations

import csv
import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from damage import job
from damage.job import BATCH_RECORDS, RECORDS, SEED, START, WINDOW_S, Number, Place
from springtide.model.generated import draws
from springtide.spark.state.reading import reading

Records = Counter[tuple[Any, ...]]
Written = Mapping[str, Records]
"""By name, the records of a sink, the dead letters and the state, each with how often it is there."""

MUST_BE_CLOSED_BEFORE = START + datetime.timedelta(seconds=RECORDS - 2 * BATCH_RECORDS)
"""Windows that end before this have to be in the output. The watermark lags by up to two batches, so later windows may still be
open, in the state; a window that is in neither is lost."""


def expected() -> Written:
    """The output and the state after the last record: one loop, no batches, no tasks, no order."""
    written: dict[str, Records] = defaultdict(Counter)
    keys: dict[str, list[int]] = defaultdict(list)
    windows: dict[tuple[str, datetime.datetime], list[int]] = defaultdict(list)
    numbers: list[Number] = []
    for number in (job.make(draw) for draw in draws(SEED, 0, [0] * RECORDS)):
        try:
            numbers.append(job.parse(number))
        except ValueError as error:
            written["dead letters"]["parse", number.n, f"ValueError: {error}"] += 1
    for number in numbers:
        weighed = job.weigh(number)
        written["weighed"][weighed.n, weighed.key, weighed.weight] += 1
        written["singles"][number.n, 1] += 1
        written["state of singles"][number.n, 1] += 1
        windows[number.key, _window(number.at)].append(number.n)
    for number in [*numbers, *(record for file in job.names() for record in file)]:
        keys[number.key].append(number.n)
        written["placed"][number.n, number.key] += 1
        written["positions"][number.key, len(keys[number.key])] += 1
    written["windows"].update(_told(key, start, len(numbers), sum(numbers)) for (key, start), numbers in windows.items())
    written["state of position"].update((key, len(numbers), sum(numbers)) for key, numbers in keys.items())
    return {**written, "overdue windows": Counter()}


def found(place: Place) -> Written:
    """What readers see: the visible files of the sinks, the dead letters, and the state."""
    written: dict[str, Records] = defaultdict(Counter)
    for row in _parquet(place.output / "weighed"):
        written["weighed"][row["n"], row["key"], row["weight"]] += 1
    for row in _parquet(place.output / "singles"):
        written["singles"][row["n"], row["count"]] += 1
    for row in _json(place.output / "positions"):
        written["placed"][row["n"], row["key"]] += 1
        written["positions"][row["key"], row["position"]] += 1
    for row in _json(place.dead_letters):
        written["dead letters"][row["operator"], json.loads(row["record"])["n"], row["error"]] += 1
    for row in _csv(place.output / "windows"):
        written["windows"][row["key"], row["window_start"], row["n"], row["total"]] += 1
    for row in _state(place, "singles"):
        written["state of singles"][row["key.n"], row["state.count.0"]] += 1
    for row in _state(place, "position"):
        written["state of position"][row["key.key"], row["state.count"], row["state.total"]] += 1
    overdue: Records = Counter()
    for row in _state(place, "window"):
        written["windows"][_told(row["key.key"], row["key.window_start"], row["state.n.0"], row["state.total.0"])] += 1
        if row["key.window_end"] < MUST_BE_CLOSED_BEFORE:
            overdue[row["key.key"], row["key.window_start"]] += 1
    return {**written, "overdue windows": overdue}


def difference(found: Written, expected: Written) -> str | None:
    """What is missing and what is too much, by name; None where both are the same."""
    parts = []
    for name in sorted({*found, *expected}):
        here, wanted = found.get(name, Counter()), expected.get(name, Counter())
        lost, extra = (wanted - here).total(), (here - wanted).total()
        if lost or extra:
            parts.append(f"{name}: {lost} lost, {extra} doubled or wrong")
    return "; ".join(parts) or None


def visible(folder: Path) -> list[Path]:
    """The files that readers see. Names that begin with a dot or an underscore are hidden from them."""
    return sorted(file for file in folder.glob("[!._]*") if file.is_file())


def _window(at: datetime.datetime) -> datetime.datetime:
    seconds = int((at - START).total_seconds())
    return START + datetime.timedelta(seconds=seconds - seconds % WINDOW_S)


def _told(key: str, start: datetime.datetime, count: int, total: int) -> tuple[str, ...]:
    """A window as a CSV file has it. Compared as text: ``int`` would pass over a flipped bit that makes white space."""
    return key, start.strftime("%Y-%m-%d %H:%M:%S.%fZ"), str(count), str(total)


def _parquet(folder: Path) -> list[dict[str, Any]]:
    return [row for file in visible(folder) for row in parquet.read_table(file, partitioning=None).to_pylist()]


def _json(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in visible(folder) for line in lines(file)]


def _csv(folder: Path) -> list[dict[str, str]]:
    return [row for file in visible(folder) for row in csv.DictReader(lines(file))]


def lines(file: Path) -> list[str]:
    """Lines that end as they were written: ``splitlines`` would take a damaged end for another kind of end."""
    *whole, rest = file.read_bytes().decode().split("\n")
    if rest:
        raise ValueError(f"{file.name} ends with {rest[-20:]!r}, and not with a new line")
    return whole


def _state(place: Place, operator: str) -> list[dict[str, Any]]:
    with reading(place.checkpoint, operator) as opened:
        return [row for part in opened.rows() for row in part.to_pylist()]
