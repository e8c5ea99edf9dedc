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

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time __getattr__ imports a name on its first use
    from springtide.api import lookup, secret, sink, source
    from springtide.api.stream import Flow, KeyedStream, Stream, topology
    from springtide.attaching import attach
    from springtide.errors import SpringtideError
    from springtide.model.generated import Draw
    from springtide.model.rate import Rate, trace
    from springtide.model.topology import Operator, Topology
    from springtide.processors import Processor, State, Timer, list_of, map_of, value
    from springtide.processors import aggregates as agg
    from springtide.running import Result, run

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
    "lookup",
    "map_of",
    "run",
    "secret",
    "sink",
    "source",
    "topology",
    "trace",
    "value",
]

_HOMES = {
    "agg": "springtide.processors.aggregates",
    "attach": "springtide.attaching:attach",
    "Draw": "springtide.model.generated:Draw",
    "Flow": "springtide.api.stream:Flow",
    "KeyedStream": "springtide.api.stream:KeyedStream",
    "list_of": "springtide.processors:list_of",
    "lookup": "springtide.api.lookup",
    "map_of": "springtide.processors:map_of",
    "Operator": "springtide.model.topology:Operator",
    "Processor": "springtide.processors:Processor",
    "Rate": "springtide.model.rate:Rate",
    "Result": "springtide.running:Result",
    "run": "springtide.running:run",
    "secret": "springtide.api.secret",
    "sink": "springtide.api.sink",
    "source": "springtide.api.source",
    "SpringtideError": "springtide.errors:SpringtideError",
    "State": "springtide.processors:State",
    "Stream": "springtide.api.stream:Stream",
    "Timer": "springtide.processors:Timer",
    "Topology": "springtide.model.topology:Topology",
    "topology": "springtide.api.stream:topology",
    "trace": "springtide.model.rate:trace",
    "value": "springtide.processors:value",
}
"""The module and attribute of each public name. Names are imported lazily because the control process, which starts beside
running batches, imports this package and needs none of them: its start takes 0.2 s of a core, and 0.4 s with all of them."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = pkgutil.resolve_name(_HOMES[name])
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
