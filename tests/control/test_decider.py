"""What a policy learned, from run to run; runs that only tell; and what the monitor says of arrivals, on a stepped clock."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import springtide as st
from control.rig import Memory, Rig, Steps, counted, line, loop_of, same
from springtide.control import planner
from springtide.control.decider import SAVE_EVERY_S
from springtide.control.monitor import Monitor
from springtide.control.planner import SlotLimit
from springtide.control.switch import FixedMode, Mode
from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.report import BatchReport, TaskReport
from springtide.model.snapshot import Snapshot
from springtide.model.topology import Topology
from springtide.policy.chosen import chosen, read_state, write_state
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale.flink import Flink
from springtide.policy.scale.static import Static
from springtide.policy.trial import fault_of

NOW = 1_700_000_000.25
"""Seconds since 1970, as creation times are."""

DRY = FixedMode(Mode.DRY_RUN)


def two_sources() -> Topology:
    left = st.source.generate(counted, rate=100, name="left").map(same, name="work", grouping="auto")
    right = st.source.generate(counted, rate=100, name="right")
    return left.union(right).map(same, name="both", grouping="auto").to(st.sink.discard(), name="sink").named("two")


def batch(
    rows: int, *tasks: TaskReport, created: tuple[tuple[float, float], ...] = (), backlog: int | None = None,
    committed: float = NOW + 0.5,
) -> BatchReport:  # fmt: skip
    return BatchReport(0, 1, Plan({}, 1, {}), NOW, committed, rows, rows, 0, tasks, {"sink": rows}, created, backlog)


def task(operator: str, rows_in: int | None, rows_out: int | None = None, busy_s: float | None = 0.1) -> TaskReport:
    return TaskReport(operator, 0, rows_in, rows_in or 0 if rows_out is None else rows_out, 0, busy_s, NOW, NOW + 0.4)


@dataclass(frozen=True)
class Counting:
    """Counts how often it was asked; wants as many replicas of ``first`` as that, up to ``most``."""

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "counting"

    most: int = 5
    fails_at: int = -1

    def initial(self) -> Mapping[str, Any]:
        return {"asked": 0}

    def decide(
        self, state: Mapping[str, Any], snapshot: Snapshot, rng: np.random.Generator
    ) -> tuple[Mapping[str, Any], tuple[Request, ...]]:
        asked = state["asked"] + 1
        if asked == self.fails_at:
            raise RuntimeError("it cannot")
        wanted = min(asked, self.most)
        has = snapshot["first"].degree
        return {"asked": asked}, (Request("first", wanted, f"asked {asked} times"),) if wanted != has else ()


def cycles(loop: Rig, clock: Steps, count: int, seconds: float = 1.0) -> None:
    for _ in range(count):
        clock.now += seconds
        loop.cycle()


# Dry runs


def test_a_dry_run_uses_all_slots_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    loop, clock, memory = loop_of(Counting(), switch=DRY)
    first = loop.current()
    assert sum(first.degrees.values()) == 8 == first.slots
    with caplog.at_level(logging.INFO, "springtide.control"):
        cycles(loop, clock, 9)
    assert loop.current() == first
    assert memory.applied == [first]
    assert all(entry["dry_run"] is True for entry in memory.decisions)
    assert loop.learned == {"asked": 9}  # it goes on learning


def test_a_dry_run_tells_each_wish_once() -> None:
    """The degree is 3: one to two, then silence when it wants what is there, then four and from then on five."""
    loop, clock, memory = loop_of(Counting(), switch=DRY)
    assert loop.current().degrees["first"] == 3
    cycles(loop, clock, 9)
    assert [(entry["at_s"], entry["degrees"]) for entry in memory.decisions] == [
        (1.0, {"first": 1}), (2.0, {"first": 2}), (4.0, {"first": 4}), (5.0, {"first": 5}),
    ]  # fmt: skip
    assert memory.decisions[0]["reason"] == "asked 1 times"
    assert memory.applied == [loop.current()]


def test_without_a_dry_run_the_policy_is_asked_first() -> None:
    loop, clock, memory = loop_of(Counting())
    assert (loop.learned, loop.current().degrees["first"]) == ({"asked": 1}, 1)
    cycles(loop, clock, 2)
    assert loop.current().degrees["first"] == 3
    assert not any("dry_run" in entry for entry in memory.decisions)


def test_a_dry_run_survives_a_policy_that_fails() -> None:
    loop, clock, memory = loop_of(Counting(fails_at=2), switch=DRY)
    cycles(loop, clock, 4)
    assert loop.learned == {"asked": 1}
    assert [entry["degrees"] for entry in memory.decisions] == [{"first": 1}]


# What was learned


def test_what_was_learned_is_where_it_begins() -> None:
    loop, clock, _ = loop_of(Counting(), learned={"asked": 3})
    assert loop.current().degrees["first"] == 4
    cycles(loop, clock, 1)
    assert loop.learned == {"asked": 5}


def test_an_empty_state_is_a_state() -> None:
    """A policy that was handed {} gets {}."""
    loop, _, _ = loop_of(Static(degree=2), learned={})
    assert loop.learned == {}


@pytest.mark.parametrize("damaged", [{}, {"asked": "x"}, {"asked": None}])
def test_a_state_that_fails_at_its_first_use_is_given_up(damaged: Any, caplog: pytest.LogCaptureFixture) -> None:
    loop, clock, _ = loop_of(Counting(), learned=damaged)
    cycles(loop, clock, 2)
    assert loop.learned == {"asked": 3}
    assert loop.failures == 0
    (message,) = caplog.messages
    assert "policy counting cannot use its saved state" in message and "it starts without it" in message


def test_also_when_only_the_first_measurement_makes_it_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Flink does not look at its state before an interval is over."""
    loop, clock, _ = loop_of(Flink(), learned={"marks": 5})
    assert caplog.messages == []
    cycles(loop, clock, 3)
    assert loop.failures == 0 and len(loop.learned["marks"]) == 3  # type: ignore[index]
    assert len(caplog.messages) == 1


