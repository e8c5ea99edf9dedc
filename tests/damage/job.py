"""The job whose checkpoints are damaged: everything that a checkpoint can hold, and an output that plain Python can predict.

    numbers ⇒ parse ┬⇒ weigh → weighed (parquet)          ⇒ a shuffle, → the same task
                    ├⇒ singles → singles (parquet)        a keyed count, ready made
                    ├→ watermark ⇒ window → windows (csv)  event time, timers, batches without records
                    └┐
    names ───────────┴⇒ position → positions (json)       a processor of its own, fed by both sources

``numbers`` is generated, ``names`` are files, of which the checkpoint has a list. ``parse`` fails on a few records, which
become dead letters. ``weigh`` has a grouping that learns. No result depends on where a batch ends: a restart may cut batches
otherwise and is still exact.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import springtide as st
from springtide.model.topology import Topology

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SEED = 19
RECORDS = 96
BATCH_RECORDS = 12
FILES = 8
FILE_RECORDS = 4
KEYS = 5
WINDOW_S = 6
SHARDS = 8


@dataclass(frozen=True)
class Place:
    """Where one job lies: the checkpoint, the run folders and the output, below one folder; the input beside it."""

    root: Path

    @property
    def life(self) -> Path:
        """All that a run writes. A moment is a copy of this folder."""
        return self.root / "life"

    @property
    def checkpoint(self) -> Path:
        return self.life / "checkpoint"

    @property
    def runs(self) -> Path:
        return self.life / "runs"

    @property
    def output(self) -> Path:
        return self.life / "output"

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def dead_letters(self) -> Path:
        return self.checkpoint / "springtide" / "dead"


@dataclass(frozen=True)
class Number:
    n: int
    key: str
    at: datetime.datetime


@dataclass(frozen=True)
class Weighed:
    n: int
    key: str
    weight: int


@dataclass(frozen=True)
class Placed:
    n: int
    key: str
    position: int


def make(draw: st.Draw) -> Number:
    """Times grow with the index, so that no record is ever late."""
    return Number(draw.index, f"k{draw.random.randrange(KEYS)}", START + datetime.timedelta(seconds=draw.index))


def names() -> list[list[Number]]:
    """The records of each input file."""
    return [
        [Number(10_000 + n, f"k{n % KEYS}", START) for n in range(file * FILE_RECORDS, (file + 1) * FILE_RECORDS)]
        for file in range(FILES)
    ]


def parse(number: Number) -> Number:
    if number.n % 13 == 5:
        raise ValueError(f"{number.n} cannot be parsed")
    return number


def weigh(number: Number) -> Weighed:
    return Weighed(number.n, number.key, number.n * 3 + len(number.key))


class Position(st.Processor):
    """Numbers the records of each key. Lost or repeated state shows as a number that is missing or comes twice."""

    count = st.value(int, default=0)
    total = st.value(int, default=0)

    def process(self, key: str, records: list[Number], state: st.State) -> Iterator[Placed]:
        for record in records:
            state.count += 1
            state.total += record.n
            yield Placed(record.n, record.key, state.count)


def write_input(place: Place) -> None:
    place.input.mkdir(parents=True)
    for file, records in enumerate(names()):
        lines = [json.dumps({**asdict(record), "at": record.at.isoformat()}) for record in records]
        (place.input / f"{file}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


def build(place: Place) -> Topology:
    numbers = st.source.generate(
        make, rate=1e6, seed=SEED, limit=RECORDS, max_records=BATCH_RECORDS, name="numbers"
    ).map(parse, grouping="round-robin")  # fmt: skip
    singles = numbers.key_by("n").count(name="singles", shards=SHARDS)
    named = st.source.files(place.input, format="json", schema=Number, max_files=1, name="names")
    window = (
        numbers.watermark("at").key_by("key").window(f"{WINDOW_S}s", n=st.agg.count(), total=st.agg.sum("n"), shards=SHARDS)
    )
    return st.topology(
        "damaged",
        numbers.map(weigh, grouping="tide", by="key").to(st.sink.files(place.output / "weighed")),
        singles.to(st.sink.files(place.output / "singles", roll_every="1h"), name="singles-files"),
        window.to(st.sink.files(place.output / "windows", format="csv")),
        numbers.union(named).key_by("key").stateful(Position, shards=SHARDS).to(
            st.sink.files(place.output / "positions", format="json")
        ),
    )  # fmt: skip
