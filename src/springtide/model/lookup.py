"""The interface of lookups: what Springtide asks of a table outside that records are joined with, by key.

A lookup has two parts: ``Lookup``, the declaration, a frozen value that travels to the tasks; and ``Rows``, which reads rows in
a worker process. Caching, waiting, and the join itself are Springtide's (``processors/lookup.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Key: TypeAlias = tuple[Any, ...]
"""The values of a record's key columns, in the order of ``Lookup.key``; none of them is None."""
Row: TypeAlias = Mapping[str, Any]


class LookupUnavailable(Exception):
    """The table cannot be read now. The task waits and tries again; after a while it fails, and Spark repeats it."""


class KeyRefused(Exception):
    """One of the keys cannot be looked up, for example text that is no UUID. The records of that key fail."""


class Rows(ABC):
    """Reads rows in a worker process, which opens it once for each operator."""

    @abstractmethod
    def fetch(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """The rows of different keys; a key without rows is left out. Raises LookupUnavailable, or KeyRefused if one of the
        keys is at fault: then it is called again with fewer of them."""

    def close(self) -> None:  # noqa: B027  some hold nothing
        """Release connections."""


class Lookup(ABC):
    """The declaration: a frozen dataclass that can be pickled. Attributes with secrets are left out of its ``repr``."""

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """The columns of the records by which rows are found."""

    @abstractmethod
    def open(self) -> Rows: ...

    def check(self, fields: Sequence[str]) -> None:  # noqa: B027  some need nothing
        """Called in the driver before anything is changed, with the fields that rows have to have. Raises OptionError with a
        way out if they have not, and LookupUnavailable if that cannot be known now."""

    def describe(self) -> str:
        """The lookup in a few words for messages, without secrets."""
        return type(self).__name__
