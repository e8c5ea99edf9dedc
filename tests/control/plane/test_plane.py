"""The control process: its answers are those of the policy, and whatever becomes of it, no call waits for it."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from control.plane.policies import GO, MOOD, NONSENSE, wanted
from control.rig import Memory, Rig, line, rig
from springtide.bench.decisions import snapshots as large
from springtide.control.hierarchy.hierarchy import Hierarchy
from springtide.control.plane import child as children
from springtide.control.plane.child import Child, Lost
from springtide.control.plane.remote import Patience, PolicyFailed, RemotePolicy
from springtide.control.plane.spec import Spec, make
from springtide.control.plane.wire import decoded, encoded
from springtide.control.planner import SlotLimit
from springtide.errors import OptionError
from springtide.model.plan import Plan, Request
from springtide.model.rate import sampled
from springtide.model.report import BatchReport, Latency, TaskReport
from springtide.model.request import Migrate, RemoveExecutor, Scale
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, ReplicaSnapshot, Snapshot, SourceSnapshot
from springtide.policy.grant.all import All
from springtide.policy.grant.token_bucket import TokenBucket
from springtide.policy.scale.threshold import Threshold
from springtide.sim import Constant, Model, Operator, Source, simulate

HANGS_S = 120.0
"""After so long a test gives up; many times what anything here takes."""

CALM = Patience(answer_s=60.0, first_s=60.0, hang_s=60.0, pause_s=0.01, state_s=0.0, end_s=60.0)
"""For answers that are to come, however slow the machine."""

HASTY = replace(CALM, answer_s=0.05, end_s=0.1)
"""For processes that are not waited for."""

RNG = np.random.default_rng(0)


def until(happened: Callable[[], Any], what: str = "") -> None:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < HANGS_S, f"in vain: {what}"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def operator(name: str = "first", **values: Any) -> OperatorSnapshot:
    return OperatorSnapshot(name, 1, 1, 10, 10, 0, 0.5, 10.0, 0.5, 0, 5.0, **values)


def snapshot(number: int, interval_s: float = 1.0) -> Snapshot:
    """The interval of that number, of a second."""
    return Snapshot(float(number), interval_s, Plan({"first": 1}, 1, {"first": 1}), (operator(),), (), 10.0, 0, None)


Made = Callable[..., RemotePolicy]


@pytest.fixture
def made() -> Iterator[Made]:
    """Makes remote policies, and ends their processes."""
    them: list[RemotePolicy] = []

    def make_one(*arguments: Any, **named: Any) -> RemotePolicy:
        them.append(RemotePolicy(*arguments, **named))
        return them[-1]

    yield make_one
    for one in them:
        one.close()


def moody(folder: Path, seed: int = 0) -> Spec:
    return Spec("control.plane.policies:Moody", {"folder": str(folder)}, (), ("first", "second", "sink"), seed)


def feel(folder: Path, mood: str) -> None:
    beside = folder / "mood.part"
    beside.write_text(mood, encoding="utf-8")
    beside.replace(folder / MOOD)


def answered(remote: RemotePolicy, number: int) -> int:
    """Ask until an answer comes, once a second of the run, and return what the policy has seen by then."""
    began = time.monotonic()
    while time.monotonic() - began < HANGS_S:
        _, requests = remote.decide(remote.initial(), snapshot(number), RNG)
        if requests:
            (request,) = requests
            (seen,) = (int(found) for found in re.findall(r"seen (\d+)", request.reason))
            assert replace(request, score=0.0) == Request("first", wanted(seen), f"seen {seen}")
            return seen
        time.sleep(0.02)
    raise AssertionError("no answer comes any more")


def settle(remote: RemotePolicy) -> None:
    """Until all that was asked is answered; of what was answered nothing is left."""
    until(lambda: remote._asked is None and remote._done == remote._number)
    remote._answers.clear()


@contextlib.contextmanager
def impatient(remote: RemotePolicy) -> Iterator[None]:
    """Within it a process hangs after half a second; anywhere else a slow machine has its time."""
    before = remote._patience
    remote._patience = replace(before, hang_s=0.5)
    yield
    remote._patience = before


# Specs and documents


def test_a_spec_survives_json_without_the_file_of_what_was_learned() -> None:
    spec = Spec("tide", {"state": "gone.json", "headroom": 2}, ("bounds:most=2",), ("a", "b"), 7)
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == replace(spec, settings={"headroom": 2})


def test_a_spec_is_made_into_the_policy_behind_its_guards() -> None:
    made = make(Spec("static", {"degree": "4"}, ("bounds:most=2",), ("first",)))
    _, requests = made.policy.decide(made.policy.initial(), snapshot(0, 0.0), RNG)
    assert [request.degree for request in requests] == [2]


def test_wrong_options_are_told_before_a_process_starts() -> None:
    def never() -> Child:
        raise AssertionError("started")

    with pytest.raises(OptionError, match="no scale policy is named 'tied'; did you mean 'tide'"):
        RemotePolicy(Spec("tied"), start=never)
    with pytest.raises(OptionError, match="has no parameter 'degre'"):
        RemotePolicy(Spec("static", {"degre": 1}), start=never)
    with pytest.raises(OptionError, match="no grant policy is named 'token-buket'; did you mean 'token-bucket'"):
        RemotePolicy(Spec("static", grant="token-buket"), start=never)
    with pytest.raises(OptionError, match="each manager has its own state"):
        RemotePolicy(Spec("tide", {"state": "x.json"}, grant="all"), start=never)
    with pytest.raises(OptionError, match="choose grant= too"):
        RemotePolicy(Spec("tide", managers="settle=3s"), start=never)
    with pytest.raises(OptionError, match="did you mean 'settle'"):
        RemotePolicy(Spec("tide", grant="all", managers="setle=3s"), start=never)


def test_managers_have_their_times() -> None:
    made = make(Spec("threshold", grant="token-bucket:period=45s", managers="operators=10s, application=30s, migration=on"))
    assert isinstance(made.policy, Hierarchy) and made.policy.grant == TokenBucket(period=45.0)
    times = made.policy.operator_period_s, made.policy.application_period_s, made.policy.settle_s, made.policy.migration
    assert times == (10.0, 30.0, 0.0, True)


def test_managers_have_bounds_and_a_threshold_of_migration() -> None:
    spec = Spec(
        "threshold", operators=("parse", "rank"), grant="all", managers="migrate-above=0.7, bound.parse=5ms, bound.rank=2s"
    )
    policy = make(spec).policy
    assert isinstance(policy, Hierarchy)
    assert (policy.migration, policy.migrate_above, policy.bounds_ms) == (True, 0.7, {"parse": 5.0, "rank": 2_000.0})
    plain = make(Spec("threshold", grant="all", managers="migrate-above=0.7, migration=off")).policy
    assert isinstance(plain, Hierarchy) and not plain.migration
    unset = make(Spec("threshold", grant="all")).policy
    assert unset == Hierarchy(Threshold(), All(), 0.0, 0.0, 0.0, {}, migration=False, migrate_above=0.8)


@pytest.mark.parametrize(
    ("managers", "expected"),
    [
        ("migration=perhaps", "migration=perhaps is not allowed; write migration=on or migration=off"),
        ("migration", "migration= is not allowed"),
        ("migrate-above=much", "migrate-above=much is not a number; give a share from 0 to 1"),
        ("migrate-above=2", "migrate_above=2.0 is not allowed; give a share, from 0 to 1"),
        ("migrate-above=nan", "give a share, from 0 to 1"),
        ("bound.parse=soon", "managers bound.parse 'soon' is not a duration"),
        ("bound.parse=0s", "bounds_ms of 'parse' is 0.0; give milliseconds, more than 0"),
        ("bound.pars=5ms", "names 'pars', which is no operator; did you mean 'parse'"),
        ("bounds=5ms", "Allowed: application, bound.OPERATOR, migrate-above, migration, operators, settle"),
    ],
)
def test_what_managers_cannot_be_told_is_refused(managers: str, expected: str) -> None:
    with pytest.raises(OptionError, match=re.escape(expected)):
        make(Spec("threshold", operators=("parse",), grant="all", managers=managers))


def test_what_the_drivers_script_defines_cannot_be_moved() -> None:
    assert not Spec("__main__:Mine").movable
    assert Spec("control.plane.policies:Moody").movable
    assert Spec("tide").movable


def test_lines_carry_numpys_numbers_and_what_is_none() -> None:
    line = encoded({"a": np.int64(3), "b": np.float32(0.5), "c": math.nan, "d": np.float64(0.1)})
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    back = decoded(line)
    assert (back["a"], back["b"], back["d"]) == (3, 0.5, 0.1)
    assert math.isnan(back["c"])
    with pytest.raises(ValueError, match="list, not a document"):
        decoded(b"[1]")
    with pytest.raises(TypeError, match="JSON cannot carry"):
        encoded({"a": object()})


numbers_ = some.floats(0, 1e12)
counts = some.integers(0, 10**12)
names = some.text(max_size=5)
unsure, number_or_none = some.none() | counts, some.none() | numbers_


def several(parts: some.SearchStrategy[Any]) -> some.SearchStrategy[tuple[Any, ...]]:
    return some.lists(parts, max_size=3).map(tuple)


replicas = some.builds(ReplicaSnapshot, names, number_or_none)
operators = some.builds(
    OperatorSnapshot, names, counts, counts, unsure, unsure, unsure, number_or_none, number_or_none, number_or_none, unsure,
    number_or_none, unsure, several(some.tuples(names, counts)), unsure, unsure, several(replicas),
)  # fmt: skip
degrees = some.dictionaries(names, counts, max_size=3)
plans = some.builds(Plan, degrees, counts, degrees, unsure, numbers_, counts, number_or_none, number_or_none, names)
sources = some.builds(SourceSnapshot, names, unsure, several(numbers_))
nodes = some.builds(NodeSnapshot, names, counts, number_or_none)
measured = some.builds(
    Snapshot, numbers_, numbers_, plans, several(operators), several(some.tuples(counts, numbers_)), number_or_none, unsure,
    some.none() | some.builds(Latency, numbers_, numbers_, numbers_, numbers_), several(sources), several(nodes),
    number_or_none, unsure, number_or_none, number_or_none,
)  # fmt: skip


@settings(max_examples=200)
@given(measured)
def test_a_snapshot_survives_json(one: Snapshot) -> None:
    _ = one.by_name  # what it has looked up is no part of it
    again = Snapshot.from_json(decoded(encoded(one.to_json())))
    assert again == one
    assert again.plan.reason == one.plan.reason
    assert type(again.operators) is tuple
    assert hash(again.batches) == hash(one.batches)


@settings(max_examples=50)
@given(some.builds(Request, names, counts, names, numbers_))
def test_a_request_survives_json(one: Request) -> None:
    assert Request.from_json(decoded(encoded(one.to_json()))) == one


# Answers


@pytest.fixture(scope="module")
def simulated() -> tuple[Snapshot, ...]:
    """32 intervals of a line of two operators, the load rising and falling, and the target missed now and then."""
    model = Model(
        "line", (Source("source", sampled(lambda t: 130 + 110 * math.sin(t / 12), 165.0)),),
        (Operator("first", ("source",), Constant(0.02)), Operator("second", ("first",), Constant(0.005))),
    )  # fmt: skip
    seen = simulate(model, policy="threshold", grouping="round-robin", duration=165.0, interval=5.0, target=0.25).snapshots
    return tuple(replace(one, target_s=0.25, slots=16) for one in seen)


@pytest.mark.parametrize(
    ("policy", "chosen", "guards"),
    [
        ("tide", {}, ()),
        ("threshold", {}, ("cooldown:before_out=20s,before_in=40s", "bounds:most=6")),
        ("q-learning", {"epsilon": 0.4}, ()),
        ("model-based", {}, ()),
        ("autoscale+", {}, ()),
        ("flink", {"utilization_target": 0.5}, ()),
        ("static", {"degree": 3}, ()),
    ],
)
def test_the_answers_are_those_of_the_policy_in_process(
    policy: str, chosen: dict[str, Any], guards: tuple[str, ...], simulated: tuple[Snapshot, ...], made: Made
) -> None:
    spec = Spec(policy, chosen, guards, ("first", "second"), seed=11)
    remote, here, rng = made(spec, CALM), make(spec).policy, np.random.default_rng(11)
    state, theirs = here.initial(), remote.initial()
    asked = 0
    for one in simulated:
        state, requests = here.decide(state, one, rng)
        theirs, answers = remote.decide(theirs, one, RNG)
        assert answers == requests
        asked += len(requests)
    assert len(simulated) >= 30
    assert asked > 0
    assert remote.close() == json.loads(json.dumps(state))
    assert remote.restarts == 0


def test_a_process_forgets_a_state_that_it_cannot_go_on_from(made: Made) -> None:
    remote = made(Spec("flink", {}, (), ("first",)), CALM)
    with pytest.raises(PolicyFailed, match="TypeError"):
        remote.decide({"marks": 5}, snapshot(1), RNG)
    remote.forget()
    for number in (2, 3):
        remote.decide({"marks": 5}, snapshot(number), RNG)
    assert len((remote.close() or {})["marks"]) == 2
    assert remote.restarts == 0


@pytest.mark.parametrize("guards", [(), ("bounds:most=9",)])
def test_what_managers_are_refused_comes_with_the_answers_once(guards: tuple[str, ...], made: Made) -> None:
    """Three replicas are asked for in every second; a run without a target has no tokens."""
    remote = made(Spec("static", {"degree": 3}, guards, ("first",), grant="token-bucket"), CALM)
    assert remote.refusals({}) == []
    for number in (1, 2, 3):
        assert remote.decide(remote.initial(), snapshot(number), RNG)[1] == ()
    (verdict,) = remote.refusals({})
    assert verdict.reason == "no H token: the run has no target"
    assert verdict.request.manager == "operator first"
    assert verdict.request.action == Scale("first", 1, 3)
    assert remote.refusals({}) == []


def test_what_was_learned_before_is_where_it_begins(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    _, (request,) = remote.decide({"seen": 41}, snapshot(1), RNG)
    assert request.reason == "seen 42"
    _, (request,) = remote.decide({"seen": 7}, snapshot(2), RNG)
    assert request.reason == "seen 43", "from then on the process knows best"
    assert remote.close() == {"seen": 43}


def test_a_process_is_nice_and_ends_with_its_close(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    remote.decide(remote.initial(), snapshot(1), RNG)
    assert remote.pid is not None
    process = psutil.Process(remote.pid)
    assert process.nice() == min(19, os.nice(0) + children.NICENESS)
    assert os.getpgid(process.pid) == process.pid, "Ctrl-C of a terminal is not for it"
    state = remote.close()
    assert state == {"seen": 1}
    assert gone(process.pid)
    assert remote.close() == state
    assert remote.decide(remote.initial(), snapshot(2), RNG) == ({"seen": 1}, ())


def test_close_before_anything_was_asked(tmp_path: Path) -> None:
    remote = RemotePolicy(moody(tmp_path), CALM)
    until(lambda: remote.pid)
    pid = remote.pid
    assert remote.close() is None
    assert pid is not None and gone(pid)


# What goes wrong


def test_a_policy_that_fails_is_told_as_failing_and_has_learned_nothing(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    for number, mood in enumerate(["raise", "allocate", *NONSENSE], start=1):
        assert answered(remote, 2 * number) == number
        feel(tmp_path, mood)
        with pytest.raises(PolicyFailed, match="asked to" if mood == "raise" else "Error"):
            remote.decide(remote.initial(), snapshot(2 * number + 1), RNG)
    assert remote.restarts == 0


def test_whatever_a_policy_prints_or_reads_is_none_of_the_conversation(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    feel(tmp_path, "print")
    assert [answered(remote, number) for number in (1, 2)] == [1, 2]
    assert remote.restarts == 0


@pytest.mark.parametrize("mood", ["hang", "grip", "die", "stop", "exit", "fault"])
def test_a_process_that_is_lost_is_replaced_and_knows_what_was_learned(
    mood: str, tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    remote = made(moody(tmp_path), CALM)
    for number in range(1, 6):
        assert answered(remote, number) == number
    until(lambda: remote._state == {"seen": 5})
    lost = remote.pid
    with impatient(remote):
        feel(tmp_path, mood)
        assert remote.decide(remote.initial(), snapshot(6), RNG) == ({"seen": 5}, ()), "the loop goes on without requests"
    assert answered(remote, 7) == 6
    _, (request,) = remote.decide(remote.initial(), snapshot(8), RNG)
    assert request.score == np.random.default_rng(0).random(7)[-1], "its random source goes on too"
    assert remote.restarts == 1
    assert remote.pid != lost and lost is not None and gone(lost)
    (logged,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    codes = {"die": -9, "exit": 3, "fault": -11}
    assert (f"exit code {codes[mood]}: it ended" if mood in codes else "it hangs: no answer in 0.5 s") in logged


@pytest.mark.parametrize("mood", ["hang", "stop"])
def test_calls_return_while_the_process_hangs(mood: str, tmp_path: Path, made: Made) -> None:
    """20 calls of 0.05 s each against a process that would not answer in a week."""
    remote = made(moody(tmp_path), HASTY)
    answered(remote, 1)
    settle(remote)
    feel(tmp_path, mood)
    returned = [remote.decide(remote.initial(), snapshot(number), RNG) for number in range(2, 22)]
    assert [requests for _, requests in returned] == [()] * 20
    assert remote.restarts == 0


def test_a_process_that_dies_while_it_has_nothing_to_do_is_replaced_unasked(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    assert answered(remote, 1) == 1
    assert remote.pid is not None
    until(lambda: remote._state == {"seen": 1})
    os.kill(remote.pid, signal.SIGKILL)
    until(lambda: remote.restarts == 1)
    assert answered(remote, 2) == 2


def test_what_a_policy_started_ends_with_its_process(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), CALM)
    answered(remote, 1)
    until(lambda: remote._state == {"seen": 1})
    with impatient(remote):
        feel(tmp_path, "started")
        remote.decide(remote.initial(), snapshot(2), RNG)
    assert answered(remote, 3) == 2
    until(lambda: gone(int((tmp_path / "started").read_text())))


def test_of_a_state_that_json_cannot_carry_the_last_known_stays(
    tmp_path: Path, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    remote = made(moody(tmp_path), CALM)
    assert answered(remote, 1) == 1
    feel(tmp_path, "unkeepable")
    assert [answered(remote, number) for number in (2, 3, 4)] == [2, 3, 4]
    assert remote.close() == {"seen": 1}
    assert [record.message for record in caplog.records] == [
        "the state of policy moody cannot be saved: TypeError: JSON cannot carry {1, 2}"
    ]


def test_pauses_double_up_to_the_longest(caplog: pytest.LogCaptureFixture) -> None:
    def never() -> Child:
        raise Lost("it could not be started: no room")

    patience = replace(CALM, pause_s=0.01, longest_pause_s=0.04)
    remote = RemotePolicy(Spec("static"), patience, start=never)
    until(lambda: len(caplog.records) >= 5)
    remote.close()
    pauses = [re.findall(r"in ([\d.]+) s", record.message)[-1] for record in caplog.records[:5]]
    assert pauses == ["0.01", "0.02", "0.04", "0.04", "0.04"]
    assert "policy static is lost, exit code None: it could not be started: no room" in caplog.records[0].message


def test_while_there_is_no_process_no_call_waits(made: Made) -> None:
    def never() -> Child:
        raise Lost("no")

    remote = made(Spec("static"), replace(CALM, pause_s=10**6, longest_pause_s=10**6), start=never)
    until(lambda: remote.restarts == 1)
    for number in range(100):  # each might wait for a minute
        assert remote.decide({}, snapshot(number), RNG) == ({}, ())


# Late answers


def test_a_late_answer_serves_the_next_call(tmp_path: Path, made: Made) -> None:
    remote = made(moody(tmp_path), HASTY)
    seen = answered(remote, 0)
    settle(remote)
    feel(tmp_path, "wait")
    assert remote.decide({}, snapshot(1), RNG)[1] == ()
    until(lambda: not (tmp_path / MOOD).exists())
    for number in (2, 3, 4):  # the process is busy, and gets the newest of them when it is free
        assert remote.decide({}, snapshot(number), RNG)[1] == ()
    feel(tmp_path, "wait")
    (tmp_path / GO).touch()
    until(lambda: not (tmp_path / MOOD).exists(), "it has got the next")
    _, (request,) = remote.decide({}, snapshot(5), RNG)
    first = int(request.reason.split()[1])
    assert first > seen
    (tmp_path / GO).touch()
    settle(remote)
    until(lambda: remote._state == {"seen": first + 2}, "of 1 to 5, 2 and 3 were passed over")


def test_an_answer_of_long_ago_is_dropped(tmp_path: Path, made: Made) -> None:
    """hang_s and an interval, 61 s, is how old what was measured may be."""
    remote = made(moody(tmp_path), HASTY)
    answered(remote, 0)
    for asked_at, now, used in ((100.0, 161.0, True), (500.0, 561.1, False)):
        settle(remote)
        feel(tmp_path, "wait")
        assert remote.decide({}, replace(snapshot(0), at=asked_at), RNG)[1] == ()
        until(lambda: not (tmp_path / MOOD).exists())
        (tmp_path / GO).touch()
        until(lambda: remote._answers)
        feel(tmp_path, "wait")
        _, requests = remote.decide({}, replace(snapshot(0), at=now), RNG)
        assert bool(requests) is used
        until(lambda: not (tmp_path / MOOD).exists())
        (tmp_path / GO).touch()


# Processes that are none of ours


def other(script: str) -> Callable[[], Child]:
    """A process that does as the script says, and then nothing; ``line()`` reads a question, ``tell(document)`` answers."""
    tools = "import os, sys, json, time\ndef line(): return json.loads(sys.stdin.readline())\n"
    tools += "def tell(document): print(json.dumps(document), flush=True)\n"
    return lambda: Child([sys.executable, "-c", f"{tools}{script}\ntime.sleep(10**6)"])


BEGINS = "line(); tell({'begun': 'x'}); "


def test_what_a_late_answer_asks_for_counts_beside_what_the_next_one_does(tmp_path: Path, made: Made) -> None:
    """Of the same operator or executor the newest counts. What is too old, or an error, takes nothing else with it."""
    go, quick, slow = tmp_path / GO, replace(HASTY, state_s=10**6), replace(CALM, state_s=10**6, end_s=0.1)
    first = {degree: Request("first", degree, "r") for degree in (2, 3, 4, 5)}
    second, sink = Request("second", 4, "r"), Request("sink", 2, "r")
    leaves = {name: Request(action=RemoveExecutor(name, another=True), reason="r") for name in "123"}
    moves = Request(action=Migrate("second", 0, "a", "b"), reason="r")
    replies: list[list[Request] | str] = [
        [first[3], sink, leaves["1"], leaves["2"], moves], [first[2], leaves["2"], leaves["3"], second],  # late, in time
        [first[4]], "it failed", [],
        [first[5]], [sink],
    ]  # fmt: skip
    answers = [{"error": one} if isinstance(one, str) else {"requests": [each.to_json() for each in one]} for one in replies]
    script = (
        f"\nfor place, answer in enumerate(json.loads({json.dumps(json.dumps(answers))})):\n"
        "    number = line()['number']\n"
        f"    while place in (0, 2, 5) and not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "    tell({'number': number, **answer})\n"
    )
    remote = made(Spec("static"), quick, start=other(BEGINS + script))

    def late(at: int) -> None:
        remote._patience = quick
        assert remote.decide({}, snapshot(at), RNG)[1] == ()
        until(lambda: remote._asked is None, "it has got it")
        go.touch()
        until(lambda: remote._answers)
        go.unlink()
        remote._patience = slow

    late(1)
    assert remote.decide({}, snapshot(2), RNG)[1] == (sink, leaves["1"], first[2], leaves["2"], leaves["3"], second)
    late(3)
    with pytest.raises(PolicyFailed, match="it failed"):
        remote.decide({}, snapshot(4), RNG)
    assert remote.decide({}, snapshot(5), RNG)[1] == (first[4],)
    late(6)
    assert remote.decide({}, snapshot(68), RNG)[1] == (sink,)  # 62 s are more than hang_s and an interval
    assert remote.restarts == 0


LOST = {
    "silent": ("", "it hangs: no answer in 0.5 s"),
    "reads nothing": (BEGINS, "it hangs: it did not read its question in 0.5 s"),
    "reads a part": (BEGINS + "sys.stdin.read(100_000)", "it hangs: it did not read its question in 0.5 s"),
    "answers nothing": (BEGINS + "line()", "it hangs: no answer in 4 s"),  # on a busy machine, reading takes a second
    "rubbish": (BEGINS + "line(); print('rubbish', flush=True)", "it answered nonsense, b'rubbish'"),
    "no document": (BEGINS + "line(); tell([])", "list, not a document"),
    "empty": (BEGINS + "line(); tell({})", "answered nonsense: KeyError.'number'"),
    "another": (BEGINS + "line(); tell({'number': 10**6, 'requests': []})", "an answer to 1000000, not to"),
    "no requests": (BEGINS + "tell({'number': line()['number'], 'requests': [7]})", "nonsense: TypeError"),
    "refused": (BEGINS + "tell({'number': line()['number'], 'requests': [], 'refused': [7]})", "nonsense: TypeError"),
    "none": (BEGINS + "tell({'number': line()['number'], 'requests': None})", "nonsense: TypeError"),
    "unasked": (BEGINS + "print('hello', flush=True); line()", "wrote without a question: b'hello|nonsense, b'hello"),
    "endless": (BEGINS + "line()\nwhile True: sys.stdout.write('x' * 10_000)", "over 1,000,000 bytes, and no end"),
    "cannot begin": ("line(); tell({'error': 'a\\n  b\\nImportError: c'})", "could not begin: ImportError: c"),
    "ends": (BEGINS + "line(); sys.exit(4)", "exit code 4: it ended"),
}


@pytest.mark.parametrize("what", LOST)
def test_nonsense_and_silence_cost_a_process_its_place(
    what: str, made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot is of 1,000 operators, ten times what a pipe holds."""
    monkeypatch.setattr(children, "MAX_ANSWER_BYTES", 1_000_000)
    script, why = LOST[what]
    (big,) = large(1_000, 1, 0)
    hang_s = float(why.split()[-2]) if "hangs" in why else 60.0
    patience = replace(HASTY, first_s=hang_s if what == "silent" else 60.0, hang_s=hang_s, pause_s=10**6)
    remote = made(Spec("static"), patience, start=other(script))
    until(lambda: (remote.decide({}, big, RNG), remote.restarts)[1], why)
    assert re.search(why, caplog.records[0].message), caplog.records[0].message


