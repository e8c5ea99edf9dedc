"""A real standalone cluster, started from the pip package: how a user's code reaches its executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from springtide.bench.standalone import standalone

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

PACKAGE = textwrap.dedent(
    '''
    """A package that is installed nowhere on the cluster."""
    from dataclasses import dataclass

    import springtide as st


    @dataclass(frozen=True)
    class Number:
        n: int


    def number(draw: st.Draw) -> Number:
        return Number(draw.index)


    def square(number: Number) -> Number:
        return Number(number.n**2)


    def topology() -> st.Topology:
        import os

        numbers = st.source.generate(number, rate=100_000, limit=1_000)
        return numbers.map(square, parallelism=2).to(st.sink.files(os.environ["OUTPUT"])).named("squares")
    '''
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and a worker with two cores."""
    with standalone(tmp_path_factory.mktemp("cluster"), cores=2, memory="2g") as url:
        yield url


def _run(master: str, tmp_path: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    package = tmp_path / "source" / "squares_job"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(PACKAGE)
    with zipfile.ZipFile(tmp_path / "squares_job.zip", "w") as archive:
        archive.write(package / "__init__.py", "squares_job/__init__.py")
    # PYTHONPATH makes it importable for the driver, as an installed package would be, and for nobody else
    environ = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "OUTPUT": str(tmp_path / "out"),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [
        sys.executable, "-m", "springtide.cli.main", "run", "squares_job:topology", "--master", master, "--json",
        "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=512m",
        "--runs", str(tmp_path / "runs"), *extra,
    ]  # fmt: skip
    return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)


def test_a_package_reaches_the_executors_with_py_files(master: str, tmp_path: Path) -> None:
    done = _run(master, tmp_path, "--py-files", str(tmp_path / "squares_job.zip"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows_out"] == 1_000
    values = pq.read_table(tmp_path / "out").column("n").to_pylist()
    assert sorted(values) == [n**2 for n in range(1_000)]


def test_without_it_the_run_fails_and_says_which_module_is_missing(master: str, tmp_path: Path) -> None:
    done = _run(master, tmp_path)
    assert done.returncode == 1
    assert "squares_job" in done.stderr and "No module named" in done.stderr
    assert "--py-files" in done.stderr


def test_an_archive_brings_the_python_of_the_executors(master: str, tmp_path: Path) -> None:
    """A stand-in for a packed environment: a Python that leaves a line when it is started, and is nowhere but in there."""
    python = tmp_path / "packed" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\npwd >> "{tmp_path}/started-in"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(python, "bin/python")
    done = _run(
        master, tmp_path, "--py-files", str(tmp_path / "squares_job.zip"),
        "--archives", f"{tmp_path}/env.tar.gz#env", "--conf", "spark.pyspark.python=./env/bin/python",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows_out"] == 1_000
    assert {Path(line).parent.parent.name for line in (tmp_path / "started-in").read_text().splitlines()} == {"work"}
