"""What travels to the workers: pickled once by the driver, and unpickled once per worker, not once per task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext, cloudpickle

CLOSURE_BYTES = 100_000
"""What is larger travels as a broadcast, once per executor, instead of with every task."""
_KEPT = 32  # the program, and for each stage the routes of the last editions


@dataclass(frozen=True)
class Shipment:
    """An object on its way to the workers."""

    digest: str
    pickled: Any  # bytes, or a Spark broadcast of bytes where they are many

    def unpacked(self) -> Any:
        if self.digest in _unpacked:
            content = _unpacked.pop(self.digest)  # and back in at the end: those that are not used are the first to go
        else:
            content = cloudpickle.loads(self.pickled if isinstance(self.pickled, bytes) else self.pickled.value)
        _unpacked[self.digest] = content
        while len(_unpacked) > _KEPT:
            del _unpacked[next(iter(_unpacked))]
        return content

    def destroy(self) -> None:
        """Let go of the broadcast, once no task can ask for it any more."""
        if not isinstance(self.pickled, bytes):
            self.pickled.destroy()


_unpacked: dict[str, Any] = {}  # a worker process's cache; holds nothing that a shipment does not


def ship(context: SparkContext, content: object) -> Shipment:
    pickled = cloudpickle.dumps(content)
    digest = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    return Shipment(digest, pickled if len(pickled) <= CLOSURE_BYTES else context.broadcast(pickled))
