"""The job of the crash tests of PostgreSQL: records are looked up, and written by an appending and an upserting sink.

    numbers ⇒ slow → lookup → parts                  ⇒ a shuffle by key, → the same task
                     lookup ⇒ latest (an upsert)

The records of a key stay in their order, so that the last value of each key is known.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import dataclass

import springtide as st
from crash.job import Settings, fixed_limit
from springtide.errors import WRONG_USE, SpringtideError
from springtide.model.topology import Topology
from springtide.running import execution

URL, PASSWORD = "SPRINGTIDE_CRASH_POSTGRES", "SPRINGTIDE_CRASH_POSTGRES_PASSWORD_FILE"
KEYS = 97


@dataclass(frozen=True)
class PostgresSettings(Settings):
    """One job; the server is in the environment."""

    @property
    def script(self) -> str:
        return __file__


@dataclass(frozen=True)
class Number:
    n: int
    key: int


@dataclass(frozen=True)
class Named:
    n: int
    key: int
    name: str | None


def make(draw: st.Draw) -> Number:
    return Number(draw.index, draw.index % KEYS)


@dataclass(frozen=True)
class Slow:
    """So slow that a kill at a random instant mostly lands inside a batch; refuses some records."""

    seconds: float

    def __call__(self, number: Number) -> Number:
        time.sleep(self.seconds)
        if number.n % 53 == 5:
            raise ValueError(f"{number.n} is refused")
        return number


def topology(settings: Settings) -> Topology:
    url, password = os.environ[URL], st.secret.file(os.environ[PASSWORD])
    names = st.lookup.postgres(url, "SELECT id, name FROM names", key="key", columns="id", password=password)
    numbers = st.source.generate(make, rate=1e6, seed=settings.seed, limit=settings.records)
    slow = numbers.key_by("key").map(Slow(settings.weigh_s), schema=Number, name="slow")
    named = slow.lookup(names, into=Named, ttl="1s", patience="60s")
    parts = st.sink.postgres(url, "parts", password=password)
    latest = st.sink.postgres(url, "latest", mode="upsert", keys="key", password=password)
    return st.topology("crash", named.to(parts, name="parts"), named.key_by("key").to(latest, name="latest"))


def run(settings: Settings) -> None:
    vars(execution)["ReadLimit"] = fixed_limit(settings.batch_records)
    st.run(
        topology(settings), target="60s", max_slots=settings.max_slots, checkpoint=settings.checkpoint, runs=settings.runs,
        master=settings.master, executors="fixed",
    )  # fmt: skip


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    try:
        run(Settings.from_environment())
    except SpringtideError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, WRONG_USE) else 1)
