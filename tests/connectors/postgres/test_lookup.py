"""Lookups on a real server, without Spark: what a task gets for its records."""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

import springtide as st
from servers.postgres import Server
from springtide.api import postgres as api
from springtide.api.looked_up import joined
from springtide.connectors.postgres import lookup as lookups
from springtide.errors import OptionError
from springtide.model import schema as schemas
from springtide.model.lookup import LookupUnavailable
from springtide.processors.lookup import LookupJoin

OPENED: list[LookupJoin] = []


@dataclass(frozen=True)
class Trip:
    route: str | None
    fare: float


@dataclass(frozen=True)
class Named:
    route: str | None
    fare: float
    name: str | None


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def join(server: Server, query: str, into: object = Named, records: type = Trip, **options: Any) -> LookupJoin:
    own = {name: options.pop(name) for name in ("key", "columns", "connections") if name in options}
    table = api.lookup(server.url, query, password=server.password, **{"key": "route", **own})
    chosen = {"missing": "none", "ttl_s": 60.0, "cache": 1_000, "patience_s": 1.0, **options}
    made = joined(table, schemas.schema_of(records), into, **chosen)
    OPENED.append(made)
    return made


def trips(*routes: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"route": r, "fare": float(n)} for n, r in enumerate(routes)], schemas.schema_of(Trip))


@pytest.fixture
def routes(postgres: Server) -> str:
    table = postgres.table("id text PRIMARY KEY, name text, km numeric(10,2)")
    postgres.rows(f"INSERT INTO {table} VALUES ('a', 'Alpha', 1.5), ('b', 'Beta', NULL), ('%', 'Per cent', 0)")
    return table


def test_records_get_the_columns_of_their_row(postgres: Server, routes: str) -> None:
    operator = join(postgres, f"SELECT id AS route, name FROM {routes}")
    found, failures = operator.split(trips("a", "b", "a", "nowhere", None))
    assert found.to_pylist() == [
        {"route": "a", "fare": 0.0, "name": "Alpha"},
        {"route": "b", "fare": 1.0, "name": "Beta"},
        {"route": "a", "fare": 2.0, "name": "Alpha"},
        {"route": "nowhere", "fare": 3.0, "name": None},
        {"route": None, "fare": 4.0, "name": None},
    ]
    assert not failures
    assert operator.split(trips())[0].num_rows == 0


def test_a_missing_row_is_a_failure_where_that_is_asked_for(postgres: Server, routes: str) -> None:
    strict = pa.schema([*schemas.schema_of(Trip), pa.field("name", pa.string(), nullable=False)])
    operator = join(postgres, f"SELECT id, name FROM {routes};", strict, columns="id", missing="dead-letter")
    found, failures = operator.split(trips("nowhere", "a", None))
    assert found.column("name").to_pylist() == ["Alpha"]
    assert [(index, str(error).split(" has ")[1]) for index, error in failures] == [
        (0, "no row for route='nowhere'"),
        (2, "no row for route=None"),
    ]


def test_a_query_may_have_conditions_comments_and_percent_signs(postgres: Server, routes: str) -> None:
    operator = join(postgres, f"SELECT * FROM {routes} WHERE name LIKE '%e%' AND id <> '{{}}' -- all but Alpha", columns="id")
    assert operator.split(trips("a", "b", "%"))[0].column("name").to_pylist() == [None, "Beta", "Per cent"]


def test_several_rows_of_a_key_are_a_failure_of_its_records(postgres: Server) -> None:
    table = postgres.table("id text, name text")
    postgres.rows(f"INSERT INTO {table} VALUES ('a', '1'), ('a', '2'), ('b', '3')")
    found, failures = join(postgres, f"SELECT * FROM {table}", columns="id").split(trips("a", "b", "a"))
    assert found.column("name").to_pylist() == ["3"]
    assert [index for index, _ in failures] == [0, 2]
    assert "has 2 rows for route='a'; it may have one" in str(failures[0][1])


