"""Files to rolled files through SIGKILLs of the driver, and of the driver with its JVM: every record once."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest

from crash import files_job

pytestmark = [pytest.mark.spark, pytest.mark.crash]

FILES, ROWS = 60, 50
PATIENCE_S = 300.0


def write(folder: Path, first: int, last: int) -> None:
    for file in range(first, last):
        text = "".join(json.dumps({"n": n, "day": f"d/{n % 3}"}) + "\n" for n in range(file * ROWS, (file + 1) * ROWS))
        hidden = folder / f".{file}.json.gz"
        hidden.write_bytes(gzip.compress(text.encode()))
        hidden.rename(folder / f"{file}.json.gz")


def started(root: Path) -> subprocess.Popen[bytes]:
    with (root / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, files_job.__file__, str(root)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=Path(__file__).parent, start_new_session=True, env=os.environ.copy(),
        )  # fmt: skip


def batches(root: Path) -> int:
    return len(list((root / "checkpoint" / "springtide" / "manifests").glob("*.json")))


def seen(root: Path) -> Counter[tuple[int, str]]:
    files = [str(file) for file in (root / "out").glob("day=*/*.parquet")]
    if not files:
        return Counter()
    table = pyarrow.dataset.dataset(files, partitioning=pyarrow.dataset.partitioning(flavor="hive")).to_table()
    return Counter((row["n"], row["day"]) for row in table.to_pylist())


def wait_for(job: subprocess.Popen[bytes], root: Path, more: int) -> None:
    """Until some batches more are committed, or the job has ended."""
    wanted, deadline = batches(root) + more, time.monotonic() + PATIENCE_S
    while job.poll() is None and batches(root) < wanted:
        assert time.monotonic() < deadline, (root / "log.txt").read_text()[-3000:]
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(2))
def test_files_to_files_through_kills(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", 0, FILES // 2)
    kills = 0
    for strike in range(3):
        job = started(tmp_path)
        try:
            wait_for(job, tmp_path, rng.randrange(1, 5))
            time.sleep(rng.random() * 0.3)
        finally:
            ended = job.poll() is not None
            with_jvm = rng.random() < 0.5
            if not ended:
                (os.killpg if with_jvm else os.kill)(job.pid, signal.SIGKILL)
            job.wait(PATIENCE_S)
        kills += not ended
        visible = seen(tmp_path)
        assert max(visible.values(), default=1) == 1, "nothing is visible twice, at any time"
        write(tmp_path / "in", FILES // 2 + 10 * strike, FILES // 2 + 10 * (strike + 1))
    for _ in range(2):  # the first may wait for a JVM that outlived its driver, and all is read by then or by the second
        job = started(tmp_path)
        assert job.wait(PATIENCE_S) == 0, (tmp_path / "log.txt").read_text()[-3000:]
    assert kills >= 1
    assert seen(tmp_path) == Counter((2 * n, f"d/{n % 3}") for n in range(FILES * ROWS))
