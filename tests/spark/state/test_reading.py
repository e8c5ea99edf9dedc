"""State that is read without the query, exported and imported: against plain Python, on checkpoints made by hand."""

from __future__ import annotations

import datetime
import decimal
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import springtide as st
from processors.state_machine import SECOND, Machine
from springtide.cli.main import cli
from springtide.errors import CheckpointError, OptionError
from springtide.model.plan import Plan
from springtide.model.report import BatchReport, StateReport
from springtide.model.state import moment
from springtide.model.topology import Topology
from springtide.record.folder import RunFolder
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.documents import SEED
from springtide.spark.state import compact, files, piles, segment, values
from springtide.spark.state import reading as readings
from springtide.spark.state.book import StateBook
from springtide.spark.state.catalog import Catalog
from springtide.spark.state.declared import declarations, layout_of, layouts_in
from springtide.spark.state.exporting import exported
from springtide.spark.state.reading import reading, stored_states
from springtide.spark.state.seeding import seeded
from springtide.spark.state.stepping import StateLayout

AT = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Event:
    route: str | None
    day: int
    number: int


@dataclass(frozen=True)
class Place:
    name: str | None
    seen: datetime.datetime | None
    tags: list[str] | None


@dataclass(frozen=True)
class Reported:
    total: int


class Everything(st.Processor):
    """Something of every type; a negative number forgets the key."""

    total = st.value(int, default=0)
    share = st.value(float)
    label = st.value(str)
    at = st.value(datetime.datetime)
    raw = st.value(bytes)
    numbers = st.list_of(int)
    words = st.map_of(str, int)
    halves = st.map_of(int, float)
    place = st.value(Place)

    def process(self, key: Any, records: list[Event], state: Any) -> Iterator[Reported]:
        for record in records:
            if record.number < 0:
                state.clear()
                continue
            state.total += record.number
            state.share = float("nan") if record.number == 13 else record.number / 3
            state.label = f'n"{record.number},\n'
            state.at = AT + datetime.timedelta(microseconds=record.number)
            state.raw = bytes([record.number % 256])
            state.numbers.append(record.number)
            state.words[f"w{record.number}"] = record.number
            state.halves[record.number] = record.number / 2
            state.place = Place("here", AT, ["a", str(record.number)])
            state.set_timer(moment(record.number * SECOND))
        yield Reported(state.total)

    def on_timer(self, key: Any, timer: st.Timer, state: Any) -> Iterator[Reported]:
        yield Reported(-1)


class Flat(st.Processor):
    total = st.value(int, default=0)
    label = st.value(str)
    raw = st.value(bytes)
    at = st.value(datetime.datetime)

    def process(self, key: Any, records: list[Event], state: Any) -> Iterator[Reported]:
        state.total += sum(record.number for record in records)
        state.label, state.raw, state.at = f'x"{state.total}', b"\x00\xff", AT
        yield Reported(state.total)


def source() -> st.Stream:
    return st.source.generate(lambda draw: Event("a", 1, 1), rate=1, schema=Event, name="events")


def topology(
    processor: Any = Everything, shards: int = 16, key: tuple[str, ...] = ("route", "day"), **options: Any
) -> Topology:
    stateful = source().key_by(*key).stateful(processor, shards=shards, name="keep", **options)
    return stateful.to(st.sink.discard()).named("t")


class Case:
    """A checkpoint, and a machine whose batches are committed to it."""

    def __init__(self, root: Path, made: Topology, location: str | None = None) -> None:
        """``location``: the URI where its state lies."""
        self.root, self.topology = root, made
        self.committed: int | None = 5_000  # records; None: as an old manifest, which does not say
        self.checkpoint = Checkpoint(root)
        self.checkpoint.acquire(made)
        self.checkpoint.next_epoch()
        secret = self.checkpoint.keep_state(declarations(made), location)
        self.checkpoint.release()
        (operator,) = made.stateful
        self.name = operator.name
        self.machine = Machine(layout_of(made, operator, self.checkpoint.state_root(), secret))
        seed = self.checkpoint.recall(SEED)
        if seed is not None:
            self.machine.catalog = Catalog.from_json(seed[self.name])

    def run(self, *events: Event, width: int = 2, **options: Any) -> list[Any]:
        output = self.machine.run([asdict(event) for event in events], width=width, **options)
        self.commit()
        return output

    def commit(self) -> None:
        state = {self.name: self.machine.catalog.to_json()}
        own = {"batch": self.machine.batch - 1, "epoch": self.checkpoint.epoch, "state": state, "times": {}}
        self.checkpoint.commit(own if self.committed is None else {**own, "sources": {"source": self.committed}})

    def state(self) -> dict[Any, Any]:
        """By key, what a merge of all finds, without when and where."""
        return {tuple(v for k, v in row.items() if k.startswith("key.")): own(row) for row in self.machine.rows()}


def own(row: dict[str, Any]) -> dict[str, Any]:
    """The variables of a row, so that equal ones are equal: NaN is not NaN."""
    return {name: repr(value) for name, value in row.items() if name.startswith("state.")}


