"""POSG: its example, the greedy bound, both state machines step by step, and learning from micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.model.costs import TaskCosts
from springtide.policy.group import Online, Share, count_min, kernel
from springtide.policy.group.posg import Posg, greedy
from springtide.policy.group.posg.machine import ROUND_ROBIN as TURNS
from springtide.policy.group.posg.machine import RUN, SEND_ALL, WAIT_ALL, Machine, choose, completed
from springtide.policy.group.round_robin import RoundRobin
from springtide.sim import ByItem, Model, Operator, Source, Zipf, simulate

Floats = npt.NDArray[np.float64]
A, B = 7, 9
"""Two keys, and below what they cost."""
COST = {A: 10.0, B: 1.0}


@pytest.fixture(autouse=True)
def _wrapping() -> Iterator[None]:
    """Kernels that are not compiled: hashes wrap around without a warning."""
    with np.errstate(over="ignore"):
        yield


class Stage:
    """Replicas with FIFO queues, and a grouping before them; the test advances the time."""

    def __init__(self, posg: Posg, k: int) -> None:
        self.k, self.work = k, posg.online(k, 0)
        self.queues: list[list[int]] = [[] for _ in range(k)]

    @property
    def state(self) -> Machine:
        machine: Machine = self.work.state
        return machine

    @property
    def phase(self) -> int:
        return int(self.state.phase[0])

    def send(self, key: int) -> int:
        waiting = np.array([len(queue) for queue in self.queues])
        target = choose(self.state, np.uint64(key), 0.0, np.zeros(self.k), waiting)  # type: ignore[arg-type]
        self.queues[target].append(key)
        return target

    def finish(self, target: int, now: float = 0.0, cost: float | None = None) -> None:
        key = self.queues[target].pop(0)
        completed(self.state, target, np.uint64(key), COST[key] if cost is None else cost, now)  # type: ignore[arg-type]

    def through(self, keys: list[int]) -> None:
        """One after the other, each done before the next comes."""
        for key in keys:
            self.finish(self.send(key))


def running(posg: Posg, k: int = 2) -> Stage:
    """A stage whose scheduler has just received the matrices of the last replica."""
    stage = Stage(posg, k)
    while stage.phase == TURNS:
        stage.through([A] * k + [B] * k)
    return stage


# the example of section II


def completion_times(targets: npt.NDArray[np.int64], costs: list[float]) -> float:
    """The sum over records that arrive a second apart, on instances with FIFO queues."""
    free = [0.0] * (int(targets.max()) + 1)
    total = 0.0
    for now, (target, cost) in enumerate(zip(targets.tolist(), costs, strict=True)):
        free[target] = max(free[target], now) + cost
        total += free[target] - now
    return total


def test_example_of_section_ii() -> None:
    """a, b, a with 10, 1 and 10 s: 10 + 1 + 10 + (10 − 2) = 29 s in turn, 10 + 1 + 10 = 21 s by POSG."""
    keys = np.array([A, B, A], dtype=np.uint64)
    costs = [COST[int(key)] for key in keys]
    posg = Posg(window=2)
    state = posg.initial()
    for _ in range(2):
        state = posg.learn(state, 2, [TaskCosts.of(i, keys, np.array(costs)) for i in range(2)])
    share = Share(3, width=2, hashes=lambda: keys)
    in_turn = RoundRobin().route(share, {})
    assert completion_times(in_turn, costs) == 29
    routed = posg.route(share, posg.table(state, 2))
    assert routed.tolist() == [0, 1, 1]
    assert completion_times(routed, costs) == 21


def test_example_of_section_ii_record_by_record() -> None:
    stage = running(Posg(window=4, resync=0))
    stage.through([A, A])
    assert stage.phase == RUN
    stage.state.load[:] = 0.0
    targets = np.array([stage.send(key) for key in (A, B, A)])
    assert completion_times(targets, [10, 1, 10]) == 21


# the Greedy Online Scheduler


def makespan(targets: npt.NDArray[np.int64], costs: Floats, k: int) -> float:
    return float(np.bincount(targets, costs, k).max())


def optimum(costs: Floats, k: int) -> float:
    """The least makespan, by trying all schedules."""
    schedules = itertools.product(range(k), repeat=len(costs) - 1)
    return min(makespan(np.array((0, *schedule)), costs, k) for schedule in schedules)


@settings(max_examples=60)
@given(costs=st.lists(st.integers(1, 20), min_size=1, max_size=6), k=st.integers(1, 3))
def test_greedy_is_within_its_bound(costs: list[int], k: int) -> None:
    """Theorem 4.2: at most (2 − 1/k) times the optimum."""
    array = np.array(costs, dtype=np.float64)
    found = makespan(greedy(np.repeat(array[:, None], k, axis=1)), array, k)
    assert found <= (2 - 1 / k) * optimum(array, k) + 1e-9


@pytest.mark.parametrize("k", [2, 3, 4])
def test_the_bound_is_tight(k: int) -> None:
    """Section IV-A: k(k − 1) records of w/k and then a record of w take w(2 − 1/k), where w is possible."""
    w = 12.0
    costs = np.array([w / k] * (k * (k - 1)) + [w])
    found = makespan(greedy(np.repeat(costs[:, None], k, axis=1)), costs, k)
    assert found == pytest.approx(w * (2 - 1 / k))
    best = np.array([*(i % (k - 1) for i in range(k * (k - 1))), k - 1])
    assert makespan(best, costs, k) == pytest.approx(w)


def test_greedy_goes_by_what_each_machine_takes() -> None:
    """A machine that is twice as slow gets half as much."""
    targets = greedy(np.tile([1.0, 2.0], (300, 1)))
    assert np.bincount(targets).tolist() == [200, 100]


# the operator instances' state machine (figure 2)


def test_an_instance_starts_stabilizes_sends_and_starts_anew() -> None:
    stage = Stage(Posg(window=4), 1)
    stage.through([A, B, A])
    assert not stage.state.stabilizing[0]
    stage.through([B])
    assert stage.state.stabilizing[0]
    assert stage.state.S[0].max() == 10
    assert not stage.state.known[0]
    stage.through([A, B, A, B])
    assert not stage.state.stabilizing[0] and stage.state.known[0]
    assert stage.state.F[0].sum() == stage.state.W[0].sum() == 0
    assert stage.state.sent_F[0].sum(axis=1).tolist() == [8, 8, 8, 8]
    assert stage.state.mean[0] == 5.5


def test_an_unstable_instance_renews_its_snapshot() -> None:
    stage = Stage(Posg(window=2, tolerance=0.1), 1)
    for cost in (1.0, 1.0, 9.0, 9.0):
        stage.send(A)
        stage.finish(0, cost=cost)
    assert stage.state.stabilizing[0] and not stage.state.known[0]
    assert stage.state.S[0].max() == 5.0  # (1 + 1 + 9 + 9) / 4
    for _ in range(2):
        stage.send(A)
        stage.finish(0, cost=5.2)  # η = |5 − 30.4/6| / 5 = 0.013
    assert stage.state.known[0]


@pytest.mark.parametrize(("options", "sent"), [({}, True), ({"literal": True}, False), ({"weighted": True}, True)])
def test_a_cell_that_was_empty_in_the_snapshot_counts_in_the_literal_variant_only(options: dict[str, Any], sent: bool) -> None:
    """A appears in the second window only: the change is 10 s in its four cells, of 1 s in B's."""
    stage = Stage(Posg(window=4, **options), 1)
    stage.through([B] * 4)
    stage.through([B, B, B, A])
    assert bool(stage.state.known[0]) == sent


