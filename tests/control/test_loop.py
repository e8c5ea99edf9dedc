"""The control flow on a stepped clock: what is measured, what is granted, and that no policy can stop a batch."""

from __future__ import annotations

import json
import logging
import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

import springtide as st
from control.rig import Memory, Rig, Steps, counted, line, loop_of, rig, same
from springtide.control import planner
from springtide.control.fleet import Limits
from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.control.memory import MemoryCluster
from springtide.control.monitor import Monitor
from springtide.control.planner import SlotLimit
from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport, TaskReport
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy.batch.read_limit import ReadLimit
from springtide.policy.batch.shedding import Shedding
from springtide.policy.grant.token_bucket import TokenBucket
from springtide.policy.guard.cooldown import Cooldown
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale.scripted import Scripted
from springtide.policy.scale.static import Static
from springtide.record.folder import RunFolder
from springtide.running.journal import FolderJournal


def diamond() -> Topology:
    """Two branches in the same tasks, united again."""
    source = st.source.generate(counted, rate=100)
    branches = [source.map(same, name=name) for name in ("left", "right")]
    united = branches[0].union(branches[1]).map(same, name="after")
    return united.to(st.sink.discard(), name="sink").named("diamond")


def task(operator: str, rows_in: int, busy_s: float | None, task: int = 0, start: float = 0.0, end: float = 1.0) -> TaskReport:
    return TaskReport(operator, task, rows_in, rows_in, 0, busy_s, start, end)


def batch(
    rows: int, *tasks: TaskReport, number: int = 0, seconds: float = 0.5, backlog: int | None = None,
    created: tuple[tuple[float, float], ...] = (), ended: float | None = None,
) -> BatchReport:  # fmt: skip
    started = 100.0 if ended is None else ended - seconds
    return BatchReport(
        number, 1, Plan({}, 1, {}), started, started + seconds, rows, rows, 0, tasks, {"sink": rows}, created, backlog
    )


def cycle(loop: Rig, clock: Steps, seconds: float = 1.0) -> None:
    clock.now += seconds
    loop.cycle()


# Monitor


def test_a_snapshot_adds_up_what_the_tasks_of_all_batches_did() -> None:
    monitor = Monitor(line())
    monitor.add(batch(100, task("first", 100, 0.6, start=10.0, end=10.2), seconds=0.3, backlog=70))
    monitor.add(
        batch(
            60, task("first", 40, 0.2, 0, 11.0, 11.1), task("first", 20, 0.4, 1, 11.0, 11.4),
            task("second", 30, 0.1, 0, 12.0, 12.1), seconds=0.5, backlog=50,
        )
    )  # fmt: skip
    seen = monitor.snapshot(7.0, 2.0, Plan({"first": 3, "second": 1, "sink": 1}, 5, {"first": 4}))
    assert (seen.at, seen.interval_s, seen.rate, seen.backlog) == (7.0, 2.0, 80.0, 50)
    assert [(rows, round(seconds, 6)) for rows, seconds in seen.batches] == [(100, 0.3), (60, 0.5)]
    first = seen["first"]
    assert (first.rows_in, first.degree, first.width) == (160, 3, 4)
    assert first.rate == 80.0
    assert first.utilisation == pytest.approx(1.2 / (3 * 2.0))
    assert first.latency_ms == pytest.approx(1000 * (0.2 + 0.4) / 2)
    assert seen["second"].backlog == round(50 * 30 / 160)


def test_what_was_not_measured_is_none_and_never_zero() -> None:
    """Without a batch, and for operators that run in the JVM: a zero would scale a busy job down."""
    monitor = Monitor(line())
    plan = Plan({}, 1, {})
    idle = monitor.snapshot(1.0, 1.0, plan)
    assert (idle.rate, idle.backlog, idle.latency, idle.batches) == (None, None, None, ())
    for operator in idle.operators:
        assert (operator.rate, operator.utilisation, operator.backlog, operator.latency_ms) == (None,) * 4
    monitor.add(batch(10, task("first", 10, None)))
    seen = monitor.snapshot(2.0, 1.0, plan)
    assert seen["first"].utilisation is None
    assert seen["first"].rate == 10.0
    assert (seen.latency, seen.backlog, seen["first"].backlog) == (None, None, None)
    monitor.add(batch(10, task("first", 10, 0.1)))
    assert monitor.snapshot(2.0, 0.0, plan).rate is None, "nothing can be told of no time"


