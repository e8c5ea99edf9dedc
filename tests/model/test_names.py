"""Names become names of files and folders: none of them may lead out of the folder that it is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import springtide as st
from springtide.errors import CheckpointError, TopologyError
from springtide.model.names import MAX_BYTES


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def same(number: Number) -> Number:
    return number


def source(name: str = "source") -> st.Stream:
    return st.source.generate(number, rate=1, name=name)


NAMED: dict[str, Callable[[str], st.Topology]] = {
    "source": lambda name: source(name).to(st.sink.discard()).named("t"),
    "operator": lambda name: source().map(same, name=name).to(st.sink.discard()).named("t"),
    "sink": lambda name: source().to(st.sink.discard(), name=name).named("t"),
    "topology": lambda name: source().to(st.sink.discard()).named(name),
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "/", "a\\b", "a\0b", pytest.param("é" * (MAX_BYTES // 2) + "a", id="a byte too long")]
)
def test_names_that_are_no_names_of_files_are_refused_when_the_topology_is_built(what: str, name: str) -> None:
    with pytest.raises(TopologyError, match="name"):
        NAMED[what](name)


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("name", ["...", ".hidden", "a.b", "ünï", pytest.param("a" * MAX_BYTES, id="the longest")])
def test_names_that_stay_in_their_folder_are_allowed(what: str, name: str) -> None:
    assert NAMED[what](name)


def test_a_refused_name_is_told_with_what_is_allowed() -> None:
    with pytest.raises(TopologyError, match=r"operator '\.\.': .* a name is not empty, '\.' or '\.\.', and has no '/'"):
        NAMED["operator"]("..")
    with pytest.raises(TopologyError, match="this name has 300 bytes; use at most 180"):
        NAMED["sink"]("a" * 300)


@pytest.mark.parametrize("name", ["../../precious.state", "/etc/passwd", "..", "", "a\0.state", None])
@pytest.mark.parametrize("merged", [False, True], ids=["a file", "a file that another one was merged from"])
def test_a_state_file_of_a_manifest_is_a_plain_name(name: Any, merged: bool) -> None:
    pytest.importorskip("pyspark")
    from springtide.spark.state.catalog import Catalog

    run = [0, 3, [[name, 10, 1]], []]
    document = {"keys": 1, "runs": [[0, 3, [["good.state", 10, 1]], [run]] if merged else run]}
    with pytest.raises(
        CheckpointError, match=r"the newest manifest, batch 3 or later, names the state file .*put that file back"
    ):
        Catalog.from_json(document)
