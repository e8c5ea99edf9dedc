"""The builder and the model: what a topology is, how it is shown, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import springtide as st
from springtide.errors import OptionError, SpringtideError, TopologyError
from springtide.model.schema import schema_of
from springtide.model.topology import Kind, OnError, Operator, Topology


@dataclass(frozen=True)
class Point:
    x: float
    note: str | None


@dataclass(frozen=True)
class Everything:
    flag: bool
    whole: int
    real: float
    text: str
    raw: bytes
    moment: datetime.datetime
    day: datetime.date
    money: decimal.Decimal
    tags: list[str | None]
    scores: dict[str, int | None]
    point: Point
    maybe: int | None
    perhaps: Point | None
    path: list[Point]


@dataclass(frozen=True)
class Trip:
    route: str
    fare: float


@dataclass(frozen=True)
class Priced:
    route: str
    cents: int


@dataclass(frozen=True)
class Looped:
    inner: Looped | None


@dataclass(frozen=True)
class Unresolved:
    inner: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class Rates:
    per_km: float = 2.0


def trip(draw: st.Draw) -> Trip:
    return Trip(f"r{draw.index}", 1.5)


def price(trip: Trip) -> Priced:
    return Priced(trip.route, round(trip.fare * 100))


def split(trip: Trip) -> Iterator[Priced]:
    yield price(trip)


def paid(priced: Priced) -> bool:
    return priced.cents > 0


def trips() -> st.Stream:
    return st.source.generate(trip, rate=10)


def taxi() -> st.Topology:
    """Fan-out, a key, a union, a limit, a sql operator and two sinks."""
    shared = trips().map(price)
    paid_trips = shared.key_by("route").filter(paid, parallelism=4)
    split_up = trips_again().flat_map(split, grouping="round-robin")
    return st.topology(
        "taxi",
        paid_trips.union(split_up, name="both").to(st.sink.files("out/priced")),
        shared.sql(lambda frame: frame, schema=Priced, name="totals").to(st.sink.memory("totals-kept")),
    )


def trips_again() -> st.Stream:
    return st.source.generate(trip, rate=5, name="again")


# Schemas


def test_schemas_come_from_dataclasses_with_all_types_nested_and_optional() -> None:
    point = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("note", pa.string())])
    expected = pa.schema(
        [
            pa.field("flag", pa.bool_(), nullable=False),
            pa.field("whole", pa.int64(), nullable=False),
            pa.field("real", pa.float64(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("raw", pa.binary(), nullable=False),
            pa.field("moment", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            pa.field("money", pa.decimal128(38, 18), nullable=False),
            pa.field("tags", pa.list_(pa.field("element", pa.string())), nullable=False),
            pa.field("scores", pa.map_(pa.string(), pa.field("value", pa.int64())), nullable=False),
            pa.field("point", point, nullable=False),
            pa.field("maybe", pa.int64()),
            pa.field("perhaps", point),
            pa.field("path", pa.list_(pa.field("element", point, nullable=False)), nullable=False),
        ]
    )
    assert schema_of(Everything).equals(expected, check_metadata=False)


def test_optional_is_the_same_however_it_is_written() -> None:
    old = dataclasses.make_dataclass("Old", [("a", typing.Optional[int])])  # noqa: UP045
    new = dataclasses.make_dataclass("New", [("a", int | None)])
    assert schema_of(old).equals(schema_of(new))


def test_a_schema_may_be_a_dataclass_an_arrow_schema_or_a_dict() -> None:
    wanted = schema_of(Priced)
    for given in (Priced, wanted, {"route": str, "cents": int}):
        assert trips().map(lambda record: record, schema=given).schema.equals(wanted)


@pytest.mark.parametrize("hint", [complex, list, tuple[int, int], int | str, int | str | None, object, set[int], "Enum"])
def test_a_type_that_no_record_can_hold_is_named_with_the_types_that_can(hint: object) -> None:
    record = dataclasses.make_dataclass("Odd", [("part", hint)])
    if hint == "Enum":
        import enum

        record = dataclasses.make_dataclass("Odd", [("part", enum.Enum("Colour", "RED"))])
    with pytest.raises(
        TopologyError, match=r"Odd\.part: .* is not allowed as the type of a record's field; allowed: bool, int"
    ):
        schema_of(record)


@pytest.mark.parametrize("record", [Looped, Unresolved])
def test_a_dataclass_that_holds_itself_or_an_unknown_name_is_refused_in_words(record: type) -> None:
    with pytest.raises(TopologyError, match=record.__name__):
        schema_of(record)


# The builder


def test_operators_come_after_their_inputs_and_keep_what_was_asked() -> None:
    built = taxi()
    assert [operator.name for operator in built] == [
        "source", "price", "paid", "again", "split", "both", "priced", "totals", "totals-kept",
    ]  # fmt: skip
    assert built["paid"].key == ("route",)
    assert built["paid"].grouping == "hash"
    assert built["paid"].parallelism == 4
    assert built["both"].inputs == ("paid", "split")
    assert [consumer.name for consumer in built.consumers["price"]] == ["paid", "totals"]
    assert [source.name for source in built.sources] == ["source", "again"]
    assert built["split"].record is Priced
    assert built["price"].on_error is OnError.DEAD_LETTER


def test_an_operator_without_wishes_is_chained_and_one_with_a_limit_gets_tasks_of_its_own() -> None:
    built = trips().map(price, parallelism=2).filter(paid).to(st.sink.discard()).named("t")
    assert not built["price"].chained
    assert built["paid"].chained
    assert not built["source"].chained


def test_a_stream_used_twice_is_one_operator() -> None:
    shared = trips().map(price)
    built = st.topology("t", shared.to(st.sink.memory("a")), shared.filter(paid).to(st.sink.memory("b")))
    assert [operator.name for operator in built] == ["source", "price", "a", "paid", "b"]


def test_lambdas_are_numbered_in_the_order_of_the_graph_and_give_way_to_given_names() -> None:
    def build() -> list[str]:
        stream = trips().map(lambda record: record, schema=Trip).map(lambda record: record, schema=Trip)
        taken = stream.filter(lambda record: True, name="map-3").map(lambda record: record, schema=Trip)
        united = taken.union(trips_again())
        return [operator.name for operator in united.to(st.sink.console()).named("t")]

    assert build() == ["source", "map", "map-2", "map-3", "map-4", "again", "union", "console"]
    assert build() == build()


def test_only_the_first_parameter_says_what_a_function_wants() -> None:
    """A second parameter with a default is the function's own affair."""

    usual = Rates()

    def priced(trip, rates: Rates = usual) -> Priced:  # type: ignore[no-untyped-def]
        return Priced(trip.route, round(trip.fare * rates.per_km))

    assert trips().map(priced).to(st.sink.discard()).named("t")["priced"].accepts is None


