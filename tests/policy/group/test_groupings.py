"""Every grouping there is, under the same checks: in range, the same in every replay, and at work whatever is reported."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.model.costs import TaskCosts
from springtide.policy import registry
from springtide.policy.group import Continual, Learner, Share
from springtide.policy.group.full_knowledge import FullKnowledge
from springtide.policy.group.least_loaded import LeastLoaded
from springtide.policy.group.load_balancing import LoadBalancing
from springtide.policy.group.random import Random
from springtide.policy.group.two_choices import TwoChoices
from springtide.sim import ByItem, Model, Operator, Source, Zipf, simulate
from springtide.sim.compile import compiled

ROUTING = [cls.name for cls in registry.available("group") if not getattr(cls, "simulator_only", False)]
LEARNING = [cls.name for cls in registry.available("group") if isinstance(cls(), Learner)]
BOUND = "full-knowledge"
CONTINUAL = [cls.name for cls in registry.available("group") if isinstance(cls(), Continual)]
SMALL: dict[str, dict[str, object]] = {"posg": {"window": 3}, "load-balancing": {"interval": 0.5}}
"""Parameters with which a few records are enough to learn from."""

AMOUNTS = st.sampled_from([0.0, 1e-9, 0.5, 3.0, 1e12, 1e308, np.nan, np.inf, -1.0])
ROUTES = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _wrapping() -> Iterator[None]:
    """Kernels that are not compiled: hashes wrap around, and absurd sums run over, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        yield


@st.composite
def shares(draw: st.DrawFn, width: int | None = None) -> Share:
    keys = np.array(draw(st.lists(st.integers(0, 12) | st.integers(0, 2**64 - 1), max_size=40)), dtype=np.uint64)
    chosen = draw(st.integers(1, 9)) if width is None else width
    return Share(len(keys), chosen, draw(st.integers(0, 99)), draw(st.integers(0, 10**9)), lambda: keys)


@st.composite
def absurd(draw: st.DrawFn) -> list[TaskCosts]:
    """Reports with tasks missing, doubled or beyond the width, without rows, and with whatever a clock can do."""
    made = []
    for task in draw(st.lists(st.integers(-1, 12), max_size=6)):
        keys = np.array(sorted(draw(st.sets(st.integers(0, 12), max_size=5))), dtype=np.uint64)
        size = len(keys)
        counts = np.array(draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), dtype=np.int64)
        seconds = np.array(draw(st.lists(AMOUNTS, min_size=size, max_size=size)), dtype=np.float64)
        made.append(TaskCosts(task, keys, counts, seconds))
    return made


def created(name: str) -> Any:
    return registry.create("group", name, SMALL.get(name, {}))


def check(targets: npt.NDArray[np.int64], share: Share) -> None:
    assert targets.dtype == np.int64
    assert targets.shape == (share.rows,)
    assert ((targets >= 0) & (targets < share.width)).all()


@pytest.mark.parametrize("name", ROUTING)
@ROUTES
@given(share=shares())
def test_a_route_is_in_range_and_the_same_again(name: str, share: Share) -> None:
    grouping = created(name)
    targets = grouping.route(share, {})
    check(targets, share)
    twin = pickle.loads(pickle.dumps(grouping))
    again = Share(share.rows, share.width, share.origin, share.batch, share.hashes)
    assert twin.route(again, {}).tolist() == targets.tolist()


@pytest.mark.parametrize("name", LEARNING)
@ROUTES
@given(data=st.data())
def test_it_works_whatever_is_reported(name: str, data: st.DataObject) -> None:
    grouping = created(name)
    state = grouping.initial()
    for _ in range(data.draw(st.integers(1, 5))):
        width = data.draw(st.integers(1, 9))
        costs = data.draw(absurd())
        before = {part: array.copy() for part, array in state.items()}
        learned = grouping.learn(state, width, costs)
        again = grouping.learn(state, width, costs)
        for part, array in before.items():
            assert np.array_equal(state[part], array, equal_nan=True), "the state that came in was changed"
        for part, array in learned.items():
            assert isinstance(array, np.ndarray) and array.dtype != object
            assert np.array_equal(again[part], array, equal_nan=True)
        state = learned
        for asked in (width, data.draw(st.integers(1, 9))):
            table = grouping.table(state, asked)
            share = data.draw(shares(asked))
            targets = grouping.route(share, table)
            check(targets, share)
            assert grouping.route(share, table).tolist() == targets.tolist()