def test_latency_is_that_of_records_and_a_snapshot_takes_each_batch_once() -> None:
    monitor = Monitor(line())
    monitor.add(batch(4, seconds=0.5, created=((99.5, 3.0), (98.5, 1.0))))
    seen = monitor.snapshot(1.0, 1.0, Plan({}, 1, {}))
    assert seen.latency is not None
    assert (seen.latency.mean, seen.latency.p50, seen.latency.p99) == (1250.0, 1000.0, 2000.0)
    assert monitor.snapshot(2.0, 1.0, Plan({}, 1, {})).batches == ()


# Planner


def test_degrees_are_cut_to_the_limits_and_of_too_many_the_largest_give() -> None:
    """first 5, second 5 → 3 (its limit), sink 2: 10 of 8 slots, so first gives two."""
    granted = planner.grant(line(), {"first": 5, "second": 5, "sink": 2}, SlotLimit(8))
    assert granted == {"first": 3, "second": 3, "sink": 2}
    assert planner.slots(granted, SlotLimit(8)) == 8


def test_of_equally_large_degrees_that_with_the_least_work_gives_first() -> None:
    """``static`` with a degree of 2 on two slots is to use both, and not to halve the one that works."""
    wanted, worked = {"first": 2, "second": 2, "sink": 2}, {"first": 0.9, "second": 0.02, "sink": 0.0}
    assert planner.grant(line(), wanted, SlotLimit(2), worked) == {"first": 2, "second": 1, "sink": 1}
    assert planner.slots({"first": 2, "second": 1, "sink": 1}, SlotLimit(2), worked) == 2


def test_operators_that_are_more_than_the_slots_share_them() -> None:
    granted = planner.grant(line(), {"first": 9, "second": 0, "sink": -4}, SlotLimit(2))
    assert granted == {"first": 1, "second": 1, "sink": 1}
    assert planner.slots(granted, SlotLimit(2)) == 2
    assert planner.grant(line(), {}, SlotLimit(8)) == {"first": 1, "second": 1, "sink": 1}


@pytest.mark.parametrize(("shards", "parallelism", "most"), [(2, None, 2), (2, 3, 2), (64, 3, 3), (64, None, 5)])
def test_a_stateful_operator_has_no_more_replicas_than_shards(shards: int, parallelism: int | None, most: int) -> None:
    """Five slots; what count cannot use, the sink has."""
    stream = st.source.generate(counted, rate=100).key_by("n").count(name="count", shards=shards, parallelism=parallelism)
    topology = stream.to(st.sink.discard(), name="sink").named("counts")
    assert planner.grant(topology, {"count": 5}, SlotLimit(5), {"count": 5.0, "sink": 0.0}) == {"count": most, "sink": 1}
    filled = planner.filled(topology, SlotLimit(5))
    assert filled == ({"count": 2, "sink": 3} if most == 2 else {"count": 3, "sink": 2})
    assert planner.widths(topology, 5, None)["count"] == most
    seen = Monitor(topology).snapshot(0.0, 0.0, Plan(filled, 5, {}))
    assert (seen["count"].limit, seen["count"].shards) == (min(shards, parallelism or shards), shards)
    assert (seen["sink"].limit, seen["sink"].shards) == (None, None)


def test_a_stage_is_as_wide_as_the_slots_until_something_was_measured() -> None:
    assert planner.widths(line(), 8, None) == {"source": 8, "first": 8, "second": 3, "sink": 3}


def test_a_stage_is_no_wider_than_its_work_pays_for() -> None:
    """50 ms of work in two batches are 25 ms a batch: three tasks of 10 ms."""
    monitor = Monitor(line())
    monitor.add(batch(10, task("first", 10, 0.03), task("second", 10, 0.9)))
    monitor.add(batch(10, task("first", 10, 0.02), task("second", 10, 0.9)))
    seen = monitor.snapshot(1.0, 1.0, Plan({}, 1, {}))
    assert planner.widths(line(), 8, seen) == {"source": 3, "first": 3, "second": 3, "sink": 3}
    monitor.add(batch(10, task("first", 10, 0.0), task("second", 10, 0.011)))
    seen = monitor.snapshot(2.0, 1.0, Plan({}, 1, {}))
    assert planner.widths(line(), 8, seen) == {"source": 1, "first": 1, "second": 2, "sink": 2}


