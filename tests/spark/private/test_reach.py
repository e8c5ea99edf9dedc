"""Nothing but ``spark.private`` reaches into the JVM, or into what PySpark keeps to itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import springtide

SOURCES = Path(springtide.__file__).parent
OWN = {"_jvm", "_jsc", "_jdf", "_jrdd", "_jsq", "_jsqm", "_jsparkSession", "_jconf", "_gateway", "_active_spark_context"}
"""Attributes by which PySpark's objects have their Java twins."""


def reached(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in OWN:
            yield node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
            yield from (f"{node.module}.{one.name}" for one in node.names if one.name.startswith("_"))
            yield from [node.module] if node.module == "pyspark.java_gateway" else []


def test_only_the_private_package_reaches_into_the_jvm() -> None:
    files = {path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")}
    found = {name: sorted(set(reached(source))) for name, source in files.items()}
    inside = {name for name in found if name.startswith("spark/private/")}
    assert any("_jvm" in found[name] for name in inside), "what is looked for is not there at all"
    assert {name: what for name, what in found.items() if what and name not in inside} == {}
