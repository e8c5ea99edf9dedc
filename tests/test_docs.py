"""The examples in the documentation: they compile, and those that say so run. The generated page is up to date."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import springtide
from springtide.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.is_file()]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
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


def test_the_page_of_policies_is_what_the_command_prints() -> None:
    """After a change of a plug-in: ``springtide policies --markdown > docs/policies.md``."""
    printed = CliRunner().invoke(cli, ["policies", "--markdown"])
    assert printed.exit_code == 0
    assert (ROOT / "docs" / "policies.md").read_text(encoding="utf-8") == printed.stdout


@pytest.mark.parametrize(("where", "code"), [pytest.param(*block, id=block[0]) for block in blocks()])
def test_python_examples_compile(where: str, code: str) -> None:
    compile(code, where, "exec")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "code"), [pytest.param(*block, id=block[0]) for block in blocks() if block[1].startswith("# runs\n")]
)
def test_python_examples_that_say_so_run(where: str, code: str, tmp_path: Path) -> None:
    """In a process and a folder of their own, as a reader would run them."""
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{where}:\n{done.stderr}"
