"""The job that the crash tests start as a process of its own, kill, and start again.

    source ⇒ parse → weigh ⇒ split → parts              ⇒ a shuffle, → the same task
                             split ⇒ tag
                             split + tag → everything
                             split ⇒ position → positions

It has what the protocol has to hold for: records dealt out in turn, by a hash, and by what they are expected to cost;
operators fused into one task; a fan-out, a union, three ``files`` sinks, one of which gets records from two stages;
records that fail in two operators; and one with state, whose width and whose shards' tasks are others in every batch.
The shuffle before ``tag`` goes by the records' position, and what was learned before, so it shows when a stage that is
recomputed does not put its records into the same order. Every record sleeps a little, so that a kill at a random instant
mostly lands inside a stage.

What it does is told by one JSON document in the environment, so that ``springtide run job.py:topology`` can run it too.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

import springtide as st
from springtide.control.plans import Plans
from springtide.errors import WRONG_USE, SpringtideError
from springtide.model.plan import Plan
from springtide.model.topology import Topology
from springtide.running import execution

VARIABLE = "SPRINGTIDE_CRASH_JOB"
"""The environment variable with the settings."""
SHARDS = 32
STALL_S = float(os.environ.get("SPRINGTIDE_CRASH_STALL_S", "15"))
"""Longer than it takes to put a new JVM in the place of a killed one, unless the machine is very busy."""


@dataclass(frozen=True)
class Settings:
    """One job. All times in seconds."""

    root: str
    seed: int = 0
    records: int = 1_280
    batch_records: int = 80
    weigh_s: float = 0.001  # what an operator takes for a record
    split_s: float = 0.002
    tag_s: float = 0.001
    grouping: str = "tide"  # of `tag`
    fused: bool = False  # `parse` runs in the source's task, not behind a shuffle of the JVM's
    max_slots: int = 4
    master: str = "local[4,4]"
    trace: bool = False  # the slow operators note what they see
    strikes: Sequence[tuple[str, str, int]] = ()  # whom to kill, at which step, from which batch on

    @property
    def script(self) -> str:
        """What the process runs."""
        return __file__

    @property
    def checkpoint(self) -> Path:
        return Path(self.root) / "checkpoint"

    @property
    def output(self) -> Path:
        return Path(self.root) / "output"

    @property
    def runs(self) -> Path:
        return Path(self.root) / "runs"

    @property
    def location(self) -> str | None:
        """State lies in the checkpoint, and with every other seed at a URI."""
        return f"file://{self.root}/state" if self.seed % 2 else None

    @property
    def traces(self) -> Path:
        """Where every call of a slow operator leaves a line, in a file for each process."""
        return Path(self.root) / "traces"

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Settings:
        return cls(**json.loads(os.environ[VARIABLE]))


@dataclass(frozen=True)
class Number:
    n: int
    key: str
    luck: int


@dataclass(frozen=True)
class Weight:
    n: int
    key: str
    weight: int


@dataclass(frozen=True)
class Part:
    n: int
    part: int
    key: str
    weight: int
    tagged: bool


@dataclass(frozen=True)
class Placed:
    n: int
    part: int
    key: str
    position: int


def make(draw: st.Draw) -> Number:
    return Number(draw.index, f"k{draw.random.randrange(997)}", draw.random.randrange(10**6))


def parse(number: Number) -> Number:
    if number.n % 53 == 5:
        raise ValueError(f"{number.n} cannot be parsed")
    return number


@dataclass(frozen=True)
class Step:
    """What the slow operators have in common: they take a while, and can leave a line for every call, with the record's
    number; a record that has two lines was processed twice."""

    sleep_s: float = 0.0
    traces: str | None = None

    def take(self, n: int, times: float = 1.0) -> None:
        if self.traces is not None:
            with open(f"{self.traces}/{type(self).__name__}-{os.getpid()}", "a", encoding="utf-8") as file:
                file.write(f"{n}\n")
        time.sleep(times * self.sleep_s)


@dataclass(frozen=True)
class Weigh(Step):
    """Slow enough for several tasks, so that each task of the next stage gets blocks from several."""

    def __call__(self, number: Number) -> Weight:
        self.take(number.n)
        return Weight(number.n, number.key, number.luck % 1000 + number.n)


@dataclass(frozen=True)
class Split(Step):
    """One to three parts of every record."""

    def __call__(self, whole: Weight) -> Iterator[Part]:
        self.take(whole.n)
        for part in range(1 + whole.n % 3):
            yield Part(whole.n, part, whole.key, whole.weight // (part + 1), False)


@dataclass(frozen=True)
class Tag(Step):
    """Marks a part. What that takes depends on its key, so that a grouping that goes by costs has something to learn."""

    def __call__(self, part: Part) -> Part:
        self.take(part.n, times=0.5 + int(part.key[1:]) % 2)
        if part.n % 59 == 7 and part.part == 0:
            raise ValueError(f"{part.n} cannot be tagged")
        return Part(part.n, part.part, part.key, part.weight * 2, True)


class Position(st.Processor):
    """Numbers the parts of each key. If state were lost or changed twice, a number would come twice or never."""

    count = st.value(int, default=0)
    total = st.value(int, default=0)

    def process(self, key: str, records: list[Part], state: st.State) -> Iterator[Placed]:
        for record in records:
            state.count += 1
            state.total += record.n
            yield Placed(record.n, record.part, record.key, state.count)


def restless(settings: Settings) -> None:
    """Another width of the stateful operator, and another task for every shard, in every batch."""
    original, rng = Plans.current, random.Random(os.getpid())

    def current(loop: Plans) -> Plan:
        plan, width = original(loop), rng.randint(1, settings.max_slots)
        shards = tuple(rng.randrange(width) for _ in range(SHARDS))
        return replace(plan, widths={**plan.widths, "position": width}, shards={"position": shards})

    Plans.current = current  # type: ignore[method-assign, assignment]


@dataclass(frozen=True)
class FixedLimit:
    """Stands in for the rule that sizes batches, so that a run has the same number of batches on any machine."""

    records: int

    def initial(self) -> Mapping[str, Any]:
        return {}

    def decide(self, state: Mapping[str, Any], *measured: object) -> tuple[Mapping[str, Any], int]:
        return state, self.records


def fixed_limit(records: int) -> Callable[[float], FixedLimit]:
    """What takes the place of the class of that rule."""
    return lambda target_s: FixedLimit(records)


def topology() -> Topology:
    return build(Settings.from_environment())


def build(settings: Settings) -> Topology:
    traces = str(settings.traces) if settings.trace else None
    numbers = st.source.generate(make, rate=1e6, seed=settings.seed, limit=settings.records)
    parsed = numbers.map(parse, grouping=None if settings.fused else "round-robin")
    weighed = parsed.map(Weigh(settings.weigh_s, traces), schema=Weight, name="weigh")
    split = weighed.key_by("key").flat_map(Split(settings.split_s, traces), schema=Part, name="split")
    tagged = split.map(Tag(settings.tag_s, traces), schema=Part, name="tag", grouping=settings.grouping, by="key")
    placed = split.key_by("key").stateful(Position, shards=SHARDS)
    return st.topology(
        "crash",
        placed.to(st.sink.files(settings.output / "positions")),
        split.to(st.sink.files(settings.output / "parts")),
        split.union(tagged).to(st.sink.files(settings.output / "everything")),
    )


def run(settings: Settings) -> None:
    vars(execution)["ReadLimit"] = fixed_limit(settings.batch_records)
    settings.traces.mkdir(parents=True, exist_ok=True)
    restless(settings)
    for number, (victim, step, batch) in enumerate(settings.strikes):
        arm(settings, number, victim, step, batch)
    st.run(
        build(settings), target="60s", max_slots=settings.max_slots, checkpoint=settings.checkpoint,
        runs=settings.runs, master=settings.master, executors="fixed",
        state=settings.location,
    )  # fmt: skip


def arm(settings: Settings, number: int, victim: str, step: str, batch: int) -> None:
    """Have a victim killed at one step of the protocol, once, in the first batch from ``batch`` on that comes to it.

    The steps last milliseconds, too short for a random instant to hit them often. ``driver`` is this process, ``jvm``
    its JVM; with ``jvm, stalled`` this process then stops for a while where it is, as one does whose disk is busy.
    ``context`` is that of Spark, which is stopped, while its JVM lives on.
    """
    from pyspark import SparkContext

    from springtide.spark.driver import staged
    from springtide.spark.driver.checkpoint import Checkpoint
    from springtide.spark.driver.plan_files import PlanFiles
    from springtide.spark.driver.sinks import Sinks
    from springtide.spark.state.book import StateBook

    places: dict[str, tuple[Any, str, bool]] = {
        "planned": (PlanFiles, "write", True),
        "ran": (Sinks, "deliver", False),
        "fenced": (Checkpoint, "check_fence", True),
        "committed": (Checkpoint, "commit", True),
        "publishing": (staged, "publish", True),
        "published": (Sinks, "publish", True),
        "state counted": (StateBook, "after", True),
        "state kept": (StateBook, "committed", True),
        "merge begun": (StateBook, "_begin_merge", True),
    }
    place, name, after = places[step]
    original = getattr(place, name)
    struck = Path(settings.root) / f"struck-{number}"

    def strike() -> None:
        if not (settings.checkpoint / "spark" / "offsets" / str(batch)).exists() or struck.exists():
            return
        struck.touch()
        if victim == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        if victim == "context":
            SparkContext._active_spark_context._jsc.sc().stop()
            return
        for child in psutil.Process().children():
            if "java" in child.name():
                child.kill()
        if victim == "jvm, stalled":
            stall(settings)

    def wrapped(*args: Any, **named: Any) -> Any:
        if not after:
            strike()
        result = original(*args, **named)
        if after:
            strike()
        return result

    setattr(place, name, wrapped)


def stall(settings: Settings) -> None:
    """Stop here until the next epoch has begun, which must not be; then the time is over."""
    file = settings.checkpoint / "springtide" / "epoch.json"
    before, end = file.read_bytes(), time.monotonic() + STALL_S
    while time.monotonic() < end:
        time.sleep(0.1)
        if file.read_bytes() != before:
            end = min(end, time.monotonic() + 2.0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    try:
        run(Settings.from_environment())
    except SpringtideError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, WRONG_USE) else 1)