@pytest.mark.parametrize(("posg", "sent"), [
    (Posg(window=2), True), (Posg(window=2, tolerance=0.05), False), (Posg(window=2, literal=True), False),
    (Posg(window=2, tolerance=0.2, literal=True), False),
])  # fmt: skip
def test_the_literal_variant_tolerates_half_as_much_change(posg: Posg, sent: bool) -> None:
    """A costs 10 s, then 11.4: η = |10 − 42.8/4| / 10 = 0.07, which is within the default of 0.1 and beyond the text's 0.05."""
    stage = Stage(posg, 1)
    for cost in (10.0, 10.0, 11.4, 11.4):
        stage.send(A)
        stage.finish(0, cost=cost)
    assert bool(stage.state.known[0]) == sent


def test_matrices_that_did_not_change_are_not_sent_again() -> None:
    usual, sparing = (running(Posg(window=4, send_changed_only=only), 1) for only in (False, True))
    for stage in (usual, sparing):
        stage.through([A, B] * 12)
    assert usual.state.messages[0] > sparing.state.messages[0]
    for _ in range(8):
        sparing.send(A)
        sparing.finish(0, cost=30.0)
    assert sparing.state.sent_W[0].max() > 100  # what changed is sent


# the scheduler's state machine (figure 3)


def test_the_scheduler_takes_turns_until_it_has_all_matrices() -> None:
    stage = Stage(Posg(window=2), 2)
    assert [stage.send(A) for _ in range(8)] == [0, 1] * 4
    for _ in range(4):
        stage.finish(0)
    assert stage.state.known.tolist() == [True, False] and stage.phase == TURNS
    for _ in range(4):
        stage.finish(1)
    assert stage.phase == SEND_ALL
    assert stage.state.messages[0] == 2


