"""The plans of a checkpoint: plans/N.json is valid from batch N until the next plan."""

from __future__ import annotations

import logging
from pathlib import Path

from springtide.durable import read_json, write_atomic
from springtide.errors import DamageError
from springtide.model.plan import Plan
from springtide.spark.driver.manifests import MANIFESTS_TO_RETAIN

log = logging.getLogger("springtide.spark")


class PlanFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, batch: int) -> Plan | None:
        """The plan of a batch: the latest that was written for it or for an earlier batch. None if that is damaged."""
        numbers = [int(path.stem) for path in self._folder.glob("[0-9]*.json") if path.stem.isdigit()]
        latest = max((number for number in numbers if number <= batch), default=None)
        if latest is None:
            return None
        try:
            document = read_json(self._file(latest))
            return None if document is None else Plan.from_json(document)
        except (DamageError, TypeError, ValueError, KeyError, AttributeError) as error:
            log.warning("%s is damaged (%s); batch %d takes the plan in force", self._file(latest), error, batch)
            return None

    def write(self, batch: int, plan: Plan) -> None:
        """Fix the plan of a batch and of its successors, before the batch runs."""
        write_atomic(self._file(batch), plan.to_json())
        for old in sorted(self._folder.glob("[0-9]*.json"))[:-MANIFESTS_TO_RETAIN]:
            old.unlink()

    def _file(self, batch: int) -> Path:
        return self._folder / f"{batch:08d}.json"
