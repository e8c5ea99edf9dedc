"""Every degree and every width is another one before every batch, and the output is as if they had never changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as parquet
import pytest

import springtide as st
from crash.job import fixed_limit
from springtide.control import planner
from springtide.control.loop import ControlLoop
from springtide.control.plans import Plans
from springtide.model.generated import draws
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import Snapshot
from springtide.record.folder import RunFolder
from springtide.running import execution

BATCHES = 50
BATCH_RECORDS = 40
MAX_SLOTS = 12
SLEEP_S = 0.003
"""40 records of 3 ms are work for twelve tasks of 10 ms: no stage is made narrower than the slots for want of work."""


@dataclass(frozen=True)
class Word:
    n: int
    key: str


@dataclass(frozen=True)
class Counted:
    n: int
    key: str
    steps: int


def make(draw: st.Draw) -> Word:
    return Word(draw.index, f"k{draw.random.randrange(100)}")


def read(word: Word) -> Counted:
    time.sleep(SLEEP_S)
    return Counted(word.n, word.key, 1)


def count(counted: Counted) -> Counted:
    time.sleep(SLEEP_S)
    return Counted(counted.n, counted.key, counted.steps + 1)


@dataclass(frozen=True)
class Restless:
    """Another degree for every operator at every decision, and another sum of them, so that all widths change too.

    It is at least 2: one that has a single replica takes no more slots than it needs.
    """

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "restless"
    source: ClassVar[str] = "tests"
    summary: ClassVar[str] = "another degree for every operator, all the time"

    def initial(self) -> Mapping[str, Any]:
        return {}

    def decide(
        self, state: Mapping[str, Any], snapshot: Snapshot, rng: np.random.Generator
    ) -> tuple[Mapping[str, Any], Sequence[Request]]:
        before = {operator.name: operator.degree for operator in snapshot.operators}
        while True:
            wanted = {name: int(rng.integers(2, 5)) for name in before}
            slots = sum(wanted.values())
            if slots <= MAX_SLOTS and slots != sum(before.values()) and all(wanted[n] != before[n] for n in before):
                return state, [Request(name, degree, "restless") for name, degree in wanted.items()]


@pytest.mark.spark
def test_a_new_plan_before_every_batch(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_force, loops = Plans.current, list[ControlLoop]()

    def decide_now(plans: Plans) -> Plan:
        """Have the control loop decide whenever a batch asks for its plan, rather than by the clock."""
        loops[0].cycle()
        return in_force(plans)

    monkeypatch.setattr(ControlLoop, "start", lambda loop: loops.append(loop))
    monkeypatch.setattr(Plans, "current", decide_now)
    monkeypatch.setattr(execution, "ReadLimit", fixed_limit(BATCH_RECORDS))
    monkeypatch.setattr(planner, "reading", lambda _: 0.0)  # slots for it, on a busy machine, would hide a change of degrees
    words = st.source.generate(make, rate=1e6, seed=3, limit=BATCHES * BATCH_RECORDS)
    counted = words.map(read).key_by("key").map(count, name="by-key").map(count, name="in-turn", grouping="round-robin")
    result = st.run(
        counted.to(st.sink.files(tmp_path / "out")).named("restless"), policy=f"{__name__}:Restless", interval="1h",
        target="60s", max_slots=MAX_SLOTS, runs=tmp_path / "runs", spark=spark,
    )  # fmt: skip

    batches = RunFolder.open(result.folder).batches()
    assert len(batches) == BATCHES
    assert {len(batch.plan.widths) for batch in batches} == {5}
    for one, other in pairwise(batches):
        for what in ("degrees", "widths"):
            before, after = getattr(one.plan, what), getattr(other.plan, what)
            same = [name for name in before if before[name] == after[name]]
            assert not same, f"batch {other.batch}: {what} of {same} did not change"
    made = [make(draw) for draw in draws(3, 0, [0] * BATCHES * BATCH_RECORDS)]
    expected = Counter((word.n, word.key, 3) for word in made)
    rows = parquet.read_table(sorted((tmp_path / "out").glob("*.parquet"))).to_pylist()
    assert Counter(tuple(row.values()) for row in rows) == expected