def test_a_policy_that_fails_later_keeps_what_it_learned(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is the policy's own then."""
    loop, clock, _ = loop_of(Counting(fails_at=7), learned={"asked": 3})
    loop.report(batch(5))
    cycles(loop, clock, 8)
    assert loop.learned == {"asked": 6}
    assert loop.failures == 6


def test_it_is_kept_every_ten_seconds_and_at_the_end() -> None:
    loop, clock, memory = loop_of(Counting())
    assert memory.saved == []
    loop, clock, memory = loop_of(Counting(), keep=(own := Memory()).save)
    cycles(loop, clock, int(SAVE_EVERY_S) - 1)
    assert own.saved == []
    cycles(loop, clock, 1)
    assert own.saved == [{"asked": 11}]
    cycles(loop, clock, int(SAVE_EVERY_S) + 3)
    assert own.saved[1:] == [{"asked": 21}]
    loop.stop()
    assert own.saved[-1] == loop.learned == {"asked": 24}
    assert memory.saved == []


def test_in_a_dry_run_it_is_kept_too_and_before_the_first_question_there_is_nothing() -> None:
    own = Memory()
    loop, clock, _ = loop_of(Counting(), keep=own.save, switch=DRY)
    assert loop.learned is None
    loop.stop()
    assert own.saved == []
    loop, clock, _ = loop_of(Counting(), keep=own.save, switch=DRY)
    cycles(loop, clock, 3)
    loop.stop()
    assert own.saved == [{"asked": 3}]


def test_what_cannot_be_kept_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    tries = []

    def full(state: Any) -> None:
        tries.append(state)
        raise OSError("no space left")

    loop, clock, _ = loop_of(Counting(), keep=full)
    with caplog.at_level(logging.WARNING, "springtide.control"):
        cycles(loop, clock, 35)
        loop.stop()
    assert len(tries) == 1
    assert len(caplog.records) == 1
    assert "counting" in caplog.text
    assert loop.learned == {"asked": 36}


# Put together from names


def test_a_guard_is_read_with_its_parameters(tmp_path: Path) -> None:
    made = chosen("static", {"degree": "9"}, ["max-step: replicas_out = 2 , share_out=0", "bounds:most=4"], ["a"])
    assert isinstance(made.policy, Guarded)
    assert [guard.name for guard in made.policy.guards] == ["max-step", "bounds"]
    assert (made.policy.name, made.state) == ("static", None)
    assert not isinstance(chosen("static", None, (), ["a"]).policy, Guarded)


@pytest.mark.parametrize("guard", ["bound", "bounds:most", "bounds:mots=3", "bounds:most=0", "bounds:most=x", ":", ""])
def test_a_wrong_guard_is_told_in_words(guard: str) -> None:
    with pytest.raises(OptionError):
        chosen("static", None, [guard], ["a"])


def test_operators_are_checked_through_the_guards() -> None:
    with pytest.raises(OptionError, match="is no operator"):
        chosen("static", {"degrees": "b=2"}, ["cooldown"], ["a"])
    with pytest.raises(OptionError, match="is no operator"):
        chosen("static", None, ["bounds:by_name=b=1-2"], ["a"])


def test_the_example_in_the_error_can_be_used() -> None:
    with pytest.raises(OptionError) as refused:
        chosen("static", None, ["bounds:most"], ["a"])
    chosen("static", None, [str(refused.value).split("such as ")[1]], ["a"])


def test_bounds_by_name_can_be_given_for_two_operators() -> None:
    chosen("static", None, ["bounds:by_name=enrich=2-8,classify=1-4"], ["enrich", "classify"])


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    file, state = tmp_path / "deep" / "er" / "q.json", {"tables": {"ä": [1.5, None, True]}}
    write_state(file, "q-learning", state)
    assert read_state(str(file), "q-learning") == state
    assert chosen("q-learning", {"state": str(file)}, (), ["a"]).state == state
    guarded = chosen("q-learning", {"state": str(file)}, ["cooldown"], ["a"])
    assert guarded.state == {"policy": state, "guards": {}}
    given = {"state": str(file), "alpha": 0.2}
    chosen("q-learning", given, (), ["a"])
    assert given == {"state": str(file), "alpha": 0.2}  # what was given is not changed


def test_guards_begin_anew_with_a_state(tmp_path: Path) -> None:
    """One that was learned without guards is played behind any."""
    write_state(tmp_path / "s.json", "tide", {})
    made = chosen(
        "tide", {"state": str(tmp_path / "s.json")}, ["cooldown", "stabilisation", "quota"], ["first", "second", "sink"]
    )
    loop, clock, _ = loop_of(made.policy, learned=made.state)
    cycles(loop, clock, 3)
    assert loop.learned is not None
    assert set(loop.learned["guards"]) == {"0 cooldown", "1 stabilisation", "2 quota"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"policy": "tide"}', '{"state": {}}', '{"policy": "tide", "state": [1]}', "\xff"]
)
def test_a_file_that_is_no_state_is_told_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=r"s\.json"):
        read_state(str(tmp_path / "s.json"), "tide")
    with pytest.raises(OptionError, match="is not what"):
        read_state(str(tmp_path), "tide")
    with pytest.raises(OptionError, match="no such file"):
        read_state(str(tmp_path / "no.json"), "tide")