def test_a_process_that_reads_slowly_is_waited_for(made: Made) -> None:
    """640 KB in bites of 50,000 bytes: the question arrives whole."""
    script = BEGINS + (
        "\ntext = ''\n"
        "while not text.endswith('\\n'): text += os.read(0, 50_000).decode(); time.sleep(0.01)\n"
        "one = json.loads(text)\n"
        "tell({'number': one['number'], 'requests': [\n"
        "    {'operator': 'a', 'degree': len(one['snapshot']['operators']), 'reason': 'r', 'score': float('nan')}]})"
    )
    (big,) = large(1_000, 1, 0)
    remote = made(Spec("static"), replace(CALM, end_s=0.1), start=other(script))
    _, (request,) = remote.decide({}, big, RNG)
    assert request.degree == 1_000
    assert math.isnan(request.score)


# The driver is killed

DRIVER = """
import sys, time
import numpy as np
from pathlib import Path
from control.plane import test_plane as t
from dataclasses import replace
folder = Path(sys.argv[1])
remote = t.RemotePolicy(t.moody(folder), replace(t.CALM, hang_s=float(sys.argv[3])))
assert t.answered(remote, 1) == 1
t.feel(folder, sys.argv[2])
print(remote.pid, flush=True)
remote.decide({}, t.snapshot(2), t.RNG)
time.sleep(10**6)
"""


