"""How a run ends when it is told to, and who may not start one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crash import job, outputs
from crash.job import Settings
from crash.processes import Job, started

pytestmark = [pytest.mark.spark, pytest.mark.crash]


def wait_for_batches(running: Job, batches: int) -> None:
    assert running.wait_until(lambda: len(outputs.manifests(running.settings)) >= batches, "batches"), running.tail()


def assert_no_half_batch(settings: Settings) -> None:
    """Everything that was begun is committed and visible, and nothing else is there."""
    assert not [file for file in settings.output.glob("*/_springtide/*/epoch-*/*") if file.is_file()]
    assert outputs.visible(settings) == outputs.committed(settings)
    records = max(outputs.manifests(settings).items())[1]["sources"]["source"]
    assert outputs.written(settings) == outputs.expected(settings.seed, records)


def test_sigterm_and_ctrl_c_end_after_the_batch(tmp_path: Path) -> None:
    """Twice told to end, by SIGTERM and by a terminal's Ctrl-C, which reaches all its processes; then left alone."""
    settings = Settings(str(tmp_path))
    with started(settings) as running:
        wait_for_batches(running, 2)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0, running.tail()
        assert_no_half_batch(settings)
        ended_after = len(outputs.manifests(settings))

        running.start()
        wait_for_batches(running, ended_after + 2)
        running.signal(signal.SIGINT, to_group=True)
        assert running.wait() == 0, running.tail()
        assert_no_half_batch(settings)
        assert len(outputs.manifests(settings)) < settings.records // settings.batch_records

        running.start()
        assert running.wait() == 0, running.tail()
    assert outputs.written(settings) == outputs.expected(settings.seed, settings.records)


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    """At once, before it starts Spark, with exit code 2 and the process that holds the checkpoint."""
    settings = Settings(str(tmp_path))
    lock = settings.checkpoint / "springtide" / "driver.lock"
    with started(settings) as running:
        assert running.wait_until(lambda: lock.exists() and lock.stat().st_size > 0, "the lock"), running.tail()
        second = subprocess.run(
            [Path(sys.executable).with_name("springtide"), "run", f"{job.__file__}:topology",
             "--checkpoint", settings.checkpoint, "--runs", settings.runs],
            env={**os.environ, **settings.environment()}, cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert running.exit_code() is None
    assert second.returncode == 2, second.stderr
    assert f"process {running.pid} " in second.stderr
    assert "Traceback" not in second.stderr
