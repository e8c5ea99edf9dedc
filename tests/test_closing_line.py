"""What pytest prints last: the counts, alone on their line, and above them why tests were skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.parametrize("n", range(2))
def test_skips(n): pytest.skip("no such\\nmachine")

@pytest.mark.skip(reason="not today")
def test_never(): pass

@pytest.mark.xfail(run=False, reason="unused")
def test_takes_the_session_without_a_mark(spark): pass
"""


def closing_lines(folder: Path, *words: str) -> list[str]:
    (folder / "test_few.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = spark: needs a Spark session\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", *words, "test_few.py"]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_the_reasons_of_skips_stand_before_the_counts(tmp_path: Path) -> None:
    assert closing_lines(tmp_path)[-3:] == [
        "2 skipped: no such machine", "1 skipped: not today", "1 passed, 0 failed, 3 skipped",
    ]  # fmt: skip


def test_whoever_takes_the_session_is_marked(tmp_path: Path) -> None:
    lines = closing_lines(tmp_path, "-m", "not spark", "--collect-only")
    assert "test_few.py::test_passes" in lines
    assert not any("without_a_mark" in line for line in lines)
