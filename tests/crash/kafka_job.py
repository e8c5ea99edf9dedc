"""The job from Kafka to Kafka that the crash tests start as a process of its own, kill, and start again.

    topic of numbers → weigh ⇒ place (state by key) → topic of places

Every number comes out once, with its place among those of its key: if records or state were lost or doubled, a number or a
place would come twice or never. It runs until SIGTERM.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script it has only its own folder there

import springtide as st
from crash.job import VARIABLE, Settings
from springtide.errors import WRONG_USE, SpringtideError
from springtide.model.topology import Topology

KEYS = 23


@dataclass(frozen=True)
class KafkaSettings(Settings):
    """One job: ``inward`` and ``outward`` are topics at ``servers``."""

    servers: str = ""
    inward: str = ""
    outward: str = ""

    @property
    def script(self) -> str:
        return __file__


@dataclass(frozen=True)
class Number:
    n: int
    key: str


@dataclass(frozen=True)
class Place:
    n: int
    key: str
    place: int


def weigh(number: Number) -> Number:
    time.sleep(0.0005)
    if number.n % 101 == 7:
        raise ValueError(f"{number.n} cannot be weighed")
    return number


class Placed(st.Processor):
    """Numbers the records of each key."""

    count = st.value(int, default=0)

    def process(self, key: str, records: list[Number], state: st.State) -> Iterator[Place]:
        for record in records:
            state.count += 1
            yield Place(record.n, key, state.count)


def build(settings: KafkaSettings) -> Topology:
    numbers = st.source.kafka(settings.servers, settings.inward, value=Number, max_records=settings.batch_records)
    placed = numbers.map(weigh).key_by("key").stateful(Placed, shards=8)
    return placed.to(st.sink.kafka(settings.servers, settings.outward, key="key"), name="out").named("crash")


def run(settings: KafkaSettings) -> None:
    st.run(
        build(settings), policy="static", settings={"degree": 2}, max_slots=settings.max_slots, checkpoint=settings.checkpoint,
        runs=settings.runs, master=settings.master, executors="fixed",
    )  # fmt: skip


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain asks for the stacks
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    try:
        run(KafkaSettings(**json.loads(os.environ[VARIABLE])))
    except SpringtideError as error:
        logging.error("%s: %s", type(error).__name__, error)
        sys.exit(2 if isinstance(error, WRONG_USE) else 1)