def by_key(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    return {tuple(v for k, v in row.items() if k.startswith("key.")): own(row) for row in rows}


def read_rows(root: Path, operator: str = "keep") -> list[dict[str, Any]]:
    with reading(root, operator) as state:
        return [row for part in state.rows() for row in part.to_pylist()]


def invoked(*arguments: Any, code: int = 0) -> Any:
    result = CliRunner().invoke(cli, ["state", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def shown(*arguments: Any) -> Any:
    return json.loads(invoked("show", *arguments, "--json").stdout)


def some_events() -> list[Event]:
    return [Event(None if i % 7 == 0 else f"r{i}", i % 3, i) for i in range(30)]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    made = Case(tmp_path / "checkpoint", topology())
    made.run(*some_events())
    made.run(Event("r1", 1, 100), Event("r2", 2, -1), Event(None, 0, 5))
    return made


# Reading


events = some.lists(
    some.builds(Event, some.sampled_from([None, "", "a", "b", "c"]), some.integers(0, 3), some.integers(-1, 20)), max_size=12
)
histories = some.lists(some.tuples(events, some.integers(1, 3), some.integers(0, 3)), max_size=6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories, some.sampled_from([".json", ".parquet"]))
def test_exported_rows_are_what_a_dict_has(tmp_path_factory: Any, batches: list[Any], suffix: str) -> None:
    folder = tmp_path_factory.mktemp("state")
    case = Case(folder / "checkpoint", topology())
    model: dict[Any, list[int]] = {}
    for batch, width, merged in batches:
        case.run(*batch, width=width)
        case.machine.merge(merged)
        case.commit()
        for event in batch:
            key = event.route, event.day
            model[key] = [] if event.number < 0 else [*model.get(key, []), event.number]
    model = {key: numbers for key, numbers in model.items() if numbers}
    file = folder / f"out{suffix}"
    if not case.machine.catalog.runs:
        with pytest.raises(OptionError, match="no state yet"):
            exported(case.root, "keep", file)
        return
    reported = exported(case.root, "keep", file)
    rows = pq.read_table(file).to_pylist() if suffix == ".parquet" else list(map(json.loads, file.read_text().splitlines()))
    assert reported["keys"] == len(rows) == len(model)
    assert {(row["key.route"], row["key.day"]): row["state.numbers"] for row in rows} == model
    for row in rows:
        numbers = row["state.numbers"]
        assert (row["state.total"], dict(row["state.words"])) == (sum(numbers), {f"w{one}": one for one in numbers})
        assert row["state._event_timers"] == sorted({one * SECOND for one in numbers})
    assert imported(topology(shards=5), file, folder / "other").state() == case.state()  # and its secret is another


def imported(made: Topology, file: Path, root: Path) -> Case:
    seeded(made, "keep", file, root, 77, accept_recount=True)
    return Case(root, made)


def test_groups_of_shards_give_the_same_rows(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = case.state()
    assert by_key(read_rows(case.root)) == expected
    monkeypatch.setattr(compact, "group_bytes", lambda: 1)  # a group for every shard
    with reading(case.root, "keep") as state:
        parts = list(state.rows())
    assert len(parts) > 3
    assert by_key([row for part in parts for row in part.to_pylist()]) == expected


def test_a_run_that_goes_on_takes_nothing_away(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, folder = case.state(), Path(case.machine.layout.folder)
    with reading(case.root, "keep") as state:
        for file in folder.glob("*.state"):  # as after a merge and some commits
            file.unlink()
        assert by_key([row for part in state.rows() for row in part.to_pylist()]) == expected


def test_a_file_that_was_merged_before_it_was_opened_is_looked_for_in_a_newer_manifest(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    expected, seen = case.state(), []
    old = [Path(case.machine.layout.folder) / name for name in case.machine.files]
    plain = readings.stored_state

    def merging_then(checkpoint: Path, operator: str) -> Any:
        stored = plain(checkpoint, operator)
        seen.append(stored)
        if len(seen) == 1:
            case.machine.merge(2)
            case.run()
            for file in old:
                file.unlink()
        return stored

    monkeypatch.setattr(readings, "stored_state", merging_then)
    assert by_key(read_rows(case.root)) == expected
    assert len(seen) == 2


def test_a_file_that_is_lost_is_named(case: Case) -> None:
    name = case.machine.files[0]
    (Path(case.machine.layout.folder) / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is damaged: it is gone"):
        read_rows(case.root)
    invoked("show", case.root, code=2)


def test_a_file_that_was_changed_is_named(case: Case) -> None:
    path = Path(case.machine.layout.folder) / case.machine.files[0]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged: the checksum of chunk 0, shards"):
        read_rows(case.root)


def merged(case: Case) -> Path:
    """The file of a merge, that of a batch being newer."""
    case.machine.merge(2)
    case.run(Event("r1", 1, 7))
    (run,) = (run for run in case.machine.catalog.runs if run.before)
    return Path(case.machine.layout.folder) / run.files[0].name


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def scratched(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("damaging", [cut, scratched, Path.unlink])
@pytest.mark.parametrize("groups", [False, True])
def test_what_a_damaged_file_was_merged_from_is_read_instead(
    case: Case, tmp_path: Path, damaging: Any, groups: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = merged(case)
    expected, key = case.state(), ("--key", "r5", "--key", "2")
    whole, found = shown(case.root), shown(case.root, *key)
    damaging(path)
    if groups:
        monkeypatch.setattr(compact, "group_bytes", lambda: 1)
    assert by_key(read_rows(case.root)) == expected
    assert caplog.text.count(f"state file {path} is damaged: ") == 1
    assert caplog.text.count("; the files that it was merged from are read instead") == 1
    assert shown(case.root) == whole
    assert shown(case.root, *key) == found
    assert exported(case.root, "keep", tmp_path / "x.parquet")["keys"] == len(expected)
    assert by_key(pq.read_table(tmp_path / "x.parquet").to_pylist()) == expected


@pytest.mark.parametrize("damaging", [cut, scratched, Path.unlink])
def test_what_cannot_be_read_instead_is_named_too(case: Case, damaging: Any) -> None:
    path = merged(case)
    (run,) = (run for run in case.machine.catalog.runs if run.before)
    other = Path(case.machine.layout.folder) / run.before[-1].files[0].name
    cut(path)
    damaging(other)
    with pytest.raises(CheckpointError, match=rf"state file {other} is damaged") as error:
        read_rows(case.root)
    assert damaging is scratched or f"state file {path} is damaged" in str(error.value)


def test_files_of_an_older_declaration_are_not_read_instead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(tmp_path / "c", topology(Flat))
    case.run(Event("a", 1, 1), Event("b", 1, 2))
    case.machine.layout = begun(case.root, topology(Later, migrate=later))
    case.run(Event("a", 1, 5))
    path = merged(case)
    scratched(path)
    with pytest.raises(
        CheckpointError, match=r"label, raw, at: declared otherwise .*let a run migrate them, or read single keys"
    ):
        read_rows(case.root)
    assert str(path) in caplog.text
    assert shown(case.root, "--key", "b", "--key", "1")["state"]["total"] == 2


class Later(st.Processor):
    """``Flat``, declared otherwise."""

    total = st.value(int, default=0)
    more = st.value(str)

    def process(self, key: Any, records: list[Event], state: Any) -> Iterator[Reported]:
        state.more = "x"
        yield Reported(0)


def later(flat: dict[str, Any]) -> dict[str, Any]:
    return {"total": flat["total"], "more": None}


def test_variables_of_an_older_declaration_stand_beside_those_of_now(tmp_path: Path) -> None:
    class Otherwise(Later):
        total = st.value(str)

    case = Case(tmp_path / "c", topology(Flat, key=("day",)))
    case.run(Event("a", 1, 1), Event("a", 2, 2))
    (operator,) = (changed := topology(Later, key=("day",), migrate=later)).stateful
    secret = case.checkpoint.keep_state(declarations(changed))
    case.machine.layout = layout_of(changed, operator, str(case.checkpoint.state_folder()), secret)
    case.run(Event("a", 2, 5))
    rows = {row["key.day"]: row for row in read_rows(case.root)}
    assert [rows[day]["state.total"] for day in (1, 2)] == [1, 2]
    assert [rows[day]["state.label"] for day in (1, 2)] == ['x"1', None]
    assert [rows[day]["state.more"] for day in (1, 2)] == [None, "x"]
    assert shown(case.root, "--key", 2)["state"] == {"total": 2, "more": "x"}
    (operator,) = (changed := topology(Otherwise, key=("day",), migrate=lambda old: {})).stateful
    secret = case.checkpoint.keep_state(declarations(changed))
    case.machine.layout = layout_of(changed, operator, str(case.checkpoint.state_folder()), secret)
    case.run(Event("a", 3, 5))
    with pytest.raises(CheckpointError, match=r"'keep': 'total' is string now, and int64 in .*let the run go on"):
        read_rows(case.root)


class Alarmed(st.Processor):
    """Sets a timer for each key, at the seconds that its last record says."""

    total = st.value(int, default=0)

    def process(self, key: Any, records: list[Event], state: Any) -> Iterator[Reported]:
        state.total += len(records)
        state.set_timer(moment(records[-1].number * SECOND))
        yield Reported(1)

    def on_timer(self, key: Any, timer: st.Timer, state: Any) -> Iterator[Reported]:
        yield Reported(-1)


class AlarmedLater(Alarmed):
    """The same, with a variable of another type."""

    total = st.value(float, default=0.0)


def test_timers_are_found_while_a_migration_to_other_types_goes_on(tmp_path: Path) -> None:
    """A bounded run asks for them at its end, when there are files of both declarations."""
    case = Case(tmp_path / "c", topology(Alarmed))
    case.run(Event("a", 1, 7), Event("b", 1, 5))
    case.machine.layout = begun(case.root, topology(AlarmedLater, migrate=lambda old: {"total": float(old["total"])}))
    case.run(Event("c", 1, 9))
    with reading(case.root, "keep") as state:
        assert state.timers()["event"] == {"keys": 3, "first": moment(5 * SECOND).isoformat()}
    with pytest.raises(CheckpointError, match="'total' is double now, and int64 in"):
        read_rows(case.root)


def begun(root: Path, made: Topology) -> StateLayout:
    """What a driver does with state at its start."""
    (checkpoint := Checkpoint(root)).acquire(made)
    try:
        return layouts_in(checkpoint, made)["keep"]
    finally:
        checkpoint.release()


FLAT = "total: int64, label: string, raw: binary, at: timestamp"
LATER = "total: int64, more: string"


def test_a_declaration_counts_once_something_was_written_with_it(tmp_path: Path) -> None:
    flat, later = topology(Flat), topology(Later)
    begun(tmp_path / "new", flat)
    begun(tmp_path / "new", later)  # there is no state of the other
    case = Case(tmp_path / "c", flat)
    case.run(Event("a", 1, 1))
    with pytest.raises(CheckpointError, match=rf"'keep' declares {LATER}; in checkpoint {case.root} it has state of {FLAT}"):
        begun(case.root, later)
    with pytest.raises(CheckpointError, match=r"shards=8, but in checkpoint .* it has 16"):
        begun(case.root, topology(Later, shards=8))
    assert dict(stored_states(case.root)["keep"].variables).keys() == {"total", "label", "raw", "at"}
    begun(case.root, topology(Later, migrate=later))  # and no batch is committed
    begun(case.root, flat)


def test_a_migration_stays_until_nothing_is_left_to_migrate(tmp_path: Path) -> None:
    case = Case(tmp_path / "c", topology(Flat))
    case.run(Event("a", 1, 1), Event("b", 1, 2))
    case.machine.layout = begun(case.root, topology(Later, migrate=later))
    case.run(Event("a", 1, 5))
    with pytest.raises(
        CheckpointError, match=rf"declares {LATER}; .* has state of {FLAT}.*migrate=function\) while there is such state"
    ):
        begun(case.root, topology(Later))
    with pytest.raises(CheckpointError, match=rf"declares {FLAT}.* has state of {LATER}"):
        begun(case.root, topology(Flat))
    case.machine.merge(2)
    case.run()
    begun(case.root, topology(Later))
    begun(case.root, topology(Later))
    assert {row["key.route"]: (row["state.total"], row["state.more"]) for row in read_rows(case.root)} == {
        "a": (1, "x"),
        "b": (2, None),
    }


@dataclass(frozen=True)
class Fare:
    route: str
    at: datetime.datetime
    v: int
    w: int
    x: float
    s: str


def fares(of: Callable[[st.KeyedStream], st.Stream]) -> Topology:
    made = st.source.generate(lambda draw: Fare("a", AT, 1, 1, 1.0, "a"), rate=1, schema=Fare, name="fares")
    return of(made.watermark("at").key_by("route")).to(st.sink.discard()).named("t")


def window(**options: Any) -> Topology:
    return fares(lambda keyed: keyed.window(n=st.agg.count(), name="keep", **options))


def aggregate(one: Any, **options: Any) -> Topology:
    return fares(lambda keyed: keyed.aggregate(a=one, name="keep", **options))


def top(**options: Any) -> Topology:
    return fares(lambda keyed: keyed.top_k(2, name="keep", **options))


CHANGED = [
    (aggregate(st.agg.sum("v")), aggregate(st.agg.max("v")), r"computes a = max\('v'\); .*has state of a = sum\('v'\)"),
    (aggregate(st.agg.sum("v")), aggregate(st.agg.sum("w")), r"a = sum\('w'\); .*a = sum\('v'\)"),
    (aggregate(st.agg.first("s")), aggregate(st.agg.max("s")), r"a = max\('s'\); .*a = first\('s'\)"),
    (top(by="v"), top(by="w"), "ranked = the greatest by 'w'; .*ranked = the greatest by 'v'"),
    (top(by="v"), top(by="v", of="s"), "ranked = the greatest by 'v', of 's'; .*ranked = the greatest by 'v'"),
    (
        window(length="10s"),
        window(length="20s"),
        "its windows = 20 s every 20 s by 'at'; .*its windows = 10 s every 10 s by 'at'",
    ),
    (window(length="10s"), window(length="10s", slide="5s"), "its windows = 10 s every 5 s"),
    (window(gap="10s"), window(gap="5s"), "its windows = sessions with a gap of 5 s by 'at'; .* gap of 10 s"),
]


@pytest.mark.parametrize(("before", "after", "message"), CHANGED)
def test_what_a_ready_operator_computes_is_part_of_its_declaration(
    tmp_path: Path, before: Topology, after: Topology, message: str
) -> None:
    begun(tmp_path / "new", before)
    begun(tmp_path / "new", after)  # there is no state of the other
    case = Case(tmp_path / "c", before)
    row = {"route": "a", "at": AT, "v": 1, "w": 1, "x": 1.0, "s": "a", "window_start": AT, "window_end": AT}
    case.machine.run([{name: row[name] for name in case.machine.layout.input.names}])
    case.commit()
    for _ in range(2):
        with pytest.raises(CheckpointError, match=message):
            begun(case.root, after)
    begun(case.root, before)
    stored = case.checkpoint.recall("state")
    assert stored is not None
    del stored["declared"]["keep"]["computes"]  # as it was written before
    case.checkpoint.remember("state", stored)
    begun(case.root, before)
    with pytest.raises(CheckpointError, match=message):
        begun(case.root, after)


def test_a_root_is_made_of_the_state_of_a_variance(tmp_path: Path) -> None:
    case = Case(tmp_path / "c", aggregate(st.agg.variance("x")))
    case.machine.run([{"route": "a", "at": AT, "v": 1, "w": 1, "x": 1.0, "s": "a"}])
    case.commit()
    begun(case.root, aggregate(st.agg.stddev("x")))


def test_a_migration_does_not_make_a_mean_that_of_another_column(tmp_path: Path) -> None:
    """State of the same variables is not migrated, whichever ones were between."""
    case = Case(tmp_path / "c", aggregate(st.agg.mean("v")))
    case.machine.run([{"route": "a", "at": AT, "v": 1, "w": 1, "x": 1.0, "s": "a"}])
    case.commit()
    begun(case.root, aggregate(st.agg.variance("v"), migrate=dict))
    for options in ({}, {"migrate": dict}):
        with pytest.raises(CheckpointError, match=r"a = mean\('w'\); .*a = mean\('v'\)"):
            begun(case.root, aggregate(st.agg.mean("w"), **options))
    begun(case.root, aggregate(st.agg.mean("v")))


def test_imported_state_is_of_a_declaration_too(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps(ROW))
    seeded(topology(Flat), "keep", file, tmp_path / "c", 0, accept_recount=True)
    with pytest.raises(CheckpointError, match=rf"declares {LATER}; .* has state of {FLAT}"):
        begun(tmp_path / "c", topology(Later))
    begun(tmp_path / "c", topology(Flat))


def test_a_file_that_cannot_be_read_is_left_to_those_who_need_it(case: Case) -> None:
    """It may be a merged one, which is mended."""
    begun(case.root, topology(Later, migrate=later))
    path = Path(case.machine.layout.folder) / case.machine.files[0]
    path.write_bytes(path.read_bytes()[:-1])
    begun(case.root, topology())


def test_reading_needs_no_spark(case: Case) -> None:
    blocked = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        f"from springtide.cli.main import cli; cli(['state', 'show', {str(case.root)!r}, '--json'])"
    )
    result = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["operators"][0]["keys"] == 27


# springtide state show


def test_show_tells_of_every_operator(case: Case) -> None:
    (reported,) = shown(case.root)["operators"]
    # 30 events, of which 0 and 21 are of the key (None, 0), 7 and 28 of (None, 1); the second batch forgets (r2, 2)
    assert reported["keys"] == len(case.state()) == 30 - 2 - 1
    assert reported["files"] == len(case.machine.files)
    assert reported["bytes"] == sum((Path(case.machine.layout.folder) / name).stat().st_size for name in case.machine.files)
    assert (reported["batch"], reported["batches"], reported["shards"], reported["seeded"]) == (1, [0, 1], 16, False)
    assert reported["key"] == [{"name": "route", "type": "string"}, {"name": "day", "type": "int64"}]
    assert {"name": "words", "type": "map<string, int64>"} in reported["variables"]
    assert reported["timers"] == {
        "event": {"keys": reported["keys"], "first": "1970-01-01T00:00:00+00:00"}, "processing": {"keys": 0, "first": None},
    }  # fmt: skip
    assert reported["watermark"] is None
    for arguments in ((case.root,), (case.root, "keep")):
        text = invoked("show", *arguments).stdout
        assert "keep" in text and "map<string, int64>" in text and "0 to 1" in text


def test_either_order_is_understood(case: Case) -> None:
    assert json.loads(invoked(case.root, "show", "--json").stdout) == shown(case.root)


def test_a_key_is_found_by_all_its_columns(case: Case) -> None:
    reported = shown(case.root, "keep", "--key", "r1", "--key", "1")
    assert (reported["found"], reported["key"], reported["written"]) == (
        True,
        {"route": "r1", "day": 1},
        "1970-01-01T00:00:02+00:00",
    )
    state = reported["state"]
    assert (state["total"], state["numbers"], state["words"]) == (101, [1, 100], {"w1": 1, "w100": 100})
    assert (state["at"], state["raw"]) == ("2024-05-06T07:08:09.123556+00:00", "ZA==")
    assert state["halves"] == [[1, 0.5], [100, 50.0]]
    assert state["place"] == {"name": "here", "seen": "2024-05-06T07:08:09.123456+00:00", "tags": ["a", "100"]}
    assert "101" in invoked("show", case.root, "--key", "r1", "--key", "1").stdout
    assert shown(case.root, "--key", "null", "--key", "0")["state"]["numbers"] == [0, 21, 5]
    assert shown(case.root, "--key", "r13", "--key", "1")["state"]["share"] == "nan"
    assert shown(case.root, "--key", "r2", "--key", "2")["found"] is False  # it was forgotten
    assert shown(case.root, "--key", '"null"', "--key", "0")["found"] is False
    text = invoked("show", case.root, "--key", "zz", "--key", "5").stdout
    assert 'nothing is remembered of the key route="zz", day=5' in text


def test_every_key_is_found_in_its_shard(case: Case) -> None:
    with reading(case.root, "keep") as state:
        for part in state.rows():
            for i in range(part.num_rows):
                key = part.slice(i, 1).select(["key.route", "key.day"]).rename_columns(["route", "day"])
                found = state.row(key)
                assert found is not None and repr(found.to_pylist()) == repr(part.slice(i, 1).to_pylist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kep"], "no stateful operator 'kep' in checkpoint .*did you mean 'keep'"),
        (["--key", "r1"], "--key is there 1 times, but the key of 'keep' has 2 columns; give --key ROUTE --key DAY"),
        (["--key", "r1", "--key", "x"], "--key: column 'day': 'x' came, wanted int64"),
    ],
)
def test_wrong_use_of_show_is_reported(case: Case, arguments: list[str], message: str) -> None:
    result = invoked("show", case.root, *arguments, code=2)
    assert re.search(message, result.stderr.replace("\n", " ")), result.stderr


def test_a_folder_without_state_is_reported(tmp_path: Path) -> None:
    assert "is not a run's folder" in invoked("show", tmp_path, code=2).stderr
    plain = source().to(st.sink.discard()).named("plain")
    (checkpoint := Checkpoint(tmp_path / "c")).acquire(plain)
    checkpoint.release()
    assert "has no stateful operator" in invoked("show", tmp_path / "c", code=2).stderr


def test_a_run_folder_names_its_checkpoint_and_tells_the_watermark(case: Case, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "t", 0.0)
    run.write_run({"checkpoint": str(case.root)})
    assert shown(run.path)["operators"] == shown(case.root)["operators"]
    reported = {"keep": StateReport(1, 1, 1, 0, 0, 0, 0, 0.0, 0.0, 0, 1, watermark=SECOND)}
    report = BatchReport(0, 1, Plan(degrees={}, slots=1, widths={}), 0.0, 1.0, 0, 0, 0, (), {}, state=reported)
    run.batch(replace(report, state={}))
    assert shown(run.path)["operators"][0]["watermark"] is None
    run.batch(replace(report, batch=1))
    with (run.path / "batches.jsonl").open("a") as file:
        file.write('{"batch": 2, "sta')  # a line that is being written
    assert shown(run.path)["operators"][0]["watermark"] == "1970-01-01T00:00:01+00:00"
    for number in range(2):  # another run has gone on since
        case.run(Event("z", number, 1))
    assert shown(run.path)["operators"][0]["watermark"] is None
    moved = run.path / "checkpoint"
    case.root.rename(moved)
    assert shown(run.path)["checkpoint"] == str(moved)


# springtide state export and import


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@pytest.mark.parametrize("shards", [16, 1, 77])
def test_what_was_exported_can_be_imported(case: Case, tmp_path: Path, suffix: str, shards: int) -> None:
    file, root = tmp_path / f"out{suffix}", tmp_path / "new"
    assert "keys of 'keep', after batch 1, written to" in invoked("export", case.root, "keep", file).stdout
    other = imported(topology(shards=shards), file, root)
    assert other.checkpoint.secret() != case.checkpoint.secret()
    assert other.state() == case.state()
    assert other.machine.catalog.keys == case.machine.catalog.keys
    written = [{(row["key.route"], row["key.day"]): row["_touched"] for row in one.machine.rows()} for one in (case, other)]
    assert written[0] == written[1]
    assert shown(root)["operators"][0]["seeded"] is True
    assert "imported" in invoked("show", root).stdout
    again = tmp_path / f"again{suffix}"
    assert exported(root, "keep", again)["batch"] is None
    late = [one.run(Event("r1", 1, 7), Event("new", 1, 7), watermark=20 * SECOND) for one in (case, other)]
    assert sorted(map(str, late[0])) == sorted(map(str, late[1])) and len(late[0]) > 10  # timers of both have come
    assert other.state() == case.state()
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_flat_state_goes_by_csv(tmp_path: Path) -> None:
    case = Case(tmp_path / "c", topology(Flat))
    case.run(*some_events(), Event("", 1, 3))
    file = tmp_path / "out.csv"
    exported(case.root, "keep", file)
    assert file.read_text().startswith('"key.route","key.day","state.total"')
    assert imported(topology(Flat, shards=3), file, tmp_path / "new").state() == case.state()


def test_csv_cannot_hold_what_is_nested(case: Case, tmp_path: Path) -> None:
    result = invoked("export", case.root, "keep", tmp_path / "out.csv", code=2)
    message = "CSV cannot hold column 'state.numbers' of type list<element: int64 not null>; give a .parquet or .json"
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_wrong_places_of_an_export_are_reported(case: Case, tmp_path: Path) -> None:
    assert "end in one of .parquet, .json, .csv" in invoked("export", case.root, "keep", tmp_path / "x.txt", code=2).stderr
    assert "cannot be written" in invoked("export", case.root, "keep", tmp_path / "no" / "x.json", code=2).stderr


def test_an_export_that_fails_leaves_the_old_file(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")
    path = Path(case.machine.layout.folder) / case.machine.files[-1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        exported(case.root, "keep", file)
    assert file.read_text() == "old" and sorted(one.name for one in tmp_path.iterdir()) == ["checkpoint", "x.json"]


def test_state_larger_than_memory_is_piled(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.parquet"
    exported(case.root, "keep", file)
    monkeypatch.setattr(piles, "GROUP_BYTES", 1000)
    monkeypatch.setattr(files, "BLOCK", 4)
    other = imported(topology(shards=40), file, tmp_path / "new")
    assert other.state() == case.state()
    assert len(list(Path(other.machine.layout.folder).iterdir())) == 1 + 1  # the seed, and what Case.state merged
    whole = segment.Segment(f"{other.machine.layout.folder}/{other.machine.files[0]}")
    hashes = [one for number in range(len(whole.chunks)) for one in whole.read(number).column(segment.HASH).to_pylist()]
    assert len(whole.chunks) > 3 and hashes == sorted(hashes)


def test_an_empty_file_seeds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("")
    other = imported(topology(), file, tmp_path / "new")
    assert other.machine.catalog.keys == 0 and other.state() == {}
    other.run(Event("a", 1, 1))
    assert len(read_rows(other.root)) == 1


def test_the_driver_begins_with_the_seed_until_a_batch_is_committed(tmp_path: Path) -> None:
    file, root, made = tmp_path / "x.json", tmp_path / "c", topology(Flat)
    file.write_text(json.dumps(ROW))
    assert json.loads(invoked_import(made, file, root).stdout)["keys"] == 1
    case = Case(root, made)
    layouts = {"keep": case.machine.layout}
    stray = Path(case.machine.layout.folder) / "00000000-000000-seed-stray.state"  # of an import that was killed
    stray.write_bytes(b"")

    def never(*_: Any) -> Any:
        raise AssertionError

    book = StateBook(made, layouts, 1, None, never, case.checkpoint.recall(SEED))
    (name,) = book.versions(0)["keep"]["files"]
    assert (name,) == case.machine.files and book.catalog("keep").keys == 1
    assert [path.name for path in Path(case.machine.layout.folder).iterdir()] == [name]
    case.run(Event("a", 1, 2), Event("b", 1, 2))
    assert {row["key.route"]: row["state.total"] for row in read_rows(root)} == {"a": 7, "b": 2}
    book.close()
    book = StateBook(made, layouts, 2, case.checkpoint.last_manifest(), never, case.checkpoint.recall(SEED))
    assert tuple(book.versions(0)["keep"]["files"]) == case.machine.files
    case.machine.merge(2)
    case.run(Event("a", 1, 1))
    case.machine.catalog = replace(case.machine.catalog, runs=tuple(replace(r, before=()) for r in case.machine.catalog.runs))
    case.run(Event("a", 1, 1))
    StateBook(made, layouts, 3, case.checkpoint.last_manifest(), never, case.checkpoint.recall(SEED)).close()
    assert not (Path(case.machine.layout.folder) / name).exists()  # nobody needs it any more
    book.close()
    assert {row["key.route"]: row["state.total"] for row in read_rows(root)} == {"a": 9, "b": 2}


def invoked_import(made: Topology, file: Path, root: Path, *options: str, code: int = 0, recount: bool = True) -> Any:
    module = sys.modules.setdefault("imported_topologies", type(sys)("imported_topologies"))
    module.made = made  # type: ignore[attr-defined]
    arguments = ["imported_topologies:made", "keep", file, "--checkpoint", root, *(options or ("--json",))]
    arguments += ["--accept-recount"] if recount else []
    return invoked("import", *arguments, code=code)


ROW = {"key.route": "a", "key.day": 1, "state.total": 5, "state.label": "x", "state.raw": None, "state.at": None}
HEADER = ",".join(ROW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state.total": "five"}, "line 2: column 'state.total': 'five' came, wanted int64"),
        ({"state.total": True}, "line 2: column 'state.total': True came, wanted int64"),
        ({"state.total": 1.5}, "line 2: column 'state.total': 1.5 came, wanted int64"),
        ({"state.total": 2**70}, "column 'state.total': .*; wanted int64"),
        ({"state.at": "noon"}, "line 2: column 'state.at': 'noon' came, wanted timestamp.us, tz=UTC.; write it as 2024"),
        ({"state.at": "2024-01-01T00:00:00"}, "column 'state.at': .* came, wanted timestamp.us, tz=UTC., with a time zone"),
        ({"state.raw": "?"}, "line 2: column 'state.raw': '.' came, wanted binary"),
        ({"key.day": None}, "'key.day' is None, but int64 not null is declared"),
        ({"state.totl": 1}, "line 2: column 'state.totl' came, which is not of .*; did you mean 'state.total'"),
        ({"state.total": ...}, "line 2: column 'state.total' is missing, wanted int64; there are: key.route, key.day"),
        ({"key.route": ...}, "line 2: column 'key.route' is missing, wanted string"),
    ],
)
def test_wrong_rows_of_json_are_refused_before_anything_is_changed(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file, root = tmp_path / "x.json", tmp_path / "new"
    row = {name: value for name, value in {**ROW, "key.route": "b", **change}.items() if value is not ...}
    file.write_text(json.dumps(ROW) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(OptionError, match=message):
        seeded(topology(Flat), "keep", file, root, 0)
    assert not root.exists()


@pytest.mark.parametrize(("line", "message"), [("{", "line 1: not JSON"), ("[]", "line 1: list came, wanted an object")])
def test_what_is_no_json_is_reported(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.json").write_text(line)
    with pytest.raises(OptionError, match=message):
        seeded(topology(Flat), "keep", tmp_path / "x.json", tmp_path / "new", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state.total": pa.array(["5"])}, "column 'state.total' is string, wanted int64"),
        ({"state.numbers": pa.array([["a"]])}, "column 'state.numbers' is list<.*string.*>, wanted list<.*int64 not null>"),
        ({"state.numbers": pa.array([[None]], pa.list_(pa.int64()))}, r"'state.numbers\[\]' is None, but int64 not null"),
        ({"state.place": pa.array([{"name": "x"}])}, "column 'state.place' is struct<name: string>, wanted struct<name"),
        ({"state.at": pa.array([AT.replace(tzinfo=None)])}, "column 'state.at' is timestamp.us., wanted timestamp.us, tz=UTC."),
        ({"state.total": pa.array([2**63], pa.uint64())}, "column 'state.total': .*; wanted int64"),
        ({"other": pa.array([1])}, "column 'other' came, which is not of the operator's state"),
    ],
)
def test_wrong_columns_of_parquet_are_reported(tmp_path: Path, change: dict[str, pa.Array], message: str) -> None:
    file, root = tmp_path / "x.parquet", tmp_path / "new"
    pq.write_table(pa.table({**foreign(), **change}), file)
    with pytest.raises(OptionError, match=message):
        seeded(topology(), "keep", file, root, 0)
    assert not root.exists()


def foreign() -> dict[str, pa.Array]:
    """One row as another program may write it: other widths, and everything may be null."""
    return {
        "key.route": pa.array(["a"], pa.large_string()), "key.day": pa.array([1], pa.int8()),
        "state.total": pa.array([5], pa.int32()), "state.share": pa.array([1], pa.int64()), "state.label": pa.nulls(1),
        "state.at": pa.array([AT], pa.timestamp("ms", "Europe/Berlin")), "state.raw": pa.array([b"r"], pa.large_binary()),
        "state.numbers": pa.array([[1, 2]], pa.large_list(pa.int32())),
        "state.words": pa.array([[("w", 1)]], pa.map_(pa.string(), pa.int16())),
        "state.halves": pa.nulls(1),
        "state.place": pa.array([{"tags": ["t"], "name": "n", "seen": AT}]),
    }  # fmt: skip


def test_what_another_program_wrote_is_taken(tmp_path: Path) -> None:
    pq.write_table(pa.table(foreign()), tmp_path / "x.parquet")
    other = imported(topology(), tmp_path / "x.parquet", tmp_path / "new")
    (row,) = other.machine.rows()
    assert (row["state.total"], row["state.share"], row["state.numbers"], row["_touched"]) == (5, 1.0, [1, 2], 77)
    assert row["state.at"] == AT.replace(microsecond=123000)
    assert row["state.place"] == {"name": "n", "seen": AT, "tags": ["t"]} and row["state._event_timers"] is None
    other.run(Event("a", 1, 7))
    (row,) = read_rows(other.root)
    assert (row["state.total"], row["state.numbers"], row["state._event_due"]) == (12, [1, 2, 7], 7 * SECOND)


def test_a_wrong_csv_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    for text, message in (
        (f"{HEADER}\na,1,five,,,\n", "column 'state.total': .*'five'.* int64"),
        (f"{HEADER}\na,1,5,,?,\n", "column 'state.raw': no base64"),
        ("key.route,key.day,state.total,state.label,state.raw\na,1,5,,\n", "column 'state.at' is missing, wanted timestamp"),
        ("key.route,key.day,key.day,state.total,state.label,state.raw,state.at\n", "a column is there twice"),
        ("", "column 'key.route' is missing, wanted string; there are: none"),
    ):
        file.write_text(text)
        with pytest.raises(OptionError, match=message):
            seeded(topology(Flat), "keep", file, tmp_path / "new", 0)
    with pytest.raises(OptionError, match=r"CSV cannot hold column 'state\.numbers'"):
        seeded(topology(), "keep", file, tmp_path / "new", 0)
    with pytest.raises(OptionError, match="there is no file"):
        seeded(topology(), "keep", tmp_path / "none.json", tmp_path / "new", 0)
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(OptionError, match=r"x\.parquet: "):
        seeded(topology(), "keep", tmp_path / "x.parquet", tmp_path / "new", 0)
    with pytest.raises(OptionError, match="topology 't' has no stateful operator 'kep': did you mean 'keep'"):
        seeded(topology(), "kep", file, tmp_path / "new", 0)
    assert not (tmp_path / "new").exists()


def test_two_rows_of_a_key_are_an_error_that_names_it(tmp_path: Path) -> None:
    file, root = tmp_path / "x.json", tmp_path / "new"
    rows = [{**ROW, "key.route": f"r{i}"} for i in range(50)] + [{**ROW, "key.route": "r7", "state.total": 6}]
    file.write_text("\n".join(map(json.dumps, rows)))
    result = invoked_import(topology(Flat), file, root, code=2)
    assert "two rows have the key route='r7', day=1; a key has one state" in result.stderr
    assert Checkpoint(root).recall(SEED) is None
    file.write_text("\n".join(map(json.dumps, rows[:-1])))
    assert "50 keys of 'keep' imported" in invoked_import(topology(Flat), file, root, "--checkpoint", str(root)).stdout
    assert "has state of operator 'keep' already" in invoked_import(topology(Flat), file, root, code=2).stderr


def test_a_checkpoint_with_batches_or_in_use_is_refused(case: Case, tmp_path: Path) -> None:
    file, busy = tmp_path / "x.parquet", tmp_path / "busy"
    exported(case.root, "keep", file)
    assert "has batches already" in invoked_import(topology(), file, case.root, code=2).stderr
    stored = Checkpoint(busy)
    stored.acquire(topology())
    assert "is in use by" in invoked_import(topology(), file, busy, code=2).stderr
    stored.release()
    (busy / "spark" / "offsets").mkdir(parents=True)
    (busy / "spark" / "offsets" / "0").write_text("v1")  # begun, and not committed
    assert "has batches already" in invoked_import(topology(), file, busy, code=2).stderr
    (checkpoint := Checkpoint(tmp_path / "other")).acquire(topology(Flat, key=("day",)))
    checkpoint.release()
    assert "does not fit topology" in invoked_import(topology(), file, tmp_path / "other", code=2).stderr


def refusal(made: Topology, file: Path, root: Path) -> str:
    """Why an import is refused that accepts no recount; nothing is changed by it."""
    with pytest.raises(OptionError) as refused:
        seeded(made, "keep", file, root, 0)
    assert not root.exists()
    return str(refused.value)


def test_state_whose_records_would_be_counted_again_is_refused_unless_that_is_accepted(tmp_path: Path) -> None:
    case, file, root = Case(tmp_path / "c", topology()), tmp_path / "x.parquet", tmp_path / "new"
    case.run(Event("a", 1, 9))
    reported = exported(case.root, "keep", file)
    identity = (case.checkpoint.recall("topology") or {})["id"]
    assert reported["origin"] == {"checkpoint": identity, "batch": 0, "sources": {"source": 5_000}}
    message = refusal(topology(), file, root)
    assert f"state of batch 0 of checkpoint {identity}, when source 'source' had committed 5,000 records. A new" in message
    assert "those records are counted again" in message and "--accept-recount" in message
    assert "had committed 5,000 records" in invoked_import(topology(), file, root, code=2, recount=False).stderr
    assert not root.exists()
    assert seeded(topology(), "keep", file, root, 0, accept_recount=True)["origin"] == reported["origin"]
    exported(root, "keep", file)  # what was imported, and has had no batch since, is still of those records
    assert f"state of batch 0 of checkpoint {identity}" in refusal(topology(), file, tmp_path / "third")


def test_files_that_do_not_tell_what_they_counted_are_refused_likewise(case: Case, tmp_path: Path) -> None:
    for suffix in (".json", ".parquet"):
        file = tmp_path / f"x{suffix}"
        exported(case.root, "keep", file)
        if suffix == ".parquet":
            pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)
        message = refusal(topology(), file, tmp_path / "new")
        assert "does not tell which records its state has counted" in message and "--accept-recount" in message


@pytest.mark.parametrize("batches", [0, 1])
def test_state_of_unknown_origin_is_still_of_unknown_origin_after_an_import(case: Case, batches: int, tmp_path: Path) -> None:
    """Else an export of it would say that it has counted nothing, or no more than the new checkpoint's sources brought."""
    file, root = tmp_path / "x.json", tmp_path / "second"
    exported(case.root, "keep", file)
    seeded(topology(), "keep", file, root, 0, accept_recount=True)
    if batches:
        second = Case(root, topology())
        second.run(Event("b", 1, 9))
    exported(root, "keep", tmp_path / "again.parquet")
    assert "does not say which records it had counted" in refusal(topology(), tmp_path / "again.parquet", tmp_path / "third")


def test_an_old_manifest_that_does_not_say_what_was_committed_is_not_taken_for_none(tmp_path: Path) -> None:
    case, file = Case(tmp_path / "c", topology()), tmp_path / "x.parquet"
    case.committed = None
    case.run(Event("a", 1, 9))
    exported(case.root, "keep", file)
    assert "which does not say which records it had counted" in refusal(topology(), file, tmp_path / "new")


def test_state_of_a_checkpoint_that_committed_no_record_needs_no_consent(tmp_path: Path) -> None:
    """As one that was seeded by hand, whose timers have come in batches without records."""
    case, file = Case(tmp_path / "c", topology()), tmp_path / "x.parquet"
    case.committed = 0
    case.run(Event("a", 1, 9))
    exported(case.root, "keep", file)
    assert seeded(topology(), "keep", file, tmp_path / "new", 0)["keys"] == 1


def test_damaged_metadata_of_a_file_is_an_error_that_names_it(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    exported(case.root, "keep", file)
    pq.write_table(pq.read_table(file).replace_schema_metadata({"springtide.origin": "{}"}), file)
    assert "x.parquet: its metadata 'springtide.origin' is damaged" in refusal(topology(), file, tmp_path / "new")


def test_variables_that_a_migration_brought_may_be_absent(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({name: ROW[name] for name in ("key.route", "key.day", "state.total")}))
    with pytest.raises(OptionError, match=r"column 'state\.label' is missing"):
        seeded(topology(Flat), "keep", file, tmp_path / "new", 0)
    (row,) = imported(topology(Flat, migrate=dict), file, tmp_path / "new").machine.rows()
    assert (row["state.total"], row["state.label"], row["state.at"]) == (5, None, None)


def test_timers_are_set_from_what_the_rows_say(tmp_path: Path) -> None:
    """Without the time of the next timer, a key would never be called."""
    case = Case(tmp_path / "c", topology())
    case.run(Event("a", 1, 9), Event("a", 1, 4), Event("b", 1, 8))
    file = tmp_path / "x.parquet"
    exported(case.root, "keep", file)
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["state._event_due", "state._clock_due", "shard", "written"]), file)
    other = imported(topology(), file, tmp_path / "new")
    assert other.state() == case.state()
    assert len(other.run(watermark=5 * SECOND)) == 1
    assert shown(other.root)["operators"][0]["timers"]["event"] == {"keys": 2, "first": "1970-01-01T00:00:08+00:00"}


def test_windows_close_though_the_file_does_not_say_when(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Trip:
        route: str
        at: datetime.datetime

    trips = st.source.generate(lambda draw: Trip("a", AT), rate=1, schema=Trip, name="trips")
    windows = trips.watermark("at", "0s").key_by("route").window("10s", n=st.agg.count(), name="keep")
    made = windows.to(st.sink.discard()).named("t")
    start, end = moment(0).isoformat(), moment(10 * SECOND).isoformat()
    row = {"key.route": "a", "key.window_start": start, "key.window_end": end, "state.n.0": 3}
    (tmp_path / "x.json").write_text(json.dumps(row))
    other = imported(made, tmp_path / "x.json", tmp_path / "new")
    assert shown(other.root)["operators"][0]["timers"]["event"]["first"] == end
    assert shown(other.root, "--key", "a", "--key", start, "--key", end)["state"] == {"n.0": 3, "_close": 10 * SECOND}
    (reported,) = other.machine.run([], watermark=10 * SECOND)
    assert (reported["route"], reported["n"]) == ("a", 3)


def test_an_operator_without_variables_has_keys(tmp_path: Path) -> None:
    made = source().key_by("route").deduplicate(name="keep").to(st.sink.discard()).named("t")
    case = Case(tmp_path / "c", made)
    case.run(Event("a", 1, 1), Event(None, 1, 1))
    for suffix in files.FORMS:
        file = tmp_path / f"x{suffix}"
        exported(case.root, "keep", file)
        other = imported(made, file, tmp_path / suffix.strip("."))
        assert other.state() == case.state() and len(other.state()) == 2
        assert len(other.run(Event("a", 1, 2), Event("b", 1, 2), Event(None, 1, 3))) == 1


def test_several_operators_are_seeded_one_after_the_other(tmp_path: Path) -> None:
    first = source().key_by("route").deduplicate(name="once")
    made = first.key_by("day").stateful(Flat, name="keep").to(st.sink.discard()).named("t")
    (tmp_path / "once.csv").write_text("key.route\na\nb\n")
    (tmp_path / "keep.json").write_text(json.dumps({name: value for name, value in ROW.items() if name != "key.route"}))
    root = tmp_path / "c"
    seeded(made, "once", tmp_path / "once.csv", root, 0, accept_recount=True)
    seeded(made, "keep", tmp_path / "keep.json", root, 0, accept_recount=True)
    assert {name: stored.catalog.keys for name, stored in stored_states(root).items()} == {"once": 2, "keep": 1}
    assert "of which operator? Name one of once, keep" in invoked("show", root, "--key", "a", code=2).stderr
    assert shown(root, "once", "--key", "a")["found"] is True
    assert {one["operator"]: one["keys"] for one in shown(root)["operators"]} == {"once": 2, "keep": 1}


def test_parts_of_a_dataclass_that_may_not_be_null_are_checked(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Spot:
        name: str
        number: int

    class Spots(st.Processor):
        spot = st.value(Spot)

        def process(self, key: Any, records: list[Event], state: Any) -> Iterator[Reported]:
            yield Reported(0)

    file, made = tmp_path / "x.json", topology(Spots, key=("day",))
    for spot, message in (
        ({"name": "a", "number": None}, r"'state\.spot\.number' is None, but int64 not null"),
        ({"name": "a"}, r"column 'state\.spot': .'name': 'a'. came, wanted struct<name: string not null, number"),
        (["a", 1], r"column 'state\.spot': .'a', 1. came, wanted struct"),
    ):
        file.write_text(json.dumps({"key.day": 1, "state.spot": spot}))
        with pytest.raises(OptionError, match=message):
            seeded(made, "keep", file, tmp_path / "new", 0)
    rows: list[dict[str, Any]] = [{"key.day": 1, "state.spot": {"name": "a", "number": 1}}, {"key.day": 2, "state.spot": None}]
    file.write_text("\n".join(map(json.dumps, rows)))
    seeded(made, "keep", file, tmp_path / "new", 0, accept_recount=True)
    assert {row["key.day"]: row["state.spot"] for row in read_rows(tmp_path / "new")} == {1: rows[0]["state.spot"], 2: None}


KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128]),
    (pa.uint64(), [2**64 - 1]),
    (pa.float64(), [0.1, 1e300, float("inf"), float("-inf"), -0.0]),
    (pa.string(), ["", "null", '"', "ä\n", '"quoted"']),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.date32(), [datetime.date(2024, 2, 29)]),
    (pa.timestamp("us", "UTC"), [AT]),
    (pa.timestamp("ms"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 999000)]),
    (pa.decimal128(38, 18), [decimal.Decimal("-1.5").quantize(decimal.Decimal(10) ** -18)]),
    (pa.list_(pa.list_(pa.date32())), [[], [[datetime.date(2024, 2, 29)], None, [None]]]),
    (pa.map_(pa.string(), pa.struct([("a", pa.binary())])), [[("k", {"a": b"x"}), ("l", None)]]),
    (pa.map_(pa.int64(), pa.map_(pa.bool_(), pa.float64())), [[(1, [(True, 0.5)])]]),
]


@pytest.mark.parametrize(("kind", "given"), KINDS, ids=str)
def test_values_come_back_from_json_as_they_were(kind: pa.DataType, given: list[Any]) -> None:
    column = pa.array([*given, None], kind)
    text = json.dumps([values.encoder(kind)(value) for value in column.to_pylist()], allow_nan=False)
    assert pa.array([values.decoder(kind)(value) for value in json.loads(text)], kind).equals(column)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("-5", pa.int64(), -5), ("null", pa.int64(), None), ("null", pa.string(), None), ('"null"', pa.string(), "null"),
        ('"', pa.string(), '"'), ("", pa.string(), ""), ("a b", pa.string(), "a b"), ('"a', pa.string(), '"a'),
        ("true", pa.bool_(), True), ("2024-05-06T07:08:09.123456Z", pa.timestamp("us", "UTC"), AT), ("ab", pa.binary(), b"ab"),
        ("2024-05-06", pa.date32(), datetime.date(2024, 5, 6)), ("1.50", pa.decimal128(5, 2), decimal.Decimal("1.50")),
        ("[1, 2]", pa.list_(pa.int64()), [1, 2]), ('{"a": 1}', pa.struct([("a", pa.int64())]), {"a": 1}),
    ],
)  # fmt: skip
def test_a_typed_key_is_read_by_its_type(text: str, kind: pa.DataType, value: Any) -> None:
    assert values.parsed(text, kind).to_pylist() == [value]


@pytest.mark.parametrize(
    ("text", "kind"),
    [("1.5", pa.int64()), ("", pa.int64()), ("x", pa.bool_()), ("2024-05-06T07:08:09", pa.timestamp("us", "UTC")),
     ("300", pa.int8()), ("[1", pa.list_(pa.int64())), ('["a"]', pa.list_(pa.int64()))],
)  # fmt: skip
def test_a_typed_key_that_does_not_fit_is_reported(text: str, kind: pa.DataType) -> None:
    with pytest.raises(values.Misfit, match=f"{re.escape(repr(text))} came, wanted {re.escape(str(kind))}"):
        values.parsed(text, kind)


def test_a_type_without_a_form_in_json_is_reported() -> None:
    for code in (values.encoder, values.decoder):
        with pytest.raises(OptionError, match=r"timestamp\[ns\] has no form in JSON here; .* \.parquet"):
            code(pa.timestamp("ns"))