def test_branches_in_the_same_tasks_are_counted_once() -> None:
    """A width is how many tasks an operator really has: a diamond of forward edges has its source's."""
    assert set(planner.widths(diamond(), 4, None).values()) == {4}
    two = st.source.generate(counted, rate=1).union(st.source.generate(counted, rate=1, name="other"))
    assert planner.widths(two.to(st.sink.discard()).named("t"), 4, None)["union"] == 8


def test_what_managers_are_refused_is_recorded_with_its_reason() -> None:
    """No latency is known, so no token comes; asked for in both rounds, told in the first."""
    clock, memory = Steps(), Memory()
    policy = Hierarchy(Scripted("first 0:1 1:3"), TokenBucket(), 0.0, 0.0, 0.0)
    loop = rig(
        line(), policy, bounds=SlotLimit(8), read_limit=None, trigger_s=0.25, interval_s=1.0, clock=clock, actuators=[memory],
        journal=memory, target_s=1.0,
    )  # fmt: skip
    for _ in range(2):
        loop.report(batch(5))
        clock.now += 1.0
        loop.cycle()
    (entry,) = [entry for entry in memory.decisions if "refused" in entry]
    assert entry["refused"]["manager"] == "operator first" and "no H token" in str(entry["reason"]) and entry["at_s"] == 1.0  # type: ignore[index]


def test_what_a_guard_holds_back_is_logged_and_recorded_while_it_goes_on_once(caplog: pytest.LogCaptureFixture) -> None:
    """At 2 s four are asked for and given, at 3 s two, and then five: a rest of 3 s holds both back until 5 s."""
    script = Scripted("first 0:1 2:4 3:2 4:5")
    loop, clock, memory = loop_of(Guarded(script, (Cooldown(before_out=3, before_in=3),)))
    with caplog.at_level(logging.INFO, "springtide.control"):
        for second in range(9):
            loop.report(batch(5, number=second))
            cycle(loop, clock)
    vetoes = [entry for entry in memory.decisions if "refused" in entry]
    assert [(entry["at_s"], entry["reason"]) for entry in vetoes] == [
        (3.0, "it changed 1 s ago, and rests for 3 s"), (4.0, "it changed 2 s ago, and rests for 3 s"),
    ]  # fmt: skip
    assert vetoes[0]["refused"] == {
        "guard": "cooldown", "operator": "first", "before": 4, "after": 2,
        "reason": "at 3 s the script says 2 since 3 s, it has 4", "manager": "", "degree": 2, "action": None, "score": 0.0,
    }  # fmt: skip
    assert sum("held back by cooldown: first from 4 to" in message for message in caplog.messages) == 2
    assert loop.current().degrees["first"] == 5
    json.dumps(loop.learned, allow_nan=False)


def test_no_slots_are_refused() -> None:
    with pytest.raises(OptionError, match="max_slots=0 is not allowed; it is at least 1"):
        SlotLimit(0)


# The loop


def test_a_static_policy_is_in_force_before_the_first_batch_and_then_silent() -> None:
    loop, clock, memory = loop_of(Static(degree=2, degrees="second=3"))
    assert loop.current().degrees == {"first": 2, "second": 3, "sink": 2}
    assert loop.current().slots == 7
    assert loop.current().trigger_s == 0.25
    assert memory.applied == [loop.current()]
    for _ in range(3):
        cycle(loop, clock)
    assert memory.decisions == []
    assert len(memory.applied) == 1


def test_a_script_changes_degrees_at_its_times_and_says_why() -> None:
    loop, clock, memory = loop_of(Scripted("first 0:1 10:3 20:2"), max_slots=6)
    seen = []
    for _ in range(8):
        cycle(loop, clock, 3.0)
        seen.append(loop.current().degrees["first"])
    assert seen == [1, 1, 1, 3, 3, 3, 2, 2]  # at 3, 6, 9, 12, 15, 18, 21, 24 s
    assert [entry["at_s"] for entry in memory.decisions] == [12.0, 21.0]
    assert "at 12 s the script says 3 since 10 s, it has 1" in str(memory.decisions[0]["reason"])
    assert memory.applied[1:] == [Plan.from_json(_plan(entry)) for entry in memory.decisions]


