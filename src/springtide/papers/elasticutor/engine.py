"""The simulator of elastic executors: shards on cores, cores on nodes, and the costs of moves (Elasticutor, sections 3 to 5).

Tuples are a fluid, as 256 cores process 256,000 a second. The simulation advances in steps of 20 ms. In a step every executor
serves its queue, limited by its most loaded core, as one receiver passes the tuples on in order, and by the interfaces of its
nodes. The source sends as much as fits in every queue: a full queue stops all of them, as in Storm. All tuples of an operator
cost its mean. Waiting results from overload alone, and never from variation.

The paradigms differ in the executors and in the moves between them:

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
from springtide.papers.elasticutor.control import balance, schedule
from springtide.papers.elasticutor.history import History, percentile
from springtide.papers.elasticutor.moves import OneByOne, Stopping
from springtide.papers.elasticutor.state import ExecutorState

Floats = npt.NDArray[np.float64]

PARADIGMS = ("static", "resource-centric", "naive-ec", "elasticutor")
STEP_S = 0.02
WARM_UP_S = 30.0
"""The length of the warm-up, which is not measured. At ω = 2 it ends with a shuffle of the keys."""


@dataclass(frozen=True)
class ElasticOperator:
    """``per_tuple``: its input tuples per source tuple. ``bytes_out``: its output for each of its own, in total."""

    cost_s: float = 0.001
    bytes_in: float = 128.0
    bytes_out: float = 0.0
    state_bytes: float = 32 * 1024.0  # of a shard
    per_tuple: float = 1.0
    from_source: bool = True


@dataclass(frozen=True)
class Keys:
    """The distribution of the keys: ``shares`` yields it anew every ``every_s`` seconds. Keys are identified by their name."""

    name: str
    shares: Callable[[np.random.Generator], Iterator[Floats]] = field(compare=False)
    every_s: float = math.inf


@dataclass(frozen=True)
class Elastic:
    """The set-up of section 5.1. Where the paper is silent, a comment gives the origin of the number."""

    paradigm: str
    keys: Keys
    operators: tuple[ElasticOperator, ...] = (ElasticOperator(),)
    executors: int = 32  # y, executors of each operator
    shards: int = 256  # z, shards of each executor; an operator has y·z shards in every paradigm
    nodes: int = 32
    cores_per_node: int = 8
    cores: int | None = None  # the limit of usable cores
    upstream: int = 32  # upstream executors
    offered: float = math.inf  # tuples per second that they produce; by default as many as are accepted
    interface: float = 125e6  # bytes/s in each direction: 1 Gbit/s
    queue: int = 1024  # the queue of an executor in tuples, Storm's default
    core_queue: int = 64  # the queue of each core of an elastic executor, from the authors' code
    buffer: int = 1024  # the buffer of each sender in tuples, Storm's default
    pending: int = 2  # tuples queued at a core when a shard moves: at 1 ms each the 2 ms of figure 12(a)
    message_s: float = 0.002  # to stop or resume one sender, resource-centric only: as long as a labelling tuple takes
    balance_s: float = 0.5
    schedule_s: float = 2.0  # from the authors' code; the paper does not state it
    target_s: float = 0.0  # T_max of the scheduler; 0: all cores are used
    from_any: bool = False  # takes line 7 of algorithm 1 literally
    seconds: float = 60.0  # after the warm-up

    def __post_init__(self) -> None:
        if self.paradigm not in PARADIGMS:
            raise OptionError(f"there is no paradigm {self.paradigm!r}, but {', '.join(PARADIGMS)}")

    @property
    def elastic(self) -> bool:
        return self.paradigm in ("elasticutor", "naive-ec")


@dataclass(frozen=True, eq=False)
class ElasticResult:
    """The measurements after the warm-up. The series have a value for each second; it is NaN where nothing was sent.

    Latency counts from the sender's buffer on. ``moves``: [moves, 3] whether between nodes, seconds of synchronisation and of
    migration. ``migrated``: bytes per second of state; ``remote``: of tuples between executors and their remote cores.
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


def run(setup: Elastic, seed: int = 0) -> ElasticResult:
    state = ExecutorState.of(setup, np.random.default_rng([seed, *b"hash"]))
    shares, chance = setup.keys.shares(np.random.default_rng([seed, *b"keys"])), np.random.default_rng([seed, *b"cores"])
    moves = OneByOne(setup, state) if setup.elastic else Stopping(setup, state)
    steps = round((WARM_UP_S + setup.seconds) / STEP_S)
    book = History(steps, len(state.home))
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
        book.add(step, state, moves.taken)
        state.hand_over()
    return _result(setup, book, moves)


def _flow(setup: Elastic, state: ExecutorState, moves: OneByOne | Stopping) -> None:
    """One step: the senders send what they have and the queues accept, and every executor serves its queue."""
    capacity = state.capacity(moves.claimed) * moves.open
    room = (state.room - state.waiting) / STEP_S + capacity
    used = state.per_tuple > 0
    most = setup.offered + state.backlog / STEP_S
    rate = 0.0 if moves.stopped else min(most, max(0.0, float((room[used] / state.per_tuple[used]).min())))
    state.backlog = min(float(setup.upstream * setup.buffer), state.backlog + (setup.offered - rate) * STEP_S)
    state.pass_on(rate, np.minimum(state.waiting + rate * STEP_S * state.per_tuple, capacity * STEP_S), STEP_S)


def _result(setup: Elastic, book: History, moves: OneByOne | Stopping) -> ElasticResult:
    first, second = round(WARM_UP_S / STEP_S), round(1 / STEP_S)
    blocked, inside = book.latencies(STEP_S)
    blocked, inside = blocked[first:], inside[first:]
    tuples, sent = (book.rate * STEP_S)[first:], book.sent[first:]  # by step; by step and executor
    seconds = int(setup.seconds)

    def each(part: Callable[[slice], float]) -> Floats:
        return np.array([part(slice(k * second, (k + 1) * second)) for k in range(seconds)])

    def mean(span: slice) -> float:
        """The latency of a source tuple: at its sender once, and at every executor on its way (equation 1)."""
        whole = tuples[span].sum()
        spent = float(blocked[span] @ tuples[span]) + float((inside[span] * sent[span]).sum())
        return spent / whole if whole > 0 else math.nan

    def p99(span: slice) -> float:
        """The 99th percentile of a tuple at an executor."""
        return percentile(inside[span] + blocked[span, None], sent[span], 0.99)

    def known(latency_s: float) -> float:
        """If nothing was sent at all, the latency is at least the whole time."""
        return setup.seconds if math.isnan(latency_s) else latency_s

    return ElasticResult(
        float(book.done[first:].mean()), known(mean(slice(None))), known(p99(slice(None))),
        each(lambda span: float(book.done[first:][span].mean())), each(mean), each(p99),
        np.array([move[1:] for move in moves.done if move[0] >= WARM_UP_S]).reshape(-1, 3),
        float(book.taken[first:].sum() / setup.seconds), float(book.remote[first:].mean()),
    )  # fmt: skip
