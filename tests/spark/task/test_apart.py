"""What runs in Python workers has nothing of the driver's side loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import springtide as st

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Loaded:
    key: int
    modules: str


def loaded(draw: st.Draw) -> Loaded:
    return look(Loaded(draw.index, ""))


def look(one: Loaded) -> Loaded:
    there = {name for name in sys.modules if name.startswith("springtide.spark.driver.")}
    return Loaded(one.key, " ".join(sorted(there | set(one.modules.split()))))


def same(frame: Any) -> Any:
    return frame


def test_no_task_has_loaded_a_module_of_the_driver(spark: Any, tmp_path: Path) -> None:
    """Neither where records are made, nor where they enter, nor behind a shuffle, nor behind a sql operator."""
    source = st.source.generate(loaded, rate=1000, limit=100)
    topology = (
        source.map(look, name="entry").sql(same, schema=Loaded, name="sql").map(look, name="stage", grouping="round-robin")
        .to(st.sink.memory("out")).named("apart")
    )  # fmt: skip
    result = st.run(topology, spark=spark, runs=tmp_path, grouping="round-robin")
    table = result.table("out")
    assert table.num_rows == 100 and set(table.column("modules").to_pylist()) == {""}
