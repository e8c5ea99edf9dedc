"""Executors that follow the load of a run, on a real standalone cluster; one of them is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from springtide.bench.standalone import EXECUTOR_CONF, standalone

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

JOB = textwrap.dedent(
    '''
    """40 records/s. How long each waits stands in a file, so that the load changes when the test wants it to."""
    import os
    import time
    from dataclasses import dataclass
    from pathlib import Path

    import springtide as st

    COST = Path(os.environ["COST"])


    @dataclass(frozen=True)
    class Call:
        n: int


    def call(draw: st.Draw) -> Call:
        return Call(draw.index)


    def wait(call: Call) -> Call:
        time.sleep(float(COST.read_text()))
        return call


    def topology() -> st.Topology:
        calls = st.source.generate(call, rate=40)
        return calls.map(wait, parallelism=4).to(st.sink.files(os.environ["OUTPUT"])).named("calls")
    '''
)
LIGHT, HEAVY = "0.005", "0.080"
"""0.2 replicas of work, and 3.2."""
LONG_S = 300.0
"""No step takes a tenth of it on a machine of its own; it only keeps a test that fails from hanging."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with standalone(tmp_path / "cluster", cores=4) as master:
        yield master


def executors(folder: Path) -> list[psutil.Process]:
    """The executors' processes: those that run in the worker's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in (process.info["cmdline"] or []):
            try:
                home = process.cwd()
            except psutil.Error:
                continue
            if home.startswith(str(folder)):
                found.append(process)
    return found


def test_executors_follow_the_load_and_nothing_is_lost_when_one_is_killed(cluster: str, tmp_path: Path) -> None:
    """It begins with four, which are let go as there is little to do; more come with the load; one of them is killed, and they
    go again."""
    (tmp_path / "job.py").write_text(JOB)
    cost, folder = tmp_path / "cost", tmp_path / "cluster"
    cost.write_text(LIGHT)
    command = [
        sys.executable, "-m", "springtide.cli.main", "run", "job.py:topology", "--master", cluster, "--json",
        "--target", "4s", "--interval", "2s", "--max-slots", "4", "--runs", str(tmp_path / "runs"),
        *(word for name, value in EXECUTOR_CONF.items() for word in ("--conf", f"{name}={value}")),
    ]  # fmt: skip
    environ = {
        **os.environ, "OUTPUT": str(tmp_path / "out"), "COST": str(cost), "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    counts: list[int] = []

    def until(happened: Callable[[int], bool], what: str) -> list[psutil.Process]:
        end = time.monotonic() + LONG_S
        while time.monotonic() < end:
            there = executors(folder)
            counts.append(len(there))
            assert run.poll() is None, (tmp_path / "log").read_text()[-4_000:]
            if happened(len(there)):
                return there
            time.sleep(0.5)
        raise AssertionError(f"{what}: {counts}")

    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            until(lambda count: count == 4, "an application begins with all that the cluster has")
            until(lambda count: count == 1, "there is little to do, and executors are let go")
            write_at_once(cost, HEAVY)
            there = until(lambda count: count >= 3, "there is more to do, and more come")
            os.kill(there[0].pid, signal.SIGKILL)
            until(lambda count: count >= 3, "another comes in its place")
            write_at_once(cost, LIGHT)
            until(lambda count: count == 1, "they are let go again")
            run.send_signal(signal.SIGTERM)
            told = run.communicate(timeout=LONG_S)[0]
        finally:
            run.kill()
    assert run.returncode == 0, (tmp_path / "log").read_text()[-4_000:]
    summary = json.loads(told)
    numbers = sorted(pq.read_table(tmp_path / "out").column("n").to_pylist())
    assert numbers == list(range(summary["rows_out"])), "none lost, none twice"
    assert summary["executor_seconds"] > 0
    decisions = [json.loads(line) for line in (Path(summary["run_dir"]) / "decisions.jsonl").read_text().splitlines()]
    changes = [entry for entry in decisions if "executors" in entry]
    assert len(changes) >= 3 and all(entry["reason"] for entry in changes), "each change is a record with its reason"


def write_at_once(file: Path, text: str) -> None:
    """No task ever reads half of it."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)
