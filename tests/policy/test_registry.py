"""The registry, and what holds for every registered plug-in, built in or not."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from springtide.errors import OptionError
from springtide.model.plan import Plan
from springtide.model.report import Latency
from springtide.model.snapshot import OperatorSnapshot, Snapshot
from springtide.policy import available, create, describe, find, parameter, parameters, validate
from springtide.policy.group import Share
from springtide.policy.scale.scripted import Scripted
from springtide.policy.scale.static import Static

PLUGINS = available()
SCALERS = [cls for cls in available("scale") if not getattr(cls, "simulator_only", False)]
GROUPINGS = [cls for cls in available("group") if not getattr(cls, "simulator_only", False)]


def by_name(cls: type[Any]) -> str:
    return f"{cls.kind}/{cls.name}"


@dataclass(frozen=True)
class Mine:
    """A user's own policy, reached as ``module:Class``."""

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "mine"
    source: ClassVar[str] = "a user"
    summary: ClassVar[str] = "does what I say"

    bold: bool = parameter(False, help="whether")
    count: int = parameter(3, "replicas", 1, 10, "how many")
    pause: float = parameter(1.5, "s", 0, help="how long")
    label: str = parameter("x")

    def initial(self) -> dict[str, Any]:
        return {}

    def decide(self, state: Any, snapshot: Any, rng: Any) -> tuple[Any, tuple[()]]:
        return state, ()


@dataclass
class Thawed:
    """Not frozen."""


@dataclass(frozen=True)
class NoRoute:
    """Says that it is a grouping, and is none."""

    kind: ClassVar[str] = "group"
    name: ClassVar[str] = "no-route"
    source: ClassVar[str] = ""
    summary: ClassVar[str] = ""


@dataclass(frozen=True)
class OddParameter(Mine):
    """A parameter that no text can set."""

    odd: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Nameless:
    """Does not say what it is."""


MINE = f"{__name__}:Mine"


def test_the_built_in_names() -> None:
    assert {"static", "scripted"} <= {cls.name for cls in SCALERS}
    assert {"round-robin", "hash"} <= {cls.name for cls in GROUPINGS}
    assert len({(cls.kind, cls.name) for cls in PLUGINS}) == len(PLUGINS)


def test_a_module_and_class_name_a_plugin() -> None:
    made = create("scale", MINE, {"count": "7"})
    assert made == Mine(count=7)
    assert find("scale", MINE) is type(made)


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"bold": "Yes", "count": " 4 ", "pause": "2", "label": "3"}, Mine(True, 4, 2.0, "3")),
        ({"bold": True, "count": np.int32(4), "pause": 2, "label": ""}, Mine(True, 4, 2.0, "")),
        ({"pause": "250ms"}, Mine(pause=0.25)),
        ({"pause": "1e-2", "bold": "off"}, Mine(pause=0.01)),
        ({"count": 1}, Mine(count=1)),
        ({"count": 10}, Mine(count=10)),
        ({}, Mine()),
    ],
)
def test_settings_are_read(settings: dict[str, object], wanted: Mine) -> None:
    made: Any = create("scale", MINE, settings)
    assert made == wanted
    assert [type(value) for value in dataclasses.astuple(made)] == [bool, int, float, str]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"count": "many"}, ["count='many'", "int in replicas, at least 1, at most 10"]),
        ({"count": 0}, ["count=0", "at least 1"]),
        ({"count": 11}, ["count=11", "at most 10"]),
        ({"count": 2.0}, ["count=2.0", "int"]),
        ({"count": True}, ["count=True", "int"]),
        ({"count": None}, ["count=None"]),
        ({"pause": "soon"}, ["pause='soon'", "float in s, at least 0"]),
        ({"pause": -1}, ["pause=-1"]),
        ({"pause": "nan"}, ["pause='nan'"]),
        ({"pause": math.inf}, ["pause=inf"]),
        ({"bold": "maybe"}, ["bold='maybe'", "bool"]),
        ({"bold": 1}, ["bold=1"]),
        ({"label": 3}, ["label=3", "str"]),
        ({"cuont": 3}, ["no parameter 'cuont'", "did you mean 'count'", "bold, count, label, pause"]),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object], said: list[str]) -> None:
    with pytest.raises(OptionError) as raised:
        create("scale", MINE, settings)
    assert all(words in str(raised.value) for words in said), str(raised.value)


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("scale", "statik", "did you mean 'static'"),
        ("group", "static", "no group policy is named 'static'"),
        ("scael", "static", "did you mean 'scale'"),
        ("group", MINE, "is of the kind 'scale'"),
        ("scale", "no.such.module:Mine", "cannot be loaded: No module named"),
        ("scale", f"{__name__}:Yours", "cannot be loaded"),
        ("scale", ":Mine", "names no class"),
        ("scale", "..x:Mine", "names no class"),
        ("scale", f"{__name__}:", "names no class"),
        ("scale", f"{__name__}:Thawed", "frozen=True"),
        ("scale", f"{__name__}:by_name", "no dataclass"),
        ("scale", f"{__name__}:Nameless", "no class attribute kind"),
        ("group", f"{__name__}:NoRoute", "needs a method route"),
        ("scale", f"{__name__}:OddParameter", "parameter 'odd'"),
    ],
)
def test_names_that_do_not_fit(kind: str, name: str, said: str) -> None:
    with pytest.raises(OptionError) as raised:
        create(kind, name)
    assert said in str(raised.value)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(OptionError, match="Allowed: forecast, grant, group, guard, scale"):
        available("scope")


