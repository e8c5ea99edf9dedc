"""What stateful operators are handed and what they may remember: expired keys, defaults, types, timers, migrations."""

from __future__ import annotations

import datetime
import decimal
import fractions
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import springtide as st
from processors.state_machine import SECOND, Machine
from springtide.errors import RunError, TopologyError
from springtide.model.columns import column
from springtide.spark.state import lookup, segment

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


# Expired keys


@pytest.mark.parametrize("others", [(), ("b",)])
def test_ready_operators_begin_anew_with_an_expired_key(tmp_path: Path, others: tuple[str, ...]) -> None:
    made = trips().key_by("route").aggregate(n=agg.count(), low=agg.min("fare"), first=agg.first("fare"), ttl="5s")
    tested = machine(made, tmp_path)
    tested.run([trip("a", 1), trip("a", 2)])
    tested.now += 4 * SECOND
    for other in others:  # which is still known
        tested.run([trip(other, 1)])
    tested.now += 3 * SECOND
    reported = {row.pop("route"): row for row in tested.run([trip("a", 7), *(trip(other, 7) for other in others)])}
    assert reported["a"] == {"n": 1, "low": 7, "first": 7}
    assert all(reported[other] == {"n": 2, "low": 1, "first": 1} for other in others)
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
    segments = [segment.Segment(f"{tested.layout.folder}/{name}") for name in tested.files]
    wanted = tested.arriving([trip(key) for key in "abc"])
    every, first, _ = lookup.distinct(*tested.layout.identities(wanted), tested.layout.keys(wanted))
    rows, known = lookup.newest(segments, every, tested.layout.schema, tested.layout.fitted)
    found = {"abc"[place]: (row["state.n"], row["key.route"]) for place, row in zip(first, rows.to_pylist(), strict=True)}
    assert found == {"a": (None, None), "b": (7, "b"), "c": (None, None)}
    assert {"abc"[place] for place in first[known]} == {"b"}


# Defaults


@dataclass
class Bag:
    """Can be changed in place."""

    things: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Box:
    bag: Bag


@dataclass(frozen=True)
class Reported:
    key: str
    text: str


def processor(variable: Any, change: Callable[[Any], Any]) -> type[st.Processor]:
    """A processor with a variable ``it``, which tells what there is, and then changes it by a function of the state."""

    class Made(st.Processor):
        it = variable

        def process(self, key: str, records: list[Trip], state: st.State) -> list[Reported]:
            reported = Reported(key, repr(state.it))
            change(state)
            return [reported]

    return Made


def reported(tested: Machine, *keys: str) -> dict[str, str]:
    return {row["key"]: row["text"] for row in tested.run([trip(key) for key in keys])}


@pytest.mark.parametrize(
    ("of", "default", "things"),
    [
        (list[int], [], lambda it: it),
        (list[int], [7], lambda it: it),
        (dict[str, list[int]], {"x": [7]}, lambda it: it["x"]),
        (Bag, Bag(), lambda it: it.things),
        (Box, Box(Bag([7])), lambda it: it.bag.things),
    ],
)
def test_a_default_that_can_be_changed_is_every_keys_own(tmp_path: Path, of: Any, default: Any, things: Any) -> None:
    made = processor(st.value(of, default=default), lambda state: things(state.it).append(1))
    tested = machine(trips().key_by("route").stateful(made), tmp_path)
    first = repr(default)
    assert reported(tested, "a", "b") == {"a": first, "b": first}
    things(changed := made().declared["it"].initial()).append(1)
    assert reported(tested, "a", "c") == {"a": repr(changed), "c": first}
    assert tested.catalog.keys == len(tested.rows()) == 3
    assert made.declared["it"].default == default and repr(default) == first


def test_a_default_that_cannot_be_changed_is_not_copied() -> None:
    at = datetime.datetime.now(datetime.UTC)
    for of, default in ((str, "zero"), (datetime.datetime, at), (Trip, Trip("a", 1, 1)), (decimal.Decimal, decimal.Decimal(1))):
        assert st.value(of, default=default).initial() is default