def test_requests_ride_on_the_next_k_records_and_replies_make_it_run() -> None:
    stage = running(Posg(window=4))
    stage.state.first[:] = 0.0
    messages = int(stage.state.messages[0])
    assert [stage.send(A), stage.send(B)] == [0, 1]
    assert stage.phase == WAIT_ALL
    assert stage.state.load.tolist() == [10.0, 1.0]
    assert [stage.send(A) for _ in range(2)] == [1, 0]  # greedy already; (10, 1) → (10, 11) → (20, 11)
    stage.finish(0, now=100.0)
    assert stage.phase == WAIT_ALL
    assert stage.state.load.tolist() == [20.0, 11.0]  # nothing is applied before all replies are in
    stage.finish(1, now=103.0)
    assert stage.phase == RUN
    assert stage.state.load.tolist() == [20.0 + 100.0 - 10.0, 11.0 + 103.0 - 1.0]
    assert stage.state.messages[0] - messages == 2
    assert stage.state.began[0] == stage.state.tuples[0]


def test_busy_time_instead_of_the_clock() -> None:
    stage = running(Posg(window=4, clock=False))
    busy = stage.state.busy.copy()
    assert [stage.send(A), stage.send(B)] == [0, 1]
    for replica in (0, 1):
        stage.finish(replica, now=1000.0)
    assert stage.state.load.tolist() == [busy[0] + 10.0, busy[1] + 1.0]


def test_a_reply_of_an_older_epoch_is_dropped() -> None:
    stage = running(Posg(window=4, resync=0))
    stage.send(A)
    old = stage.send(B)
    for _ in range(8):  # replica 0 executes until it sends matrices again, while replica 1 has not replied yet
        if not stage.queues[0]:
            stage.state.load[0] = -1.0
            stage.send(B)
        stage.finish(0)
    assert stage.phase == SEND_ALL
    load = stage.state.load.copy()
    stage.finish(old, now=1e6)
    assert stage.phase == SEND_ALL and stage.state.load.tolist() == load.tolist()
    assert stage.state.missing.tolist() == [2, 2]


@pytest.mark.parametrize(("resync", "after"), [(-1, 8), (5, 5), (0, None)])
def test_synchronised_again_after_so_many_records(resync: int, after: int | None) -> None:
    stage = running(Posg(window=4, resync=resync))
    stage.through([A, B])
    assert stage.phase == RUN
    sent = 0
    while stage.phase == RUN and sent < 30:
        stage.send(B)  # and never done, so that no matrices come
        sent += 1
    assert sent == (30 if after is None else after)


def test_in_run_the_least_estimate_is_next() -> None:
    stage = running(Posg(window=64, resync=0), 3)
    stage.through([A, A, A])
    assert stage.phase == RUN
    stage.state.load[:] = [5.0, 3.0, 4.0]
    assert [stage.send(key) for key in (A, B, B, B)] == [1, 2, 0, 2]
    assert stage.state.load.tolist() == [6.0, 13.0, 6.0]