@pytest.mark.parametrize(("policy", "state"), [
    ("flink", '{"marks": 5}'), ("q-learning", '{"bin": 50.0, "tables": [1]}'),
    ("q-learning", '{"bin": 50.0, "tables": {"a": {"q": {"1,0": [NaN, 0, 0]}}}}'), ("tide", '{"seen": 1e999}'),
    ("psps", '{"x": -Infinity}'),
])  # fmt: skip
def test_a_state_that_is_damaged_inside_is_told_before_anything_runs(tmp_path: Path, policy: str, state: str) -> None:
    file = tmp_path / "s.json"
    file.write_text(f'{{"policy": "{policy}", "state": {state}}}')
    for guards in ((), ("cooldown",)):
        with pytest.raises(OptionError, match=r"s\.json' is (damaged: policy|not what `springtide train` writes)"):
            chosen(policy, {"state": str(file)}, guards, ["a"])


def test_a_policy_that_always_fails_is_not_the_states_fault() -> None:
    assert fault_of(Counting(fails_at=1), {"asked": 0}, ["first"]) is None
    assert fault_of(Counting(), {"asked": 0}, ["first"]) is None
    assert fault_of(Counting(), {"asked": []}, ["first"]) is not None


def test_a_state_that_is_no_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_state(tmp_path / "s.json", "tide", {"a": 1.0})
    with pytest.raises(OptionError, match="the state of policy 'tide' is not JSON"):
        write_state(tmp_path / "s.json", "tide", {"a": float("nan")})
    assert json.loads((tmp_path / "s.json").read_text())["state"] == {"a": 1.0}


