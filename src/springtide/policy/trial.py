"""Tries out a saved state: with a damaged one, every decision of a run would fail."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from springtide.model.plan import Plan
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale import ScalePolicy, State, decided

INTERVALS, INTERVAL_S = 8, 10.0


def fault_of(policy: ScalePolicy, state: State, operators: Sequence[str]) -> str | None:
    """Why a policy cannot use a state; None if it can, in a few artificial intervals.

    A policy that fails in them with its initial state too is not the state's fault.

    >>> from springtide.policy.scale.flink import Flink
    >>> fault_of(Flink(), {"marks": 5}, ["a"]), fault_of(Flink(), {}, ["a"])
    ("TypeError: 'int' object is not subscriptable", None)
    """
    try:
        json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as fault:
        return f"{fault}"
    found = _fails(policy, state, operators)
    return found if found is None or _fails(policy, policy.initial(), operators) is None else None


def _fails(policy: ScalePolicy, state: State, operators: Sequence[str]) -> str | None:
    rng = np.random.default_rng(0)
    try:
        for snapshot in _made_up(operators):
            state, _ = decided(policy, state, snapshot, rng)
    except Exception as fault:  # noqa: BLE001  a damaged state may raise anything
        return f"{type(fault).__name__}: {fault}"
    return None


def _made_up(operators: Sequence[str]) -> Iterator[Snapshot]:
    """Intervals of operators in a line, with a replica each, whose load doubles in every interval."""
    for number in range(INTERVALS):
        rate = 10.0 * 2**number
        rows, before, made = round(rate * INTERVAL_S), "source", []
        for name in operators:
            made.append(OperatorSnapshot(
                name, 1, 1, rows, rows, 0, INTERVAL_S * 0.1 * (number + 1), rate, 0.1 * (number + 1), rows // 10, 20.0, rows,
                ((before, rows),),
            ))  # fmt: skip
            before = name
        plan = Plan(dict.fromkeys(operators, 1), len(made), dict.fromkeys(operators, 1))
        source = SourceSnapshot("source", rows, (rate,) * round(INTERVAL_S), rate, rows // 10)
        yield Snapshot(
            (number + 1) * INTERVAL_S, INTERVAL_S, plan, tuple(made), ((rows, INTERVAL_S / 2),), rate, rows // 10, None,
            (source,), target_s=1.0, slots=8, trigger_s=0.0, starting_s=0.0,
        )  # fmt: skip
