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

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError
from springtide.papers.elasticutor.book import Book, percentile
from springtide.papers.elasticutor.control import balance, schedule
from springtide.papers.elasticutor.moves import OneByOne, Stopping
from springtide.papers.elasticutor.state import State

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
    """Which part of the source's tuples each key has: ``shares`` yields it anew every so many seconds. Told apart by name."""

    name: str
    shares: Callable[[np.random.Generator], Iterator[Floats]] = field(compare=False)
    every_s: float = math.inf


@dataclass(frozen=True)
class Elastic:
    """The set-up of section 5.1. Where the paper is silent it is said where a number is from."""

    paradigm: str
    keys: Keys
    operators: tuple[Operator, ...] = (Operator(),)
    executors: int = 32  # y, of each operator
    shards: int = 256  # z, of each executor; an operator has y·z of them in every paradigm
    nodes: int = 32
    cores_per_node: int = 8
    cores: int | None = None  # of all there are, these may be used
    upstream: int = 32  # executors that send
    offered: float = math.inf  # tuples per second that they make; all that is taken, if nothing else is said
    interface: float = 125e6  # bytes/s in each direction: 1 Gbit/s
    queue: int = 1024  # tuples before an executor, Storm's default
    core_queue: int = 64  # and before each core of an elastic one, by the authors' code
    buffer: int = 1024  # tuples that wait in each sender, Storm's default
    pending: int = 2  # tuples before a core when its shard is moved: at 1 ms each the 2 ms of figure 12(a)
    message_s: float = 0.002  # to stop or resume one sender, resource-centric only: as long as a labelling tuple takes
    balance_s: float = 0.5
    schedule_s: float = 2.0  # by the authors' code; the paper does not tell
    target_s: float = 0.0  # T_max of the scheduler; 0: all cores are used
    from_any: bool = False  # line 7 of algorithm 1 to the letter
    seconds: float = 60.0  # measured, after the warm-up

    def __post_init__(self) -> None:
        if self.paradigm not in PARADIGMS:
            raise OptionError(f"there is no paradigm {self.paradigm!r}, but {', '.join(PARADIGMS)}")

    @property
    def elastic(self) -> bool:
        return self.paradigm in ("elasticutor", "naive-ec")


@dataclass(frozen=True, eq=False)
class Result:
    """What was measured after the warm-up; the series have a value for every second, not a number where nothing was sent.

    Latency is from when a sender took a tuple up. ``moves``: [moves, 3] whether between nodes, seconds to synchronise and to
    migrate. ``migrated``: bytes of state, ``remote``: bytes of tuples between executors and their remote cores, per second.
    """

    throughput: float  # the source's tuples per second
    latency_s: float
    p99_s: float
    throughputs: Floats
    latencies_s: Floats
    p99s_s: Floats
    moves: Floats
    migrated: float
    remote: float


def run(setup: Elastic, seed: int = 0) -> Result:
    state = State.of(setup, np.random.default_rng([seed, *b"hash"]))
    shares, chance = setup.keys.shares(np.random.default_rng([seed, *b"keys"])), np.random.default_rng([seed, *b"cores"])
    moves = OneByOne(setup, state) if setup.elastic else Stopping(setup, state)
    steps = round((WARM_UP_S + setup.seconds) / STEP_S)
    book = Book(steps, len(state.home))
    changes, ticks, schedules = 0, 0, 0
    for step in range(steps):
        now = step * STEP_S
        if now >= changes * setup.keys.every_s or not step:
            state.spread(next(shares))
            changes += 1
        if now >= (ticks + 1) * setup.balance_s and setup.paradigm != "static":
            ticks += 1
            state.close_window(keep=moves.undisturbed())
            if now >= (schedules + 1) * setup.schedule_s:
                schedules += 1
                schedule(setup, state, moves, chance)
            balance(state, moves)
        moves.advance(STEP_S)
        _flow(setup, state, moves)
        book.note(step, state, moves.taken)
        state.hand_over()
    return _result(setup, book, moves)


def _flow(setup: Elastic, state: State, moves: OneByOne | Stopping) -> None:
    """One step: the senders send what they have and what finds room, and every executor serves what it can."""
    capacity = state.capacity(moves.claimed) * moves.open
    room = (state.room - state.waiting) / STEP_S + capacity
    used = state.per_tuple > 0
    most = setup.offered + state.backlog / STEP_S
    rate = 0.0 if moves.stopped else min(most, max(0.0, float((room[used] / state.per_tuple[used]).min())))
    state.backlog = min(float(setup.upstream * setup.buffer), state.backlog + (setup.offered - rate) * STEP_S)
    state.pass_on(rate, np.minimum(state.waiting + rate * STEP_S * state.per_tuple, capacity * STEP_S), STEP_S)


def _result(setup: Elastic, book: Book, moves: OneByOne | Stopping) -> Result:
    first, second = round(WARM_UP_S / STEP_S), round(1 / STEP_S)
    blocked, inside = book.latencies(STEP_S)
    blocked, inside = blocked[first:], inside[first:]
    tuples, sent = (book.rate * STEP_S)[first:], book.sent[first:]  # by step; by step and executor
    seconds = int(setup.seconds)

    def each(part: Callable[[slice], float]) -> Floats:
        return np.array([part(slice(k * second, (k + 1) * second)) for k in range(seconds)])

    def mean(span: slice) -> float:
        """Of a tuple of the source: at its sender once, and at every executor that it comes to (equation 1)."""
        whole = tuples[span].sum()
        spent = float(blocked[span] @ tuples[span]) + float((inside[span] * sent[span]).sum())
        return spent / whole if whole > 0 else math.nan

    def p99(span: slice) -> float:
        """Of a tuple at one executor."""
        return percentile(inside[span] + blocked[span, None], sent[span], 0.99)

    def known(latency_s: float) -> float:
        """Where nothing was sent all the time, it was all the time at least."""
        return setup.seconds if math.isnan(latency_s) else latency_s

    return Result(
        float(book.done[first:].mean()), known(mean(slice(None))), known(p99(slice(None))),
        each(lambda span: float(book.done[first:][span].mean())), each(mean), each(p99),
        np.array([one[1:] for one in moves.done if one[0] >= WARM_UP_S]).reshape(-1, 3),
        float(book.taken[first:].sum() / setup.seconds), float(book.remote[first:].mean()),
    )  # fmt: skip
