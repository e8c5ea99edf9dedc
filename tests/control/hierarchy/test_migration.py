"""Actions beyond degrees, from a manager's proposal to what carries it out: replicas that move, executors that are replaced."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from control.rig import Rig, rig
from springtide.control.fleet import Limits
from springtide.control.hierarchy import Hierarchy
from springtide.control.memory import MemoryCluster
from springtide.control.plane.served import Served
from springtide.control.plane.spec import Spec
from springtide.control.planner import SlotLimit
from springtide.control.switch import FixedMode, Mode
from springtide.model.plan import Plan, Request
from springtide.model.rate import Rate, constant
from springtide.model.report import BatchReport, Latency
from springtide.model.request import AddExecutors, Migrate, RemoveExecutor, Scale, Verdict
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, ReplicaSnapshot, Snapshot
from springtide.policy.grant import GrantPolicy
from springtide.policy.grant.all import All
from springtide.policy.grant.budget import Budget
from springtide.policy.grant.token_bucket import TokenBucket
from springtide.policy.guard.bounds import Bounds as BoundsGuard
from springtide.policy.guard.guarded import Guarded
from springtide.policy.guard.max_step import MaxStep
from springtide.policy.guard.quota import Quota
from springtide.policy.place import Neighbourhood, NodeReport
from springtide.policy.place.relief import relief
from springtide.policy.scale import ScalePolicy, State
from springtide.policy.scale.scripted import Scripted
from springtide.policy.scale.static import Static
from springtide.sim import Cluster, Constant, Model, Node, Operator, Outcome, Reconfiguration, Source, simulate

PAUSE = Reconfiguration("pause", 0.5)


def crowded(nodes: tuple[int, ...] = (0, 0, 0), count: int = 2) -> Model:
    """30 records/s of 50 ms at three replicas, all on the first of the nodes, which have two cores each."""
    work = Operator("work", ("source",), Constant(0.05), replicas=len(nodes), nodes=nodes)
    return Model("crowded", (Source("source", 30.0),), (work,), Cluster((Node(cores=2),) * count))


def managed(policy: ScalePolicy | None = None, **options: Any) -> Hierarchy:
    usual = {"operator_period_s": 0.0, "application_period_s": 0.0, "settle_s": 0.0, "migration": True}
    return Hierarchy(policy or Static(degree=3), **{**usual, **options})


def run(model: Model, policy: Any, **options: Any) -> Outcome:
    usual = {"grouping": "round-robin", "duration": 60.0, "interval": 5.0, "reconfiguration": PAUSE, "max_slots": 10}
    return simulate(model, policy=policy, **{**usual, **options})


def homes(snapshot: Snapshot, operator: str = "work") -> list[str]:
    return [replica.node for replica in snapshot[operator].replicas]


def mean_ms(snapshot: Snapshot) -> float:
    assert snapshot.latency is not None
    return snapshot.latency.mean


# Replicas, in the simulator


def test_a_replica_moves_away_from_an_overloaded_node_and_the_slow_down_ends() -> None:
    """Three replicas on two cores: a record takes 50 · 3/2 = 75 ms, and 30/s · 75 ms are 2.25 cores of 2. One moves: 50 ms."""
    outcome = run(crowded(), managed())
    first, last = outcome.snapshots[0], outcome.snapshots[-1]
    assert homes(first) == ["node0"] * 3
    assert [(node.name, node.cores, node.used) for node in first.nodes] == [("node0", 2, 2.0), ("node1", 2, 0.0)]
    assert mean_ms(first) == pytest.approx(75.0)
    assert sorted(homes(last)) == ["node0", "node0", "node1"]
    # 10 records/s · 50 ms at each: half a core
    assert [node.used for node in last.nodes] == pytest.approx([1.0, 0.5])
    assert [replica.utilisation for replica in last["work"].replicas] == pytest.approx([0.5] * 3)
    assert mean_ms(last) == pytest.approx(50.0)
    assert outcome.summary["reconfigurations"] == 1
    assert outcome.summary["downtime_ratio"] == pytest.approx(0.5 / 60)
    (entry,) = outcome.decisions
    actions: Any = entry["actions"]
    (action,) = actions
    assert (action["kind"], action["operator"], action["origin"], action["node"]) == ("migrate", "work", "node0", "node1")
    assert "100% of node0 in use, above 80%" in str(entry["reason"])


def test_without_migration_it_stays_as_it_is() -> None:
    outcome = run(crowded(), managed(migration=False))
    assert homes(outcome.snapshots[-1]) == ["node0"] * 3
    assert mean_ms(outcome.snapshots[-1]) == pytest.approx(75.0)
    assert outcome.decisions == ()


def test_a_token_pays_for_a_migration() -> None:
    """A target of 80 ms: 75 ms are above 0.9 of it, so that after 20 s there is a token."""
    found = run(crowded(), managed(grant=TokenBucket(period=20.0)), target=0.08)
    assert [homes(snapshot).count("node1") for snapshot in found.snapshots[:5]] == [0, 0, 0, 0, 1]
    assert "granted: H token 1 of 1" in str(found.decisions[0]["reason"])
    never = run(crowded(), managed(grant=TokenBucket(period=20.0)), target=1.0)
    assert never.decisions == ()


@pytest.mark.parametrize("guard", [BoundsGuard(), Quota(), MaxStep()])
def test_guards_on_degrees_let_moves_pass(guard: Any) -> None:
    outcome = run(crowded(), Guarded(managed(), (guard,)))
    assert sorted(homes(outcome.snapshots[-1])) == ["node0", "node0", "node1"]


def test_a_move_without_a_price_takes_no_time() -> None:
    outcome = run(crowded(), managed(), reconfiguration=Reconfiguration())
    assert outcome.summary["downtime_ratio"] == 0
    assert mean_ms(outcome.snapshots[1]) == pytest.approx(50.0 + 3 * 25 / 151, abs=0.01)  # three were in service


def test_what_waits_is_served_at_the_new_speed_when_the_pause_is_over() -> None:
    """60/s for 5 s, of which 3 · 1/75 ms = 40/s are served: 100 wait. From 5.5 s on, 60/s are: all are done at 7.2 s, not 8."""
    outcome = run(crowded(), At(((5.0, moved(0, "node1")),)), trace=Rate((0.0,), (60.0,), 5.0), duration=7.4)
    assert outcome.summary["rows_in"] == outcome.summary["rows_out"] == 300


@dataclass(frozen=True)
class At:
    """Asks for what is said at a time."""

    name: ClassVar[str] = "at"

    wanted: tuple[tuple[float, Request], ...]

    def initial(self) -> State:
        return {}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        return state, tuple(request for at, request in self.wanted if at == snapshot.at)


def placed(before: int, after: int, *nodes: str) -> Request:
    return Request("work", after, "asked", 0.0, Scale("work", before, after, nodes))


def moved(replica: int, node: str, operator: str = "work") -> Request:
    return Request(action=Migrate(operator, replica, "node0", node), reason="asked")


@pytest.mark.parametrize("starting_s", [0.0, 7.0])
def test_new_replicas_come_where_they_were_granted(starting_s: float) -> None:
    """By itself the simulator would put them on node1, which has most cores to spare."""
    wanted = (5.0, placed(1, 2, "node2")), (10.0, placed(2, 4, "node0", "node2"))
    outcome = run(crowded((0,), count=3), At(wanted), starting=starting_s)
    assert homes(outcome.snapshots[-1]) == ["node0", "node2", "node0", "node2"]


def test_those_that_are_told_go() -> None:
    """Of three the one on node1 goes, then one that nobody knows, so that it is any."""
    wanted = (5.0, placed(3, 2, "node1")), (10.0, placed(2, 1, "elsewhere"))
    outcome = run(crowded((0, 1, 2), count=3), At(wanted))
    assert [sorted(homes(snapshot)) for snapshot in outcome.snapshots[:2]] == [
        ["node0", "node1", "node2"], ["node0", "node2"],
    ]  # fmt: skip
    assert len(homes(outcome.snapshots[-1])) == 1


def test_what_was_withdrawn_before_it_came_has_no_place() -> None:
    """A second replica is granted a place and withdrawn before it comes; the next second one is another."""
    wanted = (5.0, placed(1, 2, "node2")), (10.0, Request("work", 1, "no")), (15.0, Request("work", 2, "asked"))
    outcome = run(crowded((0,), count=3), At(wanted), starting=7.0)
    assert homes(outcome.snapshots[-1]) == ["node0", "node0"]  # as the model says


@pytest.mark.parametrize("request_", [moved(9, "node1"), moved(0, "nowhere"), moved(0, "node1", "nobody")])
def test_moves_that_cannot_be_change_nothing(request_: Request) -> None:
    outcome = run(crowded((0,)), At(((5.0, request_),)))
    assert homes(outcome.snapshots[-1]) == ["node0"]
    assert outcome.summary["reconfigurations"] == 0


def test_a_node_without_a_limit_has_room() -> None:
    model = replace(crowded((0,)), cluster=Cluster((Node(), Node(cores=0.5))))
    last = run(model, managed(Static(degree=1))).snapshots[-1]
    assert [node.cores for node in last.nodes] == [1_000_000.0, 0.5]
    json.dumps(last.to_json(), allow_nan=False)


def test_replicas_on_slow_nodes_are_busier() -> None:
    """Two on one core and one on two: 3 · 10/s at 40, 40 and 20 ms; and none is busy for longer than the interval."""
    work = Operator("work", ("source",), Constant(0.02), replicas=3, nodes=(0, 0, 1))
    model = Model("two", (Source("source", 30.0),), (work,), Cluster((Node(cores=1), Node(cores=2))))
    last = run(model, managed(migration=False)).snapshots[-1]
    assert [one.utilisation for one in last["work"].replicas] == pytest.approx([0.4, 0.4, 0.2])
    assert [node.used for node in last.nodes] == pytest.approx([0.8, 0.2])
    full = run(model.with_rate(constant(120.0)), managed(migration=False)).snapshots[-1]
    # 40/s at each: 1.6, 1.6 and 0.8 of a core are wanted
    assert [one.utilisation for one in full["work"].replicas] == pytest.approx([1.0, 1.0, 0.8], abs=0.02)
    assert [node.used for node in full.nodes] == pytest.approx([1.0, 0.8], abs=0.02)


@given(some.lists(some.tuples(some.integers(0, 4), some.integers(-1, 3)), max_size=6), some.integers(1, 4))
def test_whatever_moves_every_replica_has_one_place_and_none_is_lost(moves: list[tuple[int, int]], degree: int) -> None:
    requests = tuple((5.0 * (i + 1), moved(replica, f"node{node}")) for i, (replica, node) in enumerate(moves))
    outcome = run(crowded((0,) * degree, count=3), At(requests), duration=40.0)
    expected = ["node0"] * degree
    for replica, node in moves:
        if replica < degree and 0 <= node < 3:
            expected[replica] = f"node{node}"
    assert homes(outcome.snapshots[-1]) == expected
    summary = outcome.summary
    assert summary["rows_in"] == summary["rows_out"] + summary["rows_there"]


# As values


@pytest.mark.parametrize(
    "request_",
    [
        Request("work", 2, "why"),
        placed(1, 2, "n1"),
        moved(0, "n1"),
        Request(action=RemoveExecutor("7", another=True), reason="", score=1.0),
    ],
)
def test_requests_are_json(request_: Request) -> None:
    again = Request.from_json(json.loads(json.dumps(request_.to_json())))
    assert again == request_
    assert again.checked(("work",)) == request_


@pytest.mark.parametrize(
    "given_",
    [
        ("", 0, "nothing"), ("", 2, "", 0.0, Migrate("work", 0, "a", "b")), ("", 0, "", 0.0, Scale("work", 1, 2)),
        ("work", 2, "", 0.0, RemoveExecutor("7")), ("", 0, "", 0.0, AddExecutors(3)),
    ],
)  # fmt: skip
def test_nonsense_is_no_request(given_: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="is no request"):
        Request(*given_).checked(("work",))


def test_a_plan_is_json_also_one_from_before_there_were_actions() -> None:
    plan = Plan({"work": 3}, 3, {"work": 3}, actions=(Scale("work", 2, 3, ("n1",)), Migrate("work", 0, "n1", "n2")))
    document = json.loads(json.dumps(plan.to_json()))
    assert Plan.from_json(document) == plan
    del document["actions"]
    assert Plan.from_json(document) == replace(plan, actions=())


def test_a_move_passes_the_control_process() -> None:
    """The line that the process answers is a request again."""
    served = Served()
    spec = Spec("static", {"degree": "3"}, operators=("work",), grant="all", managers="migration=1")
    served.answer({"message": "begin", "spec": spec.to_json(), "state": None, "rng": None})
    shown = on_hosts(NodeSnapshot("a", 2, 1.9, ("3", "1")), NodeSnapshot("b", 2, 0.2, ("2",)))
    document = json.loads(json.dumps(shown.to_json()))
    answer = json.loads(served.answer({"message": "decide", "number": 1, "snapshot": document}))
    found = [Request.from_json(one).action for one in answer["requests"]]
    assert RemoveExecutor("3", another=True) in found


# Executors


def on_hosts(*nodes: NodeSnapshot, **measured: Any) -> Snapshot:
    work = OperatorSnapshot("work", 3, 3, 100, 100, 0, 1.0, 10.0, 0.1, 0, 5.0, served=100)
    usual = {"rate": 10.0, "backlog": 0, "latency": Latency(300, 300, 300, 300), "target_s": 0.25, "slots": 9}
    return Snapshot(30.0, 30.0, Plan({"work": 3}, 3, {"work": 3}), (work,), (), nodes=nodes, **{**usual, **measured})


def proposed(*nodes: NodeSnapshot, **options: Any) -> list[Request]:
    policy = managed(**options)
    _, requests = policy.decide(policy.initial(), on_hosts(*nodes), np.random.default_rng(0))
    return list(requests)


def test_an_overloaded_host_sends_the_executor_elsewhere_that_is_missed_least() -> None:
    (request,) = proposed(NodeSnapshot("a", 2, 1.8, ("3", "1")), NodeSnapshot("b", 2, 0.2, ("2",)))
    assert request.action == RemoveExecutor("3", another=True)
    assert request.score == pytest.approx(0.5)  # (0.9 − 0.8)/(1 − 0.8)
    assert request.reason == (
        "90% of the cores of a in use, above 80%: executor 3 goes, another comes elsewhere; granted: no conflict"
    )


def test_memory_counts_too() -> None:
    (request,) = proposed(NodeSnapshot("a", 2, 0.1, ("1",), 0.95), NodeSnapshot("b", 2, None, ("2",), 0.5))
    assert request.action == RemoveExecutor("1", another=True)
    assert request.reason.startswith("95% of the memory of a in use")


@pytest.mark.parametrize(
    "nodes",
    [
        (NodeSnapshot("a", 2, 2.0, ("1", "2")),),  # one host only
        (NodeSnapshot("a", 2, 2.0, ("1",)), NodeSnapshot("b", 2, 1.9, ("2",))),  # both full
        (NodeSnapshot("a", 2, 2.0, ("1",)), NodeSnapshot("b", 2, None, ("2",))),  # nothing known of the other
        (NodeSnapshot("a", 2, 1.6, ("1",)), NodeSnapshot("b", 2, 0.0, ("2",))),  # 80 % are not above 80 %
        (NodeSnapshot("a", 2, 2.0, ("1",)), NodeSnapshot("b", 2, 0.0, ("2",), 0.9)),  # the other's memory is full
    ],
)
def test_without_need_or_anywhere_to_go_nothing_is_proposed(nodes: tuple[NodeSnapshot, ...]) -> None:
    assert proposed(*nodes) == []


def test_executors_stay_where_migration_is_off_or_the_bound_is_all_of_it() -> None:
    nodes = NodeSnapshot("a", 2, 9.0, ("1",)), NodeSnapshot("b", 2, 0.0, ("2",))
    assert proposed(*nodes, migration=False) == []
    assert proposed(*nodes, migrate_above=1.0) == []


shares = some.none() | some.floats(0, 2)


@given(some.lists(some.tuples(shares, shares), min_size=1, max_size=5), some.floats(0, 1))
def test_relief_is_from_a_full_host_while_another_is_not(hosts: list[tuple[float | None, float | None]], above: float) -> None:
    places = tuple(NodeReport(f"h{i}", 0, cpu, (str(i),), memory) for i, (cpu, memory) in enumerate(hosts))
    fullest = [max((share for share in host if share is not None), default=None) for host in hosts]
    for place, full in zip(places, fullest, strict=True):
        found = relief(place, Neighbourhood(places, {}), above)
        others = [other for at, other in zip(places, fullest, strict=True) if at is not place]
        needed = full is not None and min(1.0, full) > above
        assert (found is not None) == (needed and any(other is not None and min(1.0, other) <= above for other in others))
        if found is not None:
            assert found[0] == RemoveExecutor(place.executors[0], another=True)
            assert 0 < found[1] <= 1


def test_what_waited_for_the_application_too_long_is_outdated() -> None:
    policy = managed(application_period_s=30.0)
    waiting = [
        Request(manager="node a", action=RemoveExecutor("9", another=True), score=0.5, reason="full").to_json(),
        Request(manager="node node0", action=Migrate("work", 0, "node0", "node1"), score=0.5, reason="full").to_json(),
    ]
    shown = on_hosts(NodeSnapshot("a", 2, 0.2, ("1",)))
    work = replace(shown["work"], replicas=(ReplicaSnapshot("node1"), ReplicaSnapshot("node0")))
    state, requests = policy.decide(
        {**policy.initial(), "pending": waiting}, replace(shown, operators=(work,)), np.random.default_rng(0)
    )
    assert requests == ()
    assert {one["reason"] for one in state["verdicts"]} == {
        "outdated: there is no executor '9'", "outdated: replica 0 of work is not on node0 any more",
    }  # fmt: skip


def test_a_budget_of_executors_lets_operators_scale_where_their_number_is_known() -> None:
    """Two executors for 0.5 are all of 1.0; a replica costs nothing, so that it may come."""
    budget = Budget(limit=1.0, replica=0.0, executor=0.5)
    nodes = NodeSnapshot("a", 1, 0.1, ("1",)), NodeSnapshot("b", 1, 0.1, ("2",))
    (request,) = proposed(*nodes, policy=Static(degree=4), grant=budget)
    assert request.degree == 4
    assert proposed(policy=Static(degree=4), grant=budget) == []


# In the loop


@dataclass
class World:
    """The clock, what is measured, and the record of a loop with executors."""

    cluster: MemoryCluster
    loop: Rig
    decisions: list[Any]
    shown: Snapshot
    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def add(self, report: BatchReport) -> None: ...

    def batch(self, report: BatchReport) -> None: ...

    def decision(self, entry: Any) -> None:
        self.decisions.append(entry)

    def apply(self, plan: Plan) -> None: ...

    def snapshot(self, at: float, interval_s: float, plan: Plan) -> Snapshot:
        degree = plan.degrees["work"]
        work = replace(self.shown["work"], degree=degree, busy_s=float(degree) * interval_s)
        return replace(self.shown, at=at, interval_s=interval_s, plan=plan, operators=(work,), batches=((10, 0.5),))

    def cycles(self, count: int, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.now += seconds
            self.loop.cycle()


def world(policy: Any, grant: GrantPolicy | None = None, begin: int = 2, hosts: Sequence[str] = "ab", **options: Any) -> World:
    made = World.__new__(World)
    made.now, made.decisions, made.shown = 0.0, [], on_hosts()
    made.loop = rig(
        crowded().topology, policy, bounds=SlotLimit(8), read_limit=None, trigger_s=0.0, interval_s=1.0, clock=made.clock,
        actuators=[made], journal=made, monitor=made, target_s=0.25, grant=grant, **options,
    )  # fmt: skip
    made.cluster = MemoryCluster(made.clock, 4.0, hosts=tuple(hosts))
    for _ in range(begin):
        made.cluster.add()
    made.loop.employ(made.cluster, Limits(1, 8), elastic=True)
    return made


def test_an_executor_that_was_granted_to_be_replaced_goes_and_another_comes() -> None:
    request = Request(action=RemoveExecutor("0", another=True), reason="a is full", score=0.5)
    found = world(At(((0.0, Request("work", 2, "2")), (3.0, request))))
    found.cycles(3)
    assert found.cluster.released == ["0"]
    found.cycles(5)
    assert found.loop.fleet is not None
    assert found.loop.fleet.slots == 2
    assert set(found.cluster.asked) == {2}
    assert [entry["executors"] for entry in found.decisions if "executors" in entry] == [
        {"from": 2, "to": 2, "released": ["0"]}
    ]


def test_a_plan_has_actions_only_for_replicas_with_places() -> None:
    """A manager requests a Scale without nodes: the plan's degrees say it all."""
    found = world(managed(Scripted("work 0:2 2:4")))
    found.cycles(4)
    plans = [entry for entry in found.decisions if "degrees" in entry]
    assert plans[-1]["degrees"] == {"work": 4}
    assert not any(entry["actions"] for entry in plans)


