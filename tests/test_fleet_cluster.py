"""Executors that follow the load of a run, on a real standalone cluster; one of them is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from springtide.bench.standalone import EXECUTOR_CONF, standalone

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.soak]  # by the clock: not on a machine that is busy

JOB = textwrap.dedent(
    '''
    """Records that come slowly, then fast, then slowly; each takes 40 ms of waiting."""
    import os
    import time
    from dataclasses import dataclass

    import springtide as st


    @dataclass(frozen=True)
    class Call:
        n: int


    def call(draw: st.Draw) -> Call:
        return Call(draw.index)


    def wait(call: Call) -> Call:
        time.sleep(0.04)
        return call


    def topology() -> st.Topology:
        rate = st.Rate((0.0, 70.0, 105.0), (8.0, 80.0, 4.0), 130.0)  # 0.3 replicas of work, 3.2, 0.2
        calls = st.source.generate(call, rate=rate)
        return calls.map(wait, parallelism=6).to(st.sink.files(os.environ["OUTPUT"])).named("calls")
    '''
)
RECORDS = 70 * 8 + 35 * 80 + 25 * 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with standalone(tmp_path / "cluster") as master:
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
    (tmp_path / "job.py").write_text(JOB)
    command = [
        sys.executable, "-m", "springtide.cli.main", "run", "job.py:topology", "--master", cluster, "--json",
        "--target", "4s", "--interval", "2s", "--max-slots", "6", "--runs", str(tmp_path / "runs"),
        *(word for name, value in EXECUTOR_CONF.items() for word in ("--conf", f"{name}={value}")),
    ]  # fmt: skip
    environ = {**os.environ, "OUTPUT": str(tmp_path / "out"), "PYSPARK_PYTHON": sys.executable}
    counts: list[int] = []
    let_go = False
    killed = None
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            while run.poll() is None:
                there = executors(tmp_path / "cluster")
                counts.append(len(there))
                let_go = let_go or (max(counts) > 2 and 1 <= len(there) <= 2)  # it begins with all of them
                if killed is None and let_go and len(there) > 2:
                    killed = there[0].pid
                    os.kill(killed, signal.SIGKILL)
                time.sleep(0.5)
            told = run.communicate()[0]
        finally:
            run.kill()
    assert run.returncode == 0, (tmp_path / "log").read_text()[-4_000:]
    assert sorted(pq.read_table(tmp_path / "out").column("n").to_pylist()) == list(range(RECORDS)), "none lost, none twice"
    summary = json.loads(told)
    assert let_go and killed is not None, f"executors went, and came again with the load: {counts}"
    assert 0 < summary["executor_seconds"] < 6 * 200
    decisions = [json.loads(line) for line in (Path(summary["run_dir"]) / "decisions.jsonl").read_text().splitlines()]
    assert any("executors" in entry for entry in decisions), "each change is a record with its reason"