def test_keys_of_several_columns(postgres: Server) -> None:
    table = postgres.table("id text, class float8, name text, PRIMARY KEY (id, class)")
    postgres.rows(f"INSERT INTO {table} VALUES ('a', 0, 'a0'), ('a', 1, 'a1'), ('b', 1, 'b1')")
    operator = join(postgres, f"SELECT * FROM {table}", key=("route", "fare"), columns=("id", "class"))
    assert operator.split(trips("a", "b", "b"))[0].column("name").to_pylist() == ["a0", "b1", None]


def test_the_database_decides_which_keys_are_equal_and_bad_keys_fail_alone(postgres: Server) -> None:
    table, number = postgres.table("id uuid PRIMARY KEY, name text"), "0f8fad5b-d9cb-469f-a165-70867728950e"
    postgres.rows(f"INSERT INTO {table} VALUES ('{number}', 'found')")
    operator = join(postgres, f"SELECT * FROM {table}", columns="id")
    found, failures = operator.split(trips(number.upper(), "no uuid", number, "neither"))
    assert found.column("name").to_pylist() == ["found", "found"]
    assert [index for index, _ in failures] == [1, 3]
    assert 'invalid input syntax for type uuid: "no uuid"' in str(failures[0][1])


@dataclass(frozen=True)
class Kinds:
    route: str | None
    fare: float
    id: str | None
    n: int | None
    price: decimal.Decimal | None
    at: datetime.datetime | None
    day: datetime.date | None
    tags: list[str] | None
    raw: bytes | None
    more: dict[str, int] | None


def test_values_of_all_kinds(postgres: Server) -> None:
    operator = join(
        postgres,
        "SELECT 'a' AS route, '0f8fad5b-d9cb-469f-a165-70867728950e'::uuid AS id, 7 AS n, 1.25::numeric AS price,"
        " '2026-01-02 03:04:05+02'::timestamptz AS at, '2026-01-02'::date AS day, ARRAY['x', 'y'] AS tags,"
        " '\\x00ff'::bytea AS raw, '{\"k\": 1}'::jsonb AS more",
        Kinds,
    )
    (row,) = schemas.as_python(operator.split(trips("a"))[0])
    assert row["id"] == "0f8fad5b-d9cb-469f-a165-70867728950e"
    assert (row["n"], row["price"], row["tags"], row["raw"]) == (7, decimal.Decimal("1.25"), ["x", "y"], b"\x00\xff")
    assert row["at"] == datetime.datetime(2026, 1, 2, 1, 4, 5, tzinfo=datetime.UTC) and row["day"] == datetime.date(2026, 1, 2)
    assert row["more"] == {"k": 1}


def test_a_row_that_does_not_fit_fails_its_records_alone(postgres: Server, routes: str) -> None:
    into = pa.schema([*schemas.schema_of(Trip), pa.field("km", pa.int64())])
    operator = join(postgres, f"SELECT id, km FROM {routes}", into, columns="id")
    found, failures = operator.split(trips("a", "b"))
    assert found.column("km").to_pylist() == [None]
    assert "the looked-up 'km' does not fit int64" in str(failures[0][1])


def test_many_keys_go_in_several_queries_over_several_connections(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "QUERY_KEYS", 7)
    table = postgres.table("id text PRIMARY KEY, name text")
    postgres.rows(f"INSERT INTO {table} SELECT n::text, 'name ' || n FROM generate_series(0, 99) n")
    operator = join(postgres, f"SELECT * FROM {table}", columns="id", connections=3)
    found, _ = operator.split(trips(*(str(n) for n in range(110))))
    assert found.column("name").to_pylist() == [f"name {n}" if n < 100 else None for n in range(110)]
    assert not operator.split(trips("1", "2"))[1]