def test_validate_checks_what_create_did_not_make() -> None:
    validate(Mine(count=10))
    for wrong in (Mine(count=11), Mine(count="3"), Mine(pause=math.nan)):  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="'mine'"):
            validate(wrong)


def with_entry_points(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    group = "springtide.policies"
    points = [importlib.metadata.EntryPoint(str(i), value, group) for i, value in enumerate(values)]
    found: Callable[..., Any] = lambda **chosen: points if chosen == {"group": group} else []  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "entry_points", found)


def test_a_class_joins_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, MINE)
    assert find("scale", "mine").summary == "does what I say"
    assert [cls.name for cls in available("scale")][-1] == "mine"
    assert "mine" not in [cls.name for cls in available("group")]


def test_a_broken_entry_point_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with_entry_points(monkeypatch, "no.such.module:Mine", f"{__name__}:Nameless", MINE)
    with caplog.at_level(logging.WARNING):
        assert create("scale", "mine") == Mine()
    assert "no.such.module" in caplog.text
    assert "Nameless" in caplog.text


def test_a_built_in_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, f"{__name__}:Usurper")
    assert find("scale", "static") is Static
    assert [cls for cls in available("scale") if cls.name == "static"] == [Static]


@dataclass(frozen=True)
class Usurper(Mine):
    """Wants the name of a built-in."""

    name: ClassVar[str] = "static"


def test_a_description_has_what_the_command_prints() -> None:
    shown = describe(Mine)
    assert list(shown) == ["kind", "name", "source", "summary", "parameters"]
    assert shown["parameters"][1] == {
        "name": "count", "type": "int", "unit": "replicas", "min": 1, "max": 10, "default": 3,
        "help": "how many",
    }  # fmt: skip


# What holds for every plug-in.


@pytest.mark.parametrize("cls", PLUGINS, ids=by_name)
def test_every_plugin_is_described(cls: type[Any]) -> None:
    shown = describe(cls)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert shown["summary"]
    assert "\n" not in shown["summary"]
    assert shown["source"]
    assert cls.__doc__
    for given in shown["parameters"]:
        assert given["help"], f"{given['name']} has no help"
        assert given["type"] in ("int", "float", "str", "bool")


@pytest.mark.parametrize("cls", PLUGINS, ids=by_name)
def test_every_plugin_is_frozen_and_pickles(cls: type[Any]) -> None:
    made = create(cls.kind, cls.name)
    assert made == cls()
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.anything = 1


@pytest.mark.parametrize("cls", PLUGINS, ids=by_name)
def test_every_default_is_allowed_and_reads_back_from_text(cls: type[Any]) -> None:
    validate(cls())
    assert create(cls.kind, cls.name, {p.name: str(p.default) for p in parameters(cls)}) == cls()


