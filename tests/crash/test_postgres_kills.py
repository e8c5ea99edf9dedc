"""SIGKILL of the driver, its JVM, its workers and the PostgreSQL server at random instants: as many out as in, none twice."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from crash import outputs
from crash.job import Settings
from crash.postgres_job import KEYS, PASSWORD, URL, PostgresSettings
from crash.processes import STARTING_S, Job, batch_seconds, kill, victims
from servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.crash]

VICTIMS = ("driver", "jvm", "worker", "server")
RECORDS = 4_000
MOST_STARTS = 12
"""A JVM that is killed while it starts fails its driver; a job that never starts has another fault."""
REFUSED_BY_TABLE = "n % 211 <> 3"


@dataclass(frozen=True)
class Tables:
    """What the job reads and writes, and what has to be there in the end."""

    server: Server

    def make(self) -> None:
        self.server.rows(
            "DROP TABLE IF EXISTS parts, latest, names, springtide_ledger, springtide_refused;"
            f"CREATE TABLE parts (n bigint NOT NULL CHECK ({REFUSED_BY_TABLE}), key bigint NOT NULL, name text);"
            "CREATE TABLE latest (key bigint PRIMARY KEY, n bigint NOT NULL, name text);"
            "CREATE TABLE names (id bigint PRIMARY KEY, name text);"
            f"INSERT INTO names SELECT n, 'name ' || n FROM generate_series(1, {KEYS - 1}) n"
        )

    def check(self, settings: Settings) -> None:
        everything = [n for n in range(RECORDS) if n % 53 != 5]
        found = Counter(self.server.rows("SELECT n, key, name FROM parts"))
        wanted = Counter(map(row, (n for n in everything if n % 211 != 3)))
        assert (sum((wanted - found).values()), sum((found - wanted).values())) == (0, 0), "lost, doubled"
        refused = self.server.rows("SELECT (record ->> 'n')::bigint FROM springtide_refused ORDER BY 1")
        assert refused == [(n,) for n in everything if n % 211 == 3]
        last = {n % KEYS: row(n) for n in everything}
        assert {key: (n, key, name) for key, n, name in self.server.rows("SELECT key, n, name FROM latest")} == last
        letters = [
            json.loads(json.loads(line)["record"])["n"]
            for file in (settings.checkpoint / "springtide" / "dead").glob("*.json")
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        assert sorted(letters) == [n for n in range(RECORDS) if n % 53 == 5]


def row(n: int) -> tuple[int, int, str | None]:
    return n, n % KEYS, f"name {n % KEYS}" if n % KEYS else None


@pytest.fixture
def tables(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Tables:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # the job imports its neighbours
    monkeypatch.setenv(URL, postgres.url)
    monkeypatch.setenv(PASSWORD, postgres.password.place)
    made = Tables(postgres)
    made.make()
    return made


def strike(running: Job, server: Server, victim: str, rng: random.Random) -> bool:
    """Kill at a random instant, in the two batches after the next or before it; False if the job ended before."""
    settings = running.settings
    already = len(outputs.manifests(settings))
    early = time.monotonic() + rng.uniform(0.0, STARTING_S) if rng.random() < 0.3 else math.inf

    def went_on() -> bool:
        return len(outputs.manifests(settings)) > already

    if not running.wait_until(lambda: went_on() or time.monotonic() > early, "a batch"):
        return False
    if went_on():
        time.sleep(rng.uniform(0.0, 2 * batch_seconds(settings)))
    if victim == "server":
        server.kill()
        time.sleep(rng.uniform(0.0, 3.0))
        server.start()
        return True
    hit = running.wait_until(lambda: kill(*victims(running, victim, rng)) > 0, f"a {victim} to kill")
    if victim == "driver" and hit:
        running.wait()
    return hit


@pytest.mark.parametrize("seed", [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.soak) for seed in range(12)])
def test_as_many_records_out_as_in(seed: int, tables: Tables, tmp_path: Path) -> None:
    """Every victim once, each seed in another order."""
    rng = random.Random(seed)
    settings = PostgresSettings(str(tmp_path), seed=seed, records=RECORDS, batch_records=250, weigh_s=0.002)
    running, landed = Job(settings), []
    running.start()
    try:
        for victim in rng.sample(VICTIMS, len(VICTIMS)):
            while not strike(running, tables.server, victim, rng) and running.exit_code() not in (None, 0):
                assert running.starts < MOST_STARTS, running.tail()
                running.start()
            if running.exit_code() == 0:
                break
            landed.append(victim)
            if running.exit_code() is not None:
                running.start()
        running.run_to_the_end(failures=len(landed))
    finally:
        running.end()
    tables.check(settings)
    assert len(landed) == len(VICTIMS), f"the job ended after {landed}"