@pytest.mark.long
@pytest.mark.parametrize(("mood", "hang_s"), [("print", 60), ("hang", 60), ("grip", 1)])
def test_no_process_outlives_a_driver_that_was_killed(mood: str, hang_s: int, tmp_path: Path) -> None:
    """Not even one whose policy lets no other thread run: 5 s after it should have been ended, it ends by itself."""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", DRIVER, str(tmp_path), mood, str(hang_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert not gone(pid)
        until(lambda: not (tmp_path / MOOD).exists(), "the policy got into its mood")
        driver.kill()
    until(lambda: gone(pid))


# The whole loop


def loop_of(policy: Any, interval_s: float = 1.0, **more: Any) -> tuple[Rig, Memory]:
    memory = Memory()
    loop = rig(
        line(), policy, bounds=SlotLimit(8), read_limit=None, trigger_s=0.0, interval_s=interval_s, clock=time.monotonic,
        actuators=[memory], journal=memory, **more,
    )  # fmt: skip
    return loop, memory


def test_the_first_plan_is_what_the_policy_wants_though_its_process_is_just_starting(made: Made) -> None:
    spec = Spec("static", {"degree": 2, "degrees": "second=3"}, (), ("first", "second", "sink"))
    loop, memory = loop_of(made(spec))
    assert loop.current().degrees == {"first": 2, "second": 3, "sink": 2}
    assert memory.applied == [loop.current()]


