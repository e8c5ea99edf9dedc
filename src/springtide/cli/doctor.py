"""``springtide doctor``: whether this machine can run Springtide, and how to correct what does not suffice."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from springtide.errors import SetupError
from springtide.spark.driver.java import Java, find_java

Version = tuple[int, ...]

OLDEST_PYTHON: Version = (3, 11)
LITTLE_MEMORY = 4 * 10**9
MISSING = "not installed"

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Not ``ok``: Springtide cannot run until the advice is followed. ``ok`` with advice: it runs with a limitation.
    """

    what: str
    found: str
    ok: bool
    advice: str | None = None


def examine() -> list[Finding]:
    """Check all requirements, in the order in which to correct them."""
    return [
        judge_python(sys.version_info[:3]),
        judge_java(find_java),
        judge_package("PySpark", installed("pyspark"), (4, 2), extra="spark", below=(5,)),
        judge_package("PyArrow", installed("pyarrow"), (18,)),
        judge_cores(usable_cores()),
        judge_memory(usable_memory()),
        judge_package("matplotlib", installed("matplotlib"), (3, 9), extra="plot", only_for="plots"),
    ]


def judge_python(version: Version) -> Finding:
    ok = version >= OLDEST_PYTHON
    advice = f"use Python {_dotted(OLDEST_PYTHON)} or later"
    return Finding("Python", _dotted(version), ok, None if ok else advice)


def judge_java(find: Callable[[], Java]) -> Finding:
    try:
        java = find()
    except SetupError as error:
        return Finding("Java", "none that fits", ok=False, advice=str(error))
    return Finding("Java", f"{java.version} from {java.origin}: {java.home}", ok=True)


def judge_package(
    what: str,
    version: str | None,
    oldest: Version,
    *,
    extra: str | None = None,
    below: Version | None = None,
    only_for: str | None = None,
) -> Finding:
    """Judge a package. ``extra``: Springtide's extra that installs it. ``only_for``: the only feature that needs it."""
    fits = version is not None and oldest <= release(version) and (below is None or release(version) < below)
    if fits:
        return Finding(what, str(version), ok=True)
    bound = f"{_dotted(oldest)} or later" + (f", below {_dotted(below)}" if below else "")
    package = f"springtide[{extra}]" if extra else "springtide"
    need = f"{only_for} need" if only_for else "Springtide needs"
    advice = f"{need} {bound}: pip install --upgrade '{package}'"
    return Finding(what, version or MISSING, ok=only_for is not None, advice=advice)


def judge_cores(cores: int) -> Finding:
    advice = "with one core nothing runs side by side, so more slots bring no more speed"
    return Finding("cores", str(cores), ok=True, advice=advice if cores < 2 else None)


def judge_memory(total: int | None) -> Finding:
    """Judge the memory in bytes. Little memory is no failure, because small topologies run with it."""
    if total is None:
        return Finding("memory", "unknown", ok=True, advice="have at least 4 GB")
    advice = "Spark may run out of it: have at least 4 GB, or run with few slots"
    return Finding("memory", f"{total / 1e9:.1f} GB", ok=True, advice=advice if total < LITTLE_MEMORY else None)


def installed(package: str) -> str | None:
    """The version that pip has installed. Importing PySpark for it would take a second."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def release(version: str) -> Version:
    """The numbers that a version starts with.

    >>> release("4.2.0.dev3"), release("4.3rc1")
    ((4, 2, 0), (4, 3))
    """
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()


def usable_cores() -> int:
    """The cores that this process may use; fewer than the machine has under taskset or a cpuset."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_memory(limit: Path = _CGROUP_LIMIT) -> int | None:
    """The machine's memory in bytes, or the container's limit if that is less; None if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    try:
        return min(total, int(limit.read_text()))
    except (ValueError, OSError):  # no container, or "max"
        return total


def render(findings: Sequence[Finding], as_json: bool, width: int | None = None) -> str:
    """The findings as a table for people, or as JSON for programs."""
    if as_json:
        return json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False)
    table = Table("", "what", "found", "advice")
    for finding in findings:
        cells = (_mark(finding), finding.what, finding.found, finding.advice or "")
        table.add_row(*(Text(cell) for cell in cells))  # Text: "springtide[spark]" would be parsed as markup
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n")


def _mark(finding: Finding) -> str:
    if not finding.ok:
        return "mend"
    return "note" if finding.advice else "ok"


def _dotted(version: Version) -> str:
    return ".".join(str(number) for number in version)
