"""PostgreSQL in runs on Spark: lookups and sinks together, refused records, a server that goes away, and secrets."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from servers.postgres import Server
from springtide.errors import CheckpointError, OptionError
from springtide.model.topology import Topology

pytest.importorskip("pyspark")

LIMIT, ROUTES = 3_000, 50


@dataclass(frozen=True)
class Trip:
    id: int
    route: int
    note: str


@dataclass(frozen=True)
class Named:
    id: int
    route: int
    note: str
    name: str | None


def trip(draw: st.Draw) -> Trip:
    return Trip(draw.index, draw.index % ROUTES, "nul \0" if draw.index % 1000 == 7 else f"tab\t{draw.index}\\")


@dataclass
class Job:
    """A topology that can be started again and again: records are looked up, appended to one table, and update another."""

    server: Server
    root: Path
    spark: Any
    trips: str
    latest: str
    routes: str
    patience: str = "30s"

    @property
    def access(self) -> dict[str, Any]:
        return {"password": self.server.password}

    def topology(self, **options: Any) -> Topology:
        url = self.server.url
        names = st.lookup.postgres(url, f"SELECT id AS route, name FROM {self.routes}", key="route", **self.access)
        source = st.source.generate(trip, rate=1e6, limit=LIMIT, max_records=500)
        named = source.lookup(names, into=Named, grouping="round-robin", ttl="0s", patience=self.patience)
        appended = named.to(st.sink.postgres(url, self.trips, create=True, **self.access, **options), name="trips")
        latest = named.key_by("route").to(
            st.sink.postgres(url, self.latest, mode="upsert", keys="route", create=True, **self.access), name="latest"
        )
        return st.topology("trips", appended, latest)

    def run(self, **options: Any) -> st.Result:
        return st.run(
            self.topology(), spark=self.spark, checkpoint=self.root / "checkpoint", runs=self.root / "runs", max_slots=3,
            policy="static", settings={"degree": 3}, **options,
        )  # fmt: skip

    def check(self) -> None:
        """As many out as in, none twice."""
        wanted = [n for n in range(LIMIT) if n % 1000 != 7]
        rows = self.server.rows(f"SELECT id, route, note, name FROM {self.trips} ORDER BY id")
        assert [row[0] for row in rows] == wanted
        assert all(row[1:] == (n % ROUTES, f"tab\t{n}\\", f"route {n % ROUTES}" if n % ROUTES else None)
                   for n, row in zip(wanted, rows, strict=True))  # fmt: skip
        # the last batch has the last record of each route
        found = dict(self.server.rows(f"SELECT route, id FROM {self.latest}"))
        assert found.keys() == set(range(ROUTES)) and all(
            n % ROUTES == route and n >= LIMIT - 500 for route, n in found.items()
        )

    def letters(self) -> list[dict[str, Any]]:
        files = (self.root / "checkpoint" / "springtide" / "dead").glob("*.json")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def job(postgres: Server, spark: Any, tmp_path: Path) -> Job:
    routes = postgres.table("id bigint PRIMARY KEY, name text NOT NULL")
    postgres.rows(f"INSERT INTO {routes} SELECT n, 'route ' || n FROM generate_series(1, {ROUTES}) n")
    return Job(postgres, tmp_path, spark, postgres.table(), postgres.table(), routes)


def test_records_are_looked_up_and_written_once(job: Job) -> None:
    result = job.run()
    job.check()
    assert Counter(letter["operator"] for letter in job.letters()) == {"trips": 3, "latest": 3}
    assert "NUL character" in job.letters()[0]["error"]
    assert result.summary["rows_failed"] == 6 and result.summary["rows_out"] == 2 * (LIMIT - 3)
    assert job.run().summary["batches"] == 0
    job.check()


@pytest.mark.parametrize("patience", ["30s", "0s"])
def test_a_run_waits_for_a_server_that_goes_away(job: Job, patience: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without patience the tasks of a lookup fail, and their batch is tried again: its records are no dead letters."""
    job.patience = patience
    over = threading.Event()

    def restarts() -> None:
        while not over.is_set():
            committed = job.server.rows(f"SELECT count(*) FROM pg_class WHERE relname = '{job.trips}'")[0][0]
            if committed and job.server.rows(f"SELECT count(*) FROM {job.trips}")[0][0] >= 500:
                job.server.kill()
                time.sleep(2.0)
                job.server.start()
                return
            time.sleep(0.02)

    killer = threading.Thread(target=restarts)
    killer.start()
    try:
        with caplog.at_level(logging.WARNING):
            job.run()
    finally:
        over.set()
        killer.join()
    job.check()
    assert len(job.letters()) == 6


def test_no_secret_is_in_what_a_run_leaves(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    secret = job.server.password.resolve()
    job.run()
    assert secret not in caplog.text
    files = [path for path in job.root.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret not in str(job.topology()) + repr(job.topology()) + job.topology().mermaid()


def test_the_page_runs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/postgres.md, with this server in its URL."""
    page = (Path(__file__).parents[3] / "docs" / "postgres.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n# trips.py\n(.*?)```", page, re.DOTALL)
    assert code is not None
    monkeypatch.setenv("PGPASS", job.server.password.resolve())
    job.server.rows("DROP TABLE IF EXISTS routes, trips; CREATE TABLE routes AS SELECT 'r1' AS id, 'One' AS name")
    url = "postgresql://app@db:5432/shop?sslmode=verify-full"
    assert url in code[1]
    (job.root / "trips.py").write_text(code[1].replace(url, job.server.url), encoding="utf-8")
    monkeypatch.syspath_prepend(job.root)
    monkeypatch.delitem(sys.modules, "trips", raising=False)
    st.run(
        importlib.import_module("trips").topology,
        spark=job.spark,
        checkpoint=job.root / "checkpoint",
        runs=job.root / "runs",
        batches=3,
    )
    found = job.server.rows("SELECT count(*), count(DISTINCT id), count(name) FILTER (WHERE route <> 'r1') FROM trips")
    assert found[0][0] == found[0][1] > 0 and found[0][2] == 0


def test_a_table_that_was_put_back_from_a_copy_is_noticed(job: Job) -> None:
    job.run()
    postgres = job.server
    postgres.rows(
        "UPDATE springtide_ledger SET batch = batch - 2, done = '{}', parts = 0 WHERE target LIKE %s", [f"%{job.trips}"]
    )
    with pytest.raises(CheckpointError, match=r"springtide_ledger, is at batch .*: the sink lost output"):
        job.run()


def test_what_does_not_fit_is_refused_before_anything_is_made(job: Job) -> None:
    postgres = job.server
    postgres.rows(f"CREATE TABLE {job.trips} (id bigint)")
    with pytest.raises(OptionError, match="has no column 'route'"):
        job.run()
    postgres.rows(f"DROP TABLE {job.trips}; ALTER TABLE {job.routes} RENAME COLUMN name TO title")
    with pytest.raises(OptionError, match='column "name" does not exist'):
        job.run()
    assert not (job.root / "checkpoint").exists()