def test_a_function_may_want_fewer_columns_than_there_are() -> None:
    def named(record: Named) -> bool:
        return bool(record.route)

    assert trips().map(price).filter(named).to(st.sink.discard()).named("t")["named"].accepts is Named


@dataclass(frozen=True)
class Named:
    route: str


def test_objects_that_can_be_called_are_functions_too() -> None:
    class Pricing:
        def __call__(self, trip: Trip) -> Priced:
            return Priced(trip.route, 1)

    assert trips().map(Pricing()).to(st.sink.discard()).named("t")["Pricing"].record is Priced


def test_stateful_operators_have_their_place_in_the_model() -> None:
    class CountTrips(st.Processor):
        def process(self, key: str, records: list[Trip], state: st.State) -> Iterator[Priced]:
            yield Priced(key, len(records))

    for given in (CountTrips, CountTrips()):
        built = trips().key_by("route").stateful(given, shards=16).to(st.sink.discard()).named("t")
        operator = built["count-trips"]
        assert (operator.kind, operator.key, operator.grouping) == (Kind.STATEFUL, ("route",), "shards")
        assert operator.state is not None
        assert operator.state.shards == 16
        assert built.stateful == (operator,)


# Shown


def test_the_text_drawing() -> None:
    assert str(taxi()).splitlines() == [
        "taxi",
        "  ● source [GenerateSource]  (route, fare)",
        "    → price [map]  (route, cents)",
        "      ⇒ hash(route) paid [filter ≤4]  (route, cents)",
        "        → both [union]  (route, cents)",
        "          → priced [FilesSink]",
        "      → totals [sql]  (route, cents)",
        "        → totals-kept [MemorySink]",
        "  ● again [GenerateSource]  (route, fare)",
        "    ⇒ round-robin split [flat_map]  (route, cents)",
        "      → both [union] (see above)",
    ]


