"""Secrets among Spark's settings: in no process's arguments, in no file that others can read, in no log."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from springtide.cli.main import cli
from springtide.errors import SetupError
from springtide.spark.private.properties import ARGUMENTS, escaped, in_file

KEY = "spark.hadoop.fs.s3a.secret.key"


def file_of(arguments: str) -> Path:
    words = arguments.split()
    return Path(words[words.index("--properties-file") + 1])


def test_settings_are_in_a_file_of_the_owner_while_a_jvm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ARGUMENTS, raising=False)
    before = os.umask(0o000)
    try:
        with in_file({KEY: "s3cr3t", "spark.app.name": "a b"}):
            arguments = os.environ[ARGUMENTS]
            file = file_of(arguments)
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert file.read_text() == f"{KEY}=s3cr3t\nspark.app.name=a\\ b\n"
    finally:
        os.umask(before)
    assert "s3cr3t" not in arguments and arguments.endswith(" --load-spark-defaults pyspark-shell")
    assert not file.exists()
    assert ARGUMENTS not in os.environ


def test_a_file_of_the_users_goes_below_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.conf"
    own.write_text("spark.x 1")
    told = f"--conf spark.y=2 --properties-file {own} pyspark-shell"
    monkeypatch.setenv(ARGUMENTS, told)
    with contextlib.suppress(RuntimeError), in_file({"spark.x": "3"}):
        arguments = os.environ[ARGUMENTS]
        file = file_of(arguments)
        assert file.read_text() == "spark.x 1\nspark.x=3\n"
        raise RuntimeError("the JVM did not start")
    assert arguments.endswith(".conf --conf spark.y=2 pyspark-shell")
    assert not file.exists()
    assert os.environ[ARGUMENTS] == told
    own.unlink()
    with pytest.raises(SetupError, match=r"own\.conf, which cannot be read"), in_file({}):
        pass


@pytest.mark.spark
@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_java_reads_names_and_values_as_they_were(spark: Any, pairs: dict[str, str]) -> None:
    pairs = {name: value for name, value in pairs.items() if (name + value).isprintable()}  # Py4J alters what is no text
    jvm = spark.sparkContext._jvm
    read = jvm.java.util.Properties()
    read.load(jvm.java.io.StringReader("".join(f"{escaped(name)}={escaped(value)}\n" for name, value in pairs.items())))
    assert {name: read.getProperty(name) for name in pairs} == pairs
    assert read.size() == len(pairs)


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_secret_on_the_command_line_is_warned_of(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = tmp_path / "app.py"
    app.write_text("")
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("springtide.running.execute", _refuse)
    words = ["--conf", f"{KEY}=s3cr3t", "--conf", "spark.executor.cores=1"]
    done = CliRunner().invoke(cli, [command, *words, "tweets" if command == "run" else str(app)])
    assert done.output.count("Warning") == 1
    assert f"--conf {KEY}=…" in done.output and "spark-defaults.conf" in done.output
    assert "s3cr3t" not in done.output


def _refuse(*_: object, **__: object) -> None:
    raise SetupError("nothing is to run here")


JOB = """
import json, pathlib, sys
from dataclasses import dataclass
import springtide as st

NAMES = ["spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.session.token"]


@dataclass(frozen=True)
class Row:
    n: int


def same(one: Row) -> Row:
    return one


def told(rows, batch):
    from pyspark import SparkContext

    conf = SparkContext._active_spark_context.getConf()
    pathlib.Path("told.json").write_text(json.dumps([conf.get(name)[::-1] for name in NAMES]))


if __name__ == "__main__":
    rows = st.source.files("in", format="json", schema=Row).map(same)
    conf = {NAMES[0]: "s3cr3t-of-conf", "spark.logConf": "true"}
    st.run(rows.to(st.sink.foreach(told)).named("rows"), max_slots=2, conf=conf, runs="runs", available_now=True)
"""

LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.all.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = info
"""
"""Else a JVM for Python logs nothing below a warning while it starts, which is when Spark logs its settings."""


@pytest.mark.spark
def test_no_process_and_no_file_of_a_run_shows_a_secret(tmp_path: Path) -> None:
    """Also not where Spark logs its settings. They arrive all the same, from ``conf=`` and from ``spark-defaults.conf``."""
    (tmp_path / "job.py").write_text(JOB)
    for name in ("in", "conf"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "rows.json").write_text('{"n": 1}\n')
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.hadoop.fs.s3a.session.token s3cr3t-of-defaults\n")
    (tmp_path / "conf" / "log4j2.properties").write_text(LOGGING)
    environ = {**os.environ, "SPARK_CONF_DIR": str(tmp_path / "conf")}
    lines = set[str]()
    with (tmp_path / "output").open("wb") as output:
        job = subprocess.Popen([sys.executable, "job.py"], cwd=tmp_path, env=environ, stdout=output, stderr=output)
        while job.poll() is None:
            lines |= _command_lines(psutil.Process(job.pid))
            time.sleep(0.05)
    assert job.returncode == 0, (tmp_path / "output").read_text()
    assert any("SparkSubmit" in line for line in lines), "the JVM was looked at"
    assert any("springtide.spark.private.daemon" in line for line in lines), "so were Spark's Python workers"
    assert not [line for line in lines if "s3cr3t" in line]
    told = json.loads((tmp_path / "told.json").read_text())
    assert [word[::-1] for word in told] == ["s3cr3t-of-conf", "s3cr3t-of-defaults"]
    (run,) = (tmp_path / "runs").iterdir()
    assert b"fs.s3a.secret.key" in (run / "spark.log").read_bytes(), "Spark did log its settings"
    shown = [path for path in run.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert shown == []
    assert b"s3cr3t" not in (tmp_path / "output").read_bytes()
    for name in ("spark.log", "run.json", "batches.jsonl", "summary.json"):
        assert stat.S_IMODE((run / name).stat().st_mode) == 0o600, name


def _command_lines(process: psutil.Process) -> set[str]:
    found = set()
    with contextlib.suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # some live for a moment only
                found.add(" ".join(one.cmdline()))
    return found
