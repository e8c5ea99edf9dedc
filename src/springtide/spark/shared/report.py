"""The report of a task to the driver, which travels in a block of its own.

So receipts and figures come from exactly the task attempts whose data was used.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from springtide.model.report import TaskReport
from springtide.policy.group.cost_key import Variance
from springtide.spark.shared.receipt import Receipt
from springtide.spark.state.receipt import StateReceipt


@dataclass(frozen=True)
class Letter:
    """A failed record as text: see ``task/letters.py``."""

    operator: str
    error: str
    traceback: str
    record: str


@dataclass(frozen=True)
class Report:
    """The work of a task in one batch."""

    task: int
    operators: tuple[TaskReport, ...] = ()
    receipts: tuple[Receipt, ...] = ()  # of its staged files
    state: tuple[StateReceipt, ...] = ()  # the changes of stateful operators' state
    sinks: Mapping[str, int] = field(default_factory=dict)  # by sink, the number of records
    created: tuple[tuple[float, float], ...] = ()  # creation times, each with the number of records that it represents
    times: Mapping[str, int] = field(default_factory=dict)  # by watermark, the latest time of a record in microseconds
    variances: Mapping[str, Mapping[str, Variance]] = field(default_factory=dict)  # by operator and column, of the costs
    dead: int = 0
    shed: int = 0
    lost: int = 0  # records that a source had deleted before they were read
    stopped: Letter | None = None  # the record whose failure stops the run

    def encoded(self) -> bytes:
        """Compressed JSON: a small answer is fetched 5 ms faster than a large one, see ``Stages.collect``."""
        document = {
            **vars(self),
            "operators": [vars(report) for report in self.operators],
            "receipts": [vars(receipt) for receipt in self.receipts],
            "state": [receipt.to_json() for receipt in self.state],
            "stopped": None if self.stopped is None else vars(self.stopped),
        }
        return zlib.compress(json.dumps(document).encode(), level=1)

    @classmethod
    def decoded(cls, payload: bytes | memoryview) -> Report:
        document: dict[str, Any] = json.loads(zlib.decompress(payload))
        variances = document["variances"].items()
        return cls(
            **{
                **document,
                "operators": tuple(TaskReport(**report) for report in document["operators"]),
                "receipts": tuple(Receipt(**receipt) for receipt in document["receipts"]),
                "state": tuple(map(StateReceipt.from_json, document["state"])),
                "created": tuple(map(tuple, document["created"])),
                "variances": {name: {by: Variance(*sums) for by, sums in columns.items()} for name, columns in variances},
                "stopped": None if document["stopped"] is None else Letter(**document["stopped"]),
            }
        )