@pytest.mark.parametrize("name", CONTINUAL)
@ROUTES
@given(data=st.data())
def test_record_by_record_it_works_whatever_is_reported(name: str, data: st.DataObject) -> None:
    grouping = created(name)
    work: Any = None
    for k in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)):
        work = grouping.online(k, 1, None if work is None else work.state)
        for key in data.draw(st.lists(st.integers(0, 12), max_size=40)):
            now = data.draw(st.floats(-10, 1e6))  # the clock goes back as well
            free, queue = np.full(k, now), np.arange(k, dtype=np.int64)
            target = work.choose(work.state, np.uint64(key), now, free, queue)
            assert 0 <= target < k
            if work.completed is not None and data.draw(st.booleans()):
                done_at = data.draw(st.integers(0, 6) | st.just(int(target)))
                work.completed(work.state, done_at, np.uint64(key), data.draw(AMOUNTS), data.draw(st.floats(-10, 1e6)))


@pytest.mark.parametrize("name", CONTINUAL)
def test_record_by_record_it_is_the_same_again(name: str) -> None:
    def routed() -> list[int]:
        work = created(name).online(4, 3)
        targets = []
        for i in range(60):
            key, free = np.uint64(i % 7), np.arange(4.0)[::-1] + i
            targets.append(int(work.choose(work.state, key, float(i), free, np.full(4, i, dtype=np.int64))))
            if work.completed is not None:
                work.completed(work.state, targets[-1], key, 0.1 * (i % 7), i + 0.5)
        return targets

    assert routed() == routed()


@pytest.mark.parametrize("name", [name for name in CONTINUAL if name != "tide"])
def test_compiled_it_is_the_same(name: str) -> None:
    """Numbers of 64 bits without a sign are where numba and numpy may differ."""
    keys = np.random.default_rng(4).integers(0, 2**64, 30, dtype=np.uint64)
    plain, machine = (created(name).online(3, 7) for _ in range(2))
    choose, completed = (None if kernel is None else compiled(kernel) for kernel in (machine.choose, machine.completed))
    assert choose is not None
    for i in range(120):
        free, queue = np.array([3.0, 1.0, 2.0]) * i, np.array([i % 3, i % 2, 1])
        targets = [
            chosen(work.state, keys[i % 30], 0.1 * i, free, queue)
            for chosen, work in ((plain.choose, plain), (choose, machine))
        ]
        assert targets[0] == targets[1]
        if completed is not None:
            for done, work in ((plain.completed, plain), (completed, machine)):
                done(work.state, targets[0], keys[i % 30], 0.01 * (i % 30), 0.1 * i + 0.05)


# random


def test_random_is_even_and_differs_by_task_and_batch() -> None:
    targets = Random().route(Share(30_000, 3), {})
    assert np.abs(np.bincount(targets) - 10_000).max() < 400
    routes = {tuple(Random(seed).route(Share(50, 7, o, b), {})) for seed in (0, 1) for o in (0, 1) for b in (0, 1)}
    assert len(routes) == 8


def test_random_record_by_record_is_even() -> None:
    work = Random().online(3, 0)
    drawn = [work.choose(work.state, 0, 0.0, np.zeros(3), np.zeros(3, np.int64)) for _ in range(3000)]
    assert np.abs(np.bincount(drawn) - 1000).max() < 130


# two choices


def test_a_key_meets_two_tasks_and_the_load_is_closer_than_by_one_hash() -> None:
    keys = (np.random.default_rng(0).zipf(1.5, 4000) % 500).astype(np.uint64)
    share = Share(len(keys), 4, hashes=lambda: keys)
    targets = TwoChoices().route(share, {})
    assert all(len(set(targets[keys == key].tolist())) <= 2 for key in set(keys.tolist()))
    by_hash = np.bincount(registry.create("group", "hash").route(share, {}), minlength=4)
    assert np.bincount(targets).max() < 0.75 * by_hash.max()