def test_the_mermaid_drawing() -> None:
    assert taxi().mermaid().splitlines() == [
        "flowchart LR",
        '  n0(["source"])',
        '  n1["price"]',
        '  n2["paid"]',
        '  n3(["again"])',
        '  n4["split"]',
        '  n5["both"]',
        '  n6[("priced")]',
        '  n7["totals"]',
        '  n8[("totals-kept")]',
        "  n0 --> n1",
        '  n1 == "hash(route)" ==> n2',
        '  n3 == "round-robin" ==> n4',
        "  n2 --> n5",
        "  n4 --> n5",
        "  n5 --> n6",
        "  n1 --> n7",
        "  n7 --> n8",
    ]


def test_a_topology_is_a_frozen_value() -> None:
    """It can be compared and printed, and nothing in it can be set."""
    built = trips().map(price).to(st.sink.discard()).named("t")
    assert built == trips().map(price).to(st.sink.discard()).named("t")
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.name = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        built["price"].parallelism = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(built)) == built
    assert "price" in repr(built)


def test_import_and_topologies_need_no_pyspark() -> None:
    code = (
        "import sys\nsys.modules['pyspark'] = None\nimport springtide\nfrom springtide.apps import tweets\n"
        "print(tweets.topology().mermaid())\nassert not [m for m in sys.modules if m.startswith('pyspark.')]"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 'n2["enrich"]' in shown


# Refused: graphs that only the model itself can spell


def generated(name: str = "source") -> Operator:
    return trips().to(st.sink.discard()).named("t")["source"] if name == "source" else _renamed(name)


def _renamed(name: str) -> Operator:
    return dataclasses.replace(generated(), name=name)


def mapped(name: str, *inputs: str, **fields: object) -> Operator:
    schema = schema_of(Trip)
    return dataclasses.replace(
        Operator(name, Kind.MAP, inputs, function=price, schema=schema),
        **fields,  # type: ignore[arg-type]
    )


def sunk(*inputs: str, name: str = "sink") -> Operator:
    return Operator(name, Kind.SINK, inputs, sink=st.sink.discard())


Graph = tuple[Operator, ...]
GRAPHS: dict[str, tuple[Callable[[], Graph], str]] = {
    "cycle": (
        lambda: (
            generated(),
            mapped("a", "source", "b", kind=Kind.UNION),
            mapped("b", "a"),
            sunk("b"),
        ),
        r"operators a, b, sink form a cycle",
    ),
    "self-loop": (
        lambda: (generated(), mapped("a", "source", "a", kind=Kind.UNION), sunk("a")),
        "operators a, sink form a cycle",
    ),
    "reads from nowhere": (
        lambda: (generated(), mapped("a", "sourc"), sunk("a", "source")),
        r"operator 'a' reads from 'sourc', which is not in the topology",
    ),
    "leads nowhere": (
        lambda: (generated(), mapped("a", "source"), mapped("b", "source"), sunk("a")),
        r"operator 'b' leads to no sink; end it with \.to\(sink\)",
    ),
    "starts nowhere": (
        lambda: (generated(), mapped("a"), sunk("a"), sunk("source", name="other")),
        r"operator 'a' has no input; start from a source",
    ),
    "a name that is taken": (
        lambda: (generated(), mapped("a", "source"), mapped("a", "source"), sunk("a")),
        r"two operators are named 'a'; give one of them another with name=",
    ),
    "two inputs": (
        lambda: (generated(), generated("again"), mapped("a", "source", "again"), sunk("a")),
        r"operator 'a' has several inputs; unite them first with union\(\)",
    ),
    "an input twice": (
        lambda: (generated(), mapped("a", "source", "source", kind=Kind.UNION), sunk("a")),
        r"operator 'a' reads from 'source' twice",
    ),
    "out of a sink": (
        lambda: (generated(), sunk("source"), mapped("a", "sink"), sunk("a", name="end")),
        r"operator 'a' reads from the sink 'sink'; sinks emit nothing",
    ),
    "a source with inputs": (
        lambda: (generated(), dataclasses.replace(generated("again"), inputs=("source",)), sunk("again")),
        r"source 'again' has inputs: source",
    ),
    "before its input": (
        lambda: (mapped("a", "source"), generated(), sunk("a")),
        r"operator 'a' is listed before one of its inputs",
    ),
    "no sink": (lambda: (), r"topology 't' needs at least one source and one sink"),
    "a reserved name": (
        lambda: (generated(), mapped("dead-letters", "source"), sunk("dead-letters")),
        r"an operator is named 'dead-letters'; choose another with name=",
    ),
    "a name that is no file's": (
        lambda: (generated(), mapped("a/b", "source"), sunk("a/b")),
        r"operator 'a/b': leave slashes, quotes and line breaks out of its name=",
    ),
    "no schema": (
        lambda: (generated(), mapped("a", "source", schema=None), sunk("a")),
        r"operator 'a': no schema; annotate its return type with a dataclass, or pass schema=",
    ),
    "no column": (
        lambda: (generated(), mapped("a", "source", schema=pa.schema([])), sunk("a")),
        r"operator 'a': a record needs at least one field",
    ),
    "a column of Springtide's": (
        lambda: (
            generated(),
            mapped("a", "source", schema=pa.schema({"_springtide_created": pa.int64()})),
            sunk("a"),
        ),
        r"column '_springtide_created' is Springtide's own; rename it",
    ),
    "no parallelism": (
        lambda: (generated(), mapped("a", "source", parallelism=0), sunk("a")),
        r"operator 'a': parallelism 0 is not allowed; it is at least 1",
    ),
    "less than no parallelism": (
        lambda: (generated(), mapped("a", "source", parallelism=-3), sunk("a")),
        r"operator 'a': parallelism -3 is not allowed; it is at least 1",
    ),
}


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_wrong_graph_is_refused_with_the_operator_and_the_remedy(graph: str) -> None:
    make, message = GRAPHS[graph]
    operators = make()
    with pytest.raises(TopologyError, match=message):
        Topology("t", operators)


@pytest.mark.parametrize(("first", "second", "refused"), [
    (st.sink.table("t", batch_column="b"), st.sink.table("t", batch_column="b"), True),
    (st.sink.table("t"), st.sink.table("T", batch_column="b"), True),  # which Spark takes for the same table
    (st.sink.table("t"), st.sink.table("t"), False),
    (st.sink.table("t", batch_column="b"), st.sink.table("u", batch_column="b"), False),
])  # fmt: skip
def test_two_sinks_that_would_overwrite_each_others_batches_are_refused(first: Any, second: Any, refused: bool) -> None:
    flows = [trips().to(first, name="one"), trips_again().to(second, name="two")]
    if not refused:
        assert len(st.topology("t", *flows).sinks) == 2
        return
    with pytest.raises(
        TopologyError, match=r"sinks 'one' and 'two' both write table 't', .* unite them with union\(\), or name"
    ):
        st.topology("t", *flows)


@pytest.mark.parametrize("name", ["", "a b", "../up", "a/b"])
def test_a_topology_whose_name_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(TopologyError, match=r"use letters, digits, '-', '_' and '\.'"):
        trips().to(st.sink.discard()).named(name)


# Refused: what a person writes by mistake


def ended(stream: st.Stream) -> Topology:
    return stream.to(st.sink.discard()).named("t")


def wants_priced(record: Priced) -> Trip:
    return Trip(record.route, record.cents / 100)


def unannotated(record):  # type: ignore[no-untyped-def]
    return record


def nullable(trip: Trip) -> Loose:
    return Loose(trip.route, None)


class Bare(st.Processor):
    def process(self, key, records, state):  # type: ignore[no-untyped-def]
        return []


@dataclass(frozen=True)
class Loose:
    route: str
    fare: float | None


@dataclass(frozen=True)
class Path_:
    stops: list[str]


def stops(trip: Trip) -> Path_:
    return Path_([trip.route])


MISTAKES: dict[str, tuple[Callable[[], object], type[SpringtideError], tuple[str, ...]]] = {
    "schema misses a column": (
        lambda: ended(trips().map(wants_priced)),
        TopologyError,
        ("'wants_priced' wants Priced", "'source' emits", "'cents' is missing (there are: route, fare)"),
    ),
    "schema has another type": (
        lambda: ended(trips().map(lambda record: record, schema={"route": int, "fare": float}).map(price)),
        TopologyError,
        ("'price' wants Trip", "'map' emits", "'route' is int64, wanted string"),
    ),
    "null where none is wanted": (
        lambda: ended(trips().map(nullable).map(price)),
        TopologyError,
        ("'fare' may be null, wanted double not null",),
    ),
    "a filter of another schema": (
        lambda: ended(trips().filter(paid)),
        TopologyError,
        ("'paid' wants Priced", "'cents' is missing"),
    ),
    "union of two schemas": (
        lambda: ended(trips().union(trips_again().map(price))),
        TopologyError,
        ("operator 'union'", "'source' and 'price' differ in schema", "'fare' is missing"),
    ),
    "union with itself": (
        lambda: ended((same := trips()).union(same)),
        TopologyError,
        ("operator 'union' reads from 'source' twice",),
    ),
    "union with no stream": (
        lambda: trips().union(5),  # type: ignore[arg-type]
        TopologyError,
        ("union", "5 is not a stream"),
    ),
    "union of a keyed stream": (
        lambda: trips().key_by("route").union(trips_again()),
        TopologyError,
        ("key_by", "after the union"),
    ),
    "two functions of the same name": (
        lambda: ended(trips().filter(lambda record: True, name="source")),
        TopologyError,
        ("two operators are named 'source'", "name="),
    ),
    "no annotation": (
        lambda: trips().map(unannotated),
        TopologyError,
        ("'unannotated': no schema", "annotate what it returns", "schema="),
    ),
    "flat_map without annotation": (
        lambda: trips().flat_map(unannotated),
        TopologyError,
        ("'unannotated': no schema", "Iterator[a dataclass]"),
    ),
    "not a function": (lambda: trips().map(5), TopologyError, ("map(5): that is not a function",)),  # type: ignore[arg-type]
    "not a filter": (
        lambda: trips().filter("paid"),  # type: ignore[arg-type]
        TopologyError,
        ("filter('paid'): that is not a function",),
    ),
    "not a schema": (
        lambda: trips().map(unannotated, schema=5),
        TopologyError,
        ("schema=5 is neither a dataclass, nor a pyarrow.Schema, nor a dict of types",),
    ),
    "a column that is no Python name": (
        lambda: trips().map(unannotated, schema={"a b": int}),
        TopologyError,
        ("'a b'",),
    ),
    "key that is no column": (
        lambda: ended(trips().key_by("rout").map(price)),
        TopologyError,
        ("operator 'price': key 'rout' is not among the columns of 'source': route, fare",),
    ),
    "a processor without annotations": (
        lambda: trips().key_by("route").stateful(Bare),
        TopologyError,
        ("operator 'bare': no schema; annotate what it returns as Iterator[a dataclass]",),
    ),
    "key of nothing": (lambda: trips().key_by(), TopologyError, ("key_by() needs at least one column",)),
    "key before sql": (
        lambda: trips().key_by("route").sql(lambda frame: frame, schema=Trip),
        TopologyError,
        ("key_by", "Spark plans it"),
    ),
    "hash without key": (
        lambda: trips().map(price, grouping="hash"),
        TopologyError,
        ("price: grouping='hash' needs a key", ".key_by(column)"),
    ),
    "key and another grouping": (
        lambda: trips().key_by("route").map(price, grouping="round-robin"),
        TopologyError,
        ("price: grouping='round-robin' would split the records of a key",),
    ),
    "grouping that is no name": (
        lambda: trips().map(price, grouping=5),
        TopologyError,
        ("price: grouping=5", "name"),
    ),
    "parallelism 0": (
        lambda: ended(trips().map(price, parallelism=0)),
        TopologyError,
        ("operator 'price': parallelism 0 is not allowed; it is at least 1",),
    ),
    "half a task": (
        lambda: trips().map(price, parallelism=1.5),
        TopologyError,
        ("price: parallelism=1.5 is not a whole number",),
    ),
    "a yes for a number": (
        lambda: trips().map(price, parallelism=True),
        TopologyError,
        ("price: parallelism=True is not a whole number",),
    ),
    "unknown option": (
        lambda: trips().map(price, paralelism=4),
        OptionError,
        ("price: unknown option 'paralelism'; did you mean 'parallelism'?", "grouping, name, on_crash, on_error"),
    ),
    "unknown option of a sink": (
        lambda: trips().to(st.sink.discard(), gruping="round-robin"),
        OptionError,
        ("unknown option 'gruping'; did you mean 'grouping'?",),
    ),
    "an option that others have": (
        lambda: trips().filter(paid, schema=Priced),
        OptionError,
        ("paid: unknown option 'schema'; Allowed: by, grouping, name, on_crash, on_error, parallelism",),
    ),
    "on_error nonsense": (
        lambda: trips().map(price, on_error="stp"),
        OptionError,
        ("price: on_error='stp'; did you mean 'stop'? Allowed: dead-letter, stop",),
    ),
    "sql with parallelism": (
        lambda: trips().sql(lambda frame: frame, schema=Trip, parallelism=2),
        TopologyError,
        ("parallelism= is not allowed, because Spark plans it; leave it out",),
    ),
    "a path for a sink": (
        lambda: trips().to("out"),  # type: ignore[arg-type]
        TopologyError,
        ("'out' is not a sink", "springtide.sink", "sink.foreach"),
    ),
    "a stream for a topology": (
        lambda: st.topology("t", trips()),  # type: ignore[arg-type]
        TopologyError,
        ("operator 'source' leads to no sink; end it with .to(sink)",),
    ),
    "no flow at all": (lambda: st.topology("t", 5), TopologyError, ("5 is not a flow; give flows, as .to(sink)",)),  # type: ignore[arg-type]
    "lists in CSV": (
        lambda: trips().map(stops).to(st.sink.files("out", format="csv")).named("t"),
        TopologyError,
        ("sink 'out'", "CSV", "'stops'", "parquet"),
    ),
    "a batch column that is a column": (
        lambda: trips().to(st.sink.table("t", batch_column="fare")).named("t"),
        TopologyError,
        ("sink 't'", "batch_column='fare'", "route, fare"),
    ),
    "dead letters into a sink that cannot": (
        lambda: trips().to(st.sink.discard()).named("t", dead_letters=st.sink.discard()),
        TopologyError,
        ("dead_letters", "sink.files"),
    ),
    "unknown format to write": (
        lambda: st.sink.files("out", format="parkett"),
        OptionError,
        ("format='parkett'; did you mean 'parquet'? Allowed: csv, json, parquet",),
    ),
    "a folder that is elsewhere": (
        lambda: st.sink.files("s3://bucket/out"),
        OptionError,
        ("'s3://bucket/out' is not a local or mounted path", "sink.table or sink.foreach"),
    ),
    "foreach nothing": (lambda: st.sink.foreach(3), TopologyError, ("foreach(3): that is not a function",)),  # type: ignore[arg-type]
    "foreach a class": (lambda: st.sink.foreach(Trip), TopologyError, ("foreach(Trip): that is a class", "foreach(Trip(…))")),
    "fewer than no records": (
        lambda: st.source.generate(trip, rate=1, limit=-1),
        OptionError,
        ("limit=-1", "0 or more"),
    ),
    "half a record": (
        lambda: st.source.generate(trip, rate=1, limit=1.5),  # type: ignore[arg-type]
        OptionError,
        ("limit=1.5", "a whole number"),
    ),
    "a negative rate": (
        lambda: st.source.generate(trip, rate=-1),
        OptionError,
        ("a rate of -1.0 records/s is not allowed; give finite values of 0 or more",),
    ),
    "no rate": (
        lambda: st.source.generate(trip, rate="fast"),
        OptionError,
        ("rate='fast': give records/s, springtide.trace(...), or a function of the seconds",),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_what_is_allowed_and_how_to_mend_it(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, kind, parts = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        make()
    for part in parts:
        assert part in str(caught.value)
    assert not list(tmp_path.iterdir()), "nothing was changed"


def test_a_stateful_operator_without_a_key_is_refused_with_the_remedy() -> None:
    with pytest.raises(AttributeError, match=r"^stateful\(\) needs a key; write .key_by\(columns\) before it$"):
        trips().stateful(Bare)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"^'Stream' object has no attribute 'mop'"):
        trips().mop(Bare)  # type: ignore[attr-defined]


def test_a_source_of_files_that_are_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"there is no folder '.*missing'; make it before the run"):
        st.source.files(tmp_path / "missing", format="csv", schema=Trip)
    with pytest.raises(OptionError, match=r"format='cvs'; did you mean 'csv'\? Allowed: csv, json, parquet"):
        st.source.files(tmp_path, format="cvs", schema=Trip)
    with pytest.raises(OptionError, match="max_files=0 is not allowed; it is at least 1"):
        st.source.files(tmp_path, format="csv", schema=Trip, max_files=0)
    with pytest.raises(TopologyError, match="created='fare' is not a timestamp column of route, fare"):
        st.source.files(tmp_path, format="csv", schema=Trip, created="fare")
    assert not list(tmp_path.iterdir())


def test_every_sink_states_its_guarantee() -> None:
    guarantees = {
        type(sink).__name__: str(sink.guarantee)
        for sink in (
            st.sink.files("out"), st.sink.table("t"), st.sink.console(), st.sink.memory("m"), st.sink.foreach(print),
        )
    }  # fmt: skip
    assert guarantees == {
        "FilesSink": "exactly once", "TableSink": "at least once", "ConsoleSink": "at least once",
        "MemorySink": "at least once", "ForeachSink": "at least once",
    }  # fmt: skip
    assert st.sink.table("t", batch_column="batch").guarantee == "exactly once"