def test_a_dry_run_tells_once_what_it_would_move() -> None:
    request = Request(action=RemoveExecutor("0", another=True), reason="a is full", score=0.5)
    found = world(At(tuple((float(at), request) for at in range(9))), switch=FixedMode(Mode.DRY_RUN))
    found.cycles(6)
    assert found.cluster.released == []
    assert found.cluster.asked == []
    (entry,) = [entry for entry in found.decisions if "dry_run" in entry]
    assert entry == {"dry_run": True, "degrees": {}, "relieved": ["executor 0"], "at_s": 1.0, "reason": "a is full"}


def test_a_budget_limits_the_executors_and_says_so() -> None:
    """Six are wanted and two there; four for 0.25 are 1.0."""
    found = world(At(((0.0, Request("work", 6, "6")),)), Budget(limit=1.0, replica=0.0, executor=0.25))
    found.cycles(8)
    assert found.cluster.asked == [4]
    (refused,) = [entry for entry in found.decisions if "refused" in entry]
    assert refused["refused"]["action"] == {"kind": "add-executors", "count": 2}
    assert refused["reason"] == "over the budget: 0.25 on top of 1 an hour is more than 1"
    free = world(At(((0.0, Request("work", 6, "6")),)))
    free.cycles(8)
    assert free.cluster.asked == [6]


