"""Moves of shards to other cores: pause, finish the pending tuples, move the state if the node changes, resume (section 3.2).

``OneByOne``: every executor moves its own shards, one after another, while everything else continues. ``Stopping``: the routing
table of an operator is in all senders, so for each shard all senders stop, the queue of its core drains, and all resume. As in
the authors' code, one shard moves at a time, and its state crosses the network twice, through the controller.

State migrates at a fair share of the interfaces: what tuples leave, or the bandwidth of one more flow if that is higher.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from springtide.papers.elasticutor.engine import Elastic
    from springtide.papers.elasticutor.state import ExecutorState

Floats = npt.NDArray[np.float64]


class Move:
    """A move of a shard to a core: the remaining synchronisation (s) and state (bytes), and the time of both so far."""

    __slots__ = ("bytes_left", "core", "migrating_s", "shard", "sync_left", "sync_s")

    def __init__(self, shard: int, core: int) -> None:
        self.shard, self.core = shard, core
        self.sync_left = self.bytes_left = -1.0  # not begun
        self.sync_s = self.migrating_s = 0.0


class _Moves:
    """``open``: by executor, the share of the last step in which its receiver ran. ``claimed``: by node, the bytes per second
    of state in and out. ``taken``: bytes of state in the step. ``done``: by move, its end, whether it was between nodes, and
    both times."""

    stopped = False

    def __init__(self, setup: Elastic, state: ExecutorState) -> None:
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
        """Cancel the moves to these cores."""
        for queue in self.queues:
            remaining = [move for k, move in enumerate(queue) if move.core not in cores or (k == 0 and move.sync_left >= 0)]
            if len(remaining) < len(queue):
                queue.clear()
                queue.extend(remaining)

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
        """The bytes per second of each executor's current move between nodes."""
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
        """The seconds of the last ``spent`` in which the receiver waited. It passes tuples on in order until the first one of
        the paused shard comes; the probability that none has come after τ seconds is e^(-rate·τ)."""
        rate = self.state.last_rate * float(self.state.share[move.shard])
        until = move.sync_s + move.migrating_s
        if rate <= 0:
            return 0.0
        return spent - (math.exp(-rate * (until - spent)) - math.exp(-rate * until)) / rate


class Stopping(_Moves):
    def __init__(self, setup: Elastic, state: ExecutorState) -> None:
        super().__init__(setup, state)
        self._disturbed = False

    def undisturbed(self) -> bool:
        """Whether the source ran without a stop since the last call."""
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
        """Returns the rest of the step, and whether the move is finished."""
        state, whole = self.state, self.setup.interface
        source, target = self._ends(move)
        if move.sync_left < 0:
            move.sync_left = 2 * self.setup.upstream * self.setup.message_s
            move.bytes_left = 2 * float(state.state_bytes[move.shard]) if source != target else 0.0
        spent = min(left, move.sync_left)
        move.sync_left, move.sync_s, left = move.sync_left - spent, move.sync_s + spent, left - spent
        if move.sync_left > 0:
            return 0.0, False
        if state.waiting[state.station_of[state.shard_core[move.shard]]] > 1e-6:  # the queue drains during the step
            move.sync_s += left
            return 0.0, False
        took = min(left, move.bytes_left / whole)
        size = move.bytes_left if took < left else took * whole
        move.bytes_left, move.migrating_s, left = move.bytes_left - size, move.migrating_s + took, left - took
        self.taken += size / 2  # each byte crosses the network twice
        return left, move.bytes_left <= 0
