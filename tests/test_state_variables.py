"""What stateful operators are handed and what they may remember: keys that were let go, defaults, types, timers, migrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import springtide as st
from springtide.spark.state import lookup, segment
from state_machine import SECOND, Machine

agg = st.agg


@dataclass(frozen=True)
class Trip:
    route: str
    at: int
    fare: int


def trips() -> st.Stream:
    return st.source.generate(lambda draw: Trip("a", 1, 1), rate=1, schema=Trip, name="trips")


def machine(stream: st.Stream, folder: Path) -> Machine:
    return Machine.of(stream.to(st.sink.discard()).named("t"), folder)


def trip(route: str = "a", fare: int = 1) -> dict[str, Any]:
    return {"route": route, "at": 1, "fare": fare}


# Keys that were let go


@pytest.mark.parametrize("others", [(), ("b",)])
def test_ready_operators_begin_anew_with_a_key_that_was_kept_for_long_enough(tmp_path: Path, others: tuple[str, ...]) -> None:
    made = trips().key_by("route").aggregate(n=agg.count(), low=agg.min("fare"), first=agg.first("fare"), ttl="5s")
    tested = machine(made, tmp_path)
    tested.run([trip("a", 1), trip("a", 2)])
    tested.now += 4 * SECOND
    for other in others:  # which is still known
        tested.run([trip(other, 1)])
    tested.now += 3 * SECOND
    told = {row.pop("route"): row for row in tested.run([trip("a", 7), *(trip(other, 7) for other in others)])}
    assert told["a"] == {"n": 1, "low": 7, "first": 7}
    assert all(told[other] == {"n": 2, "low": 1, "first": 1} for other in others)
    assert tested.catalog.keys == 1 + len(others)


def test_a_count_with_a_time_to_live_begins_anew(tmp_path: Path) -> None:
    tested = machine(trips().key_by("route").count(ttl="5s"), tmp_path)
    assert [row["count"] for row in tested.run([trip(), trip(), trip()])] == [3]
    tested.now += 100 * SECOND
    assert [row["count"] for row in tested.run([trip()])] == [1]
    assert [row["count"] for row in tested.run([trip()])] == [2]


def test_of_a_key_that_is_gone_nothing_is_handed_on(tmp_path: Path) -> None:
    class Once(st.Processor):
        n = st.value(int, default=0)

        def process(self, key: str, records: list[Trip], state: st.State) -> list[Trip]:
            state.n = records[-1].fare
            return []

    tested = machine(trips().key_by("route").stateful(Once), tmp_path)
    tested.run([trip("a", 5), trip("b", 6)], width=1)
    tested.run([trip("a", 0), trip("b", 7)], width=1)  # as a key is before its first record
    segments = [segment.Segment(f"{tested.kept.folder}/{name}") for name in tested.files]
    wanted = [tested.kept.identities(tested.arriving([trip(key)])) for key in "abc"]
    every, first, _ = lookup.distinct(*(np.concatenate(hashes) for hashes in zip(*wanted, strict=True)))
    rows, known = lookup.newest(segments, every, tested.kept.schema, tested.kept.fitted)
    found = {"abc"[place]: (row["state.n"], row["key.route"]) for place, row in zip(first, rows.to_pylist(), strict=True)}
    assert found == {"a": (None, None), "b": (7, "b"), "c": (None, None)}
    assert {"abc"[place] for place in first[known]} == {"b"}
