"""What travels to the workers: pickled once by the driver, and unpickled once per worker, not once per task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext, cloudpickle

CLOSURE_BYTES = 100_000
"""What is larger travels as a broadcast, once per executor, instead of with every task."""
_KEPT = 4  # the program, and the routes of the last batches


@dataclass(frozen=True)
class Shipment:
    """An object on its way to the workers."""

    digest: str
    pickled: Any  # bytes, or a Spark broadcast of bytes where they are many

    def unpacked(self) -> Any:
        if self.digest not in _unpacked:
            data = self.pickled if isinstance(self.pickled, bytes) else self.pickled.value
            while len(_unpacked) >= _KEPT:
                del _unpacked[next(iter(_unpacked))]
            _unpacked[self.digest] = cloudpickle.loads(data)
        return _unpacked[self.digest]

    def destroy(self) -> None:
        """Let go of the broadcast, once no task can ask for it any more."""
        if not isinstance(self.pickled, bytes):
            self.pickled.destroy()


_unpacked: dict[str, Any] = {}  # a worker process's cache; holds nothing that a shipment does not


def ship(context: SparkContext, content: object) -> Shipment:
    pickled = cloudpickle.dumps(content)
    digest = hashlib.blake2b(pickled, digest_size=16).hexdigest()
    return Shipment(digest, pickled if len(pickled) <= CLOSURE_BYTES else context.broadcast(pickled))
