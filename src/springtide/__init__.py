"""Elastic stream processing on Apache Spark.

import springtide as st

taxi = (
    st.source.generate(trip, rate=200)
    .map(parse).filter(in_area)
    .map(enrich, grouping="round-robin", parallelism=8)
    .to(st.sink.files("trips")).named("taxi")
)
st.run(taxi, policy="scripted", target="2s", max_slots=8)
"""

from __future__ import annotations

from springtide.api import sink, source
from springtide.api.stream import Flow, KeyedStream, Stream, topology
from springtide.attaching import attach
from springtide.errors import SpringtideError
from springtide.model.generated import Draw
from springtide.model.rate import Rate, trace
from springtide.model.topology import Operator, Topology
from springtide.processors import Processor, State, Timer, list_of, map_of, value
from springtide.processors import aggregates as agg
from springtide.running import Result, run

__version__ = "0.1.0"

__all__ = [
    "Draw",
    "Flow",
    "KeyedStream",
    "Operator",
    "Processor",
    "Rate",
    "Result",
    "SpringtideError",
    "State",
    "Stream",
    "Timer",
    "Topology",
    "agg",
    "attach",
    "list_of",
    "map_of",
    "run",
    "sink",
    "source",
    "topology",
    "trace",
    "value",
]
