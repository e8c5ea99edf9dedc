"""The publisher on a real server: what is in the table after replays, refusals, other drivers and kills."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.postgres.parts import OPENED, declared, part, publisher
from servers.postgres import Server
from springtide.connectors.postgres.writing import Appending
from springtide.errors import CheckpointError, OptionError, RecordError, RunError, TopologyError
from springtide.model.publisher import Part, Publisher, SinkUnavailable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def rows(*ids: int, name: str = "x") -> list[dict[str, Any]]:
    return [{"id": n, "name": f"{name}{n}"} for n in ids]


def parts(folder: Path, *groups: range) -> list[Part]:
    return [part(folder, number, rows(*ids), SCHEMA) for number, ids in enumerate(groups)]


def test_parts_are_appended_and_a_batch_that_comes_again_changes_nothing(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table()
    with_all = parts(tmp_path, range(0, 3), range(3, 20_000), range(20_000, 20_001))
    writer = publisher(declared(postgres, table, create=True), SCHEMA, "check/a")
    for _ in range(2):
        writer.publish(7, with_all)
        assert postgres.rows(f"SELECT count(*), count(DISTINCT id), max(name) FROM {table}") == [(20_001, 20_001, "x9999")]
    later = parts(tmp_path, *(range(n, n + 1) for n in range(20_001, 20_004)))
    for _ in range(2):
        writer.publish(9, later)
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(20_004,)]
    assert postgres.rows("SELECT batch, parts, written FROM springtide_ledger WHERE sink = 'check/a'") == [(9, 3, 20_004)]


def test_a_part_that_was_written_before_a_crash_is_left_out(postgres: Server, tmp_path: Path) -> None:
    table, all_parts = postgres.table("id bigint NOT NULL, name text"), parts(tmp_path, range(0, 3), range(3, 6), range(6, 9))
    sink = declared(postgres, table, connections=1)
    first = publisher(sink, SCHEMA, "check/b")
    first.publish(0, all_parts[1:2])
    first.close()
    second = publisher(sink, SCHEMA, "check/b")
    second.publish(0, all_parts)
    assert postgres.rows(f"SELECT id FROM {table} ORDER BY id") == [(n,) for n in range(9)]


def test_two_sinks_share_a_table_and_the_ledger(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text")
    sink = declared(postgres, table)
    for identity in ("check/c", "check/d"):
        writer = publisher(sink, SCHEMA, identity)
        writer.publish(0, parts(tmp_path, range(3)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(6,)]


def test_a_driver_that_was_replaced_writes_nothing(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text")
    zombie = publisher(declared(postgres, table), SCHEMA, "check/e")
    zombie.publish(0, parts(tmp_path, range(1)))
    driver = publisher(declared(postgres, table), SCHEMA, "check/e")
    with pytest.raises(SinkUnavailable, match="terminating connection"):  # its connections were ended
        zombie.publish(1, parts(tmp_path, range(1, 2)))
    with pytest.raises(CheckpointError, match="another driver writes"):
        zombie.publish(1, parts(tmp_path, range(1, 2)))
    driver.publish(1, parts(tmp_path, range(1, 2)))
    assert postgres.rows(f"SELECT id FROM {table} ORDER BY id") == [(0,), (1,)]


def test_a_driver_that_is_replaced_within_a_part_writes_nothing(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of the zombie are not ended here, as with a login that may not end them: the epoch alone has to hold."""
    monkeypatch.setattr("springtide.connectors.postgres.ledger._END_OTHERS", "SELECT 1")
    table, write = postgres.table("id bigint NOT NULL, name text"), Appending.write
    zombie = publisher(declared(postgres, table), SCHEMA, "check/f")
    drivers: list[Publisher] = []

    def replaced(self: Appending, connection: Any, found: Any) -> None:
        write(self, connection, found)
        if not drivers:
            drivers.append(publisher(declared(postgres, table), SCHEMA, "check/f"))

    monkeypatch.setattr(Appending, "write", replaced)
    with pytest.raises(CheckpointError, match="another driver writes"):
        zombie.publish(0, parts(tmp_path, range(5)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    drivers[0].publish(0, parts(tmp_path, range(5)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(5,)]


def test_a_checkpoint_that_is_older_than_its_output_is_refused(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text")
    writer = publisher(declared(postgres, table), SCHEMA, "check/g")
    writer.publish(5, parts(tmp_path, range(3)))
    with pytest.raises(CheckpointError, match="up to 5, and the checkpoint goes on with 3"):
        writer.publish(3, parts(tmp_path, range(3)))


def test_of_several_records_of_a_key_the_last_stays(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table()
    writer = publisher(declared(postgres, table, mode="upsert", keys="id", create=True), SCHEMA, "check/h")
    batch = [
        part(tmp_path, 2, rows(1, 2, name="c"), SCHEMA),
        part(tmp_path, 0, [*rows(1, 3, name="a"), *rows(3, name="later")], SCHEMA),
        part(tmp_path, 1, rows(1, name="b"), SCHEMA),
    ]
    for _ in range(2):
        writer.publish(0, batch)
        assert postgres.rows(f"SELECT id, name FROM {table} ORDER BY id") == [(1, "c1"), (2, "c2"), (3, "later3")]
    writer.publish(1, [part(tmp_path, 0, rows(2, name="new"), SCHEMA)])
    assert postgres.rows(f"SELECT name FROM {table} WHERE id = 2") == [("new2",)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_records_that_the_database_refuses_are_kept_beside_and_the_others_are_written(
    postgres: Server, tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = postgres.table("id bigint PRIMARY KEY CHECK (id % 1000 <> 7), name varchar(5)")
    found = part(tmp_path, 4, [*rows(*range(3_000)), {"id": 5_000, "name": "too long"}], SCHEMA)
    writer = publisher(declared(postgres, table, mode=mode, keys="id" if mode == "upsert" else ()), SCHEMA, f"check/i{mode}")
    for _ in range(2):
        writer.publish(3, [found])
        assert postgres.rows(f"SELECT count(*) FROM {table}") == [(2_997,)]
    kept = postgres.rows(
        f"SELECT batch, part, index, error, record FROM springtide_refused WHERE sink = 'check/i{mode}' ORDER BY 3"
    )
    assert [(batch, number, index) for batch, number, index, _, _ in kept] == [(3, 4, n) for n in (7, 1007, 2007, 3000)]
    assert "violates check constraint" in kept[0][3] and "23514" in kept[0][3]
    assert kept[0][4] == {"id": "7", "name": "x7"}
    assert "value too long" in kept[3][3]
    assert "4 of 3001 records of part 4 were refused" in caplog.text
    assert postgres.rows(f"SELECT written, refused FROM springtide_ledger WHERE sink = 'check/i{mode}'") == [(2_997, 4)]


def test_a_deferred_constraint_refuses_its_record_alone(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text UNIQUE DEFERRABLE INITIALLY DEFERRED")
    writer = publisher(declared(postgres, table), SCHEMA, "check/j")
    writer.publish(0, [part(tmp_path, 0, [*rows(1, 2), *rows(1)], SCHEMA)])
    assert postgres.rows(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,)]


def test_a_refused_record_may_end_the_run(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint CHECK (id > 0), name text")
    writer = publisher(declared(postgres, table, refused="stop"), SCHEMA, "check/k")
    with pytest.raises(RecordError, match="violates check constraint"):
        writer.publish(0, parts(tmp_path, range(3)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_table_that_was_changed_ends_the_run_and_nothing_is_lost(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint, name text")
    writer = publisher(declared(postgres, table), SCHEMA, "check/l")
    postgres.rows(f"ALTER TABLE {table} DROP COLUMN name")
    with pytest.raises(RunError, match=r'column "name" of relation .* does not exist; .* Mend the table'):
        writer.publish(0, parts(tmp_path, range(3)))
    postgres.rows(f"ALTER TABLE {table} ADD COLUMN name text")
    writer.publish(0, parts(tmp_path, range(3)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_server_that_was_killed_gets_each_record_once(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text")
    writer = publisher(declared(postgres, table), SCHEMA, "check/m")
    batches = [
        parts(tmp_path, *(range(n, n + 500) for n in range(first, first + 4_000, 500))) for first in range(0, 40_000, 4_000)
    ]
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.15):
            postgres.kill()
            postgres.start()

    killer = threading.Thread(target=kill)
    killer.start()
    failures = 0
    try:
        for number, batch in enumerate(batches):
            while True:
                try:
                    writer.publish(number, batch)
                    break
                except SinkUnavailable:
                    failures += 1
                    time.sleep(0.02)
            time.sleep(0.05)
    finally:
        over.set()
        killer.join()
    assert failures
    assert postgres.rows(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(40_000, 40_000)]


def test_a_database_that_is_away_at_the_start_is_no_error_of_the_declaration(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint NOT NULL, name text")
    writer = declared(postgres, table).publisher("check/n", SCHEMA, lambda: False)
    OPENED.append(writer)
    postgres.kill()
    for attempt in (writer.prepare, lambda: declared(postgres, table).check(SCHEMA)):
        with pytest.raises(SinkUnavailable, match=r"Connection refused|connection failed"):
            attempt()
    postgres.start()
    assert writer.prepare() is None
    writer.begin(-1)
    writer.publish(0, parts(tmp_path, range(3)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(3,)]


def test_a_run_that_ends_gives_up_a_server_that_does_not_answer(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, stop = postgres.table("id bigint NOT NULL, name text"), threading.Event()
    writer = publisher(declared(postgres, table), SCHEMA, "check/o", stop.is_set)
    locker = postgres.connected()
    locker.execute(f"BEGIN; LOCK TABLE {table}")
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(SinkUnavailable, match="the run ends"):
        writer.publish(0, parts(tmp_path, range(3)))
    locker.close()
    stop.clear()
    writer.publish(0, parts(tmp_path, range(3)))
    assert postgres.rows(f"SELECT count(*) FROM {table}") == [(3,)]


@pytest.fixture
def reader(postgres: Server) -> Iterator[str]:
    """A user that may read only."""
    postgres.rows("CREATE USER guest PASSWORD 'Guest-7'")
    yield "guest"
    postgres.rows("DROP OWNED BY guest; DROP USER guest")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("", {}, "there is no table .*; make it, or .* create=True"),
        ("id bigint", {}, "has no column 'name'; .* ADD COLUMN \"name\" text"),
        ("id int, name text", {}, "column 'id' .* is integer, .* ALTER COLUMN \"id\" TYPE bigint"),
        ("id bigint, name text NOT NULL", {}, "'name' .* is NOT NULL, .* DROP NOT NULL"),
        ("id bigint, name text, more int NOT NULL", {}, "'more' .* without a default"),
        ("id bigint, name text GENERATED ALWAYS AS ('a') STORED", {}, "computes column 'name' itself"),
        ("id bigint, name text", {"mode": "upsert", "keys": "id"}, "are: none; run: CREATE UNIQUE INDEX ON .*\\(\"id\"\\)"),
        ("id bigint, name text, UNIQUE (id, name)", {"mode": "upsert", "keys": "id"}, "unique indexes are: id, name; run"),
        ("id bigint UNIQUE DEFERRABLE, name text", {"mode": "upsert", "keys": "id"}, "unique indexes are: none"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(postgres: Server, columns: str, options: dict[str, Any], message: str) -> None:
    table = postgres.table(columns)
    with pytest.raises(OptionError, match=message):
        publisher(declared(postgres, table, **options), SCHEMA, "check/p")


def test_an_unlogged_table_and_a_view_are_refused(postgres: Server) -> None:
    table, view = postgres.table(), postgres.table()
    postgres.rows(f"CREATE UNLOGGED TABLE {table} (id bigint, name text); CREATE VIEW {view} AS SELECT * FROM {table}")
    with pytest.raises(OptionError, match=f'unlogged .*; run: ALTER TABLE "{table}" SET LOGGED'):
        publisher(declared(postgres, table), SCHEMA, "check/q")
    with pytest.raises(OptionError, match="is no table"):
        publisher(declared(postgres, view), SCHEMA, "check/q")


def test_rights_that_are_missing_are_named(postgres: Server, reader: str, tmp_path: Path) -> None:
    table, file = postgres.table("id bigint, name text"), tmp_path / "guest"
    file.write_text("Guest-7")
    sink = declared(postgres, table)
    guest = replace(
        sink.database,
        url=sink.database.url.replace("postgres@", f"{reader}@"),
        password=replace(postgres.password, place=str(file)),
    )
    with pytest.raises(OptionError, match=f'GRANT INSERT ON "{table}" TO "guest"'):
        publisher(replace(sink, database=guest), SCHEMA, "check/r")


def test_a_wrong_password_and_database_are_errors_of_the_declaration(postgres: Server, tmp_path: Path) -> None:
    sink = declared(postgres, "t")
    (tmp_path / "wrong").write_text("Wrong-Horse")
    wrong = replace(sink.database, password=replace(postgres.password, place=str(tmp_path / "wrong")))
    with pytest.raises(OptionError, match="password authentication failed") as caught:
        publisher(replace(sink, database=wrong), SCHEMA, "check/s")
    assert "Wrong-Horse" not in str(caught.value) and caught.value.__cause__ is None
    other = replace(sink.database, url=f"{sink.database.url.removesuffix('postgres')}nowhere")
    with pytest.raises(OptionError, match='"nowhere" does not exist'):
        publisher(replace(sink, database=other), SCHEMA, "check/s")


def test_keys_have_to_be_fields_that_are_never_none(postgres: Server) -> None:
    with pytest.raises(TopologyError, match="key 'nam' is no field of the records; did you mean 'name'"):
        declared(postgres, "t", mode="upsert", keys="nam").check_schema(SCHEMA)
    with pytest.raises(TopologyError, match="key 'name' may be None"):
        declared(postgres, "t", mode="upsert", keys="name").check_schema(SCHEMA)


def test_names_are_quoted(postgres: Server, tmp_path: Path) -> None:
    schema = pa.schema([pa.field('a"; DROP', pa.int64(), nullable=False), pa.field("Select", pa.string())])
    writer = publisher(declared(postgres, 'we"ird', mode="upsert", keys='a"; DROP', create=True), schema, "o'clock")
    writer.publish(0, [part(tmp_path, 0, [{'a"; DROP': 1, "Select": "'"}], schema)])
    assert postgres.rows('SELECT * FROM "we""ird"') == [(1, "'")]
    assert postgres.rows("SELECT count(*) FROM springtide_ledger WHERE sink = %s", ["o'clock"]) == [(1,)]


def test_commits_are_durable_even_where_the_server_says_otherwise(postgres: Server, tmp_path: Path) -> None:
    table = postgres.table("id bigint, name text")
    postgres.rows("ALTER USER postgres SET synchronous_commit = off")
    try:
        writer: Any = publisher(declared(postgres, table), SCHEMA, "check/t")
        with writer._connections.lent() as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        postgres.rows("ALTER USER postgres RESET synchronous_commit")