def operator(name: str, **measured: Any) -> OperatorSnapshot:
    usual: dict[str, Any] = {
        "degree": 2, "width": 2, "rows_in": 100, "rows_out": 90, "failures": 0, "busy_s": 3.0, "rate": 50.0,
        "utilisation": 0.75, "backlog": 10, "latency_ms": 40.0,
    }  # fmt: skip
    return OperatorSnapshot(name=name, **{**usual, **measured})


def snapshot(*operators: OperatorSnapshot, **measured: Any) -> Snapshot:
    names = [o.name for o in operators]
    plan = Plan(dict.fromkeys(names, 2), 2 * len(names), dict.fromkeys(names, 2))
    usual: dict[str, Any] = {
        "at": 12.0, "interval_s": 2.0, "batches": ((100, 0.5), (90, 0.4)), "rate": 50.0, "backlog": 10,
        "latency": Latency(400.0, 380.0, 700.0, 900.0),
    }  # fmt: skip
    return Snapshot(plan=plan, operators=operators, **{**usual, **measured})


MISSING: dict[str, Any] = {"rate": None, "utilisation": None, "backlog": None, "latency_ms": None}
ABSURD: dict[str, Any] = {
    "rate": math.inf, "utilisation": math.nan, "backlog": -5, "latency_ms": -1.0, "busy_s": math.nan,
    "rows_in": 10**18, "rows_out": -1, "degree": 10**6, "width": 0,
}  # fmt: skip
SNAPSHOTS = {
    "usual": snapshot(operator("enrich"), operator("classify", degree=1)),
    "no operators": snapshot(),
    "missing": snapshot(operator("enrich", **MISSING), batches=(), rate=None, backlog=None, latency=None),
    "absurd": snapshot(operator("enrich", **ABSURD), at=math.nan, interval_s=0.0, batches=((-1, math.nan),)),
    "before the start": snapshot(operator("enrich"), at=-1.0, rate=-1.0),
}


@pytest.mark.parametrize("measured", SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
@pytest.mark.parametrize("cls", SCALERS, ids=by_name)
def test_every_scaler_decides_soundly_and_again_the_same(cls: type[Any], measured: Snapshot) -> None:
    policy = create("scale", cls.name)
    state = json.loads(json.dumps(policy.initial(), allow_nan=False))
    assert state == policy.initial()
    before = json.dumps(state)
    decided = policy.decide(state, measured, np.random.default_rng(7))
    assert json.dumps(state) == before, "a policy must not change the state that it was handed"
    restored = json.loads(json.dumps(decided[0], allow_nan=False))
    assert restored == decided[0]
    assert decided == pickle.loads(pickle.dumps(policy)).decide(state, measured, np.random.default_rng(7))
    assert policy.decide(restored, measured, np.random.default_rng(8)) is not None
    names = [request.operator for request in decided[1]]
    assert len(set(names)) == len(names)
    for request in decided[1]:
        assert request.degree >= 1
        assert request.degree != measured[request.operator].degree
        assert any(c.isdigit() for c in request.reason), "a reason has the numbers"


@pytest.mark.parametrize("cls", GROUPINGS, ids=by_name)
def test_every_grouping_stays_in_range_and_again_the_same(cls: type[Any]) -> None:
    grouping = create("group", cls.name)
    for rows in (0, 1, 1_000):
        batch = pa.record_batch({"n": pa.array(range(rows), pa.int64()), "s": pa.array(["x"] * rows, pa.string())})
        for origin, width in ((0, 1), (3, 4), (1_000, 7)):
            route = grouping.route(Share.of(batch, ("n", "s"), width, origin), {})
            assert route.dtype == np.int64
            assert route.shape == (rows,)
            assert ((route >= 0) & (route < width)).all()
            again = pickle.loads(pickle.dumps(grouping)).route(Share.of(batch, ("n", "s"), width, origin), {})
            assert (route == again).all()


def test_the_scripted_policy_is_found_by_its_settings() -> None:
    assert create("scale", "scripted", {"script": "* 0:2", "repeat": "1m"}) == Scripted("* 0:2", 60.0)
