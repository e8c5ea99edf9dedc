"""The result of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.errors import OptionError, nearest


@dataclass(frozen=True)
class Result:
    """A run's summary (as ``springtide run --json`` prints it), its folder, and the records of memory sinks."""

    summary: Mapping[str, Any]
    folder: Path
    plots: tuple[Path, ...] = ()
    _tables: Mapping[str, pa.Table] = field(default_factory=dict, repr=False)

    def table(self, name: str) -> pa.Table:
        """The records that the memory sink of that name received."""
        if name not in self._tables:
            raise OptionError(f"no memory sink {name!r} received anything; {nearest(name, self._tables)}")
        return self._tables[name]
