# ruff: noqa: N803, N806, N815 - the paper's names
"""POSG's two state machines, record by record; ``posg`` describes them.

Control messages arrive at once; the simulator may delay them by delaying ``completed``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.costs import MAX_COST_S, Hashes
from springtide.policy.group import kernel
from springtide.policy.group.count_min import Matrix, estimate_one, update_one

ROUND_ROBIN, SEND_ALL, WAIT_ALL, RUN = range(4)
WINDOW, TOLERANCE, PERIOD, CLOCK, EMPTY_CELLS, WEIGHTED, CHANGED_ONLY = range(7)

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Machine(NamedTuple):
    """The instances' state machines, the scheduler's, and the messages between them. [k] unless noted."""

    hashes: Hashes  # [r, 3]
    rules: _Floats  # [7] WINDOW and so on
    # the instances
    F: Matrix  # [k, r, c]
    W: Matrix  # [k, r, c]
    S: Matrix  # [k, r, c]
    stabilizing: _Bools  # START or STABILIZING
    executed: _Ints  # records since the last look at the matrices
    done: _Ints  # records in all
    spent: _Floats  # seconds in all
    busy: _Floats  # seconds since the number of replicas changed
    first: _Floats  # when the first record since then started
    # the scheduler
    sent_F: Matrix  # [k, r, c] as the instances sent them
    sent_W: Matrix  # [k, r, c]
    mean: _Floats  # seconds per record so far, sent with them
    known: _Bools  # whether they were sent
    load: _Floats  # Ĉ
    asked: _Ints  # which of a replica's records carries a request that is to be answered; 0: none
    delta: _Floats  # -Ĉ as the request has it; Δ = C - Ĉ once it is answered
    missing: _Ints  # [2] requests to send, replies to come
    phase: _Ints  # [1] ROUND_ROBIN, SEND_ALL, WAIT_ALL or RUN
    turn: _Ints  # [1] whose turn it is
    since: _Ints  # [1] records in RUN since the last synchronisation
    tuples: _Ints  # [1] records scheduled
    began: _Ints  # [1] how many they were when RUN was entered first; -1: not yet
    messages: _Ints  # [1] matrices and replies; requests ride on records


PER_REPLICA = ("F", "W", "S", "stabilizing", "executed", "done", "spent", "sent_F", "sent_W", "mean", "known")
"""The state that a replica retains when their number changes."""
SINCE_CHANGE = ("busy", "first")
"""The parts of C, which counts from the same moment for all: otherwise a new replica would seem to have had no work."""


def fresh(k: int, r: int, c: int, hashes: Hashes, rules: _Floats) -> Machine:
    """The initial state."""

    def matrices() -> Matrix:
        return np.zeros((k, r, c))

    def floats(value: float = 0.0) -> _Floats:
        return np.full(k, value)

    def ints(size: int, value: int = 0) -> _Ints:
        return np.full(size, value, dtype=np.int64)

    def no() -> _Bools:
        return np.zeros(k, dtype=np.bool_)

    instances = matrices(), matrices(), matrices(), no(), ints(k), ints(k), floats(), floats(), floats(np.inf)
    scheduler = matrices(), matrices(), floats(), no(), floats(), ints(k), floats()
    return Machine(hashes, rules, *instances, *scheduler, ints(2), ints(1), ints(1), ints(1), ints(1), ints(1, -1), ints(1))


# the scheduler


@kernel
def choose(state: Machine, key: int, now: float, free: _Floats, queue: _Ints) -> int:
    """SUBMIT and UPDATE Ĉ (listing III.2), and the requests that ride on records."""
    phase, k = state.phase[0], len(state.load)
    op = state.turn[0] % k
    if phase in (ROUND_ROBIN, SEND_ALL):
        state.turn[0] = op + 1
    else:
        op = least(state.load)
    state.tuples[0] += 1
    if phase != ROUND_ROBIN:
        state.load[op] += estimate_one(state.sent_F[op], state.sent_W[op], state.hashes, key, state.mean[op])
    if phase == SEND_ALL:
        state.asked[op] = state.done[op] + queue[op] + 1  # this record: after those that are there
        state.delta[op] = -state.load[op]
        state.messages[0] += 1  # the reply
        state.missing[0] -= 1
        if state.missing[0] == 0:
            state.phase[0] = WAIT_ALL
    elif phase == RUN:
        state.since[0] += 1
        if state.since[0] == state.rules[PERIOD]:
            synchronise(state.asked, state.missing, state.phase)
    return int(op)


@kernel
def least(loads: _Floats) -> int:
    """The index of the least load; of equal loads the first."""
    best = 0
    for i in range(1, len(loads)):
        if loads[i] < loads[best]:
            best = i
    return best


@kernel
def synchronise(asked: _Ints, missing: _Ints, phase: _Ints) -> None:
    """A new epoch: all are to be asked, and replies to older requests are dropped."""
    for i in range(len(asked)):
        asked[i] = 0
    missing[0] = missing[1] = len(asked)
    phase[0] = SEND_ALL


# the operator instances


@kernel
def completed(state: Machine, target: int, key: int, cost: float, now: float) -> None:
    """An instance is done with a record: it answers the request that the record carried, and updates F and W."""
    op = target
    if op < 0 or op >= len(state.load):
        return
    seconds = min(max(cost, 0.0), MAX_COST_S) if cost == cost else 0.0
    state.done[op] += 1
    state.spent[op] += seconds
    state.busy[op] += seconds
    state.first[op] = min(state.first[op], now - seconds)
    if 0 < state.asked[op] <= state.done[op]:
        state.asked[op] = 0
        state.delta[op] += now - state.first[op] if state.rules[CLOCK] else state.busy[op]
        state.missing[1] -= 1
        if state.missing[1] == 0:  # all replies of the epoch are in: figure 3.E
            for i in range(len(state.load)):
                state.load[i] += state.delta[i]
            state.phase[0] = RUN
            state.since[0] = 0
            if state.began[0] < 0:
                state.began[0] = state.tuples[0]
    update_one(state.F[op], state.W[op], state.hashes, key, seconds)
    state.executed[op] += 1
    if state.executed[op] >= state.rules[WINDOW]:
        end_of_window(state, op)


@kernel
def end_of_window(state: Machine, op: int) -> None:
    """N records were executed: figure 2. Matrices that are sent arrive at once: figure 3.A, B and F."""
    rules, F, W = state.rules, state.F[op], state.W[op]
    state.executed[op] = 0
    if not state.stabilizing[op] or error(state.S[op], F, W, rules) > rules[TOLERANCE]:
        ratios(F, W, state.S[op])
        state.stabilizing[op] = True
        return
    ratios(state.sent_F[op], state.sent_W[op], state.S[op])
    if not (rules[CHANGED_ONLY] and state.known[op] and error(state.S[op], F, W, rules) <= rules[TOLERANCE]):
        copy(F, state.sent_F[op])
        copy(W, state.sent_W[op])
        state.mean[op] = state.spent[op] / max(state.done[op], 1)
        state.known[op] = True
        state.messages[0] += 1
        if state.phase[0] != ROUND_ROBIN or all_known(state.known):
            synchronise(state.asked, state.missing, state.phase)
    clear(F)
    clear(W)
    state.stabilizing[op] = False


@kernel
def ratios(F: Matrix, W: Matrix, S: Matrix) -> None:
    """A snapshot: W/F, and 0 where there is nothing."""
    for i in range(F.shape[0]):
        for j in range(F.shape[1]):
            S[i, j] = W[i, j] / F[i, j] if F[i, j] > 0.0 else 0.0


@kernel
def error(S: Matrix, F: Matrix, W: Matrix, rules: _Floats) -> float:
    """η (equation 1), over the cells that are not empty in the snapshot: the others make skewed streams wait for ever."""
    change = total = 0.0
    for i in range(F.shape[0]):
        for j in range(F.shape[1]):
            if F[i, j] > 0.0 and (S[i, j] > 0.0 or rules[EMPTY_CELLS]):
                weight = F[i, j] if rules[WEIGHTED] else 1.0
                change += weight * abs(S[i, j] - W[i, j] / F[i, j])
                total += weight * S[i, j]
    return change / total if total > 0.0 else 0.0


# Loops, because statements on whole arrays take seconds to compile.


@kernel
def copy(A: Matrix, B: Matrix) -> None:
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            B[i, j] = A[i, j]


@kernel
def clear(A: Matrix) -> None:
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] = 0.0


@kernel
def all_known(known: _Bools) -> bool:
    count = 0
    for sent in known:
        count += sent
    return count == len(known)
