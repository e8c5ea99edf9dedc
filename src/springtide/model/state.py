"""What a stateful operator remembers, and how it says so: declared variables, a step on a group of keys, and its result."""

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
    """Some keys of a stateful operator in one batch: their records, what was remembered of them, and the time.

    ``keys`` and ``old`` have a row for each key, ``old`` of nulls where nothing is ``known``. Row i of ``records``, which come
    in the order of their sequence, is of key ``of[i]``. ``due``: a timer of the key's has come.
    """

    keys: pa.RecordBatch
    known: Mask
    old: pa.RecordBatch
    records: pa.RecordBatch
    of: npt.NDArray[np.int64]
    due: Mask
    now: int  # the batch's time, the same when it is run again
    watermark: int | None  # no record before this is expected any more; None as long as nothing is known
    before_call: Callable[[], None] = _ignore  # is called before each call of a user's function; fails a call that is to fail


@dataclass(frozen=True, eq=False)
class Step:
    """What came of a group: the new state of the keys that ``changed``, without those that are ``gone``; and the output.

    ``new`` has a row for each key, of any value where nothing changed. ``seconds``: what each key took, if it was measured.
    ``failed``: keys whose function failed, with the error. Their state stays as it was, but for a timer that failed.
    """

    changed: Mask
    gone: Mask
    new: pa.RecordBatch
    output: pa.RecordBatch | None = None
    seconds: npt.NDArray[np.float64] | None = None
    failed: Sequence[tuple[int, BaseException]] = ()


@runtime_checkable
class Stateful(Protocol):
    """What a stateful operator does. Pure: the same group gives the same step, wherever and how often it runs."""

    @property
    def variables(self) -> pa.Schema:
        """The columns of its state."""
        ...

    @property
    def event_timer(self) -> str | None:
        """The column of its state with the time, in microseconds, at which the key wants to be called whatever comes."""
        ...

    @property
    def clock_timer(self) -> str | None:
        """The same by the clock."""
        ...

    def step(self, group: Group) -> Step: ...


@dataclass(frozen=True)
class StateSpec:
    """A stateful operator's function, the number of shards that its keys are cut into, for ever, and how long they are kept.

    ``ttl_s``: a key that nothing came for in so long is forgotten. ``time``: the column with a record's time, or with the end
    of what it belongs to, if that ``closes``. ``migrate`` makes the variables of an older declaration those of now.
    """

    function: Any  # a Stateful, or a Processor, which is made one where it runs
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
    """A time as it is stored."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone; give one, such as datetime.UTC")
    return (at - _EPOCH) // _MICROSECOND


def moment(at: int) -> datetime.datetime:
    """A stored time as Python has it."""
    return _EPOCH + at * _MICROSECOND


def arrow_type(where: str, hint: Any) -> tuple[pa.DataType, schemas.Reader | None]:
    """The Arrow type of what a user declares, and how to read it back, where that differs."""
    probe = dataclasses.make_dataclass("State", [("value", hint)], frozen=True)
    try:
        return schemas.schema_of(probe).field(0).type, schemas.field_readers(probe).get("value")
    except TopologyError as error:
        raise TopologyError(f"{where}: {str(error).removeprefix('State.value: ')}") from None