def _plan(entry: Mapping[str, object]) -> dict[str, Any]:
    known = ("degrees", "slots", "widths", "read_limit", "trigger_s")
    return {key: value for key, value in entry.items() if key in known}


@dataclass
class Moody:
    """A policy that does as the test says."""

    name: ClassVar[str] = "moody"
    answer: Any = ()
    states: list[Any] = field(default_factory=list)

    def initial(self) -> Mapping[str, Any]:
        return {"decisions": 0}

    def decide(self, state: Any, snapshot: Snapshot, rng: object) -> Any:
        self.states.append(state)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, tuple):
            return {"decisions": state["decisions"] + 1}, self.answer
        return self.answer


def ask(degree: Any, operator: str = "first", reason: Any = "asked") -> tuple[Request, ...]:
    return (Request(operator, degree, reason),)


NONSENSE: dict[str, Any] = {
    "raises": ZeroDivisionError("no"),
    "nothing": None,
    "no pair": 7,
    "degree that is no number": ask(math.nan),
    "degree without end": ask(math.inf),
    "no degree": ask(None),
    "half a degree": ask(1.5),
    "negative degree": ask(-1),
    "unknown operator": ask(3, "frist"),
    "no operator": ask(3, None),  # type: ignore[arg-type]
    "not a request": ("first=3",),
    "one good and one bad": (*ask(5), *ask(-1, "second")),
    "no reason": ask(3, reason=None),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_after_nonsense_the_last_plan_stays_in_force_and_it_is_logged_once(
    nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Moody(ask(2))
    loop, clock, memory = loop_of(policy)
    before = loop.current()
    assert before.degrees["first"] == 2
    policy.answer = NONSENSE[nonsense]
    for _ in range(4):
        cycle(loop, clock)
        assert loop.current() == before
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.message for record in logged] == ["policy moody failed; the last plan stays in force"]
    assert memory.decisions == []
    assert {state["decisions"] for state in policy.states[1:]} == {1}, "what a failed decision learned is dropped"

    policy.answer = ask(4)
    cycle(loop, clock)
    assert loop.current().degrees["first"] == 4, "the next interval tries again"
    policy.answer = NONSENSE[nonsense]
    cycle(loop, clock)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 2


def test_a_policy_that_fails_from_the_start_leaves_one_replica_each(caplog: pytest.LogCaptureFixture) -> None:
    loop, _, memory = loop_of(Moody(RuntimeError("no")))
    assert set(loop.current().degrees.values()) == {1}
    assert loop.current().slots == 3
    assert memory.applied == [loop.current()]
    assert len(caplog.records) == 1


# Load shedding


def shed(loop: Rig, clock: Steps, *, rate: float, each_s: float, batches: int, trigger_s: float = 0.0) -> list[int]:
    """So many records come every second, and each takes so long; every batch reads all that wait, and leaves out those that
    are older than the plan says. A cycle every second, whatever batches do. Returns how many each batch kept."""
    rows_read: list[int] = []
    started = read = clock.now
    for number in range(batches):
        age = loop.current().shed_after_s
        waiting, read = rate * (clock.now - read), clock.now
        rows_read.append(round(waiting if age is None else min(waiting, rate * age)))
        seconds = 0.1 + each_s * rows_read[-1]
        _cycles(loop, clock, started, seconds)
        loop.report(batch(round(waiting), number=number, seconds=seconds, backlog=round(rate * seconds), ended=clock.now))
        _cycles(loop, clock, started, max(0.0, trigger_s - seconds))
    return rows_read


def _cycles(loop: Rig, clock: Steps, started: float, seconds: float) -> None:
    """Time goes on, and there is a cycle at every whole second since the start."""
    until = clock.now + seconds
    while (due := started + math.floor(clock.now - started + 1e-9) + 1) <= until:
        clock.now = due
        loop.cycle()
    clock.now = until


@pytest.mark.parametrize("each_s", [0.008, 0.0015, 0.1])
def test_of_a_queue_about_as_many_as_its_limit_are_kept_however_long_batches_last(each_s: float) -> None:
    """2,000/s come and 500 may wait. They take 4, 0.75 and 50 s, so that most intervals see no batch end, and the next one
    begins before a cycle has seen the last one."""
    loop, clock, memory = loop_of(Static(), trigger_s=0.0, shedding=Shedding(queue_limit=500))
    clock.now += 0.3  # so that something waits for the first
    rows_read = shed(loop, clock, rate=2_000, each_s=each_s, batches=20)
    assert all(450 <= each <= 550 for each in rows_read[4:]), rows_read
    plans = [entry for entry in memory.decisions if entry["shed_after_s"] is not None]
    assert 1 <= len(plans) <= 4, "a rate that is measured a little differently is no new plan"
    assert re.fullmatch(r"records older than \S+ s are left out: [\d,]+ wait", str(plans[0]["reason"]))


def test_what_comes_until_the_trigger_counts_as_waiting() -> None:
    """A batch of a second every ten: 2,000 wait when it ends, and 20,000 when the next one starts."""
    loop, clock, _ = loop_of(Static(), trigger_s=10.0, shedding=Shedding(queue_limit=5_000))
    assert shed(loop, clock, rate=2_000, each_s=0.00001, batches=8, trigger_s=10.0)[4:] == [5_000] * 4


def test_a_queue_within_its_limit_loses_nothing() -> None:
    loop, clock, memory = loop_of(Static(), trigger_s=0.0, shedding=Shedding(queue_limit=500))
    clock.now += 0.1
    shed(loop, clock, rate=200, each_s=0.001, batches=30)
    assert loop.current().shed_after_s is None
    assert not any(entry["shed_after_s"] for entry in memory.decisions)


def test_a_timeout_holds_from_the_first_batch_on_and_beside_a_limit() -> None:
    """500 of 2,000/s are 0.25 s, which is less than a second; of 100/s they are 5 s, which is more."""
    loop, clock, _ = loop_of(Static(), trigger_s=0.0, shedding=Shedding(1.0, 500))
    assert loop.current().shed_after_s == 1.0
    shed(loop, clock, rate=2_000, each_s=0.008, batches=6)
    assert loop.current().shed_after_s == pytest.approx(0.25, rel=0.1)
    shed(loop, clock, rate=100, each_s=0.1, batches=6)
    assert loop.current().shed_after_s == 1.0


def test_after_the_first_batch_records_that_tell_when_they_were_created_tell_the_rate() -> None:
    """2,000 records of a second that ended with the batch's start, and 8,000 that came in its 4 s."""
    loop, clock, _ = loop_of(Static(), trigger_s=0.0, shedding=Shedding(queue_limit=500))
    created = tuple((99.0 + i / 100, 20.0) for i in range(101))
    clock.now += 5.0
    loop.report(batch(2_000, seconds=4.0, backlog=8_000, created=created))
    assert loop.current().shed_after_s == pytest.approx(0.25, rel=0.1), "also before a cycle has seen it"


class Stillborn(Moody):
    """A policy that cannot even begin."""

    def initial(self) -> Mapping[str, Any]:
        raise RuntimeError("no state")


def test_a_policy_that_cannot_begin_is_a_failing_policy(caplog: pytest.LogCaptureFixture) -> None:
    loop, clock, _ = loop_of(Stillborn(ask(2)))
    cycle(loop, clock)
    assert set(loop.current().degrees.values()) == {1}
    assert [record.message for record in caplog.records] == ["policy moody failed; the last plan stays in force"]


def test_a_backlog_is_worked_off_in_batches_that_meet_the_target_also_while_the_policy_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """0.2 s a batch and 1 ms a record, target 2 s: 2·(0.2 + 0.001·n) ≤ 0.8·2 allows 600 records.

    100 records/s arrive. Were the throughput taken for the rate of arrival, the limit would grow to 1,800.
    """
    loop, clock, memory = loop_of(Moody(RuntimeError("no")), read_limit=ReadLimit(2.0))
    assert loop.current().read_limit == 1000
    backlog = 50_000.0
    for number in range(40):
        rows = loop.current().read_limit or 0
        seconds = 0.2 + 0.001 * rows
        backlog += 100 * seconds - rows
        loop.report(batch(rows, number=number, seconds=seconds, backlog=round(backlog), ended=clock.now))
        cycle(loop, clock, seconds)
    assert loop.current().read_limit == pytest.approx(600, rel=0.05)
    assert backlog < 40_000
    assert memory.applied[-1] == loop.current()
    assert memory.decisions[0]["reason"] == "work or batch time changed"
    assert len(caplog.records) == 1


def test_the_limit_of_an_overloaded_run_does_not_forget_the_load_in_an_interval_without_a_batch() -> None:
    """0.2 s a batch and 1 ms a record, and 2,000 records/s come, of which at most 1,000/s can be worked off: nine tenths of a
    batch's time are to go to records, 0.001·n / (0.2 + 0.001·n) = 0.9, which is n = 1,800: 2 s a batch, two intervals."""
    loop, clock, _ = loop_of(Static(degree=1), read_limit=ReadLimit(1.0))
    backlog, limits = 0.0, []
    for number in range(40):
        rows = loop.current().read_limit or 0
        seconds = 0.2 + 0.001 * rows
        while seconds > 1.0:  # intervals in which nothing ends
            cycle(loop, clock, 1.0)
            backlog, seconds = backlog + 2_000, seconds - 1.0
        backlog += 2_000 * seconds - rows
        loop.report(batch(rows, number=number, seconds=0.2 + 0.001 * rows, backlog=round(backlog), ended=clock.now))
        cycle(loop, clock, seconds)
        limits.append(loop.current().read_limit)
    assert limits[-10:] == pytest.approx([1_800] * 10, rel=0.05)


def test_widths_stay_when_nothing_was_measured() -> None:
    loop, clock, _ = loop_of(Static(degree=2))
    loop.report(batch(10, task("first", 10, 0.011), task("second", 10, 0.001)))
    cycle(loop, clock)
    narrow = loop.current().widths
    assert narrow == {"source": 2, "first": 2, "second": 1, "sink": 1}
    cycle(loop, clock)
    assert loop.current().widths == narrow


def test_a_full_disk_loses_the_record_of_a_batch_and_not_the_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = FolderJournal(RunFolder(tmp_path / "gone"))
    journal.batch(batch(10))
    journal.decision({"at_s": 1.0})
    journal.close()
    assert caplog.text.count("an entry of the run's folder is lost") == 2
    assert [rows for rows, _ in journal.recent] == [10]


def test_a_loop_whose_world_fails_goes_on_and_stops_when_told(caplog: pytest.LogCaptureFixture) -> None:
    """The thread outlives a failing actuator, and current() answers all the while."""
    clock, memory, tried = Steps(), Memory(), threading.Event()
    policy = Moody()
    calls = 0

    class Broken:
        def apply(self, plan: Plan) -> None:
            nonlocal calls
            calls += 1
            policy.answer = ask(1 + calls % 2)
            if calls > 1:
                tried.set() if calls > 5 else None
                raise OSError("unreachable")

    loop = rig(
        line(), policy, bounds=SlotLimit(8), read_limit=None, trigger_s=0.0, interval_s=0.001, clock=clock,
        actuators=[Broken()], journal=memory,
    )  # fmt: skip
    loop.start()
    try:
        assert tried.wait(10)
        assert set(loop.current().degrees) == {"first", "second", "sink"}
    finally:
        loop.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "springtide-control"]
    assert "unreachable" in caplog.text
    assert loop.loop.failures >= 4 and loop.loop.first_failure == "OSError('unreachable')" and loop.failures == 0