# the number of replicas changes


def test_the_sketches_of_replicas_that_remain_are_kept() -> None:
    posg = Posg(window=4)
    before = running(posg).state
    grown = posg.online(3, 0, before).state
    assert grown.phase[0] == TURNS
    assert grown.known.tolist() == [True, True, False]
    assert np.array_equal(grown.sent_W[:2], before.sent_W)
    assert grown.messages[0] == before.messages[0]
    fewer = posg.online(1, 0, before).state
    assert fewer.phase[0] == SEND_ALL and fewer.known.tolist() == [True]
    fewer.sent_W[:] = 0
    assert before.sent_W.max() > 0  # a copy


class Counted(NamedTuple):
    """POSG, and how many records each replica got in RUN."""

    machine: Machine
    got: npt.NDArray[np.int64]


@kernel
def counted_choose(state: Counted, key: int, now: float, free: Floats, queue: npt.NDArray[np.int64]) -> int:
    target = choose(state.machine, key, now, free, queue)
    if state.machine.phase[0] == RUN:
        state.got[target] += 1
    return target


@kernel
def counted_completed(state: Counted, target: int, key: int, cost: float, now: float) -> None:
    completed(state.machine, target, key, cost, now)


class Counting:
    """POSG in the simulator, with the state after each change of the number of replicas."""

    def __init__(self, posg: Posg) -> None:
        self.posg, self.states = posg, list[Counted]()

    def online(self, k: int, seed: int, before: Counted | None = None) -> Online:
        made = self.posg.online(k, seed, None if before is None else before.machine)
        self.states.append(Counted(made.state, np.zeros(k, dtype=np.int64)))
        return Online(self.states[-1], counted_choose, counted_completed)


@pytest.mark.long
@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize(("script", "degrees"), [("price 0:2 60:3", (2, 3)), ("price 0:4 60:3 90:5", (4, 3, 5))])
def test_after_a_change_all_replicas_get_their_share(script: str, degrees: tuple[int, ...], clock: bool) -> None:
    """C of the old replicas must not start ahead because of their past: the new replica would get almost all records."""
    counting = Counting(Posg(window=64, clock=clock))
    model = Model(
        "shop",
        sources=(Source("orders", rate=90.0, items=Zipf(50, 0.5)),),
        operators=(Operator("price", ("orders",), ByItem(np.linspace(0.012, 0.028, 50)), replicas=degrees[0]),),
    )
    simulate(model, grouping=counting, policy="scripted", settings={"script": script}, records=12_000)
    assert [len(state.got) for state in counting.states] == list(degrees)
    for state in counting.states:
        assert state.got.sum() > 1_000
        assert np.abs(state.got / state.got.mean() - 1).max() < 0.2


def test_a_change_keeps_the_mean_of_all_records() -> None:
    posg = Posg(window=4)
    before = running(posg).state
    state = posg.online(1, 0, before).state
    assert state.busy.tolist() == [0.0] and state.first.tolist() == [np.inf]
    for _ in range(8):
        completed(state, 0, np.uint64(A), 4.0, 100.0)  # type: ignore[arg-type]
    assert state.mean[0] == pytest.approx((before.spent[0] + 32.0) / (before.done[0] + 8))
    assert state.busy.tolist() == [32.0] and state.first.tolist() == [96.0]


def test_a_replica_that_is_gone_may_still_report() -> None:
    state = Posg(window=4).online(1, 0, running(Posg(window=4)).state).state
    before = state.done.copy()
    completed(state, 1, np.uint64(A), 1.0, 0.0)  # type: ignore[arg-type]
    assert state.done.tolist() == before.tolist()


# micro-batches


def reports(posg: Posg, batches: int, k: int, speeds: Floats, rng: np.random.Generator) -> Any:
    """Learn from batches of 200 records of ten keys with costs of 1 to 10 s."""
    state = posg.initial()
    for batch in range(batches):
        keys = rng.integers(0, 10, 200).astype(np.uint64)
        targets = posg.route(Share(200, k, 0, batch, lambda keys=keys: keys), posg.table(state, k))  # type: ignore[misc]
        seconds = (keys + np.uint64(1)) * speeds[targets]
        state = posg.learn(state, k, [TaskCosts.of(i, keys[targets == i], seconds[targets == i]) for i in range(k)])
    return state