def test_two_choices_are_the_same_in_both_modes() -> None:
    keys = np.arange(200, dtype=np.uint64) % np.uint64(23)
    work = TwoChoices(5).online(6, 0)
    one_by_one = [work.choose(work.state, key, 0.0, np.zeros(6), np.zeros(6, np.int64)) for key in keys]
    assert one_by_one == TwoChoices(5).route(Share(200, 6, hashes=lambda: keys), {}).tolist()


def test_two_choices_need_a_key() -> None:
    with pytest.raises(OptionError, match="key_by"):
        TwoChoices().route(Share(3, 2), {})


# least loaded


def test_the_shortest_queue_is_joined_and_ties_rotate() -> None:
    work = LeastLoaded().online(3, 0)

    def joined(*queue: int) -> int:
        return work.choose(work.state, 0, 0.0, np.zeros(3), np.array(queue))

    assert [joined(2, 1, 3), joined(2, 2, 0)] == [1, 2]
    assert [joined(4, 4, 4) for _ in range(4)] == [0, 1, 2, 0]


# load balancing (PSPS, algorithm 1)


def report(task: int, rows: int, seconds: float) -> TaskCosts:
    return TaskCosts(task, np.array([1], dtype=np.uint64), np.array([rows]), np.array([seconds]))


def test_load_balancing_starts_from_what_was_measured() -> None:
    """12 and 6 records of 1 s on average in 10 s: U = 1.2 and 0.6; four records fill the second, then round-robin."""
    grouping = LoadBalancing()
    state = grouping.learn(grouping.initial(), 2, [report(0, 12, 10.0), report(1, 6, 8.0)])
    table = grouping.table(state, 2)
    assert table["utilisation"].tolist() == pytest.approx([1.2, 0.6])
    assert table["step"][0] == pytest.approx(0.1)
    assert grouping.route(Share(8, 2), table).tolist() == [1, 1, 1, 1, 0, 1, 0, 1]


def test_load_balancing_takes_the_larger_of_benchmark_and_measurement() -> None:
    """Batches of 1, 0.5 and 2 s a record, td = 10 s: et is 1, 1 and 2 s."""
    grouping = LoadBalancing()
    state = grouping.initial()
    steps, names = [], set(state)
    for seconds in (1.0, 0.5, 2.0):
        rows = np.array([10, 4]) / seconds
        state = grouping.learn(state, 2, [report(0, int(rows[0]), 10.0), report(1, int(rows[1]), 4.0)])
        assert set(state) == names
        table = grouping.table(state, 2)
        assert table["utilisation"].tolist() == pytest.approx((rows * table["step"][0]).tolist())
        steps.append(float(table["step"][0]))
    assert steps == pytest.approx([0.1, 0.1, 0.2])
    older = {name: part for name, part in state.items() if name != "benchmark"}
    assert grouping.learn(older, 2, [report(0, 10, 10.0)])["benchmark"].tolist() == [1.0]


def test_load_balancing_record_by_record_takes_the_larger_too() -> None:
    """td = 10 s; records of 1 s, then of 0.5 s, then of 2 s: U grows by 0.1, 0.1 and 0.2, also after replicas were added."""
    work = LoadBalancing(interval=10.0).online(1, 0)
    grown = []
    for interval, cost in enumerate((1.0, 0.5, 2.0, 0.5)):
        assert work.completed is not None
        for _ in range(200):
            work.completed(work.state, 0, 0, cost, 10.0 * interval)
        work.state.records[:] = 0.0
        if interval == 1:
            work = LoadBalancing(interval=10.0).online(2, 0, work.state)
        for _ in range(2):  # the second is in the new interval for certain
            before = work.state.utilisation.sum()
            work.choose(work.state, 0, 10.0 * interval + 10.0, np.zeros(2), np.zeros(2, np.int64))
        grown.append(work.state.utilisation.sum() - before)
    assert grown == pytest.approx([0.1, 0.1, 0.2, 0.1], rel=0.02)


