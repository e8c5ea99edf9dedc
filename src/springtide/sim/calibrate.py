"""Calibration: Spark's constants and the operators' costs, from a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from springtide.model.report import BatchReport
from springtide.sim import constants

SAMPLES = 1_000
"""Sample records for an operator with costs by key."""

Arrays = Mapping[str, npt.NDArray[Any]]


def calibrated(stages: Mapping[str, int], reports: Sequence[BatchReport], learned: Arrays | None = None) -> dict[str, Any]:
    """The document that ``springtide calibrate`` writes and ``simulate --costs`` reads.

    ``stages``: by operator. ``learned``: the final state of the groupings. Operators that ran in the JVM are left out, as their
    time is not measured.
    """
    fitted = constants.fit(stages, reports)
    total = sum(report.rows_in for report in reports)
    operators: dict[str, dict[str, Any]] = {}
    for name in stages:
        tasks = [task for report in reports for task in report.tasks if task.operator == name]
        rows, busy = sum(task.rows_in or 0 for task in tasks), sum(task.busy_s or 0.0 for task in tasks)
        if rows and any(task.busy_s for task in tasks):
            operators[name] = {"seconds": busy / rows, "rows": rows / total, **_by_key(name, learned or {}, busy / rows)}
    return {"constants": constants.to_json(fitted), "operators": operators}


def _by_key(name: str, learned: Arrays, mean_s: float) -> dict[str, list[float] | list[int]]:
    """Keys by frequency and, if a grouping learned them, their costs, scaled to the measured mean."""
    wanted = [f"{name}/{part}" for part in ("keys", "weights", "seconds")]
    if not all(path in learned for path in wanted) or not len(learned[wanted[0]]):
        return {}
    keys, weights, seconds = (learned[path] for path in wanted)
    cumulated = np.cumsum(weights) / weights.sum()
    drawn = np.searchsorted(cumulated, (np.arange(SAMPLES) + 0.5) / SAMPLES)
    costs = seconds[drawn] / weights[drawn]
    return {"hashes": keys[drawn].tolist(), "seconds": (costs * mean_s / costs.mean()).tolist()}
