"""The clairvoyant: a bound for scaling policies, in the simulator only.

It knows the rates of the whole trace, and finds by dynamic programming the fewest replica-seconds that meet the latency target
in every second, with changes of degrees at the ends of intervals only. The latency of a second is the time to clear the fluid
model's queue, plus the work itself, plus the wait of an M/M/k queue at that second's rate. The state is the queue at the end of
an interval. Operators in a line with the same cost are sized together, with degrees that differ by at most one; others are
sized alone, with a share of the target in proportion to their cost.

If the limit makes the target impossible, it is late for no longer than with all replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from springtide.errors import OptionError
from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.scale import ScalePlugin, State, changes
from springtide.policy.scale.demand import demand

Floats = npt.NDArray[np.float64]

QUEUES = 24
"""Classes of queues at the end of an interval, from empty to the longest that the target allows."""
LATE = 1e6
"""Cost of a second above the target in replica-seconds: the target has priority, even if the limit makes it impossible."""


@dataclass(frozen=True)
class FutureWork:
    """An operator's future: the arrivals in each second, the cost of a record, and the maximum number of replicas.

    ``variability``: (c_a² + c_s²)/2, the factor of the wait of M/M/k (Allen and Cunneen): 1 for exponential arrivals and work,
    0 if both are even.
    """

    name: str
    arrivals: Floats
    cost_s: float
    limit: int
    variability: float = 1.0


@dataclass(frozen=True)
class Clairvoyant(ScalePlugin):
    """The fewest replica-seconds that meet the target in every second, with knowledge of the trace."""

    name = "clairvoyant"
    source = "a bound"
    summary = "the cheapest degrees that keep the target, knowing the trace: in the simulator only"
    simulator_only: ClassVar[bool] = True

    def for_future(self, future: Sequence[FutureWork], interval_s: float, target_s: float) -> Foreseen:
        """The policy with the best degrees for this future."""
        degrees: dict[str, list[int]] = {}
        if not target_s > 0:
            raise OptionError(f"'clairvoyant' cannot keep a target of {target_s:g} s; it is above 0")
        if interval_s != round(interval_s) or interval_s < 1:
            raise OptionError(f"'clairvoyant' goes by seconds, and the interval is {interval_s:g} s; make it whole seconds")
        total = sum(work.cost_s for work in future) or 1.0
        for group in _groups(future):
            degrees |= cheapest(group, round(interval_s), target_s * sum(work.cost_s for work in group) / total)
        return Foreseen({name: tuple(each) for name, each in degrees.items()}, interval_s)

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> NoReturn:
        raise OptionError("'clairvoyant' knows the future, which only the simulator can tell; choose 'tide', say")


@dataclass(frozen=True)
class Foreseen:
    """Plays precomputed degrees."""

    name: ClassVar[str] = Clairvoyant.name

    degrees: Mapping[str, tuple[int, ...]]
    interval_s: float

    def initial(self) -> State:
        return {}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        interval = int(snapshot.at / self.interval_s + 1e-6)
        wanted = {
            name: (each[min(interval, len(each) - 1)], f"the cheapest for what comes in interval {interval}")
            for name, each in self.degrees.items()
        }
        return state, changes(snapshot, wanted)


def _groups(future: Sequence[FutureWork]) -> list[list[FutureWork]]:
    """The operators as a single group if they are alike, as in a line; else a group for each."""
    first = future[0]
    alike = all(
        work.cost_s == first.cost_s and work.limit == first.limit and np.array_equal(work.arrivals, first.arrivals)
        for work in future
    )
    return [list(future)] if alike else [[work] for work in future]


def cheapest(group: Sequence[FutureWork], interval: int, target_s: float) -> dict[str, list[int]]:
    """The degrees of equal operators, for every interval of this many seconds."""
    work, count = group[0], len(group)
    if work.cost_s <= 0 or not len(work.arrivals):
        return {work.name: [1] * max(1, math.ceil(len(work.arrivals) / interval)) for work in group}
    # For each class of queues, a queue on the cheapest path to it, and its cost. The last entry belongs to the path that has
    # enough replicas in every interval, or all possible ones: no path is late for a shorter time.
    queues, costs = np.zeros(1), np.zeros(1)
    choices: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for start in range(0, len(work.arrivals), interval):
        seconds = work.arrivals[start : start + interval]
        overdue = float(queues.max() if queues.max() > _longest(work, seconds, target_s) else queues[-1])
        replicas = _candidates(work, seconds, count, target_s, overdue)
        late, left = _played(work, seconds, replicas // count, _waits(work, seconds, replicas, count), queues, target_s, count)
        spent = costs[None, :] + (replicas * len(seconds))[:, None] + LATE * late
        longest = _longest(work, work.arrivals[start + interval :][:interval], target_s)
        will_be_late = np.maximum(0.0, left - longest) * work.cost_s / work.limit  # in seconds, with all possible replicas
        cheapest_first = np.argsort(spent + LATE * will_be_late, axis=None, kind="stable")
        classes = np.minimum(np.ceil(left / longest * (QUEUES - 1)), QUEUES - 1)  # an empty queue is a class of its own
        classes[-1, -1] = QUEUES
        _, first = np.unique(classes.ravel()[cheapest_first], return_index=True)
        option, came = np.unravel_index(cheapest_first[first], spent.shape)
        queues, costs = left[option, came], spent[option, came]
        choices.append((came, replicas[option]))
    totals = []
    queue = int(np.argmin(costs))
    for came, chosen in reversed(choices):
        totals.append(int(chosen[queue]))
        queue = int(came[queue])
    totals.reverse()
    return {work.name: [total // count + (i < total % count) for total in totals] for i, work in enumerate(group)}


def _longest(work: FutureWork, seconds: Floats, target_s: float) -> float:
    """The longest acceptable queue at the start of these seconds."""
    return 2 * target_s * max(float(seconds.max(initial=0.0)), 1 / work.cost_s)


def _candidates(work: FutureWork, seconds: Floats, count: int, target_s: float, overdue: float) -> npt.NDArray[np.int64]:
    """The candidates for the replicas of all operators together: from slightly too few to more than enough, including an
    overdue queue."""
    least = math.ceil(demand(seconds, 2 * target_s) * work.cost_s)  # the mean wait of a burst is half its longest
    load = (demand(seconds, 0.0) + overdue / target_s) * work.cost_s
    enough = math.ceil(load + 2 * math.sqrt(load)) + 3  # with more, almost no record waits
    low, high = max(1, min(least, work.limit)), max(1, min(enough, work.limit))
    return np.arange(low * count, high * count + 1)


def _waits(work: FutureWork, seconds: Floats, replicas: npt.NDArray[np.int64], count: int) -> Floats:
    """[candidates, seconds] The wait of M/M/k at each second's rate, summed over the operators.

    A queue near saturation grows no faster than random variation: by √(4λt/π) records in t seconds.
    """
    most = int(replicas[-1]) // count + 1
    load = seconds * work.cost_s
    blocked, waits = np.ones(len(seconds)), {}
    for k in range(1, most + 1):
        blocked = load * blocked / (k + load * blocked)  # Erlang B
        free = np.maximum(k - load, 1e-9)
        waiting = k * blocked / np.maximum(k - load * (1 - blocked), 1e-9)  # Erlang C
        stationary = np.where(load < k, np.clip(waiting, 0.0, 1.0) * work.cost_s / free, np.inf)
        chance = np.sqrt(4 * seconds * len(seconds) / math.pi) * work.cost_s / k
        waits[k] = work.variability * np.minimum(stationary, chance)
    low, more = replicas // count, replicas % count
    return np.array([(count - m) * waits[k] + m * waits[k + 1] for k, m in zip(low.tolist(), more.tolist(), strict=True)])


def _played(
    work: FutureWork,
    seconds: Floats,
    degrees: npt.NDArray[np.int64],
    waits: Floats,
    queues: Floats,
    target_s: float,
    count: int,
) -> tuple[Floats, Floats]:
    """[candidates, queues] The late seconds for each number of replicas and each initial queue, and the final queue."""
    capacity = (degrees / work.cost_s)[:, None]
    queue = np.broadcast_to(queues, (len(degrees), len(queues)))
    late = np.zeros(queue.shape)
    for second, rate in enumerate(seconds):
        after = np.maximum(0.0, queue + rate - capacity)
        late += (queue + after) / 2 / capacity + waits[:, second, None] + count * work.cost_s > target_s
        queue = after
    return late, queue
