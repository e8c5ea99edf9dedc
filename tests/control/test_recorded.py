"""Documents of earlier versions: journals, policy states and the lines of the control process, as ``recorded`` has them.

``python -m control.test_recorded`` in ``tests`` writes them anew, which is right only where keys were added.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from control.hierarchy.test_migration import crowded, managed, on_hosts, run, world
from control.rig import loop_of
from control.test_loop import batch, cycle
from springtide.control.hierarchy import Hierarchy
from springtide.control.plane.served import Served
from springtide.control.plane.spec import Spec, make
from springtide.control.switch import FixedMode, Mode
from springtide.control.unknown_backlog import UNKNOWN
from springtide.model.plan import Plan, Request
from springtide.model.snapshot import NodeSnapshot
from springtide.policy.grant.budget import Budget
from springtide.policy.grant.token_bucket import TokenBucket
from springtide.policy.guard.cooldown import Cooldown
from springtide.policy.guard.excluded import Excluded
from springtide.policy.guard.guarded import Guarded
from springtide.policy.scale import refusals
from springtide.policy.scale.scripted import Scripted
from springtide.policy.scale.static import Static

FILE = Path(__file__).parents[1] / "recorded" / "decisions.json"

SPEC = Spec(
    "static", {"degree": "9"}, ("excluded:periods=0-20s",), ("work",), 0, "budget:limit=0.2,replica=0.05", "migration=1"
)
CROWDED = on_hosts(NodeSnapshot("a", 2, 1.9, ("3", "1")), NodeSnapshot("b", 2, 0.2, ("2",)))
"""Three replicas, and a host that is full."""

Documents = dict[str, Any]


def guarded() -> Documents:
    """A guard refuses two changes of an operator."""
    script = Scripted("first 0:1 2:4 3:2 4:5")
    return _cycles(Guarded(script, (Cooldown(before_out=3, before_in=3),)), 9)


def granted() -> Documents:
    """The application's manager refuses a scale-out for want of a token."""
    return _cycles(managed(Scripted("first 0:1 1:3"), grant=TokenBucket(), migration=False), 3)


def moved() -> Documents:
    """Replicas move in the simulator, and come where that was granted; a guard refuses moves for the first ten seconds."""
    found = run(crowded(), Guarded(managed(Scripted("work 0:3 20:4")), (Excluded(periods="0-10s"),)))
    return {"journal": found.decisions, "state": found.learned}


def dry() -> Documents:
    """A dry run of degrees, and of an executor that would be replaced."""
    return _hosts(Static(degree=6), switch=FixedMode(Mode.DRY_RUN))


def budgeted() -> Documents:
    """Executors come as far as a budget allows, one is replaced, and another stays though its replacement was granted."""
    return _hosts(Static(degree=6), Budget(limit=1.0, replica=0.0, executor=0.25))


def wired() -> Documents:
    """The control process refuses a scale-out by a guard and another by a manager, and requests a move of an executor."""
    served, lines, states = Served(), [], []
    served.answer({"message": "begin", "spec": SPEC.to_json(), "state": None, "rng": None})
    for number, at in enumerate((10.0, 30.0)):
        asked = {"message": "decide", "number": number, "snapshot": replace(CROWDED, at=at).to_json()}
        lines.append(json.loads(served.answer(asked)))
        states.append(json.loads(served.answer({"message": "state"}))["state"])
    return {"lines": lines, "states": states}


def pending() -> Documents:
    """Requests that wait for the application's manager, in a state."""
    policy = waiting()
    asked = {**policy.initial(), "application_asked": 0.0}
    state, _ = policy.decide(asked, CROWDED, np.random.default_rng(0))
    return {"state": state}


def waiting() -> Hierarchy:
    return managed(Static(degree=9), application_period_s=60.0)


def _cycles(policy: Any, count: int) -> Documents:
    loop, clock, memory = loop_of(policy, target_s=1.0)
    for number in range(count):
        loop.report(batch(5, number=number))
        cycle(loop, clock)
    return {"journal": memory.decisions, "state": loop.learned}


