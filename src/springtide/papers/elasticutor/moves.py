"""Shards that change cores: pause, let the pending tuples finish, move the state if the node is another, resume (section 3.2).

``OneByOne``: every executor moves its own shards, one after another, while everything else goes on. ``Stopping``: the
operator's table is in all senders, so that for each shard all of them are stopped, the queue of the shard's core is emptied
and all are resumed; by the authors' code one shard after another, the state going over the controller, that is twice.

State takes a fair share of the interfaces that it crosses: what the tuples leave, or as much as one more flow would get.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from springtide.papers.elasticutor.engine import Elastic
    from springtide.papers.elasticutor.state import State

Floats = npt.NDArray[np.float64]


class Move:
    """A shard on its way to a core; what is left of its synchronisation (s) and its state (bytes), and what both took."""

    __slots__ = ("bytes_left", "core", "migrating_s", "shard", "sync_left", "sync_s")

    def __init__(self, shard: int, core: int) -> None:
        self.shard, self.core = shard, core
        self.sync_left = self.bytes_left = -1.0  # not begun
        self.sync_s = self.migrating_s = 0.0


class _Moves:
    """``open``: the share of the last step in which each executor's receiver went on. ``claimed``: bytes per second of each
    node's interface, in and out, that state took; ``taken``: bytes in all. ``done``: when, if between nodes, both times."""

    stopped = False

    def __init__(self, setup: Elastic, state: State) -> None:
        self.setup, self.state, self.now = setup, state, 0.0
        self.queues: list[deque[Move]] = [deque() for _ in range(state.groups)]
        self.all_open = self.open = np.ones(len(state.home))
        self.none = np.zeros(state.nodes)
        self.claimed = (self.none, self.none)
        self.taken = 0.0
        self.done: list[tuple[float, bool, float, float]] = []

    def waits(self, group: int) -> bool:
        return bool(self.queues[group])

    def ask(self, group: int, shards: npt.NDArray[np.int64], cores: npt.NDArray[np.int64]) -> None:
        self.queues[group].extend(Move(int(shard), int(core)) for shard, core in zip(shards, cores, strict=True))

    def spare(self, cores: npt.NDArray[np.int64]) -> None:
        """No further shards go to these cores."""
        for queue in self.queues:
            kept = [move for k, move in enumerate(queue) if move.core not in cores or (k == 0 and move.sync_left >= 0)]
            if len(kept) < len(queue):
                queue.clear()
                queue.extend(kept)

    def undisturbed(self) -> bool:
        return True

    def _ends(self, move: Move) -> tuple[int, int]:
        nodes = self.state.core_node
        return int(nodes[self.state.shard_core[move.shard]]), int(nodes[move.core])

    def _finish(self, move: Move, at: float) -> None:
        source, target = self._ends(move)
        self.done.append((at, source != target, move.sync_s, move.migrating_s))
        self.state.put(move.shard, move.core)


class OneByOne(_Moves):
    def advance(self, step_s: float) -> None:
        self.taken = 0.0
        self.claimed = (self.none, self.none)
        active = [g for g, queue in enumerate(self.queues) if queue]
        self.open = self.all_open
        if active:
            rates = self._rates(active)
            self.open = self.all_open.copy()
            self.claimed = (np.zeros(self.state.nodes), np.zeros(self.state.nodes))
            for g in active:
                self._work_off(g, step_s, rates[g])
        self.now += step_s

    def _rates(self, active: list[int]) -> dict[int, float]:
        """Bytes per second that each executor's current move gets, if it is between nodes."""
        ends = {g: self._ends(self.queues[g][0]) for g in active}
        away = [pair for pair in ends.values() if pair[0] != pair[1]]
        flows_out = np.bincount([pair[0] for pair in away], minlength=self.state.nodes)
        flows_in = np.bincount([pair[1] for pair in away], minlength=self.state.nodes)
        whole = self.setup.interface
        shares = []
        for flows, traffic in ((flows_out, self.state.node_out), (flows_in, self.state.node_in)):
            left = whole - self.state.last_rate * traffic
            shares.append(np.maximum(left / np.maximum(flows, 1), whole / (flows + 1)))
        return {g: float(min(shares[0][source], shares[1][target])) for g, (source, target) in ends.items()}

    def _work_off(self, group: int, step_s: float, rate: float) -> None:
        state, queue, left = self.state, self.queues[group], step_s
        while queue and left > 0:
            move = queue[0]
            source, target = self._ends(move)
            if move.sync_left < 0:
                move.sync_left = self.setup.pending * float(state.cost_s[move.shard])
                move.bytes_left = float(state.state_bytes[move.shard]) if source != target else 0.0
            spent = min(left, move.sync_left)
            move.sync_left, move.sync_s, left = move.sync_left - spent, move.sync_s + spent, left - spent
            if move.sync_left <= 0 < move.bytes_left:
                took = min(left, move.bytes_left / rate)
                size = move.bytes_left if took < left else took * rate
                move.bytes_left, move.migrating_s, left = move.bytes_left - size, move.migrating_s + took, left - took
                spent += took
                self.taken += size
                self.claimed[1][source] += size / step_s
                self.claimed[0][target] += size / step_s
            self.open[group] -= self._blocked(move, spent) / step_s
            if move.sync_left <= 0 and move.bytes_left <= 0:
                queue.popleft()
                self._finish(move, self.now + step_s - left)

    def _blocked(self, move: Move, spent: float) -> float:
        """Seconds of the last ``spent`` in which the receiver waited. There is one, and it keeps the order: it goes on until
        the first tuple of the paused shard comes, which after τ seconds has not happened with a chance of e^(-rate·τ)."""
        rate = self.state.last_rate * float(self.state.share[move.shard])
        until = move.sync_s + move.migrating_s
        if rate <= 0:
            return 0.0
        return spent - (math.exp(-rate * (until - spent)) - math.exp(-rate * until)) / rate


class Stopping(_Moves):
    def __init__(self, setup: Elastic, state: State) -> None:
        super().__init__(setup, state)
        self._disturbed = False

    def undisturbed(self) -> bool:
        """Whether the source ran all the time since this was last asked."""
        calm, self._disturbed = not self._disturbed, any(self.queues)
        return calm

    def advance(self, step_s: float) -> None:
        self.taken, left = 0.0, step_s
        self.stopped = any(self.queues)
        self._disturbed |= self.stopped
        for queue in filter(None, self.queues):
            while queue and left > 0:
                left, finished = self._work_off(queue[0], left)
                if finished:
                    self._finish(queue.popleft(), self.now + step_s - left)
        self.now += step_s

    def _work_off(self, move: Move, left: float) -> tuple[float, bool]:
        """What is left of the time, and whether the shard is there."""
        state, whole = self.state, self.setup.interface
        source, target = self._ends(move)
        if move.sync_left < 0:
            move.sync_left = 2 * self.setup.upstream * self.setup.message_s
            move.bytes_left = 2 * float(state.state_bytes[move.shard]) if source != target else 0.0
        spent = min(left, move.sync_left)
        move.sync_left, move.sync_s, left = move.sync_left - spent, move.sync_s + spent, left - spent
        if move.sync_left > 0:
            return 0.0, False
        if state.waiting[state.station_of[state.shard_core[move.shard]]] > 1e-6:  # it is emptied while the step goes on
            move.sync_s += left
            return 0.0, False
        took = min(left, move.bytes_left / whole)
        size = move.bytes_left if took < left else took * whole
        move.bytes_left, move.migrating_s, left = move.bytes_left - size, move.migrating_s + took, left - took
        self.taken += size / 2  # the same bytes, twice
        return left, move.bytes_left <= 0