@pytest.mark.parametrize("mood", ["hang", "die"])
def test_a_policy_that_is_lost_in_its_first_decision_leaves_one_replica_each(mood: str, tmp_path: Path, made: Made) -> None:
    feel(tmp_path, mood)
    remote = made(moody(tmp_path), CALM)
    with impatient(remote):
        loop, _ = loop_of(remote)
    assert set(loop.current().degrees.values()) == {1}
    while loop.current().degrees["first"] != 2:  # it goes on: its second decision wants 2
        loop.cycle()


def test_what_was_learned_is_kept_by_the_loop(tmp_path: Path, made: Made) -> None:
    saved_states: list[Mapping[str, Any]] = []
    remote = made(moody(tmp_path), CALM)
    loop, _ = loop_of(remote, learned={"seen": 10}, keep=saved_states.append)
    loop.cycle()
    until(lambda: remote._state == {"seen": 12})
    loop.cycle()
    loop.stop()
    assert saved_states[-1]["seen"] >= 12
    assert remote.close() == {"seen": 13}


def report(number: int, plan: Plan) -> BatchReport:
    tasks = (TaskReport("first", 0, 10, 10, 0, 0.01, 100.0, 100.1),)
    return BatchReport(number, 1, plan, 100.0, 100.1, 10, 10, 0, tasks, {"sink": 10})


