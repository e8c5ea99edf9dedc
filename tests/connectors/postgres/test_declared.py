"""What is wrong with a declaration, said before anything starts; no message has the password."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import springtide as st
from springtide.api import postgres as api
from springtide.connectors.postgres.connection import Database
from springtide.errors import OptionError, SpringtideError, TopologyError
from springtide.model.lookup import Key, Lookup, Row, Rows
from springtide.processors.lookup import Cache, LookupJoin

URL = "postgresql://app@db:5432/shop?sslmode=require"
SECRET = "Xq7-correct-horse"


def test_a_sink_and_a_lookup_show_and_pickle_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PASSWORD", SECRET)
    sink = st.sink.postgres(URL, "public.trips", mode="upsert", keys="id", password=st.secret.env("PG_PASSWORD"))
    lookup = st.lookup.postgres(URL, "SELECT 1 AS id", key="id", password=st.secret.env("PG_PASSWORD"))
    for each in (sink, lookup):
        assert pickle.loads(pickle.dumps(each)) == each
        assert SECRET not in repr(each) + each.describe() and SECRET.encode() not in pickle.dumps(each)
    assert sink.describe() == "PostgreSQL table public.trips at db:5432/shop"
    assert (sink.table, sink.keys, str(sink.guarantee)) == (("public", "trips"), ("id",), "exactly once")


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        (f"postgresql://app:{SECRET}@db/shop", {}, "the URL has a password in it, .* give password=springtide.secret.env"),
        (f"host=db user=app password={SECRET}", {}, "the URL has a password in it"),
        (f"postgresql://db/shop?sslpassword={SECRET}", {}, "the URL has a sslpassword in it"),
        (f"postgresql://app:{SECRET}%zz@db/shop", {}, "the URL cannot be read; give for example"),
        (f"postgresql//app:{SECRET}@db", {}, "the URL cannot be read"),
        ("", {}, "url= is empty"),
        (URL, {"password": SECRET}, "password= is a str, which would be stored with the run; give password=springtide.secret"),
        (URL, {"mode": "upset"}, "mode='upset'; did you mean 'upsert'"),
        (URL, {"mode": "upsert"}, "mode='upsert' needs keys="),
        (URL, {"keys": "id"}, "keys='id' is for mode='upsert'"),
        (URL, {"mode": "upsert", "keys": ["a", "a"]}, "give a name, or different names"),
        (URL, {"refused": "ignore"}, "refused='ignore'; Allowed: dead-letter, stop"),
        (URL, {"guarantee": "exactly"}, "guarantee='exactly'; did you mean 'exactly once'"),
        (URL, {"connections": 0}, "connections=0 is not allowed; give a whole number from 1 to 64"),
        (URL, {"create": "yes"}, "create='yes' is not allowed"),
    ],
)
def test_what_a_sink_cannot_be(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        st.sink.postgres(url, "trips", **options)
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize("table", ["", "a.b.c", ".a", "x" * 64, 7])
def test_names_that_are_no_tables(table: Any) -> None:
    with pytest.raises(OptionError, match=r"table=.* is not allowed; give a name or 'schema.name'"):
        st.sink.postgres(URL, table)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (" ; ", {"key": "id"}, "query= is empty"),
        ("SELECT 1", {"key": ()}, r"key=\(\) is not allowed"),
        ("SELECT 1", {"key": ("a", "b"), "columns": "id"}, "columns='id' has another number of names than key="),
        ("SELECT 1", {"key": "id", "connections": 99}, "connections=99 is not allowed; give a whole number from 1 to 16"),
    ],
)
def test_what_a_lookup_cannot_be(query: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        st.lookup.postgres(URL, query, **options)


class Fixed(Lookup):
    """A lookup of one's own: one class, with the rows in memory."""

    key = ("id",)

    def open(self) -> Rows:
        return FixedRows()


class FixedRows(Rows):
    def fetch(self, keys: Any) -> dict[Key, list[Row]]:
        return {key: [{"name": f"name {key[0]}"}] for key in keys if key[0] % 2}


RECORDS = {"id": int, "fare": float}


def numbers() -> st.Stream:
    return st.source.generate(lambda draw: {"id": 1, "fare": 1.0}, rate=1, schema=RECORDS)


def test_anyone_can_write_a_lookup() -> None:
    stream = numbers().lookup(Fixed(), into={**RECORDS, "name": str | None}, grouping="round-robin", parallelism=3)
    operator = stream.to(st.sink.discard()).named("t")["lookup"]
    assert operator.parallelism == 3 and isinstance(operator.function, LookupJoin)
    found, failures = operator.function.split(
        pa.RecordBatch.from_pylist([{"id": n, "fare": 0.5} for n in (1, 2)], numbers().schema)
    )
    assert found.to_pylist() == [{"id": 1, "fare": 0.5, "name": "name 1"}, {"id": 2, "fare": 0.5, "name": None}]
    assert not failures


@pytest.mark.parametrize(
    ("into", "options", "message"),
    [
        ({"id": int, "name": str}, {}, "'name' is None where no row is found; declare it with '| None', or"),
        ({"id": str, "name": str | None}, {}, "differs from them: 'id' is int64, wanted string"),
        ({"id": int}, {}, "has only fields of the records"),
        ({"id": int, "name": str | None}, {"missing": "nul"}, "missing='nul'; "),
        ({"id": int, "name": str | None}, {"cache": 0}, "cache=0 is not allowed"),
        ({"id": int, "name": str | None}, {"ttl": "soon"}, "ttl 'soon' is not a duration"),
        ({"id": int, "name": str | None}, {"paralelism": 1}, "unknown option 'paralelism'"),
    ],
)
def test_what_does_not_fit_the_records(into: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpringtideError, match=message):
        numbers().lookup(Fixed(), into=into, **options)


def test_keys_and_tables_that_are_none() -> None:
    with pytest.raises(TopologyError, match="that is not a lookup"):
        numbers().lookup("routes", into={**RECORDS, "name": str | None})  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="key 'idd' is no field of the records; did you mean 'id'"):
        numbers().lookup(st.lookup.postgres(URL, "SELECT 1", key="idd"), into={**RECORDS, "name": str | None})


def test_a_cache_is_bounded() -> None:
    cache: Cache[int] = Cache(most=10, ttl_s=1.0)
    cache.put({n: n for n in range(100)}, now=0.0)
    assert len(cache) == 10 and cache.get(range(100), now=0.5) == {n: n for n in range(90, 100)}
    uncached: Cache[int] = Cache(most=10, ttl_s=0.0)
    uncached.put({1: 1}, now=0.0)
    assert not len(uncached)


def test_where_a_database_is() -> None:
    assert Database("host=/run/postgresql dbname=x").describe() == "/run/postgresql:5432/x"
    assert api.database(URL, None).password is None
