"""The examples in the documentation: they compile, and those that say so run. The generated page is up to date."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import springtide
from servers.kafka import Broker
from springtide.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
NEED_SPARK = ("springtide.spark", "springtide.bench")


def blocks() -> list[tuple[str, str]]:
    """Every Python example of the pages, with the page and the line on which it begins."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(1)) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", block[1]))
    return found


def files() -> dict[str, str]:
    """The examples whose first line names their file."""
    return {found[1]: code for _, code in blocks() if (found := FILE.match(code))}


@pytest.fixture
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with these files in it."""
    folder = tmp_path / "examples"
    folder.mkdir()
    for name, code in files().items():
        (folder / name).write_text(code, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    yield folder
    for name in files():
        sys.modules.pop(Path(name).stem, None)


def modules() -> list[str]:
    names = [module.name for module in pkgutil.walk_packages(springtide.__path__, "springtide.")]
    return ["springtide", *(name for name in names if not name.startswith(NEED_SPARK))]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_give_what_they_show(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_there_are_examples_to_check() -> None:
    """A pattern that finds nothing would let everything pass."""
    finder = doctest.DocTestFinder()
    examples = [test for name in modules() for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) >= 10
    assert any(block.startswith("# runs\n") for _, block in blocks())
    assert {"test_busy.py", "test_json_lines.py", "test_median.py", "test_rows.py"} <= files().keys()


def test_the_page_of_policies_is_what_the_command_prints() -> None:
    """After a change of a plug-in: ``springtide policies --markdown > docs/policies.md``."""
    printed = CliRunner().invoke(cli, ["policies", "--markdown"])
    assert printed.exit_code == 0
    assert (ROOT / "docs" / "policies.md").read_text(encoding="utf-8") == printed.stdout


@pytest.mark.parametrize(("where", "code"), [pytest.param(*block, id=block[0]) for block in blocks()])
def test_python_examples_compile(where: str, code: str) -> None:
    compile(code, where, "exec")


@pytest.mark.parametrize("name", [name for name in files() if name.startswith("test_")])
def test_examples_pass_their_tests(name: str, example_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example_folder)
    tests = {key: test for key, test in runpy.run_path(name).items() if key.startswith("test_")}
    assert tests
    for key, test in tests.items():
        (tmp_path / key).mkdir()
        test(**{name: tmp_path / key for name in test.__annotations__ if name == "tmp_path"})


@pytest.mark.usefixtures("example_folder")
def test_a_policy_in_the_current_folder_can_be_selected() -> None:
    """Its parameter is refused, before anything starts. The path of an installed ``springtide`` lacks the current folder."""
    shown = CliRunner().invoke(cli, ["simulate", "line1", "--policy", "busy:Busy", "--set", "limit=7"])
    assert "limit='7' is not allowed; give a float, at least 0, at most 1" in shown.output


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "code"), [pytest.param(*block, id=block[0]) for block in blocks() if block[1].startswith("# runs\n")]
)
def test_python_examples_that_say_so_run(where: str, code: str, tmp_path: Path) -> None:
    """In a process and a folder of their own, as a reader would run them."""
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{where}:\n{done.stderr}"


@pytest.mark.spark
def test_the_example_of_kafka_runs(kafka: Broker, tmp_path: Path) -> None:
    environ = {**os.environ, "KAFKA": kafka.servers, "WORK": str(tmp_path / "work"), "TOPIC": "example-trips"}
    for words in (["make"], ["run", "now"]):
        command = [sys.executable, str(ROOT / "examples" / "trips.py"), *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, env=environ)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("100,000 trips")