@pytest.mark.parametrize(
    ("of", "default", "fault"),
    [
        (int, "zero", "default='zero' is not of the type that is declared, int"),
        (int, 1.5, "default=1.5 .*got a float"),
        (list[int], [1.5], r"default=\[1.5\] .*got a float"),
        (str, 5, "default=5"),
        (bool, 1, "default=1"),
        (int, 2**70, "default=1180591620717411303424"),
        (datetime.datetime, datetime.datetime(2024, 1, 1), "no time zone"),
        (Trip, {"route": "a"}, "'default.at' is None"),
        ("int", None, "'int' is no type; give the type itself, such as int"),
        (5, None, "5 is no type"),
    ],
)
def test_types_that_are_none_and_defaults_of_other_types_are_refused_when_declared(of: Any, default: Any, fault: str) -> None:
    with pytest.raises(TopologyError, match=rf"Wrong\.it: .*{fault}"):
        type("Wrong", (st.Processor,), {"it": st.value(of, default=default)})


def test_a_default_may_be_of_a_type_that_is_defined_later() -> None:
    type("Early", (st.Processor,), {"it": st.value(Holder, default=Holder(None))})


@dataclass(frozen=True)
class Holder:
    held: NotYet | None  # type: ignore[name-defined]  # noqa: F821


# Types


@pytest.mark.parametrize(
    ("variable", "given", "fault"),
    [
        (st.list_of(int), [1, 1.9], r"'it\[\]' is int64, got a float"),
        (st.map_of(str, int), {"a": 2.9}, r"'it\[\]' is int64, got a float"),
        (st.map_of(int, str), {2.9: "a"}, r"'it\[\]' is int64, got a float"),
        (st.map_of(str, list[int]), {"a": [1], "b": [2.9]}, r"'it\[\]\[\]' is int64, got a float"),
        (st.value(Trip), Trip("a", 1, 2.5), r"'it.fare' is int64, got a float"),  # type: ignore[arg-type]
        (st.value(int), decimal.Decimal("1.9"), "'it' is int64, got a Decimal"),
        (st.value(int), fractions.Fraction(3, 2), "'it' is int64, got a Fraction"),
        (st.value(int), np.float32(1.9), "'it' is int64, got a float32"),
        (st.value(int, default=5), None, "'it' is None, but int64 not null is declared"),
        (st.list_of(int), None, "'it' is None"),
        (st.value(datetime.datetime), datetime.datetime(2024, 1, 1), "has no time zone; give one"),
        (st.list_of(datetime.datetime), [datetime.datetime(2024, 1, 1)], "has no time zone; give one"),
        (st.value(datetime.date), datetime.datetime(2024, 1, 1, 5, tzinfo=datetime.UTC), "'it' is date32.*, got a datetime"),
    ],
)
def test_a_value_of_which_something_would_be_lost_fails_its_key_alone(
    tmp_path: Path, variable: Any, given: Any, fault: str
) -> None:
    class Made(st.Processor):
        it = variable
        here = st.value(int, default=0)

        def process(self, key: str, records: list[Trip], state: st.State) -> list[Reported]:
            state.here += 1
            if key == "a" and state.here == 2:
                state.it = given
            return [Reported(key, repr((state.it, state.here)))]

    tested = machine(trips().key_by("route").stateful(Made), tmp_path)
    first = reported(tested, "a", "b")
    assert tested.failed == [] and first["a"] == first["b"]
    assert reported(tested, "a", "b") == {"b": first["b"].replace("1)", "2)")}
    ((row, error),) = tested.failed
    assert row["route"] == "a"
    with pytest.raises(type(error), match=fault):
        raise error
    assert {row["key.route"]: row["state.here"] for row in tested.rows()} == {"a": 1, "b": 2}