# The monitor


def arrivals(*reports: BatchReport, topology: Topology | None = None) -> list[tuple[float, ...]]:
    monitor = Monitor(topology or line())
    for report in reports:
        monitor.add(report)
    return [source.arrivals for source in monitor.snapshot(1.0, 1.0, Plan({}, 1, {})).sources]


def test_arrivals_are_spread_between_the_quantiles() -> None:
    """Three of 20 records each at 0.5, 1.5 and 3.5 s. The first stands for 0.5 to 1.0, the next for 1.0 to 2.5, the last for
    2.5 to 3.5. In the three seconds from 0.5 on: 20 and half a second of 20/1.5; a whole second of that; 20."""
    (found,) = arrivals(batch(60, created=((0.5, 20.0), (1.5, 20.0), (3.5, 20.0))))
    assert found == pytest.approx((20 + 10 / 1.5, 20 / 1.5, 20.0))


def arrivals_seen(monitor: Monitor) -> tuple[float, ...]:
    return monitor.snapshot(1.0, 1.0, Plan({}, 1, {})).sources[0].arrivals


def test_what_waits_was_created_since_what_was_read() -> None:
    """A batch is committed at 104 s, with 20 records that were created up to 102 s; 60 more wait: 30/s of the last two."""
    monitor = Monitor(line())
    monitor.add(batch(20, committed=104.0, created=((100.0, 10.0), (102.0, 10.0)), backlog=60))
    assert arrivals_seen(monitor) == pytest.approx((10.0, 10.0, 30.0, 30.0))


def test_each_time_is_told_once() -> None:
    """The next batch reads those 60, and the arrivals begin where the last ones ended, at 104 s: what was created before
    was told as waiting. It is committed at 106 s, after reading up to 105 s; 10 wait."""
    monitor = Monitor(line())
    monitor.add(batch(20, committed=104.0, created=((100.0, 10.0), (102.0, 10.0)), backlog=60))
    arrivals_seen(monitor)
    monitor.add(batch(90, committed=106.0, created=((103.0, 45.0), (105.0, 45.0)), backlog=10))
    assert arrivals_seen(monitor) == pytest.approx((45.0, 10.0))


def test_falling_behind_is_no_fewer_arrivals() -> None:
    """100/s come. Batches of 5 s each read only 2 s of it: every time 500 came, in five parts of 100."""
    monitor = Monitor(line())
    for number in range(1, 5):
        read, now = 100.0 + 2 * number, 5.0 * number
        created = ((read - 2, 100.0), (read, 100.0))
        monitor.add(batch(200, committed=100.0 + now, created=created, backlog=round(100 * (100 + now - read))))
        assert arrivals_seen(monitor) == pytest.approx((100.0,) * 5)


def test_a_source_that_does_not_tell_when_has_no_arrivals() -> None:
    assert arrivals(batch(60)) == [()]
    assert arrivals() == [()]


