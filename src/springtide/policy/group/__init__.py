"""Which of an operator's tasks gets a record: the groupings."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Grouping(Protocol):
    """Routes the output of an upstream task, where it is produced.

    A route is a pure function of the arguments and the parameters. A stage that is recomputed after a lost
    executor has to send every record where it went the first time, or records are lost and doubled without an
    error.
    """

    name: ClassVar[str]

    def route(self, batch: pa.RecordBatch, key: tuple[str, ...], origin: int, width: int) -> npt.NDArray[np.int64]:
        """The target in [0, width) of every record.

        Called once per upstream task, edge and micro-batch. ``batch`` has all records of that task in the
        order of their sequence; ``key`` the columns that the operator is keyed by, none if it is not;
        ``origin`` is the number of the upstream task, 0 or more; ``width`` the number of targets, 1 or more.
        """
        ...
