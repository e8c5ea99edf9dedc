"""Plug-ins, found by kind and short name, and made from settings.

A plug-in is a frozen dataclass. Its fields are its parameters, each an int, a float, a str or a bool with a default; its class
attributes ``kind``, ``name``, ``source`` and ``summary`` describe it. The same settings serve Python, the command line and
``spark.springtide.*``; all but Python pass strings, so ``create`` reads strings too.

A user's class is registered by an entry point of the group ``springtide.policies``, or named as ``module:Class``. If an entry
point has the name of a built-in, the built-in comes first; the other is found as ``module:Class``.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class First:
...     "Sends every record to the first task."
...     kind, name, source, summary = "group", "first", "mine", "every record to the first task"
...     slack: float = parameter(0.1, unit="s", minimum=0, help="how long it waits")
...     def route(self, share, table): ...
>>> describe(First)["parameters"][0]["unit"]
's'
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import logging
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from springtide.errors import OptionError, nearest
from springtide.model.duration import seconds
from springtide.model.yes_no import yes_or_no

if TYPE_CHECKING:
    from springtide.policy.group import Grouping
    from springtide.policy.scale import ScalePolicy

ENTRY_POINTS = "springtide.policies"
"""The entry point group of other packages' plug-ins."""

METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scale": ("initial", "decide"),
        "group": ("route",),
        "forecast": ("initial", "update", "ahead"),
        "guard": ("initial", "review"),
        "grant": ("initial", "decide"),
        "shard": ("assign",),
    }
)
"""The kinds, and the required methods of their plug-ins."""

_BUILT_IN = (
    "springtide.policy.scale.static:Static",
    "springtide.policy.scale.scripted:Scripted",
    "springtide.policy.scale.tide:Tide",
    "springtide.policy.scale.incremental:Incremental",
    "springtide.policy.scale.rlearning:RLearning",
    "springtide.policy.scale.autoscale:Autoscale",
    "springtide.policy.scale.autoscale_plus:AutoscalePlus",
    "springtide.policy.scale.psps:Psps",
    "springtide.policy.scale.threshold:Threshold",
    "springtide.policy.scale.q_learning:QLearning",
    "springtide.policy.scale.model_based:ModelBased",
    "springtide.policy.scale.queueing:Queueing",
    "springtide.policy.scale.ds2:Ds2",
    "springtide.policy.scale.flink:Flink",
    "springtide.policy.scale.spark_ratio:SparkRatio",
    "springtide.policy.scale.clairvoyant:Clairvoyant",
    "springtide.policy.group.tide:Tide",
    "springtide.policy.group.round_robin:RoundRobin",
    "springtide.policy.group.hash:Hash",
    "springtide.policy.group.shards:Shards",
    "springtide.policy.group.random:Random",
    "springtide.policy.group.two_choices:TwoChoices",
    "springtide.policy.group.least_loaded:LeastLoaded",
    "springtide.policy.group.load_balancing:LoadBalancing",
    "springtide.policy.group.posg:Posg",
    "springtide.policy.group.full_knowledge:FullKnowledge",
    "springtide.policy.group.lpt:Lpt",
    "springtide.policy.forecast.last:Last",
    "springtide.policy.forecast.linear:Linear",
    "springtide.policy.forecast.logarithmic:Logarithmic",
    "springtide.policy.forecast.exponential:ExponentialCurve",
    "springtide.policy.forecast.best_fit:BestFit",
    "springtide.policy.forecast.moving_average:MovingAverage",
    "springtide.policy.forecast.holt:Holt",
    "springtide.policy.forecast.holt_winters:HoltWinters",
    "springtide.policy.forecast.markov:Markov",
    "springtide.policy.forecast.ensemble:Ensemble",
    "springtide.policy.guard.bounds:Bounds",
    "springtide.policy.guard.cooldown:Cooldown",
    "springtide.policy.guard.stabilisation:Stabilisation",
    "springtide.policy.guard.hysteresis:Hysteresis",
    "springtide.policy.guard.max_step:MaxStep",
    "springtide.policy.guard.quota:Quota",
    "springtide.policy.guard.effectiveness:Effectiveness",
    "springtide.policy.guard.excluded:Excluded",
    "springtide.policy.grant.all:All",
    "springtide.policy.grant.token_bucket:TokenBucket",
    "springtide.policy.grant.budget:Budget",
    "springtide.policy.shard.balance:Balance",
    "springtide.policy.shard.fixed:Fixed",
)
_TYPES: Mapping[object, type] = MappingProxyType(
    {name: kind for kind in (int, float, str, bool) for name in (kind, kind.__name__)}
)
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Parameter:
    """A parameter of a plug-in, for help texts and error messages."""

    name: str
    type: type
    unit: str
    minimum: float | None
    maximum: float | None
    default: object
    help: str

    def allowed(self) -> str:
        """The allowed values, in words.

        >>> Parameter("degree", int, "replicas", 1, None, 1, "").allowed()
        'an int in replicas, at least 1'
        """
        article = "an" if self.type is int else "a"
        unit = f" in {self.unit}" if self.unit else ""
        bounds = [("at least", self.minimum), ("at most", self.maximum)]
        return ", ".join(
            [f"{article} {self.type.__name__}{unit}", *(f"{word} {end}" for word, end in bounds if end is not None)]
        )


