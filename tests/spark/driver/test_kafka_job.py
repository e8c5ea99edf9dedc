"""A job in a process of its own: no file, no log and no process shows its password, and a broker may go away while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from servers.kafka import PASSWORD, USER, Broker

JOB = """
import sys
from dataclasses import dataclass

import springtide as st

servers, topic = sys.argv[1:3]


@dataclass(frozen=True)
class Place:
    lat: float


@dataclass(frozen=True)
class Trip:
    id: int
    place: Place | None = None
    offset: int = -1


def same(trip: Trip) -> Trip:
    return trip


if __name__ == "__main__":
    trips = st.source.kafka(
        servers, topic, value=Trip, meta={"offset": "offset"}, until=None if "live" in sys.argv else "now", max_records=100,
        group="watched", config={
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": sys.argv[3],
            "sasl.password": st.secret.env("KAFKA_PASSWORD"),
        },
    )
    ending = {"duration": sys.argv[-1]} if "live" in sys.argv else {}
    st.run(trips.map(same).to(st.sink.files("out")).named("trips"), max_slots=2, checkpoint="checkpoint", runs="runs", **ending)
"""


def start(folder: Path, *words: str, password: str = PASSWORD) -> subprocess.Popen[bytes]:
    (folder / "job.py").write_text(JOB)
    environ = {**os.environ, "KAFKA_PASSWORD": password}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen([sys.executable, "job.py", *words], cwd=folder, env=environ, stdout=output, stderr=output)


def arguments(job: int) -> set[str]:
    found = set[str]()
    try:
        processes = [psutil.Process(job), *psutil.Process(job).children(recursive=True)]
    except psutil.Error:
        return found
    for process in processes:
        try:
            found.add(" ".join(process.cmdline()))
        except psutil.Error:  # some live for a moment only
            continue
    return found


def ids(folder: Path) -> list[int]:
    files = list((folder / "out").glob("*.parquet"))
    return sorted(ds.dataset(files).to_table(columns=["id"])["id"].to_pylist()) if files else []


def values(first: int, last: int) -> list[bytes]:
    return [json.dumps({"id": number, "place": {"lat": 1.5}}).encode() for number in range(first, last)]


def leaks(folder: Path, password: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and password.encode() in path.read_bytes()]


@pytest.mark.spark
def test_nothing_of_a_run_shows_the_password(kafka: Broker, tmp_path: Path) -> None:
    """With a class of the script itself, which workers get by value. A record without a required field is a dead letter."""
    topic = kafka.topic(partitions=2)
    kafka.produce(topic, [*values(0, 300), b'{"place": null}', b"{"])
    lines: set[str] = set()
    job = start(tmp_path, kafka.sasl_servers, topic, USER)
    while job.poll() is None:
        lines |= arguments(job.pid)
        time.sleep(0.05)
    assert job.returncode == 0, (tmp_path / "output").read_text()
    assert ids(tmp_path) == list(range(300))
    assert any("springtide.spark.private.daemon" in line for line in lines), "Spark's workers were looked at"
    assert not [line for line in lines if PASSWORD in line]
    assert leaks(tmp_path, PASSWORD) == []
    (summary,) = (tmp_path / "runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["rows_failed"] == 2


@pytest.mark.spark
def test_a_wrong_password_ends_the_job_before_spark_starts(kafka: Broker, tmp_path: Path) -> None:
    job = start(tmp_path, kafka.sasl_servers, kafka.topic(), USER, password="Zq1-wrong-horse")
    assert job.wait(90) != 0
    output = (tmp_path / "output").read_text()
    assert "correct servers or config=" in output
    assert leaks(tmp_path, "Zq1-wrong-horse") == [] and not (tmp_path / "checkpoint").exists()


@pytest.mark.spark
def test_a_broker_that_goes_away_is_waited_for(kafka: Broker, tmp_path: Path) -> None:
    """It is killed while the run waits for records, and has more records and another partition when it is back."""
    topic = kafka.topic()
    kafka.produce(topic, values(0, 300))
    job = start(tmp_path, kafka.sasl_servers, topic, USER, "live", "120s")
    try:
        wait_for(300, tmp_path, job)
        kafka.kill()
        until = time.monotonic() + 60
        while "cannot be reached (" not in (tmp_path / "output").read_text() and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(5)  # it says so once only
        kafka.start()
        kafka.grow(topic, 2)
        kafka.produce(topic, values(300, 400), partition=1)
        wait_for(400, tmp_path, job)
        job.terminate()
        job.wait(60)
    finally:
        job.kill()
    output = (tmp_path / "output").read_text()
    assert ids(tmp_path) == list(range(400)), output
    assert output.count("cannot be reached (") == 1, output
    assert "Traceback" not in output, output


def wait_for(count: int, folder: Path, job: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while len(ids(folder)) < count:
        assert time.monotonic() < until and job.poll() is None, (folder / "output").read_text()
        time.sleep(0.2)
