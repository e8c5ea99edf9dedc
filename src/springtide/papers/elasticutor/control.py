"""The control of ``engine``: the balancer of each executor, and the scheduler of all executors.

Both are policies of ``springtide.policy``. Their input is measured: the seconds of work of each shard in the last second.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from springtide.policy.place.cores import assign, naive
from springtide.policy.scale.queueing import allocate
from springtide.policy.shard.balance import THETA, balanced

if TYPE_CHECKING:
    from springtide.papers.elasticutor.engine import Elastic
    from springtide.papers.elasticutor.moves import OneByOne, Stopping
    from springtide.papers.elasticutor.state import ExecutorState

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def balance(state: ExecutorState, moves: OneByOne | Stopping) -> None:
    """Request the moves that the balancer of each idle group wants; shards on cores that it will lose come first."""
    for group in _unbalanced(state):
        own = state.shards_of(group)
        work = state.work[own]
        if moves.waits(group) or not work.any():
            continue
        cores = state.cores_of(group)
        place = np.full(len(state.core_node), len(cores))
        place[cores] = np.arange(len(cores))
        owner = place[state.shard_core[own]]
        wanted = balanced(owner, work, len(cores))
        moved = np.flatnonzero(wanted != owner)
        if len(moved):
            first = np.lexsort((-work[moved], owner[moved] < len(cores)))
            moves.ask(group, own.start + moved[first], cores[wanted[moved[first]]])


def _unbalanced(state: ExecutorState) -> list[int]:
    """The groups above θ, and those about to lose a core with shards; the others are skipped."""
    work = np.bincount(state.shard_core, state.work, minlength=len(state.core_node))
    keeps = state.core_next == state.core_group
    group, count = state.core_group[keeps], state.groups
    most = np.zeros(count)
    np.maximum.at(most, group, work[keeps])
    mean = np.bincount(state.core_group, work, minlength=count) / np.maximum(np.bincount(group, minlength=count), 1)
    losing = np.bincount(state.core_group[~keeps], state.core_shards[~keeps], minlength=count)
    return [int(g) for g in np.flatnonzero((most > THETA * mean) | (losing > 0))]


def schedule(setup: Elastic, state: ExecutorState, moves: OneByOne | Stopping, rng: np.random.Generator) -> None:
    """Grant cores by the M/M/k model, and assign them: a core changes executors once its shards are gone."""
    if state.groups == 1 or not state.work.any() or (not setup.elastic and any(moves.queues)):
        return
    rate = setup.offered if setup.offered < math.inf else state.seen / (2 * setup.balance_s)  # λ₀ includes waiting tuples
    work = state.work / state.seen * rate  # the cores that each shard keeps busy
    loads = np.bincount(state.shard_group, work, minlength=state.groups)
    granted, _ = allocate(loads.tolist(), [state.per_group] * state.groups, len(state.core_node), setup.target_s * rate)
    now = np.zeros((state.nodes, state.groups), dtype=np.int64)
    np.add.at(now, (state.core_node, state.core_next), 1)
    _apply(state, moves, now, _assigned(setup, state, np.array(granted), now, work, rng))


def _assigned(setup: Elastic, state: ExecutorState, granted: Ints, now: Ints, work: Floats, rng: np.random.Generator) -> Ints:
    capacity = np.bincount(state.core_node, minlength=state.nodes)
    if setup.paradigm == "naive-ec":
        return naive(granted, now, capacity, rng).cores
    size: Floats = np.bincount(state.shard_group, state.state_bytes, minlength=state.groups).astype(np.float64)
    if not setup.elastic:  # operators have no home node, and their data go straight to the core
        nowhere = np.zeros(state.groups)
        return assign(granted, now, capacity, nowhere.astype(np.int64), size, nowhere).cores
    data = np.bincount(state.shard_group, work / state.cost_s * (state.bytes_in + state.bytes_out), minlength=state.groups)
    return assign(granted, now, capacity, state.home, size, data / now.sum(axis=0), from_any=setup.from_any).cores


def _apply(state: ExecutorState, moves: OneByOne | Stopping, now: Ints, wanted: Ints) -> None:
    """An executor gives up cores that it has not received yet first, then the least loaded."""
    lost = []
    for node in np.flatnonzero((now != wanted).any(axis=1)):
        giving = np.flatnonzero(wanted[node] < now[node])
        taking = np.repeat(np.arange(now.shape[1]), np.maximum(wanted[node] - now[node], 0))
        given: list[int] = []
        for group in giving:
            own = np.flatnonzero((state.core_node == node) & (state.core_next == group))
            order = np.lexsort((state.core_load[own], state.core_group[own] == group))
            given += own[order][: now[node, group] - wanted[node, group]].tolist()
        state.core_next[given] = taking
        lost += given
    if lost:
        moves.spare(np.array(lost))
