"""Objects for the workers: pickled once by the driver, and unpickled once per worker instead of once per task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext, cloudpickle

CLOSURE_BYTES = 100_000
"""Limits the objects that travel with every task. Larger objects are broadcast, once per executor."""
CACHED_OBJECTS = 32
"""Limits a worker's cache. It suffices for the program, and for the routes of each stage of the last editions."""


@dataclass(frozen=True)
class Shipment:
    """An object on its way to the workers."""

    digest: str
    pickled: Any  # bytes, or a Spark broadcast of bytes above CLOSURE_BYTES

    def unpacked(self) -> Any:
        if self.digest in _unpacked:
            content = _unpacked.pop(self.digest)  # moved to the end, so that the least recently used object is dropped first
        else:
            content = cloudpickle.loads(self.pickled if isinstance(self.pickled, bytes) else self.pickled.value)
        _unpacked[self.digest] = content
        while len(_unpacked) > CACHED_OBJECTS:
            del _unpacked[next(iter(_unpacked))]
        return content

    def destroy(self) -> None:
        """Remove the broadcast. No task may need it any more."""
        if not isinstance(self.pickled, bytes):
            self.pickled.destroy()


_unpacked: dict[str, Any] = {}  # the cache of a worker process


def ship(context: SparkContext, content: object) -> Shipment:
    pickled = cloudpickle.dumps(content)
    digest = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    return Shipment(digest, pickled if len(pickled) <= CLOSURE_BYTES else context.broadcast(pickled))
