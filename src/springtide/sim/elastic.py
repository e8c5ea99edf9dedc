"""Elastic executors in numbers: shards on cores, cores on nodes, and what moving them costs (Elasticutor, sections 3 to 5).

Tuples flow, they are not counted one by one: 256 cores do 256,000 a second. The state of the cluster is brought forward in
steps of 20 ms. In a step every executor serves what is in its queue, at most what its most loaded core allows, as one receiver
sends the tuples on in the order in which they came; and no more than the interfaces of the nodes it uses carry. The source
sends as much as leaves room in every queue: one full queue holds up all of them, as in Storm. What a tuple costs is its mean;
the spread around it is left out, so what waits is what does not fit, not what comes unevenly.

The paradigms differ in what is one executor and what moves between whom:

    static            a core is an executor, shards stay where they are
    resource-centric  a core is an executor; shards move between all cores of an operator, while the source stands still
    elasticutor       an executor has cores on any node, all data go through its home node; shards move between its cores, one
                      at a time, and cores between executors by algorithm 1
    naive-ec          the same, with cores from anywhere
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from springtide.sim.elastic_control import balance, schedule
from springtide.sim.elastic_moves import OneByOne, Stopping
from springtide.sim.elastic_state import State

Floats = npt.NDArray[np.float64]

PARADIGMS = ("static", "resource-centric", "naive-ec", "elasticutor")
STEP_S = 0.02
WARM_UP_S = 30.0
"""Not measured. At ω = 2 the keys are shuffled when it ends."""


@dataclass(frozen=True)
class Operator:
    """``per_tuple``: how many tuples it gets for each of the source's. ``bytes_out``: what it sends on for each, in all."""

    cost_s: float = 0.001
    bytes_in: float = 128.0
    bytes_out: float = 0.0
    state_bytes: float = 32 * 1024.0  # of a shard
    per_tuple: float = 1.0
    from_source: bool = True


@dataclass(frozen=True)
class Keys:
    """How the source's tuples are spread over the keys, and when that changes: ``weights(rng, number of the change)``."""

    weights: Callable[[np.random.Generator, int], Floats] = field(compare=False)
    every_s: float = np.inf
    name: str = ""


@dataclass(frozen=True)
class Elastic:
    """The set-up of section 5.1. Where the paper is silent: the queues are Storm's defaults; the rest says where it is from."""

    paradigm: str
    keys: Keys
    operators: tuple[Operator, ...] = (Operator(),)
    executors: int = 32  # y, of each operator
    shards: int = 256  # z, of each executor; an operator has y·z of them in every paradigm
    nodes: int = 32
    cores_per_node: int = 8
    cores: int | None = None  # of all there are, these may be used
    upstream: int = 32  # executors that send
    interface: float = 125e6  # bytes/s in each direction: 1 Gbit/s
    queue: int = 1024  # tuples before an executor
    buffer: int = 1024  # tuples that wait in each sender
    pending: int = 2  # tuples before a core when its shard is moved: at 1 ms each the 2 ms of figure 12(a)
    message_s: float = 0.002  # to stop or resume one sender, resource-centric only: as long as a labelling tuple takes
    balance_s: float = 0.5
    schedule_s: float = 2.0  # by the authors' code; the paper does not tell
    seconds: float = 60.0  # measured, after the warm-up

    @property
    def elastic(self) -> bool:
        return self.paradigm in ("elasticutor", "naive-ec")


@dataclass(frozen=True, eq=False)
class Result:
    """What was measured after the warm-up. Moves: [moves, 3] whether between nodes, seconds to synchronise, to migrate."""

    at: Floats  # seconds
    rate: Floats  # the source's tuples per second that were processed, in each step
    latency_s: Floats  # mean of the tuples that were sent in each step; not a number where none were
    sent: Floats  # tuples
    p99_s: Floats  # in each step
    moves: Floats
    migrated: float  # bytes of state
    remote: float  # bytes of tuples, between executors and their remote cores
    seconds: float

    @property
    def throughput(self) -> float:
        return float(self.rate.mean())

    @property
    def mean_latency_s(self) -> float:
        some = self.sent > 0
        return float(np.average(self.latency_s[some], weights=self.sent[some])) if some.any() else float("inf")

    def p99_latency_s(self) -> float:
        """By steps: the 99th percentile of all tuples, each standing for the 99th of its own step."""
        some = self.sent > 0
        order = np.argsort(self.p99_s[some])
        heights = np.cumsum(self.sent[some][order])
        return float(self.p99_s[some][order][np.searchsorted(heights, 0.99 * heights[-1])]) if some.any() else float("inf")