def parameter(default: _T, unit: str = "", minimum: float | None = None, maximum: float | None = None, help: str = "") -> _T:
    """A field of a plug-in: its default, and how to set it.

    ``minimum`` and ``maximum`` are allowed values, in ``unit``; None is no limit.
    """
    about = {"unit": unit, "minimum": minimum, "maximum": maximum, "help": help}
    made: _T = dataclasses.field(default=default, metadata=about)
    return made


def parameters(cls: type[Any]) -> tuple[Parameter, ...]:
    """The parameters of a plug-in, in the order in which the class lists them."""
    return tuple(
        Parameter(
            name=field.name,
            type=_TYPES.get(field.type, object),
            unit=field.metadata.get("unit", ""),
            minimum=field.metadata.get("minimum"),
            maximum=field.metadata.get("maximum"),
            default=field.default,
            help=field.metadata.get("help", ""),
        )
        for field in dataclasses.fields(cls)
        if field.init
    )


def describe(cls: type[Any]) -> dict[str, Any]:
    """A plug-in as ``springtide policies --json`` prints it.

    >>> shown = describe(find("group", "hash"))
    >>> shown["kind"], shown["name"], [p["name"] for p in shown["parameters"]]
    ('group', 'hash', ['seed'])
    """
    shown = [
        {
            "name": p.name,
            "type": p.type.__name__,
            "unit": p.unit,
            "min": p.minimum,
            "max": p.maximum,
            "default": p.default,
            "help": p.help,
        }
        for p in parameters(cls)
    ]
    return {"kind": cls.kind, "name": cls.name, "source": cls.source, "summary": cls.summary, "parameters": shown}


def available(kind: str | None = None) -> list[type[Any]]:
    """Every plug-in of a kind, or of all kinds: the built-in ones first.

    >>> [cls.name for cls in available("scale")][:2]
    ['static', 'scripted']
    """
    if kind is not None:
        _check_kind(kind)
    found: dict[tuple[str, str], type[Any]] = {}
    for cls in (*_built_in(), *_joined()):
        found.setdefault((cls.kind, cls.name), cls)
    return [cls for cls in found.values() if kind in (None, cls.kind)]


def find(kind: str, name: str) -> type[Any]:
    """The class of a kind with a short name, or from ``module:Class``."""
    _check_kind(kind)
    if ":" in name:
        cls = _load(name)
        if cls.kind != kind:
            raise OptionError(f"{name!r} is of the kind {cls.kind!r}; wanted one of the kind {kind!r}")
        return cls
    for cls in _built_in():
        if (cls.kind, cls.name) == (kind, name):
            return cls
    others = available(kind)
    for cls in others:
        if cls.name == name:
            return cls
    raise OptionError(f"no {kind} policy is named {name!r}; {nearest(name, (cls.name for cls in others))}, module:Class")


@overload
def create(kind: Literal["scale"], name: str, settings: Mapping[str, object] | None = None) -> ScalePolicy: ...
@overload
def create(kind: Literal["group"], name: str, settings: Mapping[str, object] | None = None) -> Grouping: ...
@overload
def create(kind: str, name: str, settings: Mapping[str, object] | None = None) -> Any: ...
def create(kind: str, name: str, settings: Mapping[str, object] | None = None) -> Any:
    """Make a plug-in from its settings, given as values or as strings; the others keep their defaults.

    A float whose unit is ``s`` may be written as a duration, such as ``"2m"``. Raises OptionError for a name,
    a parameter or a value that does not exist or does not fit, with the allowed ones.

    >>> create("scale", "static", {"degree": "3"})
    Static(degree=3, degrees='')
    """
    cls = find(kind, name)
    known = {p.name: p for p in parameters(cls)}
    given = dict(settings or {})
    for word in given:
        if word not in known:
            raise OptionError(f"{kind} policy {name!r} has no parameter {word!r}; {nearest(word, known)}")
    return cls(**{word: _value(name, known[word], value) for word, value in given.items()})


