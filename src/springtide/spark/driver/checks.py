"""Refuses functions that cannot be sent to the workers, before Spark starts."""

from __future__ import annotations

from pyspark import cloudpickle

from springtide.errors import TopologyError
from springtide.model.source import Source
from springtide.model.topology import Topology
from springtide.spark.driver.modules import ship_loaded_modules


def check(topology: Topology) -> None:
    """Refuse a topology with a function that cannot be pickled."""
    ship_loaded_modules()
    for operator in topology:
        carried = operator.source.in_tasks() if isinstance(operator.source, Source) else operator.function
        carried = operator.state.function if operator.state is not None else carried
        if carried is None:
            continue
        try:
            cloudpickle.dumps(carried)
        except Exception as error:  # noqa: BLE001  pickling runs user code, which may raise anything
            raise TopologyError(
                f"operator {operator.name!r}: its function cannot be sent to the workers ({type(error).__name__}: {error});"
                " keep connections, locks and open files out of it, or open them inside the function"
            ) from None
