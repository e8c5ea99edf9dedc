"""What a job has to have written, worked out in plain Python, and what it did write."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from crash.job import Number, Part, Settings, Split, Tag, Weigh, make, parse
from springtide.durable import read_json
from springtide.model.generated import draws
from springtide.spark.state.reading import reading

Records = Counter[tuple[Any, ...]]
"""Records of a sink, or dead letters, each with how often it is there."""


@dataclass(frozen=True)
class Written:
    """All that a job leaves for its readers."""

    parts: Records
    everything: Records
    letters: Records
    placed: Records  # what the stateful operator put out, without the numbers
    positions: Records  # keys and numbers: each key has each from 1 on once
    state: Records  # keys, with how many parts they had, and their sum

    def lost(self, expected: Written) -> int:
        """How many records of ``expected`` are not here."""
        return sum((own - here).total() for own, here in zip(expected.all(), self.all(), strict=True))

    def doubled(self, expected: Written) -> int:
        """How many records are here that ``expected`` has not: those that came twice, or came out wrong."""
        return expected.lost(self)

    def all(self) -> tuple[Records, ...]:
        return self.parts, self.everything, self.letters, self.placed, self.positions, self.state


def expected(seed: int, records: int) -> Written:
    """The output, from the functions alone: one loop, no batches, no tasks, no order."""
    written = Written(Counter(), Counter(), Counter(), Counter(), Counter(), Counter())
    keys: dict[str, list[int]] = {}
    for draw in draws(seed, 0, [0] * records):
        number = make(draw)
        try:
            whole = Weigh()(parse(number))
        except ValueError as error:
            written.letters[_letter("parse", number, error)] += 1
            continue
        for part in Split()(whole):
            written.parts[_row(part)] += 1
            written.placed[part.n, part.part, part.key] += 1
            keys.setdefault(part.key, []).append(part.n)
            written.positions[part.key, len(keys[part.key])] += 1
            written.everything[_row(part)] += 1
            try:
                written.everything[_row(Tag()(part))] += 1
            except ValueError as error:
                written.letters[_letter("tag", part, error)] += 1
    written.state.update((key, len(numbers), sum(numbers)) for key, numbers in keys.items())
    return written


def written(settings: Settings) -> Written:
    """What readers see of a job: the visible files of its sinks, the dead letters, and the state."""
    parts, everything, numbered = (_rows(settings.output / name) for name in ("parts", "everything", "positions"))
    placed, positions = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for (n, part, key, position), times in numbered.items():
        placed[n, part, key] += times
        positions[key, position] += times
    letters: Records = Counter()
    for file in sorted((settings.checkpoint / "springtide" / "dead").glob("*.json")):
        for line in file.read_text(encoding="utf-8").splitlines():
            letter = json.loads(line)
            letters[letter["operator"], letter["record"], letter["error"]] += 1
    return Written(parts, everything, letters, placed, positions, _state(settings))


def _state(settings: Settings) -> Records:
    """What is remembered of each key, read from the checkpoint."""
    with reading(settings.checkpoint, "position") as found:
        rows = [row for part in found.rows() for row in part.to_pylist()]
    return Counter((row["key.key"], row["state.count"], row["state.total"]) for row in rows)


def manifests(settings: Settings) -> dict[int, dict[str, Any]]:
    """The manifests of a checkpoint by batch; those of committed batches, and no others."""
    return _documents(settings.checkpoint / "springtide" / "manifests")


def begun(settings: Settings) -> int:
    """The newest batch that Spark has begun, -1 for none; it may be committed or not."""
    names = [file.name for file in (settings.checkpoint / "spark" / "offsets").glob("[0-9]*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def epoch(settings: Settings) -> int:
    """How often the query was started; 0 before the first time."""
    return int((read_json(settings.checkpoint / "springtide" / "epoch.json") or {"epoch": 0})["epoch"])


def plan(settings: Settings, batch: int) -> dict[str, Any]:
    """The plan that a batch was begun with: the latest that was written for it or for one before it."""
    written = _documents(settings.checkpoint / "springtide" / "plans")
    return written[max(number for number in written if number <= batch)]


def visible(settings: Settings) -> set[str]:
    """The names of the files that readers see, with their folder."""
    names = ("parts", "everything", "positions")
    folders = [*(settings.output / name for name in names), settings.checkpoint / "springtide" / "dead"]
    return {f"{folder.name}/{file.name}" for folder in folders for file in folder.glob("*") if file.is_file()}


def committed(settings: Settings) -> set[str]:
    """The names of the files that the manifests list, with their folder."""
    listed = [receipt for manifest in manifests(settings).values() for receipt in manifest["receipts"]]
    return {f"{receipt['sink'] or 'dead'}/{receipt['name']}" for receipt in listed}


def staged(settings: Settings, receipt: dict[str, Any]) -> Path:
    """Where the file of a receipt lies until it is published."""
    folder = settings.output / receipt["sink"] if receipt["sink"] else settings.checkpoint / "springtide" / "dead"
    (identity,) = [one for one in (folder / "_springtide").iterdir() if receipt["name"].startswith(one.name)]
    return identity / f"epoch-{receipt['epoch']:06d}" / str(receipt["file"])


def _documents(folder: Path) -> dict[int, dict[str, Any]]:
    found = {int(file.stem): read_json(file) for file in sorted(folder.glob("[0-9]*.json"))}
    return {number: document for number, document in found.items() if document is not None}


def _rows(folder: Path) -> Records:
    rows: Records = Counter()
    for file in folder.glob("*.parquet"):
        rows.update(tuple(row.values()) for row in parquet.read_table(file, partitioning=None).to_pylist())
    return rows


def _row(part: Part) -> tuple[Any, ...]:
    return tuple(asdict(part).values())


def _letter(operator: str, record: Number | Part, error: Exception) -> tuple[str, str, str]:
    return operator, json.dumps(asdict(record)), f"{type(error).__name__}: {error}"