def _hosts(policy: Any, grant: Budget | None = None, **options: Any) -> Documents:
    found = world(managed(policy), grant, **options)
    there = found.cluster._there
    there["0"] = replace(there["0"], used_bytes=95, memory_bytes=100)
    found.cycles(6)
    there["2" if "2" in there else "1"] = replace(there["1"], used_bytes=99, memory_bytes=100)
    found.cycles(6)
    return {"journal": found.decisions, "state": found.loop.learned}


SCENES: Mapping[str, Callable[[], Documents]] = {
    scene.__name__: scene for scene in (guarded, granted, moved, dry, budgeted, wired, pending)
}


def recorded(scene: str) -> Documents:
    documents: Documents = json.loads(FILE.read_text(encoding="utf-8"))[scene]
    return documents


def as_json(documents: object) -> Any:
    return json.loads(json.dumps(documents))


def extends(now: Any, before: Any) -> bool:
    """Whether a document says what an earlier one said; it may have more keys, an action beside a degree, and reasons that say
    that the backlog was unknown."""
    if isinstance(before, dict):
        same = (key in now and ((key, value) == ("action", None) or extends(now[key], value)) for key, value in before.items())
        return isinstance(now, dict) and all(same)
    if isinstance(before, list):
        return isinstance(now, list) and len(now) == len(before) and all(map(extends, now, before))
    return bool((now.removesuffix(f"; {UNKNOWN}") if isinstance(now, str) else now) == before)


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_written_keeps_its_keys_and_values(scene: str) -> None:
    now, before = as_json(SCENES[scene]()), recorded(scene)
    for part, documents in before.items():
        assert extends(now[part], documents), part


def test_every_kind_of_document_is_recorded() -> None:
    kinds = {key for scene in SCENES for entry in recorded(scene).get("journal", ()) for key in entry}
    assert {"degrees", "actions", "refused", "dry_run", "relieved", "executors"} <= kinds
    wishes = [entry["refused"] for scene in SCENES for entry in recorded(scene).get("journal", ()) if "refused" in entry]
    assert {"guard", "manager"} <= {key for wish in wishes for key in wish}
    assert {"add-executors", "scale-out"} <= {wish["action"]["kind"] for wish in wishes if wish.get("action")}
    assert any("kept" in entry.get("executors", ()) for entry in recorded("budgeted")["journal"])
    assert any(action for entry in recorded("moved")["journal"] for action in entry.get("actions", ()))


def test_recorded_plans_are_read() -> None:
    for scene in SCENES:
        for entry in recorded(scene).get("journal", ()):
            if "slots" in entry:
                plan = {key: value for key, value in entry.items() if key != "at_s"}
                assert extends(as_json(Plan.from_json(plan).to_json()), plan)


def test_recorded_requests_are_read() -> None:
    found = []
    for line in recorded("wired")["lines"]:
        for document in line["requests"]:
            request = Request.from_json(document).checked(("work",))
            assert extends(as_json(request.to_json()), document)
            found.append(request)
    assert any(request.action for request in found)


def test_a_policy_goes_on_from_a_recorded_state() -> None:
    """What was refused when the state was saved is refused still, and is not reported again."""
    policy, line = make(SPEC).policy, recorded("wired")["lines"][0]
    old = recorded("wired")["states"][0]
    assert extends(as_json([verdict.refusal() for verdict in refusals(policy, old)]), line["refused"])
    after, requests = policy.decide(old, replace(CROWDED, at=15.0), np.random.default_rng(0))
    assert (requests, refusals(policy, after)) == ((), [])
    after, requests = policy.decide(old, replace(CROWDED, at=30.0), np.random.default_rng(0))
    assert [request.operator for request in requests] == ["work", ""]


def test_requests_that_waited_for_the_application_are_read() -> None:
    """Since 30 s two requests wait for the application's manager, which is asked every 60 s."""
    policy, old = waiting(), recorded("pending")["state"]
    assert [one["manager"] for one in old["pending"]] == ["operator work", "node a"]
    _, requests = policy.decide(old, replace(CROWDED, at=90.0), np.random.default_rng(0))
    assert [request.operator for request in requests] == ["work", ""]


if __name__ == "__main__":
    documents = {name: scene() for name, scene in SCENES.items()}
    FILE.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")
