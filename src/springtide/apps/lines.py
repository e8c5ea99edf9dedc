"""Modelled lines of operators, for comparisons of policies in the simulator only."""

from __future__ import annotations

from typing import Literal

from springtide.model.rate import Rate
from springtide.sim import Constant, Exponential, Model, Operator, Source

MOST_REPLICAS = 60
"""Maximum number of replicas of each operator."""


def line(
    length: int, cost_s: float = 0.00125, rate: Rate | float = 1_000.0, even: bool = False,
    queue: Literal["each", "shared"] = "shared",
) -> Model:  # fmt: skip
    """Operators that read one another, of equal cost, each with one queue for all its replicas.

    ``even``: arrivals are evenly spaced and records cost the same; else both are random, as in Jackson's networks.
    ``queue``: ``each`` gives every replica a queue, among which a grouping chooses.

    >>> [operator.name for operator in line(2).operators]
    ['a', 'b']
    """
    names = [chr(ord("a") + i) for i in range(length)]
    cost = Constant(cost_s) if even else Exponential(cost_s)
    return Model(
        f"line{length}",
        sources=(Source("source", rate=rate, arrivals="even" if even else "poisson"),),
        operators=tuple(
            Operator(name, (before,), cost=cost, parallelism=MOST_REPLICAS, queue=queue)
            for before, name in zip(["source", *names], names, strict=False)
        ),
    )
