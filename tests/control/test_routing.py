"""What groupings know: found out, handed out in editions, saved, and taken up again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import springtide as st
from springtide.control.routing import Routing
from springtide.errors import TopologyError
from springtide.model.costs import TaskCosts
from springtide.model.plan import Plan
from springtide.model.report import BatchReport
from springtide.model.topology import Topology
from springtide.policy.group import Grouping, Route, Share, State, Table, Targets, cost_key
from springtide.policy.group.cost_key import Search, Variance, choose, variances
from springtide.policy.group.hash import Hash
from springtide.policy.group.keys import key_hashes
from springtide.policy.group.lpt import Lpt
from springtide.policy.group.tide import Tide


@dataclass(frozen=True)
class Item:
    key: int
    text: str


def item(draw: st.Draw) -> Item:
    return Item(draw.index, "")


def same(one: Item) -> Item:
    return one


def work(by: object = "key", **options: Any) -> Topology:
    stream = st.source.generate(item, rate=1).map(same, name="work", grouping="tide", by=by, **options)
    return stream.to(st.sink.discard(), name="sink").named("line")


class Memory:
    """A store that forgets nothing, unless it is told to."""

    def __init__(self) -> None:
        self.stored_editions: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self.broken = False

    def save(self, edition: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        if self.broken:
            raise OSError("no space left on device")
        self.stored_editions[edition] = {name: array.copy() for name, array in arrays.items()}

    def load(self, edition: int) -> dict[str, npt.NDArray[Any]] | None:
        return self.stored_editions.get(edition)

    def latest(self) -> int:
        return max(self.stored_editions, default=0)


def plan(edition: int = 0, width: int = 2) -> Plan:
    return Plan({"work": width}, width, {"work": width}, knowledge=edition)


def report(keys: Sequence[int], seconds: Sequence[float], width: int = 2, **more: Any) -> BatchReport:
    costs = {"work": (TaskCosts.of(0, np.array(keys, dtype=np.uint64), np.array(seconds, dtype=np.float64)),)}
    return BatchReport(0, 1, plan(width=width), 0, 1, 0, 0, 0, (), {}, **{"costs": costs, **more})


def routing(
    store: Memory | None = None, by: object = "key", grouping: Grouping | None = None, hashing: str = ""
) -> Routing:  # fmt: skip
    topology = work(by)
    return Routing(topology, {"work": grouping or Tide()}, store, clock=lambda: 0.0, wait=True, hashing=hashing)


def known(route: Route) -> dict[int, float]:
    if not route.table:
        return {}
    return dict(zip(route.table["keys"].tolist(), route.table["costs"].astype(np.float64).round(6).tolist(), strict=True))


def test_the_first_report_makes_the_first_edition() -> None:
    made = routing()
    assert made.edition == 0
    assert made.routes(plan())["work"].key == ("key",)
    made.report(report([1, 2], [0.1, 0.2]))
    assert made.edition == 1
    assert known(made.routes(plan(1))["work"]) == {1: 0.1, 2: 0.2}
    assert not known(made.routes(plan(0))["work"]), "an edition never changes"


def test_editions_come_as_knowledge_grows_and_not_when_nothing_changed() -> None:
    made = routing()
    for _ in range(400):
        made.report(report(list(range(100)), [0.001 * (1 + k % 7) for k in range(100)]))
    assert made.edition < 10, "the same costs over and over"
    grown = routing()
    for batch in range(400):
        grown.report(report([batch * 100 + k for k in range(100)], [0.01 * (1 + k % 5) for k in range(100)]))
    assert 15 < grown.edition < 60, "new keys all the time: each edition has a quarter more"


def test_what_was_learned_survives_a_restart() -> None:
    store = Memory()
    first = routing(store)
    first.report(report([1, 2], [0.1, 0.2]))
    first.report(report([2], [0.2]))
    first.close()
    second = routing(store)
    assert second.edition == first.edition
    assert known(second.routes(plan(second.edition))["work"]) == {1: 0.1, 2: 0.2}
    second.report(report([3] * 5, [0.3] * 5))
    assert second.edition == first.edition + 1
    assert known(second.routes(plan(second.edition))["work"])[3] == pytest.approx(0.3)
    assert 3 not in known(second.routes(plan(first.edition))["work"]), "a replay routes as the batch did"


def test_an_edition_that_is_gone_is_done_without(caplog: pytest.LogCaptureFixture) -> None:
    made = routing(Memory())
    assert not made.routes(plan(7))["work"].table
    assert "edition 7" in caplog.text


def test_a_disk_that_is_full_leaves_the_last_edition_in_force(caplog: pytest.LogCaptureFixture) -> None:
    store = Memory()
    made = routing(store)
    made.report(report([1, 2], [0.1, 0.3]))
    store.broken = True
    made.report(report([2] * 50, [0.2] * 50))
    made.report(report([2] * 50, [0.2] * 50))
    assert made.edition == 1
    assert caplog.text.count("no space left") == 1
    store.broken = False
    made.report(report([2], [0.2]))
    assert made.edition == 2


def test_a_state_of_another_grouping_or_key_is_not_taken_up() -> None:
    store = Memory()
    first = routing(store)
    first.report(report([1, 2], [0.1, 0.4]))
    for other in (routing(store, by="text"), routing(store, grouping=Tide(exact=99)), routing(store, grouping=Lpt())):
        assert not other.routes(plan(first.edition))["work"].table, "nor is a batch routed by it"
        other.report(report([5, 6], [0.5, 0.8]))
        assert other.edition == first.edition + 1
        assert other.routes(plan(other.edition))["work"].table
    assert known(routing(store).routes(plan(first.edition))["work"]) == {1: 0.1, 2: 0.4}


@dataclass(frozen=True)
class Failing:
    """Learns nothing but trouble."""

    name: ClassVar[str] = "failing"

    def route(self, share: Share, table: Table) -> Targets:
        return np.zeros(share.rows, dtype=np.int64)

    def initial(self) -> State:
        return {"a": np.zeros(1)}

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        raise RuntimeError("no")

    def table(self, state: State, width: int) -> Table:
        raise RuntimeError("never")


def test_a_grouping_that_fails_is_told_of_once_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    made = routing(grouping=Failing())
    for _ in range(3):
        made.report(report([1], [0.1]))
    assert caplog.text.count("failed to learn") == 1
    assert not made.routes(plan(made.edition))["work"].table


def test_a_grouping_that_learns_nothing_has_its_key_at_once() -> None:
    keyed = st.source.generate(item, rate=1).key_by("key").map(same, name="work").to(st.sink.discard(), name="sink")
    made = Routing(keyed.named("line"), {"work": Hash()}, None, lambda: 0.0)
    assert made.routes(plan())["work"].key == ("key",)
    made.close()


def test_learning_has_a_thread_of_its_own() -> None:
    made = Routing(work(), {"work": Tide()}, None, lambda: 0.0)
    made.report(report([1, 2], [0.1, 0.4]))
    made.close()
    assert made.edition == 1
    made.report(report([1, 2], [0.1, 0.4]))  # a batch that was still on its way
    assert made.edition == 1


# The column that drives the cost


def sample(rows: int = 1_000, seed: int = 0) -> tuple[pa.RecordBatch, npt.NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, rows)
    records = pa.record_batch(
        {
            "id": np.arange(rows),
            "kind": kind,
            "entity": kind * 50 + rng.integers(0, 50, rows),
            "noise": rng.integers(0, 20, rows),
            "words": pa.array([["a"]] * rows),
            "text": [f"text {n}" for n in range(rows)],
        }
    )
    return records, 0.001 * (1 + 4 * kind) + rng.exponential(0.0002, rows)


def test_the_column_that_explains_the_cost_is_found() -> None:
    """Not the id and the text, which are different in every record; and of two that explain it, that with fewer values."""
    records, seconds = sample()
    found = choose(variances(records, seconds))
    assert found is not None
    assert found[0] == "kind"
    assert found[1] > 0.9
    without = choose(variances(records.drop_columns(["kind"]), seconds))
    assert without is not None
    assert without[0] == "entity"


def test_no_column_is_chosen_where_none_explains_the_cost() -> None:
    records, _ = sample()
    seconds = np.random.default_rng(9).exponential(0.01, records.num_rows)
    assert choose(variances(records, seconds)) is None
    assert choose(variances(records, np.full(records.num_rows, 0.01))) is None
    assert choose({}) is None
    assert choose(variances(records.slice(0, 0), seconds[:0])) is None


def test_few_records_are_not_judged_by_themselves_but_add_up() -> None:
    records, seconds = sample()
    sums: dict[str, Variance] = {}
    for start in range(0, 600, 20):
        few = variances(records.slice(start, 20), seconds[start : start + 20])
        assert choose(few) is None
        sums = {name: one.plus(sums.get(name, Variance(0, 0, 0, 0, 0))) for name, one in few.items()}
    found = choose(sums)
    assert found is not None
    assert found[0] == "kind"


def test_the_key_is_searched_for_until_one_is_found_or_none_can_be(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = routing(by=None)
    assert made.routes(plan())["work"].key is None
    records, seconds = sample()
    explained = {"work": {name: tuple(one) for name, one in variances(records, seconds).items()}}
    made.report(report([], [], costs={}, variances=explained))
    assert made.routes(plan(made.edition))["work"].key is None, "one batch is not enough"
    made.report(report([], [], costs={}, variances=explained))
    assert made.routes(plan(made.edition))["work"].key == ("kind",)
    assert "explains" in caplog.text
    hopeless = routing(by=None)
    noise = np.random.default_rng(9).exponential(0.01, records.num_rows)
    unexplained = {"work": {name: tuple(one) for name, one in variances(records, noise).items()}}
    for _ in range(25):
        hopeless.report(report([], [], costs={}, variances=unexplained))
    assert hopeless.routes(plan(hopeless.edition))["work"].key == ()


@pytest.mark.parametrize("as_table", [False, True])
def test_long_texts_are_not_hashed_to_learn_what_records_cost(monkeypatch: pytest.MonkeyPatch, as_table: bool) -> None:
    hashed: list[int] = []

    def watched(batch: pa.RecordBatch, key: tuple[str, ...], seed: int = 0) -> Any:
        hashed.append(batch.nbytes)
        return key_hashes(batch, key, seed)

    monkeypatch.setattr(cost_key, "key_hashes", watched)
    records, seconds = sample(50)
    body = pa.array(["x" * 1_000_000] * 50)
    spiky = pa.array(["", *[f"{n % 2}" for n in range(48)], "y" * 10_000])  # 200 bytes on average
    records = records.append_column("body", body).append_column("spiky", spiky)
    table = pa.Table.from_batches([records.slice(0, 20), records.slice(20)])
    found = variances(table if as_table else records, seconds)
    assert found["body"] == Variance(0, 0, 0, 0, 0)
    assert found["spiky"].values == 4
    assert sum(hashed) < 20_000


def test_a_search_names_the_columns_that_it_passed_over() -> None:
    search = Search()
    noise = np.random.default_rng(9)
    for _ in range(60):
        records, _ = sample(1_000)
        records = records.append_column("body", pa.array(["x" * 1_000] * 1_000))
        measured_variances = variances(records, noise.exponential(0.01, records.num_rows))
        found = search.add({name: tuple(one) for name, one in measured_variances.items()})
        if found is not None:
            break
    assert found is not None and found.key == ()
    assert "not searched: 'body', longer than 256 bytes on average; name one with by=" in found.reason


def test_what_was_learned_by_other_hashes_is_not_used() -> None:
    store = Memory()
    routing(store, hashing="2:one").report(report([1, 2], [0.1, 0.2]))
    again, other = routing(store, hashing="2:one"), routing(store, hashing="2:other")
    assert known(again.routes(plan(again.edition))["work"]) == {1: 0.1, 2: 0.2}
    assert known(other.routes(plan(other.edition))["work"]) == {}
    assert other.edition == again.edition, "numbers are not used twice"


def test_one_slow_call_does_not_decide_the_key() -> None:
    """A lazy import, or a collection of garbage: half a second where the others take a millisecond."""
    for seed in range(8):
        search = Search()
        for batch in range(40):
            records, seconds = sample(100, seed=1000 * seed + batch)
            if batch == 3:
                seconds[7] = 0.5
            found = search.add({name: tuple(one) for name, one in variances(records, seconds).items()})
            if found is not None:
                break
        assert found is not None
        assert found.key == ("kind",)


def test_a_search_goes_on_while_no_column_can_be_judged() -> None:
    """Thousands of keys in batches of 20 seldom come twice in one."""
    search, rng = Search(), np.random.default_rng(1)
    for _ in range(1_200):
        records = pa.record_batch({"key": rng.integers(0, 10**9, 20)})
        measured_variances = variances(records, rng.exponential(0.01, 20))
        assert search.add({name: tuple(one) for name, one in measured_variances.items()}) is None


def test_a_search_that_found_nothing_begins_anew_with_the_next_run() -> None:
    store = Memory()
    first = routing(store, by=None)
    records, _ = sample()
    noise = np.random.default_rng(9).exponential(0.01, records.num_rows)
    unexplained = {"work": {name: tuple(one) for name, one in variances(records, noise).items()}}
    for _ in range(25):
        first.report(report([], [], costs={}, variances=unexplained))
    assert first.routes(plan(first.edition))["work"].key == ()
    second = routing(store, by=None)
    assert second.edition == first.edition
    assert "work" not in second._keys


@dataclass(frozen=True)
class ByTask:
    """Learns how long tasks took, whatever the key."""

    name: ClassVar[str] = "by-task"
    by_key: ClassVar[bool] = False

    def route(self, share: Share, table: Table) -> Targets:
        return np.zeros(share.rows, dtype=np.int64)

    def initial(self) -> State:
        return {"took": np.zeros(0)}

    def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
        return {"took": np.array([task.total_s for task in costs])}

    def table(self, state: State, width: int) -> Table:
        return {"took": state["took"]} if width > 1 and len(state["took"]) else {}


def test_what_depends_on_the_tasks_is_published_when_it_changes() -> None:
    made = routing(by=None, grouping=ByTask())
    assert made.routes(plan())["work"].key == (), "no key is searched for"
    made.report(report([0], [0.1]))
    made.report(report([0], [0.4]))
    assert made.routes(plan(made.edition))["work"].table["took"].tolist() == [0.4]
    before = made.edition
    made.report(report([0], [0.4]))
    assert made.edition == before


def test_a_state_that_is_no_arrays_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyspark")
    from springtide.spark.driver.editions import Editions

    @dataclass(frozen=True)
    class Odd(ByTask):
        def learn(self, state: State, width: int, costs: Sequence[TaskCosts]) -> State:
            return {"took": np.array([object()])}

        def table(self, state: State, width: int) -> Table:
            return {"took": np.ones(1)}

    made = Routing(work(None), {"work": Odd()}, Editions(tmp_path), lambda: 0.0)
    made.report(report([0], [0.1]))
    made.close()
    assert made.edition == 0
    assert "cannot be saved" in caplog.text


def test_the_newest_edition_that_can_be_read_is_taken_up() -> None:
    store = Memory()
    first = routing(store)
    first.report(report([1, 2], [0.1, 0.4]))
    first.report(report([1, 2, 3], [0.1, 0.4, 0.9]))
    store.stored_editions[first.edition] = None  # type: ignore[assignment]  # it was damaged
    second = routing(store)
    assert second.edition == first.edition
    assert known(second.routes(plan(second.edition))["work"]) == {1: 0.1, 2: 0.4}


def test_a_key_that_is_no_column_is_refused() -> None:
    with pytest.raises(TopologyError, match="'entity' is not among the columns"):
        work("entity")
    with pytest.raises(TopologyError, match="give the name of a column"):
        work(5)
    with pytest.raises(TopologyError, match=r"is not allowed after key_by\(\)"):
        st.source.generate(item, rate=1).key_by("key").map(same, by="text")


# On disk


def test_editions_are_files_without_pickles(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from springtide.spark.driver.editions import EDITIONS_TO_RETAIN, Editions

    editions = Editions(tmp_path / "knowledge")
    assert editions.latest() == 0
    assert editions.load(1) is None
    for number in range(1, EDITIONS_TO_RETAIN + 4):
        editions.save(number, {"work/": np.array(["key"]), "work/keys": np.arange(number, dtype=np.uint64)})
    assert editions.latest() == EDITIONS_TO_RETAIN + 3
    loaded = editions.load(EDITIONS_TO_RETAIN + 3)
    assert loaded is not None
    assert loaded["work/keys"].tolist() == list(range(EDITIONS_TO_RETAIN + 3))
    assert editions.load(1) is None, "old ones go"
    with pytest.raises(ValueError, match="holds Python objects"):
        editions.save(99, {"work/keys": np.array([object()])})
    assert editions.latest() == EDITIONS_TO_RETAIN + 3


def test_an_edition_that_was_damaged_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pyspark")
    from springtide.spark.driver.editions import Editions

    editions = Editions(tmp_path)
    for damage in (b"", b"PK\x03\x04 and no more", b"\x80\x04N."):
        (tmp_path / "00000001.npz").write_bytes(damage)
        assert editions.load(1) is None
    assert caplog.text.count("cannot be read") == 3
