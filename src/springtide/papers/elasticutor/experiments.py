"""Elasticutor's figures 6 to 16 and 19, and tables 2 and 3, measured again in ``engine``.

The figures' numbers are in plots only, so the conclusions of the text are judged; rows have a published number if the paper
prints it. ``setup`` lists the assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from springtide.papers.elasticutor import exchange, micro, single
from springtide.papers.elasticutor.setup import Lab
from springtide.papers.rows import Row


@dataclass(frozen=True)
class Experiment:
    """``name``: as in the paper. ``axis``: the label of the plot's axis, which ``logarithmic`` scales by powers of two."""

    name: str
    title: str
    measure: Callable[[Lab], list[Row]]
    axis: str = ""
    logarithmic: bool = False


_ALL = (
    Experiment("figure 6", "keys shuffled ω times a minute", micro.figure_6, "shuffles a minute"),
    Experiment("figure 7", "recovery from a shuffle", micro.figure_7, "seconds; shuffles at 0 and 30"),
    Experiment("figure 8", "computation cost and tuple size", micro.figure_8, "tuple size (bytes)", True),
    Experiment("figure 9", "size of the state", micro.figure_9, "state of a shard (KB)", True),
    Experiment("figure 10", "skew", micro.figure_10, "Zipf's exponent α"),
    Experiment("figure 11", "what moving a shard takes", micro.figure_11),
    Experiment("figure 12", "upstream executors and state", micro.figure_12, "upstream executors, or KB of state", True),
    Experiment("figure 13", "one executor: throughput", single.figure_13, "cores", True),
    Experiment("figure 14", "one executor: latency", single.figure_14, "cores", True),
    Experiment("figure 15", "one executor: moving state", single.figure_15, "cores", True),
    Experiment("figure 16", "executors and shards", single.figure_16, "shards of an executor", True),
    Experiment("figure 19", "the stock exchange", exchange.figure_19, "seconds"),
    Experiment("table 2", "naive-EC and Elasticutor", exchange.table_2),
    Experiment("table 3", "growing clusters", exchange.table_3, "nodes", True),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
