"""SIGKILL of an executor while the stage after a shuffle is half done: what is recomputed goes where it went before.

A stage of three tasks runs on two executors with one slot each, so for the length of a task one of them works and the
other has nothing left to do. That is when one of the two is killed. All calls of the operators leave a trace, which
shows that Spark did compute records again.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from crash import outputs
from crash.job import Settings
from crash.ledger import Ledger
from crash.processes import Job, Kill, kill, started

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.cluster]

CASES = (("Split", "idle"), ("Tag", "busy"), ("Split", "busy"))
"""The stage that is half done, and which executor is killed. Of the last stage, the idle one holds nothing more that is
needed; of the one before, it holds what the last one will want to read."""

RECORD_S = 0.04
BUSY_S, IDLE_S = 3 * RECORD_S, 10 * RECORD_S


def lose_executors(folder: Path, cases: Sequence[tuple[str, str]]) -> tuple[Settings, list[Kill]]:
    """Run until an executor was killed in each case, and end after the batch."""
    settings = Settings(
        str(folder), records=60_000, batch_records=60, split_s=RECORD_S, tag_s=RECORD_S / 2, max_slots=3,
        master="local-cluster[2,1,1024]", trace=True,
    )  # fmt: skip
    landed = []
    with started(settings) as running:
        assert running.wait_until(partial(has_learned, settings), "a plan with something to route by"), running.tail()
        for stage, which in cases:
            batch = kill_one(running, stage, which)
            landed.append(Kill("executor", batch, f"{stage} {which}"))
            assert running.wait_until(partial(is_committed, settings, batch), f"batch {batch}"), running.tail()
            assert_computed_again(settings, stage, batch)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0, running.tail()
    return settings, landed


def has_learned(settings: Settings) -> bool:
    return any(manifest["plan"]["knowledge"] > 0 for manifest in outputs.manifests(settings).values())


def is_committed(settings: Settings, batch: int) -> bool:
    return batch in outputs.manifests(settings)


def kill_one(running: Job, stage: str, which: str) -> int:
    """Kill the busy or the idle executor of the first batch in which both can be told apart; returns the batch."""
    settings = running.settings
    end = time.monotonic() + 300
    while time.monotonic() < end:
        time.sleep(0.02)
        newest, quiet = quiet_of(running, stage)
        if len(quiet) != 2 or newest != outputs.begun(settings) or newest in outputs.manifests(settings):
            continue
        busy, idle = sorted(quiet, key=lambda executor: quiet[executor])
        victim = busy if which == "busy" else idle
        if quiet[busy] < BUSY_S and quiet[idle] > IDLE_S and kill(victim):
            return newest
    raise AssertionError(f"no batch had a busy and an idle executor in {stage}\n{running.tail()}")


def quiet_of(running: Job, stage: str) -> tuple[int, dict[psutil.Process, float]]:
    """The newest batch in this stage, and for how long each executor that takes part has called nothing.

    An executor has more than one Python worker, and its next task takes another of them.
    """
    files = {int(file.name.split("-")[1]): file for file in running.settings.traces.glob(f"{stage}-*")}
    batches = {pid: last_batch(running.settings, file) for pid, file in files.items()}
    newest = max(batches.values(), default=-1)
    quiet: dict[psutil.Process, float] = {}
    for pid, file in files.items():
        executor = executor_of(running, pid) if batches[pid] == newest else None
        if executor is not None:
            silence = time.time() - file.stat().st_mtime
            quiet[executor] = min(silence, quiet.get(executor, silence))
    return newest, quiet


def last_batch(settings: Settings, trace: Path) -> int:
    lines = trace.read_text(encoding="utf-8").split("\n")[:-1]
    return int(lines[-1]) // settings.batch_records if lines else -1


def executor_of(running: Job, worker: int) -> psutil.Process | None:
    """The executor whose Python worker this is."""
    executors = {executor.pid: executor for executor in running.executors()}
    try:
        return next((executors[p.pid] for p in psutil.Process(worker).parents() if p.pid in executors), None)
    except psutil.NoSuchProcess:
        return None


def assert_computed_again(settings: Settings, stage: str, batch: int) -> None:
    """Records of a batch passed ``split`` twice; in the case of ``tag`` although that stage was over long before."""
    calls: Counter[int] = Counter()
    for file in settings.traces.glob("Split-*"):
        calls.update(int(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1])
    mine = [calls[n] for n in calls if n // settings.batch_records == batch]
    assert max(mine) > 1, f"nothing of batch {batch} was computed again, {stage}"


def check(settings: Settings, ledger: Ledger, landed: Sequence[Kill]) -> None:
    records = max(outputs.manifests(settings).items())[1]["sources"]["source"]
    expected, found = outputs.expected(settings.seed, records), outputs.written(settings)
    ledger.add(landed, found, expected)
    assert (found.lost(expected), found.doubled(expected)) == (0, 0)
    assert found == expected
    assert outputs.visible(settings) == outputs.committed(settings)


def test_an_executor_dies_while_a_stage_is_half_done(tmp_path: Path, ledger: Ledger) -> None:
    settings, landed = lose_executors(tmp_path, CASES)
    check(settings, ledger, landed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25))
def test_executors_die_while_a_stage_is_half_done(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    cases = [CASES[(seed + number) % len(CASES)] for number in range(1 + seed % 3)]
    settings, landed = lose_executors(tmp_path, cases)
    check(settings, ledger, landed)
