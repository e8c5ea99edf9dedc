"""The interface of stateful operators: declared variables, a step on a group of keys, and the step's result."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model import schema as schemas

NEVER = np.iinfo(np.int64).max
"""The time of a timer that is not set; times are in microseconds since 1970."""
MOST_SHARDS = 4096

Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _ignore() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Group:
    """Some keys of a stateful operator in a batch: their records, their state, and the time.

    ``keys`` and ``old``, the state, have a row for each key; a row of ``old`` is null for a key that is not ``known``. Row i of
    ``records``, which come in the order of their sequence, is of key ``of[i]``. ``due``: a timer of the key fires.
    """

    keys: pa.RecordBatch
    known: Mask
    old: pa.RecordBatch
    records: pa.RecordBatch
    of: npt.NDArray[np.int64]
    due: Mask
    now: int  # the batch's time; a batch that is run again has the same
    watermark: int | None  # no record older than this is expected any more; None while no event time is known
    before_call: Callable[[], None] = _ignore  # called before each call of a user's function; raises to make that call fail


@dataclass(frozen=True, eq=False)
class Step:
    """The result of a group: the ``new`` state of the keys that ``changed``, the keys that are ``gone``, and the output.

    ``new`` has a row for each key; rows of keys without a change are ignored. ``seconds``: the time for each key, if measured.
    ``failed``: keys whose function failed, with the error. Their state stays as it was, except that a failed timer is dropped.
    """

    changed: Mask
    gone: Mask
    new: pa.RecordBatch
    output: pa.RecordBatch | None = None
    seconds: npt.NDArray[np.float64] | None = None
    failed: Sequence[tuple[int, BaseException]] = ()


@runtime_checkable
class Stateful(Protocol):
    """The function of a stateful operator. Pure: the same group gives the same step, wherever and how often it runs."""

    @property
    def variables(self) -> pa.Schema:
        """The columns of its state."""

    @property
    def event_timer(self) -> str | None:
        """The column of its state with the event time, in microseconds, of the key's next timer."""

    @property
    def clock_timer(self) -> str | None:
        """The same for timers by the clock."""

    def step(self, group: Group) -> Step: ...


@dataclass(frozen=True)
class StateSpec:
    """A stateful operator's function, the number of its shards, which is fixed for ever, and the lifetime of its keys.

    ``ttl_s``: a key is forgotten when no record of it has come for this long. ``time``: the column of the event time; if the
    operator ``closes`` windows, the column of the window's end. ``migrate``: a function from the variables of an older
    declaration to the present ones.
    """

    function: Any  # a Stateful, or a Processor, which is wrapped as a Stateful in the task
    shards: int = 256
    ttl_s: float | None = None
    time: str | None = None
    closes: bool = False
    migrate: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    def check(self, where: str) -> None:
        if isinstance(self.shards, bool) or not isinstance(self.shards, int) or not 1 <= self.shards <= MOST_SHARDS:
            raise TopologyError(f"{where}: shards={self.shards!r} is not allowed; give a whole number from 1 to {MOST_SHARDS}")
        if self.ttl_s is not None and not self.ttl_s > 0:
            raise TopologyError(f"{where}: ttl={self.ttl_s!r} is not allowed; give more than 0 s, or None for ever")


def micros(at: datetime.datetime) -> int:
    """A time as it is stored: microseconds since 1970."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone; give one, such as datetime.UTC")
    return (at - _EPOCH) // _MICROSECOND


def moment(at: int) -> datetime.datetime:
    """A stored time as a Python datetime."""
    return _EPOCH + at * _MICROSECOND


def arrow_type(where: str, hint: Any) -> tuple[pa.DataType, schemas.Reader | None]:
    """The Arrow type of a declared Python type, and the function that converts values back, if one is needed."""
    probe = dataclasses.make_dataclass("State", [("value", hint)], frozen=True)
    try:
        return schemas.schema_of(probe).field(0).type, schemas.field_readers(probe).get("value")
    except TopologyError as error:
        raise TopologyError(f"{where}: {str(error).removeprefix('State.value: ')}") from None
