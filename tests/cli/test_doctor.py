"""What the doctor calls sound, what it advises, and that people and programs can both read it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from springtide.cli import doctor
from springtide.cli.doctor import Finding, render
from springtide.errors import SetupError
from springtide.spark.driver.java import Java


def judge_pyspark(version: str | None) -> Finding:
    return doctor.judge_package("PySpark", version, (4, 2), extra="spark", below=(5,))


def no_java() -> Java:
    raise SetupError("no Java 17 or later was found. Looked at:\n  JAVA_HOME: not set")


def test_everything_is_examined_in_order() -> None:
    names = [finding.what for finding in doctor.examine()]
    assert names == ["Python", "Java", "PySpark", "PyArrow", "cores", "memory", "matplotlib"]


def test_what_fails_brings_advice() -> None:
    assert all(finding.advice for finding in doctor.examine() if not finding.ok)


def test_python() -> None:
    assert doctor.judge_python((3, 11, 0)) == Finding("Python", "3.11.0", ok=True)
    assert doctor.judge_python((3, 10, 14)) == Finding("Python", "3.10.14", False, "use Python 3.11 or later")


def test_java_says_where_it_was_found() -> None:
    finding = doctor.judge_java(lambda: Java(Path("/opt/java"), 21, "PATH"))
    assert finding == Finding("Java", "21 from PATH: /opt/java", ok=True)


def test_without_java_the_advice_is_the_whole_error() -> None:
    finding = doctor.judge_java(no_java)
    assert not finding.ok
    assert finding.advice is not None
    assert "JAVA_HOME: not set" in finding.advice


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0.dev1", "4.3.0", "4.10.1"])
def test_a_package_that_fits(version: str) -> None:
    assert judge_pyspark(version) == Finding("PySpark", version, ok=True)


@pytest.mark.parametrize("version", ["3.5.9", "4.1.4", "5.0.0", "unknown", None])
def test_a_package_that_does_not_fit(version: str | None) -> None:
    finding = judge_pyspark(version)
    assert not finding.ok
    assert finding.found == (version or "not installed")
    assert finding.advice == "Springtide needs 4.2 or later, below 5: pip install --upgrade 'springtide[spark]'"


def test_a_package_for_plots_only_is_no_bar() -> None:
    finding = doctor.judge_package("matplotlib", None, (3, 9), extra="plot", only_for="plots")
    advice = "plots need 3.9 or later: pip install --upgrade 'springtide[plot]'"
    assert finding == Finding("matplotlib", "not installed", True, advice)


def test_installed_reads_what_pip_knows() -> None:
    assert doctor.installed("pytest") == pytest.__version__
    assert doctor.installed("no-such-package") is None


def test_one_core_is_noted() -> None:
    assert doctor.judge_cores(1).advice
    assert doctor.judge_cores(2) == Finding("cores", "2", ok=True)


def test_little_memory_is_noted_and_no_bar() -> None:
    assert doctor.judge_memory(4 * 10**9) == Finding("memory", "4.0 GB", ok=True)
    little = doctor.judge_memory(3_900_000_000)
    assert little.ok
    assert little.advice is not None
    assert "at least 4 GB" in little.advice
    assert doctor.judge_memory(None).found == "unknown"


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = tmp_path / "memory.max"
    assert doctor.usable_memory(limit) == machine
    limit.write_text("max\n")
    assert doctor.usable_memory(limit) == machine
    limit.write_text("1000000\n")
    assert doctor.usable_memory(limit) == 1_000_000


def test_cores_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert doctor.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert doctor.usable_cores() == 1


def test_the_table_marks_and_keeps_brackets() -> None:
    findings = [Finding("Python", "3.12.1", ok=True), judge_pyspark(None), doctor.judge_cores(1)]
    lines = render(findings, as_json=False, width=140).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("│")] == ["ok", "mend", "note"]
    assert any("'springtide[spark]'" in line for line in lines)


def test_json_holds_every_field() -> None:
    findings = [Finding("Python", "3.12.1", ok=True), judge_pyspark(None)]
    assert [Finding(**document) for document in json.loads(render(findings, as_json=True))] == findings