def test_rows_are_cached_and_the_table_is_asked_again_when_they_are_old(postgres: Server, routes: str) -> None:
    now = [0.0]
    operator = replace(join(postgres, f"SELECT * FROM {routes}", columns="id"), clock=lambda: now[0])
    OPENED.append(operator)
    assert operator.split(trips("a", "c"))[0].column("name").to_pylist() == ["Alpha", None]
    postgres.rows(f"UPDATE {routes} SET name = 'Aleph' WHERE id = 'a'; INSERT INTO {routes} VALUES ('c', 'Gamma', 0)")
    now[0] = 59.0
    assert operator.split(trips("a", "c"))[0].column("name").to_pylist() == ["Alpha", None]
    now[0] = 60.0
    assert operator.split(trips("a", "c"))[0].column("name").to_pylist() == ["Aleph", "Gamma"]


def test_a_task_waits_for_a_server_that_is_away_and_then_fails(
    postgres: Server, routes: str, caplog: pytest.LogCaptureFixture
) -> None:
    sleeps: list[float] = []
    operator = replace(join(postgres, f"SELECT * FROM {routes}", columns="id", ttl_s=0.0, patience_s=60.0), sleep=sleeps.append)
    OPENED.append(operator)
    operator.split(trips("a"))
    postgres.kill()

    def started_after_three(pause: float) -> None:
        sleeps.append(pause)
        if len(sleeps) == 3:
            postgres.start()

    object.__setattr__(operator, "sleep", started_after_three)
    assert operator.split(trips("b"))[0].column("name").to_pylist() == ["Beta"]
    assert sleeps == [0.1, 0.2, 0.4]
    assert "is away" in caplog.text and "there again, after 3 attempts" in caplog.text
    postgres.kill()
    impatient = replace(operator, patience_s=0.0)
    with pytest.raises(LookupUnavailable, match="1 attempts in 0 s"):
        impatient.split(trips("a"))


def test_an_operator_travels_without_its_connections(postgres: Server, routes: str) -> None:
    operator = join(postgres, f"SELECT * FROM {routes}", columns="id")
    operator.split(trips("a"))
    arrived = pickle.loads(pickle.dumps(replace(operator)))
    OPENED.append(arrived)
    assert not arrived._held
    assert arrived.split(trips("a"))[0].column("name").to_pylist() == ["Alpha"]


def test_it_only_reads(postgres: Server, routes: str) -> None:
    postgres.rows(f"CREATE FUNCTION spoil_{routes}() RETURNS text AS 'DELETE FROM {routes} RETURNING name' LANGUAGE sql")
    operator = join(postgres, f"SELECT id, spoil_{routes}() AS name FROM {routes}", columns="id")
    with pytest.raises(LookupUnavailable, match="read-only transaction"):
        operator.split(trips("a"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id, name FROM nowhere", 'relation "nowhere" does not exist; correct the query'),
        ("SELECT 'a' AS id", "the query has no column 'name'; .*select it, or rename it with AS"),
        ("SELECT 'a' AS name", "the query has no column 'id'"),
        ("SELEKT", "syntax error"),
    ],
)
def test_queries_that_do_not_fit_are_refused_before_anything_runs(postgres: Server, query: str, message: str) -> None:
    operator = join(postgres, query, columns="id")
    with pytest.raises(OptionError, match=message):
        operator.lookup.check(operator.looked_up)


def test_a_database_that_is_away_is_no_error_of_the_query(postgres: Server, routes: str) -> None:
    operator = join(postgres, f"SELECT id, name FROM {routes}", columns="id")
    operator.lookup.check(operator.looked_up)
    postgres.kill()
    with pytest.raises(LookupUnavailable):
        operator.lookup.check(operator.looked_up)


def test_no_lookup_leaves_a_password(postgres: Server, routes: str) -> None:
    operator = join(postgres, f"SELECT * FROM {routes}", columns="id")
    secret = postgres.password.resolve()
    operator.split(trips("a"))
    assert secret.encode() not in pickle.dumps(replace(operator)) and secret not in repr(operator)
    assert st.lookup.postgres is api.lookup