def test_a_plan_that_an_actuator_failed_to_apply_is_applied_in_the_next_cycles_and_journalled_once() -> None:
    """The disk is full after a batch, when its read limit is due, and in two cycles without measurements: the plan is the
    same in all of them."""
    clock, applied, full = Steps(), list[Plan](), [OSError("disk full") for _ in range(3)]
    memory = Memory()

    class Disk:
        def apply(self, plan: Plan) -> None:
            if applied and full:
                raise full.pop()
            applied.append(plan)

    loop = rig(
        line(), Static(), bounds=SlotLimit(8), read_limit=ReadLimit(2.0), trigger_s=0.0, interval_s=1.0, clock=clock,
        actuators=[Disk()], journal=memory,
    )  # fmt: skip
    loop.report(batch(1_000, seconds=4.0, backlog=50_000, ended=clock.now))
    for _ in range(2):
        with pytest.raises(OSError, match="disk full"):
            cycle(loop, clock)
    assert loop.snapshot is not None and loop.snapshot.at == 2.0, "what was measured does not depend on the disk"
    for _ in range(2):
        cycle(loop, clock)
    assert [plan.read_limit for plan in applied] == [1_000, loop.current().read_limit] and applied[0] != applied[1]
    assert len(memory.decisions) == 1


@pytest.mark.parametrize(("elastic", "starting_s", "there"), [(True, 8.0, 2), (False, None, None)])
def test_only_where_executors_come_and_go_something_has_to_start(
    elastic: bool, starting_s: float | None, there: int | None
) -> None:
    """In one process, and with fixed executors, another degree holds from the next batch on."""
    loop, clock, _ = loop_of(Static())
    cluster = MemoryCluster(clock)
    cluster.add()
    cluster.add()
    loop.employ(cluster, Limits(1, 4), elastic)
    clock.now += 1
    loop.cycle()
    assert loop.snapshot is not None
    assert (loop.snapshot.starting_s, loop.snapshot.there) == (starting_s, there)