def run(setup: Elastic, seed: int = 0) -> Result:
    state = State.of(setup, np.random.default_rng([seed, *b"hash"]))
    workload, chance = np.random.default_rng([seed, *b"keys"]), np.random.default_rng([seed, *b"cores"])
    moves = OneByOne(setup, state) if setup.elastic else Stopping(setup, state)
    steps = round((WARM_UP_S + setup.seconds) / STEP_S)
    book = _Book(setup, state, steps)
    changes, ticks, schedules = 0, 0, 0
    for step in range(steps):
        now = step * STEP_S
        if now >= changes * setup.keys.every_s or not step:
            state.spread(setup.keys.weights(workload, changes))
            changes += 1
        if now >= (ticks + 1) * setup.balance_s and setup.paradigm != "static":
            ticks += 1
            state.close_window(keep=moves.undisturbed())
            if now >= (schedules + 1) * setup.schedule_s:
                schedules += 1
                schedule(setup, state, moves, chance)
            balance(state, moves)
        moves.advance(STEP_S)
        book.note(step, _flow(setup, state, moves), moves.taken)
        state.hand_over()
    return book.result(moves)


def _flow(setup: Elastic, state: State, moves: OneByOne | Stopping) -> float:
    """One step: what the source sends, in tuples per second, and what every executor serves of it."""
    capacity = state.capacity(moves.claimed)
    room = (setup.queue - state.waiting - state.held) / STEP_S + capacity
    used = state.per_tuple > 0
    rate = 0.0 if moves.stopped else max(0.0, float((room[used] / state.per_tuple[used]).min()))
    sent = rate * STEP_S * state.per_tuple
    held = sent * moves.paused
    state.held += held
    state.waiting += sent - held
    state.serve(np.minimum(state.waiting, capacity * STEP_S), rate)
    return rate


class _Book:
    """Keeps what is seen in every step."""

    def __init__(self, setup: Elastic, state: State, steps: int) -> None:
        self.setup, self.state = setup, state
        self.sent, self.rate, self.inside, self.tail = (np.zeros(steps) for _ in range(4))
        self.migrated, self.remote = np.zeros(steps), np.zeros(steps)

    def note(self, step: int, rate: float, taken: float) -> None:
        state = self.state
        self.sent[step] = rate * STEP_S
        self.rate[step] = state.served.sum() / max(1e-300, state.per_tuple.sum()) / STEP_S
        wait = state.wait()
        self.inside[step] = float(state.per_tuple @ wait)
        order = np.argsort(wait)
        heights = np.cumsum(state.per_tuple[order])
        self.tail[step] = wait[order][min(len(wait) - 1, int(np.searchsorted(heights, 0.99 * heights[-1])))]
        self.migrated[step] = taken
        self.remote[step] = self.rate[step] * STEP_S * state.remote_bytes

    def result(self, moves: OneByOne | Stopping) -> Result:
        """A tuple that leaves the senders came to them when as many had left as were before it."""
        steps = len(self.sent)
        at = STEP_S * (1 + np.arange(steps))
        left = np.cumsum(self.sent)
        ahead = self.setup.upstream * self.setup.buffer
        came = np.interp(left - ahead, np.append(0.0, left), np.append(0.0, at))
        blocked = at - came
        first = round(WARM_UP_S / STEP_S)
        times = np.array([one[1:] for one in moves.done if one[0] >= WARM_UP_S]).reshape(-1, 3)
        return Result(
            at[first:], self.rate[first:], (blocked + self.inside)[first:], self.sent[first:], (blocked + self.tail)[first:],
            times, float(self.migrated[first:].sum()), float(self.remote[first:].sum()), self.setup.seconds,
        )  # fmt: skip
