"""The base class of users' processors: a function of a key, its records and its state.

class Fares(Processor):
    total = value(float, default=0.0)
    seen = map_of(str, int)

    def process(self, key: str, records: list[Trip], state: State) -> Iterator[Total]:
        state.total += sum(trip.fare for trip in records)
        yield Total(key, state.total)
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model.columns import column
from springtide.model.state import arrow_type, micros

_FIXED = (int, float, str, bytes, datetime.date, decimal.Decimal, type(None))
"""Types whose values cannot be changed in place."""


class Clock(StrEnum):
    """The clock of a timer: the watermark, or the time at which batches start."""

    EVENT = "event"
    PROCESSING = "processing"


@dataclass(frozen=True)
class Timer:
    """A timer that fires."""

    at: datetime.datetime
    clock: Clock


@dataclass(frozen=True)
class Variable:
    """A declared state variable, of which every key has a value."""

    kind: str  # "value", "list" or "map"
    types: tuple[Any, ...]
    default: Any = None

    def hint(self) -> Any:
        """Its type as a Python annotation."""
        if self.kind == "list":
            return list.__class_getitem__(self.types[0])
        if self.kind == "map":
            return dict.__class_getitem__(self.types)
        return self.types[0] | None

    @cached_property
    def takes_none(self) -> bool:
        """Whether None is one of its values, rather than the mark of a variable that was never assigned."""
        return self.kind == "value" and type(None) in typing.get_args(self.types[0])

    def initial(self) -> Any:
        """The value of a key before its first record. Each key gets its own copy, because a list may be changed in place."""
        if self.kind != "value":
            return copy.copy(self.default)  # an empty list or dict: a shallow copy is enough
        return self.default if self._is_fixed else copy.deepcopy(self.default)

    @cached_property
    def _is_fixed(self) -> bool:
        return _is_fixed(self.default)

    def check(self, where: str) -> None:
        """Refuse an annotation that is not a type, and a default of another type."""
        try:
            hint = self.hint()
        except TypeError:
            raise TopologyError(f"{where}: {self.types[0]!r} is no type; give the type itself, such as int") from None
        if self.kind != "value" or self.default is None:
            return
        try:
            kind, _ = arrow_type(where, hint)
        except TopologyError:  # the operator reports it when it is made: the names in the type may be defined by then
            return
        try:
            column([self.default], pa.field("default", kind), strict=True)
        except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            of = getattr(self.types[0], "__name__", self.types[0])
            raise TopologyError(
                f"{where}: default={self.default!r} is not of the type that is declared, {of} ({error})"
            ) from None


def _is_fixed(value: Any) -> bool:
    """Whether a value cannot be changed in place, so that all keys may share it."""
    if dataclasses.is_dataclass(value) and vars(type(value))["__dataclass_params__"].frozen:
        return all(_is_fixed(getattr(value, field.name)) for field in dataclasses.fields(value))
    return isinstance(value, _FIXED)


def value(of: Any, default: Any = None) -> Any:
    """A value of a type. It is ``default`` until it is assigned; a default that can be changed in place is copied for every
    key."""
    return Variable("value", (of,), default)


def list_of(of: Any) -> Any:
    """A list, empty at first. The whole list is written whenever its key's state is; keep it short."""
    return Variable("list", (of,), [])


def map_of(keys: Any, values: Any) -> Any:
    """A dict, empty at first. The whole dict is written whenever its key's state is; keep it small."""
    return Variable("map", (keys, values), {})


class Processor:
    """An operator with state for every key. Subclass it, declare its variables, and define ``process``.

    ``process`` gets the key (a tuple if it has several columns), the records of the batch in their order, and the state. The
    records that it returns or yields are its output; annotate them, as ``Iterator[a dataclass]``. ``on_timer`` is called
    for the timers that fire, before the records. If either raises, the key's records of the batch fail, and its state stays as
    it was; a timer whose call raised is dropped.
    """

    declared: ClassVar[Mapping[str, Variable]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        members = (member for base in reversed(cls.__mro__) for member in vars(base).items())
        declared = {name: member for name, member in members if isinstance(member, Variable)}
        for name in declared:
            if name in RESERVED or name.startswith("_"):
                raise TopologyError(f"{cls.__name__}.{name}: the name is Springtide's own; rename it")
            if name in vars(cls):  # base classes were checked where they were defined; here their types' names may be unknown
                declared[name].check(f"{cls.__name__}.{name}")
        cls.declared = declared

    def process(self, key: Any, records: list[Any], state: State) -> Iterable[Any]:
        raise NotImplementedError

    on_timer: Callable[[Any, Timer, State], Iterable[Any]] | None = None


class State:
    """The state of a key: each declared variable as an attribute, and the timers."""

    __slots__ = ("_timers", "now", "watermark")

    declared: ClassVar[Mapping[str, Variable]] = {}

    now: datetime.datetime
    """The time at which the batch began. A batch that is run again sees the same time."""
    watermark: datetime.datetime | None
    """No record older than this is expected any more; None while no event time is known."""

    def set_timer(self, at: datetime.datetime, clock: str = Clock.EVENT) -> None:
        """Call ``on_timer`` when the watermark, or the clock, has reached this time. A time that is set twice fires once."""
        self._set(clock).add(micros(at))

    def cancel_timer(self, at: datetime.datetime, clock: str = Clock.EVENT) -> None:
        self._set(clock).discard(micros(at))

    def _set(self, clock: str) -> set[int]:
        """The timers of a clock."""
        timers: dict[Clock, set[int]] = self._timers
        if not timers:
            raise TypeError("timers call on_timer(key, timer, state), which the processor does not have; define it")
        return timers[Clock(clock)]

    def clear(self) -> None:
        """Reset this key and cancel its timers. A key whose state is as it was before its first record is not stored."""
        for name, variable in self.declared.items():
            setattr(self, name, variable.initial())
        for timers in self._timers.values():
            timers.clear()

    if TYPE_CHECKING:  # for type checkers, every variable can be assigned to

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_undeclared(self, name))


RESERVED = frozenset(name for name in dir(State) if not name.startswith("_")) | {"process", "on_timer", "declared"}


def _undeclared(state: State, name: str) -> str:
    return f"no state {name!r} was declared; there is: {', '.join(state.declared) or 'none'}"