def test_load_balancing_of_even_replicas_is_round_robin() -> None:
    grouping = LoadBalancing()
    table = grouping.table(grouping.learn(grouping.initial(), 3, [report(i, 4, 4.0) for i in range(3)]), 3)
    half = {"utilisation": table["utilisation"] / 2, "step": table["step"]}
    assert grouping.route(Share(7, 3, origin=1), half).tolist() == [1, 2, 0, 1, 2, 0, 1]


def test_load_balancing_record_by_record() -> None:
    """td = 10 s, et = 1 s: what replica 1 did in the first interval, 4 records, is ahead in the second."""
    work = LoadBalancing(interval=10.0).online(2, 0)

    def routed(now: float) -> int:
        return work.choose(work.state, 0, now, np.zeros(2), np.zeros(2, np.int64))

    assert work.completed is not None
    assert [routed(0.0) for _ in range(4)] == [0, 1, 0, 1]  # nothing is known: in turn
    for _ in range(4):
        work.completed(work.state, 1, 0, 1.0, 5.0)
    assert [routed(10.0) for _ in range(5)] == [0, 0, 0, 0, 1]  # U = (0, 0.4): then equal, and the turn is 1's
    assert work.state.utilisation.tolist() == pytest.approx([0.4, 0.5])
    full = [routed(11.0) for _ in range(30)]
    assert full[-6:] in ([0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0])
    assert (work.state.utilisation < 1.1 + 1e-9).all()  # full ones grow no more


# the bound


def test_full_knowledge_is_for_the_simulator_only() -> None:
    work = FullKnowledge().online(3, 0)
    assert work.choose(work.state, 0, 0.0, np.array([2.0, 0.5, 1.0]), np.zeros(3, np.int64)) == 1
    with pytest.raises(OptionError, match="choose 'tide', 'posg'"):
        FullKnowledge().route(Share(3, 2), {})


# in the simulator, while the number of replicas changes


@pytest.mark.long
@pytest.mark.parametrize("name", CONTINUAL)
def test_replicas_come_and_go_under_load(name: str) -> None:
    """Compiled, an index beyond the replicas is a crash and not an error: those that were deactivated still drain."""
    settings = {"window": 16} if name == "posg" else {}
    model = Model(
        "shop",
        sources=(Source("orders", rate=100.0, items=Zipf(50, 1.0)),),
        operators=(Operator("price", ("orders",), ByItem(np.linspace(0.005, 0.05, 50)), replicas=4),),
    )
    script = {"script": "price 0:4 10:1 15:6 20:2 25:5"}
    outcome = simulate(
        model, grouping=name, grouping_settings=settings, policy="scripted", settings=script, records=3_000, max_slots=8
    )
    assert outcome.summary["reconfigurations"] == 4
    assert outcome.summary["rows_out"] == 3_000


def test_what_cannot_be_a_cost_is_left_out_of_a_report() -> None:
    seconds = np.array([1.0, -1.0, np.nan, np.inf, 1e300, 2.0])
    costs = TaskCosts(0, np.arange(6, dtype=np.uint64), np.array([1, 1, 1, 1, 1, 0]), seconds)
    assert (costs.keys.tolist(), costs.counts.tolist(), costs.seconds.tolist()) == ([0], [1], [1.0])


def test_a_record_that_was_held_up_does_not_make_tide_forget_what_keys_cost() -> None:
    """One record in two thousand takes a second, for reasons of its own; the others take what their key says."""
    rng, tide = np.random.default_rng(1), created("tide")
    true = rng.permutation(np.linspace(1e-3, 8e-3, 512))
    state = tide.initial()
    for _ in range(40):
        keys = rng.integers(0, 512, 500)
        seconds = true[keys] + (rng.random(500) < 1 / 2_000)
        state = tide.learn(state, 1, [TaskCosts.of(0, keys.astype(np.uint64), seconds)])
    table = tide.table(state, 1)
    off = np.abs(table["costs"] / true[table["keys"].astype(np.int64)] - 1)
    assert np.median(off) < 0.05
    assert np.quantile(off, 0.95) < 0.5
