"""What a task reports to the driver: one value, which travels in a block of its own.

Receipts and figures thus come from exactly those task attempts whose data was used.
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
    """A record that failed, in texts: see ``task/letters.py``."""

    operator: str
    error: str
    traceback: str
    record: str


@dataclass(frozen=True)
class Report:
    """What a task of a stage did in one batch."""

    task: int
    operators: tuple[TaskReport, ...] = ()
    receipts: tuple[Receipt, ...] = ()  # of the files that it staged
    state: tuple[StateReceipt, ...] = ()  # what stateful operators did to their state
    sinks: Mapping[str, int] = field(default_factory=dict)  # by sink, the records for it
    created: tuple[tuple[float, float], ...] = ()  # creation times, each with the number of records that it stands for
    times: Mapping[str, int] = field(default_factory=dict)  # by watermark, the latest time of a record in microseconds
    variances: Mapping[str, Mapping[str, Variance]] = field(default_factory=dict)  # by operator and column, of the costs
    dead: int = 0
    shed: int = 0
    stopped: Letter | None = None  # the record whose failure is to stop the run

    def encoded(self) -> bytes:
        """As compressed JSON: a small answer is fetched 5 ms faster than a large one, see ``Stages.collect``."""
        document = {
            **vars(self),
            "operators": [vars(one) for one in self.operators],
            "receipts": [vars(one) for one in self.receipts],
            "state": [one.to_json() for one in self.state],
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
                "operators": tuple(TaskReport(**one) for one in document["operators"]),
                "receipts": tuple(Receipt(**one) for one in document["receipts"]),
                "state": tuple(StateReceipt.from_json(one) for one in document["state"]),
                "created": tuple((at, records) for at, records in document["created"]),
                "variances": {name: {by: Variance(*one) for by, one in columns.items()} for name, columns in variances},
                "stopped": None if document["stopped"] is None else Letter(**document["stopped"]),
            }
        )
