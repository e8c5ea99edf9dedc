"""The simulator: it runs the policies and groupings of Spark runs on a modelled cluster, a thousand times faster.

``simulate`` runs a ``Model``, or a topology with measured costs, record by record. Its first call imports numba.
"""

from __future__ import annotations

from springtide.sim.draws import ByItem, Constant, Exponential, Given, Normal, Uniform, Weighted, Zipf
from springtide.sim.entry import simulate
from springtide.sim.model import Edge, Model, Operator, Source, Speeds
from springtide.sim.rules import BackPressure, Cluster, Node, Reconfiguration
from springtide.sim.setup import Outcome

__all__ = [
    "BackPressure",
    "ByItem",
    "Cluster",
    "Constant",
    "Edge",
    "Exponential",
    "Given",
    "Model",
    "Node",
    "Normal",
    "Operator",
    "Outcome",
    "Reconfiguration",
    "Source",
    "Speeds",
    "Uniform",
    "Weighted",
    "Zipf",
    "simulate",
]