def test_tokens_pay_for_executors() -> None:
    """300 ms are above 0.9 · 250 ms: every 5 s a token comes, for all that are wanted at once."""
    found = world(At(((0.0, Request("work", 6, "6")),)), TokenBucket(period=5.0))
    found.cycles(4)
    assert found.cluster.asked == []
    found.cycles(1)
    assert found.cluster.asked == [6]
    calm = world(At(((0.0, Request("work", 6, "6")),)), TokenBucket(period=5.0))
    calm.shown = replace(calm.shown, latency=Latency(200, 200, 200, 200))
    calm.cycles(20)
    assert calm.cluster.asked == []


def test_the_response_time_holds_until_the_next_batch() -> None:
    found = world(At(((0.0, Request("work", 6, "6")),)), TokenBucket(period=5.0))
    found.cycles(1)
    found.shown = replace(found.shown, latency=None)
    found.cycles(4)
    assert found.cluster.asked == [6]


@dataclass(frozen=True)
class Broken:
    """A granting policy that raises, or owes verdicts."""

    name: ClassVar[str] = "broken"

    raises: bool

    def initial(self) -> State:
        return {}

    def decide(self, state: State, proposals: Sequence[Request], view: Any) -> tuple[State, tuple[Verdict, ...]]:
        if self.raises or not proposals:
            raise RuntimeError("no")
        return state, ()


@pytest.mark.parametrize("raises", [True, False])
def test_a_granting_policy_that_fails_grants_no_executors_and_is_told_of_once(
    raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = world(At(((0.0, Request("work", 6, "6")),)), Broken(raises))
    found.cycles(5)
    assert found.cluster.asked == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "grant broken failed; the executors stay"
    ]


def test_all_grants_what_would_be_done_without_it() -> None:
    """A wave up and down: the same asked for and let go."""
    wave = tuple((float(at), Request("work", degree, "wave")) for at, degree in enumerate([2, 6, 6, 3, 1, 1, 4, 1]))
    both = []
    for grant in (None, All()):
        found = world(At(wave), grant)
        found.cycles(40)
        both.append((found.cluster.asked, found.cluster.released))
    assert both[0] == both[1]
    assert len(both[0][1]) > 0
