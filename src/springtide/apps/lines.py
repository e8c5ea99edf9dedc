"""Operators in a line, in numbers: what policies are compared on. For the simulator; there is nothing to run on Spark."""

from __future__ import annotations

from typing import Literal

from springtide.model.rate import Rate
from springtide.sim import Constant, Exponential, Model, Operator, Source

MOST_REPLICAS = 60
"""Of each operator."""


def line(
    length: int, cost_s: float = 0.00125, rate: Rate | float = 1_000.0, even: bool = False,
    queue: Literal["each", "shared"] = "shared",
) -> Model:  # fmt: skip
    """Operators that read one another, of equal cost, each with one queue for all its replicas.

    ``even``: arrivals evenly spaced and every record the same work; else both by chance, as in Jackson's networks.
    ``queue``: ``each`` gives every replica a queue of its own, so that a grouping has something to choose.

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
