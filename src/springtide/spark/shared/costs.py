"""The costs of a task's records, on their way from the task to the driver."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.model.costs import TaskCosts
from springtide.policy.group.keys import key_hashes

_HEAD = struct.Struct("<II")
MAX_KEYS = 16_384
"""Limits the keys that a task reports in one batch to the most expensive: 256 kB."""

Seconds = npt.NDArray[np.float64]
Arrived = Sequence[tuple[pa.RecordBatch, Seconds]]
"""The records that a task received, with the seconds that each took."""


def summed(task: int, key: tuple[str, ...], arrived: Arrived, seed: int = 0) -> TaskCosts:
    """The costs by key; without a key, as if all records had the same. ``seed``: of the hash that routes the records."""
    hashed = [key_hashes(batch, key, seed) if key else np.zeros(batch.num_rows, dtype=np.uint64) for batch, _ in arrived]
    keys = np.concatenate(hashed)
    costs = TaskCosts.of(task, keys, np.concatenate([seconds for _, seconds in arrived]))
    if len(costs.keys) <= MAX_KEYS:
        return costs
    expensive = np.sort(np.argpartition(costs.seconds, -MAX_KEYS)[-MAX_KEYS:])
    return TaskCosts(task, costs.keys[expensive], costs.counts[expensive], costs.seconds[expensive])


def pack(costs: TaskCosts) -> bytes:
    head = _HEAD.pack(costs.task, len(costs.keys))
    return head + b"".join(
        (costs.keys.astype("<u8").tobytes(), costs.counts.astype("<u4").tobytes(), costs.seconds.astype("<f4").tobytes())
    )


def unpack(payload: bytes | memoryview) -> TaskCosts:
    task, size = _HEAD.unpack_from(payload)
    start = _HEAD.size
    keys = np.frombuffer(payload, "<u8", size, start)
    counts = np.frombuffer(payload, "<u4", size, start + 8 * size)
    seconds = np.frombuffer(payload, "<f4", size, start + 12 * size)
    return TaskCosts(task, keys.astype(np.uint64), counts.astype(np.int64), seconds.astype(np.float64))