def validate(plugin: object) -> None:
    """Raise OptionError when a parameter has the wrong type or is out of range.

    For objects that ``create`` did not make; a plug-in may call it in its ``__post_init__``.

    >>> from springtide.policy.scale.static import Static
    >>> Static(degree=0)
    Traceback (most recent call last):
    springtide.errors.OptionError: 'static': degree=0 is not allowed; give an int in replicas, at least 1
    """
    cls: Any = type(plugin)
    for p in parameters(cls):
        value = getattr(plugin, p.name)
        if isinstance(value, str) and p.type is not str:
            raise _misfit(cls.name, p, value)
        _value(cls.name, p, value)


def _misfit(owner: str, p: Parameter, value: object) -> OptionError:
    return OptionError(f"{owner!r}: {p.name}={value!r} is not allowed; give {p.allowed()}")


def _value(owner: str, p: Parameter, given: object) -> object:
    """A setting as a value of the parameter's type, within its range."""
    try:
        value = _read(p, given)
    except (ValueError, OptionError):
        raise _misfit(owner, p, given) from None
    if isinstance(value, (int, float)):
        low, high = p.minimum, p.maximum
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            raise _misfit(owner, p, given)
    return value


def _read(p: Parameter, given: object) -> int | float | str | bool:
    """A setting as a value of the parameter's type; ValueError or OptionError when it is none."""
    if p.type is str:
        if isinstance(given, str):
            return given
    elif p.type is bool:
        switched = yes_or_no(given) if isinstance(given, str) else given
        if isinstance(switched, bool):
            return switched
    elif isinstance(given, str):
        return int(given) if p.type is int else _float(given, p.unit)
    elif p.type is int:
        if isinstance(given, numbers.Integral) and not isinstance(given, bool):
            return int(given)
    elif isinstance(given, numbers.Real) and not isinstance(given, bool):
        return float(given)
    raise ValueError(given)


def _float(text: str, unit: str) -> float:
    try:
        return float(text)
    except ValueError:
        if unit != "s":
            raise
        return seconds(text)


def _check_kind(kind: str) -> None:
    if kind not in METHODS:
        raise OptionError(f"no kind of policy is named {kind!r}; {nearest(kind, METHODS)}")


def _built_in() -> Iterator[type[Any]]:
    return map(_load, _BUILT_IN)


def _joined() -> Iterator[type[Any]]:
    """The plug-ins of other packages. A broken one is left out with a warning."""
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            yield _checked(point.load(), point.value)
        except (ImportError, AttributeError, OptionError) as fault:
            _log.warning("policy %r of the entry point %r is left out: %s", point.value, point.name, fault)


def _load(path: str) -> type[Any]:
    """The class that ``module:Class`` names."""
    module, _, name = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise OptionError(f"{path!r} names no class; write module:Class, such as 'my.policies:Mine'")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as fault:
        raise OptionError(f"{path!r} cannot be loaded: {fault}") from fault
    return _checked(found, path)


def _checked(cls: Any, path: str) -> type[Any]:
    for fault in _faults(cls):
        raise OptionError(f"{path!r} cannot serve as a policy: {fault}")
    checked: type[Any] = cls
    return checked


def _faults(cls: Any) -> Iterator[str]:
    """Why a class is not a plug-in; the first fault is reported."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        yield "it is no dataclass"
        return
    if not getattr(cls, "__dataclass_params__").frozen:  # noqa: B009 - unknown to the type checker
        yield "write @dataclass(frozen=True), so that nothing changes it in a run"
    for word in ("kind", "name", "source", "summary"):
        if not isinstance(getattr(cls, word, None), str):
            yield f"it has no class attribute {word}: ClassVar[str]"
            return
    kind = getattr(cls, "kind", "")
    if kind not in METHODS:
        yield f"its kind is {kind!r}; {nearest(kind, METHODS)}"
    for method in METHODS.get(kind, ()):
        if not callable(getattr(cls, method, None)):
            yield f"a {kind} policy needs a method {method}"
    for p in parameters(cls):
        if p.type is object or not isinstance(p.default, (int, float, str)):
            yield f"its parameter {p.name!r} has to be an int, a float, a str or a bool, with a default"
