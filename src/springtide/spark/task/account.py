"""Counts the work of a task while it runs, for its report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from springtide.model.report import TaskReport
from springtide.model.topology import Kind, OnError
from springtide.policy.group.cost_key import Variance
from springtide.spark.shared.program import Node
from springtide.spark.shared.progress import Crashed
from springtide.spark.shared.receipt import Receipt
from springtide.spark.shared.report import Letter, Report
from springtide.spark.state.receipt import StateReceipt
from springtide.spark.task.letters import dead_letter


class Stop(Exception):
    """A record failed in an operator whose ``on_error`` is to stop the run."""

    def __init__(self, letter: Letter) -> None:
        super().__init__(letter.error)
        self.letter = letter


@dataclass
class Tally:
    """The work of a task for one operator."""

    rows_in: int = 0
    rows_out: int = 0
    failures: int = 0
    busy_s: float = 0.0
    started: float = 0.0
    finished: float = 0.0


class Account:
    """The tallies of a task's operators, the letters of the records that failed, and the rest of its report."""

    def __init__(self, task: int) -> None:
        self._task = task
        self._tallies: dict[int, tuple[Node, Tally]] = {}
        self.letters: list[Letter] = []
        self.receipts: list[Receipt] = []
        self.state: list[StateReceipt] = []
        self.sinks: dict[str, int] = {}
        self.created: list[tuple[float, float]] = []
        self.times: dict[str, int] = {}
        self.variances: dict[str, dict[str, Variance]] = {}
        self.dead = 0
        self.shed = 0
        self.lost = 0
        self.stopped: Letter | None = None

    def tally(self, node: Node) -> Tally:
        """The tally of an operator, started by its first records."""
        if node.number not in self._tallies:
            self._tallies[node.number] = node, Tally(started=time.time())
        return self._tallies[node.number][1]

    def failed(self, node: Node, record: Any, error: BaseException) -> None:
        """Count a failed record, as a dead letter; raises Stop if the operator's failures end the run."""
        letter = dead_letter(node.name, record, error)
        if node.on_error is OnError.STOP and not isinstance(error, Crashed):
            raise Stop(letter)
        self.tally(node).failures += 1
        self.letters.append(letter)

    def misfit(self, node: Node, record: Any, error: Exception) -> None:
        """Count a result that does not fit the declared schema or that a sink cannot write."""
        self.failed(node, record, error)
        self.tally(node).rows_out -= 1

    def report(self) -> Report:
        """The report to the driver."""
        return Report(
            self._task, tuple(_reported(self._task, node, tally) for node, tally in self._tallies.values()),
            tuple(self.receipts), tuple(self.state), self.sinks, tuple(self.created), self.times, self.variances,
            self.dead, self.shed, self.lost, self.stopped,
        )  # fmt: skip


def _reported(task: int, node: Node, tally: Tally) -> TaskReport:
    in_jvm = node.kind is Kind.SQL  # its reads and its time are not measured
    return TaskReport(
        node.name, task, None if in_jvm else tally.rows_in, tally.rows_out, tally.failures,
        None if in_jvm else tally.busy_s, tally.started, tally.finished,
    )  # fmt: skip