def test_it_learns_from_batches_and_balances() -> None:
    k, speeds, rng = 4, np.array([1.0, 1.0, 1.5, 0.5]), np.random.default_rng(5)
    posg = Posg(window=100)
    assert posg.table(reports(posg, 2, k, speeds, rng), k) == {}
    table = posg.table(reports(posg, 12, k, speeds, rng), k)
    keys = rng.integers(0, 10, 2000).astype(np.uint64)
    loads = [
        np.bincount(targets, (keys + np.uint64(1)) * speeds[targets], k)
        for targets in (each.route(Share(2000, k, 3, 6, lambda: keys), table) for each in (posg, RoundRobin()))
    ]
    assert loads[0].max() / loads[0].mean() < 1.02
    assert loads[1].max() / loads[1].mean() > 1.3


def test_estimates_are_each_replicas_own() -> None:
    k, speeds = 2, np.array([1.0, 3.0])
    posg = Posg(window=100)
    table = posg.table(reports(posg, 12, k, speeds, np.random.default_rng(6)), k)
    keys = np.arange(10, dtype=np.uint64)
    places = count_min.cells(count_min.row_hashes(4, 0), 55, keys)
    estimates = count_min.estimate(table["F"], table["W"], places, table["mean"])
    assert np.allclose(estimates[:, 1] / estimates[:, 0], 3.0, rtol=0.05)


def test_ties_rotate_with_task_and_batch() -> None:
    posg = Posg(window=1)
    state, keys = posg.initial(), np.array([A], dtype=np.uint64)
    for _ in range(2):
        state = posg.learn(state, 4, [TaskCosts.of(i, keys, np.array([1.0])) for i in range(4)])
    table = posg.table(state, 4)
    firsts = [posg.route(Share(1, 4, origin, batch, lambda: keys), table)[0] for origin in (0, 1) for batch in (0, 1, 2)]
    assert firsts == [0, 1, 2, 1, 2, 3]


def test_another_width_takes_turns_until_the_new_ones_are_known() -> None:
    posg, keys = Posg(window=1), np.array([A], dtype=np.uint64)
    state = posg.initial()

    def learned(width: int) -> Any:
        return posg.learn(state, width, [TaskCosts.of(i, keys, np.array([1.0])) for i in range(width)])

    for _ in range(2):
        state = learned(2)
    assert posg.table(state, 2) and not posg.table(state, 3) and posg.table(state, 1)
    state = learned(3)
    assert not posg.table(state, 3)
    state = learned(3)
    assert posg.table(state, 3)
    assert posg.route(Share(4, width=2, hashes=lambda: np.repeat(keys, 4)), posg.table(state, 3)).tolist() == [0, 1, 0, 1]


def test_what_cannot_be_a_cost_is_not_learned() -> None:
    posg, keys = Posg(window=2), np.arange(5, dtype=np.uint64)
    seconds = np.array([np.nan, np.inf, -1.0, 1e308, 2.0])
    state = posg.learn(posg.initial(), 1, [TaskCosts(0, keys, np.ones(5, dtype=np.int64), seconds)])
    assert state["F"].sum(axis=2).tolist() == [[1, 1, 1, 1]]
    assert state["W"].max() == 2.0


def test_other_matrices_from_before_a_restart_are_left() -> None:
    old, new = Posg(window=1), Posg(window=1, epsilon=0.5)
    costs = [TaskCosts.of(0, np.array([A], dtype=np.uint64), np.array([1.0]))]
    state = old.learn(old.learn(old.initial(), 1, costs), 1, costs)
    assert new.table(state, 1) == {}
    assert new.learn(state, 1, costs)["F"].shape[1:] == new.shape
    lacking = {name: part for name, part in state.items() if name != "spent"}
    assert old.learn(lacking, 1, costs)["done"].tolist() == [1]