times = some.lists(some.tuples(some.floats(0.0, 40.0), some.integers(1, 500)), min_size=1, max_size=12)


@settings(max_examples=150)
@given(some.lists(times, min_size=1, max_size=3), some.sampled_from([0.0, 1000.0]))
def test_arrivals_add_up_to_the_records(batches: list[list[tuple[float, int]]], epoch: float) -> None:
    reports = [batch(sum(n for _, n in one), created=tuple((epoch + at, float(n)) for at, n in one)) for one in batches]
    (found,) = arrivals(*reports)
    every = [at for one in batches for at, _ in one]
    length = (max(every) - min(every)) / len(found) if max(every) - min(every) >= 1e-6 else 1.0
    assert sum(found) * length == pytest.approx(sum(report.rows_in for report in reports))
    assert all(came >= 0 for came in found)
    assert len(found) <= max(every) - min(every) + 1


@pytest.mark.parametrize("created", [
    ((1_700_000_000.0, 30.0),),
    ((1_700_000_000.0, 10.0), (1_700_000_003.0, 10.0), (1_700_000_003.0, 10.0)),
])  # fmt: skip
def test_records_created_at_a_whole_second_count(created: tuple[tuple[float, float], ...]) -> None:
    """Times in whole seconds, as many logs have them."""
    (found,) = arrivals(batch(30, created=created))
    assert sum(found) == pytest.approx(30.0), "in one part, or in three of a second each"


def test_of_two_sources_each_has_its_share() -> None:
    report = batch(40, task("left", None, 30), task("right", None, 10), created=((NOW, 20.0), (NOW + 1.5, 20.0)))
    left, right = arrivals(report, topology=two_sources())
    assert sum(left) == pytest.approx(30.0 / (1.5 / len(left)))
    assert sum(right) == pytest.approx(10.0 / (1.5 / len(left)))
    assert left == pytest.approx(tuple(3 * came for came in right))


def test_inputs_are_whom_an_operator_reads_through_a_union_too() -> None:
    monitor = Monitor(two_sources())
    monitor.add(batch(40, task("left", None, 30), task("right", None, 10), task("work", 30, 25), task("both", 35)))
    seen = monitor.snapshot(1.0, 1.0, Plan({}, 1, {}))
    assert dict(seen["work"].inputs) == {"left": 30}
    assert dict(seen["both"].inputs) == {"work": 25, "right": 10}
    assert [(source.name, source.rows) for source in seen.sources] == [("left", 30), ("right", 10)]


def test_the_only_source_is_known_by_the_batch() -> None:
    monitor = Monitor(line())
    monitor.add(batch(40, task("first", 40, 20), task("second", 20)))
    seen = monitor.snapshot(1.0, 1.0, Plan({}, 1, {}))
    assert seen["first"].inputs == ((line().sources[0].name, 40),)
    assert seen["second"].inputs == (("first", 20),)
    silent = monitor.snapshot(2.0, 1.0, Plan({}, 1, {}))  # and nothing of it is counted twice
    assert [source.rows for source in silent.sources] == [None]


# All slots in use


@settings(max_examples=100)
@given(some.integers(1, 60), some.one_of(some.none(), some.integers(1, 9)))
def test_filled_uses_all_slots_as_evenly_as_can_be(max_slots: int, parallelism: int | None) -> None:
    topology = line(grouping="auto", parallelism=parallelism) if parallelism else line()
    bounds = SlotLimit(max_slots)
    degrees = planner.filled(topology, bounds)
    limits = {o.name: min(o.parallelism or max_slots, max_slots) for o in topology.scalable}
    assert all(1 <= degrees[name] <= limit for name, limit in limits.items())
    assert sum(degrees.values()) == max(len(limits), min(max_slots, sum(limits.values())))
    free = [degree for name, degree in degrees.items() if degree < limits[name]]
    assert not free or max(degrees.values()) - min(free) <= 1
    assert planner.grant(topology, degrees, bounds) == degrees
