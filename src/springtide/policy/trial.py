"""Tries out policies in artificial intervals: with a saved state, which may be damaged, and by the rules for all policies."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from springtide.model.plan import Plan
from springtide.model.snapshot import OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.policy.scale import ScalePolicy, State, decided

INTERVALS, INTERVAL_S = 8, 10.0
UNKNOWN: dict[str, Any] = dict.fromkeys(
    ("rows_in", "rows_out", "busy_s", "rate", "utilisation", "backlog", "latency_ms", "served")
)
"""An operator without any measurement."""


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


def violations(policy: ScalePolicy) -> list[str]:
    """The rules for scaling policies that this one breaks in a few artificial intervals, with and without measurements.

    >>> from springtide.policy.scale.psps import Psps
    >>> violations(Psps())
    []
    """
    state: State = policy.initial()
    for snapshot in _made_up(("first", "second")):
        found = [fault for shown in (snapshot, _unmeasured(snapshot)) for fault in _violations(policy, state, shown)]
        if found:
            return list(dict.fromkeys(found))
        state, _ = decided(policy, state, snapshot, np.random.default_rng(0))
    return []


def _unmeasured(snapshot: Snapshot) -> Snapshot:
    operators = tuple(replace(operator, **UNKNOWN) for operator in snapshot.operators)
    return replace(snapshot, operators=operators, sources=(), batches=(), rate=None, backlog=None)


def _violations(policy: ScalePolicy, state: State, snapshot: Snapshot) -> Iterator[str]:
    before = copy.deepcopy((state, snapshot))
    try:
        after, requests = decided(policy, state, snapshot, np.random.default_rng(0))
        again = decided(policy, state, snapshot, np.random.default_rng(0))
        restored = json.loads(json.dumps(after, allow_nan=False))
        following = [decided(policy, known, snapshot, np.random.default_rng(0))[1] for known in (after, restored)]
    except Exception as fault:  # noqa: BLE001  any error of a user's policy is a finding
        measured = "without measurements" if snapshot.rate is None else f"in the interval that ends at {snapshot.at:g} s"
        yield f"it fails {measured}: {type(fault).__name__}: {fault}"
        return
    if (state, snapshot) != before:
        yield "it changes its state in place; return a new one"
    if (after, requests) != again:
        yield "equal arguments give different decisions; draw random numbers from rng only, and use no clock"
    if following[0] != following[1]:
        yield "it decides otherwise after a restart; its state must consist of values that JSON can carry"
    if any(not 1 <= request.degree <= (snapshot.slots or request.degree) for request in requests):
        yield f"it requests a degree outside of 1 to {snapshot.slots}, the limit of the run; make requests with changes()"


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
