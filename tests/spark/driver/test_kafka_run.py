"""A backlog in a real Kafka: policies see it, scale out, work it off within the read limit, and scale in again."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from servers.kafka import Broker

WAITING = 70_000
SLOTS = 8
DEADLINE_S = 300.0
"""With 8 slots the records take 45 s of sleep; on a machine with a load of 20 the whole took 100 s."""


@dataclass(frozen=True)
class Trip:
    id: int
    route: str


def slow(trip: Trip) -> Trip:
    time.sleep(0.005)  # a call to something outside: the task holds its slot and no core
    return trip


class Enough:
    """Ends the run once the backlog is gone and the degree has fallen."""

    def __init__(self, runs: Path) -> None:
        self.stop, self._runs, self._until = threading.Event(), runs, time.monotonic() + DEADLINE_S
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() < self._until and not self._reached():
            time.sleep(0.5)
        self.stop.set()

    def _reached(self) -> bool:
        batches, decisions = (entries(self._runs, name) for name in ("batches", "decisions"))
        done = bool(batches) and batches[-1]["backlog"] == 0
        degrees = [entry["degrees"]["slow"] for entry in decisions if "degrees" in entry]
        return done and bool(degrees) and degrees[-1] < max(degrees)


def entries(runs: Path, name: str) -> list[dict[str, Any]]:
    found = []
    for file in runs.glob(f"*/{name}.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # the last may be written just now
                found.append(json.loads(line))
    return found


POLICIES = ["tide", *(pytest.param(name, marks=pytest.mark.soak) for name in ("psps", "autoscale+", "threshold", "flink"))]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_backlog_scales_the_operator_out_is_worked_off_and_scales_it_in(
    spark: Any, kafka: Broker, tmp_path: Path, policy: str
) -> None:
    topic = kafka.topic(partitions=4)
    produce(kafka, topic, range(WAITING), time.time())
    source = st.source.kafka(kafka.servers, topic, value=Trip)
    trips = source.map(slow, name="slow", grouping="round-robin").to(st.sink.discard(), name="out").named("trips")
    result = st.run(
        trips, spark=spark, policy=policy, target="5s", max_slots=SLOTS, interval=2, checkpoint=tmp_path / "checkpoint",
        runs=tmp_path / "runs", stop=Enough(tmp_path / "runs").stop,
    )  # fmt: skip
    batches, decisions = (entries(tmp_path / "runs", name) for name in ("batches", "decisions"))
    degrees = [entry["degrees"]["slow"] for entry in decisions if "degrees" in entry]

    assert result.summary["rows_in"] == result.summary["rows_out"] == WAITING
    assert batches[-1]["backlog"] == 0
    first = batches[0]
    assert first["rows_in"] <= first["plan"]["read_limit"] <= WAITING / 10, "the first batch does not swallow the backlog"
    assert all(batch["rows_in"] <= batch["plan"]["read_limit"] for batch in batches[1:]), "nor does any other"
    assert max(degrees[:2]) > 1, "it is scaled out within two intervals"
    assert max(degrees) >= SLOTS - 2, "as far as the backlog needs"
    assert degrees[-1] < max(degrees), "and its end scaled it in"


OLD, RATE, QUEUE = 300, 400, 400


def test_records_that_are_too_old_or_too_many_are_left_out_and_counted(spark: Any, kafka: Broker, tmp_path: Path) -> None:
    """The first batch gets 300 of an hour ago. Then 400/s come and take 5 ms each, which is twice too long: of those
    that wait, those of the last second are kept."""
    topic, stop = kafka.topic(partitions=2), threading.Event()
    produce(kafka, topic, range(OLD), time.time() - 3600)

    def keep_coming() -> None:
        while not entries(tmp_path / "runs", "batches"):
            if stop.wait(0.05):
                return
        began, made = time.time(), OLD
        while not stop.wait(0.05):
            due = range(made, OLD + round(RATE * (time.time() - began)))
            produce(kafka, topic, due, time.time())
            made = max(made, due.stop)

    producing = threading.Thread(target=keep_coming)
    producing.start()
    try:
        source = st.source.kafka(kafka.servers, topic, value=Trip)
        trips = source.map(slow, name="slow", parallelism=1).to(st.sink.memory("kept"), name="out").named("trips")
        result = st.run(
            trips, spark=spark, policy="static", batches=8, duration="120s", shed_after="10m", queue_limit=QUEUE, max_slots=2,
            checkpoint=tmp_path / "checkpoint", runs=tmp_path / "runs",
        )  # fmt: skip
    finally:
        stop.set()
        producing.join()
    batches = entries(tmp_path / "runs", "batches")
    long = [batch for batch in batches if batch["rows_in"] > 1.5 * QUEUE]  # each batch before is twice the one before it
    kept = result.table("kept").column("id").to_pylist()
    assert min(kept) >= OLD and batches[0]["rows_shed"] == OLD, "what is too old is left out"
    assert len(long) >= 2 and all(0 < batch["rows_out"] <= 1.5 * QUEUE for batch in long), "what is too much, too"
    assert len(kept) == len(set(kept)) == result.summary["rows_out"]
    assert result.summary["rows_in"] == result.summary["rows_out"] + result.summary["rows_shed"], "and all are counted"


def produce(kafka: Broker, topic: str, numbers: range, created: float) -> None:
    kafka.produce(
        topic, [json.dumps({"id": i, "route": f"r{i % 100}"}).encode() for i in numbers], timestamp=round(created * 1000)
    )
