"""What decides in ``springtide.sim.elastic``: the balancer of every executor, and the scheduler of all of them.

Both are the policies of ``springtide.policy``, and see what was measured: the seconds that each shard took in the last second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from springtide.policy.place.cores import assign, naive
from springtide.policy.scale.queueing import allocate
from springtide.policy.shard.balance import balanced

if TYPE_CHECKING:
    from springtide.sim.elastic import Elastic
    from springtide.sim.elastic_moves import OneByOne, Stopping
    from springtide.sim.elastic_state import State

Ints = npt.NDArray[np.int64]


def balance(state: State, moves: OneByOne | Stopping) -> None:
    """Every group without moves under way asks for those that its balancer wants; shards of cores that it loses come first."""
    for group in range(state.groups):
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


def schedule(setup: Elastic, state: State, moves: OneByOne | Stopping, rng: np.random.Generator) -> None:
    """Grant cores by the M/M/k model until they are used up, and say which: a core changes hands when its shards are gone."""
    if state.groups == 1 or not state.work.any() or (not setup.elastic and any(moves.waits(g) for g in range(state.groups))):
        return
    window_s = 2 * setup.balance_s
    count = state.groups
    loads = np.bincount(state.shard_group, state.work, minlength=count) / window_s
    granted, _ = allocate(loads.tolist(), [state.per_group] * count, len(state.core_node), 0.0)
    now = np.zeros((state.nodes, count), dtype=np.int64)
    np.add.at(now, (state.core_node, state.core_next), 1)
    capacity = np.bincount(state.core_node, minlength=state.nodes)
    if setup.paradigm == "naive-ec":
        wanted = naive(np.array(granted), now, capacity, rng).cores
    else:
        size = np.bincount(state.shard_group, state.state_bytes, minlength=count)
        tuples = state.work / state.cost_s / window_s
        data = np.bincount(state.shard_group, tuples * (state.bytes_in + state.bytes_out), minlength=count)
        home, intensity = (state.home, data / now.sum(axis=0)) if setup.elastic else (np.zeros(count, np.int64), np.zeros(count))
        wanted = assign(np.array(granted), now, capacity, home, size, intensity).cores
    _apply(state, moves, now, wanted)


def _apply(state: State, moves: OneByOne | Stopping, now: Ints, wanted: Ints) -> None:
    """Of the cores that an executor has on a node it loses those first that it has not got yet, then the least loaded."""
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