def made_by_it(memory: Memory) -> int:
    return sum("seen" in str(entry["reason"]) for entry in memory.decisions)


CHAOS = ("raise", "hang", "grip", "die", "stop", "exit", "fault", "allocate", "print", *NONSENSE)


@pytest.mark.long
def test_chaos_of_the_policy_is_none_of_the_data_flows_business(
    tmp_path: Path, made: Made, record_property: Callable[[str, object], None]
) -> None:
    """All that can go wrong, in an order drawn once, while a thread takes plans and hands over reports as fast as it can."""
    remote = made(moody(tmp_path), replace(HASTY, hang_s=0.5, pause_s=0.02, longest_pause_s=0.1, first_s=30.0))
    loop, memory = loop_of(remote, interval_s=0.02)
    loop.start()
    over, sent, longest = threading.Event(), 0, 0.0

    def flow() -> None:
        nonlocal sent, longest
        while not over.is_set():
            began = time.perf_counter()
            plan = loop.current()
            loop.report(report(sent, plan))
            longest = max(longest, time.perf_counter() - began)
            sent += 1
            if sent % 100 == 0:
                time.sleep(0.001)  # a batch does something else too, and a loop without rest tells of Python's lock alone

    data = threading.Thread(target=flow)
    data.start()
    moods = random.Random(5).sample(CHAOS * 2, 2 * len(CHAOS))
    try:
        for mood in moods:
            feel(tmp_path, mood)
            until(lambda: not (tmp_path / MOOD).exists(), mood)
        calm = made_by_it(memory)
        until(lambda: made_by_it(memory) >= calm + 5, "afterwards it decides as before")
    finally:
        over.set()
        data.join()
        loop.stop()
    record_property("longest_ms", 1000 * longest)
    print(f"longest call {1000 * longest:.1f} ms of {sent:,}, {remote.restarts} restarts")
    assert longest < HANGS_S
    assert [one.batch for one in memory.batches] == list(range(sent))
    killers = sum(mood in ("hang", "grip", "die", "stop", "exit", "fault") for mood in moods)
    assert remote.restarts >= killers
    learned = remote.close()
    assert learned is not None and learned["seen"] >= 5