@pytest.mark.parametrize(("executors", "counted"), [(2, [40]), (0, [10, 20, 40])])
def test_the_first_batches_of_every_session_of_a_cluster_tell_nothing(executors: int, counted: list[int]) -> None:
    """They end before the first cycle. In one process, which has no executors, nothing is cold."""
    loop, clock, _ = loop_of(Static())
    for _ in range(2):  # the second session is that after its driver died
        cluster = MemoryCluster(clock)
        for _ in range(executors):
            cluster.add()
        loop.employ(cluster, Limits(1, 4), elastic=False)
        for rows in (10, 20, 40):
            loop.report(batch(rows))
        cycle(loop, clock)
        assert loop.snapshot is not None
        assert [rows for rows, _ in loop.snapshot.batches] == counted


def test_the_plan_in_force_says_why() -> None:
    loop, clock, _ = loop_of(Scripted("first 0:1 1:3"))
    cycle(loop, clock)
    cycle(loop, clock)
    assert loop.snapshot is not None
    assert loop.snapshot.plan.degrees["first"] == 3
    assert loop.snapshot.plan.reason == "at 1 s the script says 3 since 1 s, it has 1"


def test_the_read_limit_grows_with_every_batch_and_not_with_every_cycle() -> None:
    """A backlog would otherwise wait for an interval of batches of a thousand records, which take 0.1 s each."""
    applied = list[Plan]()

    class Source:
        def apply(self, plan: Plan) -> None:
            applied.append(plan)

    clock = Steps()
    loop = rig(
        line(), Static(), bounds=SlotLimit(8), read_limit=ReadLimit(5.0), trigger_s=0.0, interval_s=1.0, clock=clock,
        actuators=[Source()], journal=Memory(),
    )  # fmt: skip
    read = 1_000
    for _ in range(4):
        assert loop.current().read_limit == applied[-1].read_limit == read
        loop.report(batch(read, seconds=0.05 + read * 1e-6, backlog=500_000, ended=clock.now))
        read *= 4
    cycle(loop, clock)
    assert loop.current().read_limit == applied[-1].read_limit == read, "a cycle learns nothing twice"


def test_slots_do_not_fall_by_short_batches_while_full_ones_wait() -> None:
    clock = Steps()
    loop = rig(
        line(), Static(), bounds=SlotLimit(8), read_limit=ReadLimit(5.0), trigger_s=0.0, interval_s=1.0, clock=clock,
        actuators=[], journal=Memory(),
    )  # fmt: skip
    light = [task(name, 1_000, busy_s=0.002) for name in ("first", "second", "sink")]
    slots = loop.current().slots
    loop.report(batch(1_000, *light, seconds=0.1, backlog=500_000, ended=clock.now))
    cycle(loop, clock)
    assert loop.current().slots == slots > 1
    loop.report(batch(1_000, *light, seconds=0.1, backlog=0, ended=clock.now))
    cycle(loop, clock)
    assert loop.current().slots < slots
