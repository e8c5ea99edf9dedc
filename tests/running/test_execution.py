"""A run's steps, on a data plane that only notes its calls. Whatever fails, the run lets go of all it took, the last first."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import springtide as st
from springtide.apps import tweets
from springtide.control.decider import Decider, InThread
from springtide.control.loop import ControlLoop
from springtide.control.plans import Plans
from springtide.control.routing import Routing
from springtide.errors import CheckpointError, OptionError
from springtide.model.ending import Ended
from springtide.running.journal import FolderJournal
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.driver.plane import RunOutcome

CONTROL_THREAD = ControlLoop._run
ENDINGS = ["loop.stop", "routing.close", "journal.close", "plane.close", "decider.close", "checkpoint.release"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens, in order; a step that is named in ``failing`` raises."""
    noted: list[str] = []

    def note(kind: type, method: str, name: str) -> None:
        original: Callable[..., Any] = getattr(kind, method)

        def wrapped(*args: Any, **named: Any) -> Any:
            if name not in noted:  # a loop that stops closes its decider, which is closed again in the end
                noted.append(name)
            return original(*args, **named)

        monkeypatch.setattr(kind, method, wrapped)

    note(ControlLoop, "start", "loop.start")
    note(ControlLoop, "stop", "loop.stop")
    note(Routing, "close", "routing.close")
    note(FolderJournal, "close", "journal.close")
    note(Checkpoint, "acquire", "checkpoint.acquire")
    note(Checkpoint, "release", "checkpoint.release")
    monkeypatch.setattr(ControlLoop, "_run", lambda _: None)
    closed = Decider.close

    def close(decider: Decider) -> None:
        if "plane.close" in noted or "plane.open" not in noted:
            noted.append("decider.close")
        closed(decider)

    monkeypatch.setattr(Decider, "close", close)
    return noted


@pytest.fixture
def plane(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Puts a plane that does nothing in the place of Spark's; a step of it that is put into this set fails."""
    failing: set[str] = set()

    class Plane:
        hashing, actuators = "", ()

        def __init__(self, *_: Any) -> None: ...

        def _step(self, name: str) -> None:
            steps.append(f"plane.{name}")
            if name in failing:
                raise CheckpointError(f"{name} failed")

        def serve(self, plans: Any) -> None:
            self._step("serve")

        def open(self) -> None:
            self._step("open")

        def follow(self) -> RunOutcome:
            self._step("follow")
            return RunOutcome(ended=Ended.EXHAUSTED)

        def close(self) -> None:
            self._step("close")

    monkeypatch.setattr("springtide.running.spark.SparkPlane", Plane)
    return failing


@dataclass(frozen=True)
class Number:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index)


def run(folder: Path, **options: Any) -> st.Result:
    return st.run(tweets.topology(path=str(folder / "out")), runs=folder / "runs", policy="static", **options)


def test_a_run_from_its_beginning_to_its_end(steps: list[str], plane: set[str], tmp_path: Path) -> None:
    result = run(tmp_path, checkpoint=tmp_path / "checkpoint", target="2s", max_slots=3)
    assert steps == ["checkpoint.acquire", "plane.serve", "plane.open", "loop.start", "plane.follow", *ENDINGS]
    assert (result.summary["ended"], result.summary["policy"]) == ("exhausted", "static")
    about = json.loads((result.folder / "run.json").read_text())
    assert (about["target_s"], about["max_slots"], about["grouping"]) == (2.0, 3, "tide")


@pytest.mark.parametrize("target", ["2s", None])
def test_a_source_whose_limit_no_plan_can_change_gets_none_and_a_word_at_start(
    target: str | None, plane: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Plans named a read limit that reached nothing."""
    served: list[Plans] = []
    kind = sys.modules["springtide.running.spark"].SparkPlane
    monkeypatch.setattr(kind, "serve", lambda _, plans: served.append(plans))
    sources = [st.source.dataframe(None, schema={"n": int}, name=name) for name in ("left", "right")]
    fixed = sources[0].union(sources[1]).to(st.sink.discard()).named("fixed")
    mixed = sources[0].union(st.source.generate(number, rate=1)).to(st.sink.discard()).named("mixed")
    with caplog.at_level(logging.WARNING, "springtide"):
        for topology in (fixed, mixed):
            st.run(topology, runs=tmp_path / "runs", policy="static", target=target)
        run(tmp_path, target=target)
    assert [plans.plan.read_limit for plans in served] == [None, *([1_000, 1_000] if target else [None, None])]
    words = [record.getMessage() for record in caplog.records if "read limit" in record.getMessage()]
    named = ["'left', 'right'", "'left'"] if target else []
    assert [word.split("dataframe source ")[1].split(":")[0] for word in words] == named
    assert all("fixed at start" in word and "maxOffsetsPerTrigger" in word for word in words)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("serve", ["plane.serve", "decider.close", "checkpoint.release"]),
        ("open", ["plane.serve", "plane.open", *ENDINGS]),
        ("follow", ["plane.serve", "plane.open", "loop.start", "plane.follow", *ENDINGS]),
        ("close", ["plane.serve", "plane.open", "loop.start", "plane.follow", *ENDINGS]),
    ],
)
def test_a_step_that_fails_lets_go_of_all_that_was_taken(
    step: str, expected: list[str], steps: list[str], plane: set[str], tmp_path: Path
) -> None:
    plane.add(step)
    with pytest.raises(CheckpointError, match=f"{step} failed"):
        run(tmp_path)
    assert steps == ["checkpoint.acquire", *expected]


def test_a_target_below_the_floor_that_was_measured_lets_go_of_the_checkpoint(
    steps: list[str], plane: set[str], tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    run(tmp_path, checkpoint=place)
    Checkpoint(place).remember("floor", {"floor_s": 3.0})
    steps.clear()
    with pytest.raises(OptionError, match="target 2000 ms is below the floor of a batch, 3000 ms, as measured"):
        run(tmp_path, checkpoint=place, target="2s")
    assert steps == ["checkpoint.acquire", "checkpoint.release"]


def test_the_summary_counts_the_failures_of_the_policy_and_of_the_control_loop(
    plane: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []
    enough = threading.Event()

    class Broken:
        name: ClassVar = "broken"

        def initial(self) -> dict[str, Any]:
            return {}

        def decide(self, *_: Any) -> Any:
            asked.append(len(asked))
            if len(asked) == 3:
                enough.set()
            raise ValueError(f"attempt {asked[-1]}")

    def adopt(*_: Any) -> None:
        raise OSError("unreachable")

    def follow(_: Any) -> RunOutcome:
        assert enough.wait(20)
        return RunOutcome(ended=Ended.EXHAUSTED)

    healthy = run(tmp_path).summary
    monkeypatch.setattr("springtide.running.spark.SparkPlane.follow", follow)
    monkeypatch.setattr("springtide.running.execution.RemotePolicy", lambda *_: InThread(Broken()))
    monkeypatch.setattr(ControlLoop, "_run", CONTROL_THREAD)
    monkeypatch.setattr(Plans, "adopt", adopt)
    result = run(tmp_path, interval=0.05)
    assert [healthy[key] for key in ("policy_failures", "policy_failure", "control_failures")] == [0, None, 0]
    # the policy was also asked for the first plan, before the first cycle
    assert result.summary["policy_failures"] == result.summary["control_failures"] + 1 == len(asked) >= 3
    assert result.summary["policy_failure"] == "ValueError('attempt 0')"
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