def test_what_is_whole_passes() -> None:
    given = [1, np.int32(2), True.__int__(), None]
    assert column(given, pa.field("n", pa.int64())).to_pylist() == [1, 2, 1, None]
    nested = pa.field("n", pa.list_(pa.struct([("a", pa.list_(pa.int64())), ("b", pa.map_(pa.string(), pa.int64()))])))
    rows = [None, [], [None, {"a": None}, {"a": [1, None], "b": {"x": 1}}, {"b": [("y", 2)]}]]
    expected = [None, [], [None, {"a": None, "b": None}, {"a": [1, None], "b": [("x", 1)]}, {"a": None, "b": [("y", 2)]}]]
    assert column(rows, nested).to_pylist() == column(rows, nested, strict=True).to_pylist() == expected
    assert column([[([3], {})]], nested).to_pylist() == [[{"a": [3], "b": []}]]


def test_none_is_stored_where_it_is_declared(tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state.it = None

    tested = machine(trips().key_by("route").stateful(processor(st.value(int | None, default=5), change)), tmp_path)
    assert reported(tested, "a") == {"a": "5"}
    assert reported(tested, "a", "b") == {"a": "None", "b": "5"}
    assert tested.failed == [] and tested.catalog.keys == 2


# Timers


@pytest.mark.parametrize("call", ["set_timer", "cancel_timer"])
def test_a_timer_that_could_call_nothing_is_an_error_that_says_so(tmp_path: Path, call: str) -> None:
    made = processor(st.value(int), lambda state: getattr(state, call)(state.now))
    tested = machine(trips().key_by("route").stateful(made), tmp_path)
    tested.run([trip()])
    ((_, error),) = tested.failed
    assert "timers call on_timer(key, timer, state), which the processor does not have; define it" in str(error)


# Migrations


class Before(st.Processor):
    n = st.value(int, default=0)

    def process(self, key: str, records: list[Trip], state: st.State) -> list[Reported]:
        state.n += len(records)
        return []


class After(st.Processor):
    total = st.value(int, default=0)
    last = st.value(str)

    def process(self, key: str, records: list[Trip], state: st.State) -> list[Reported]:
        state.total += len(records)
        return [Reported(key, repr((state.total, state.last)))]


def migrating(folder: Path, migrate: Any) -> Machine:
    before = machine(trips().key_by("route").stateful(Before, name="kept"), folder)
    before.run([trip(), trip(), trip("b")])
    tested = machine(trips().key_by("route").stateful(After, name="kept", migrate=migrate), folder)
    tested.catalog, tested.batch = before.catalog, before.batch
    return tested


def test_a_migration_makes_all_variables(tmp_path: Path) -> None:
    tested = migrating(tmp_path, lambda old: {"total": old["n"], "last": None})
    assert reported(tested, "a", "c") == {"a": "(3, None)", "c": "(1, None)"}


@pytest.mark.parametrize(
    ("migrate", "fault"),
    [
        (lambda old: {"totl": old["n"], "last": ""}, "declared now, total, last, and no others; of n it made totl, last"),
        (lambda old: {"total": old["n"]}, "of n it made total$"),
        (lambda old: {"total": 1, "last": "", "n": 1}, "of n it made total, last, n$"),
        (lambda old: {}, "of n it made none$"),
        (lambda old: None, "of n it made a NoneType$"),
        (lambda old: {"total": old["m"], "last": ""}, "migrate failed on variables n: KeyError: 'm'$"),
        (lambda old: {"total": 1.5, "last": ""}, "what migrate returned does not fit: TypeError: field 'total' is int64"),
        (lambda old: {"total": str(old["n"]), "last": ""}, "what migrate returned does not fit: ArrowInvalid"),
    ],
)
def test_a_migration_that_would_lose_state_is_refused(tmp_path: Path, migrate: Any, fault: str) -> None:
    tested = migrating(tmp_path, migrate)
    with pytest.raises(RunError, match=rf"operator 'kept': .*{fault}"):
        tested.run([trip()])
    with pytest.raises(RunError, match=rf"operator 'kept': .*{fault}"):
        tested.merge(1)


# Functions that fail as a whole


def test_a_function_that_fails_as_a_whole_is_named_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = machine(trips().key_by("route").count(name="counted"), tmp_path)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr(type(tested.layout.function), "step", broken)
    with pytest.raises(RunError, match="operator 'counted' failed on its keys as a whole: ZeroDivisionError: by nothing"):
        tested.run([trip()])
    assert list((tmp_path / "counted").iterdir()) == []
