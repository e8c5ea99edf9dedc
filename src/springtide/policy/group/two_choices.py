"""Two choices: each key has two tasks, and a record goes to the task with fewer records so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes
from springtide.policy.group import GroupPlugin, Online, Share, Table, Targets, kernel
from springtide.policy.group.keys import mix, mixed_one
from springtide.policy.registry import parameter

_OTHER = np.uint64(0x5851F42D4C957F2D)


@dataclass(frozen=True)
class TwoChoices(GroupPlugin):
    """Partial key grouping: a record goes to H₁(key) or H₂(key), whichever got fewer records so far (section III).

    Nasir, De Francisci Morales, García-Soriano, Kourtellis, Serafini: The Power of Both Choices (2015). A key is on two tasks
    at most, so that its state is merged from two parts, and loads differ far less than with a single hash. Every upstream task
    counts the records that it has sent itself, in a micro-batch since its start: the paper's local load estimation, which needs
    no messages. H₂ is drawn from the targets other than H₁; otherwise every k-th key would have no choice.

    >>> keys = np.zeros(4, dtype=np.uint64)
    >>> sorted(np.bincount(TwoChoices().route(Share(4, width=8, hashes=lambda: keys), {}), minlength=8).tolist())[-2:]
    [2, 2]
    """

    name = "two-choices"
    source = "The Power of Both Choices (Nasir et al., 2015), section III"
    summary = "each key to the less loaded of two tasks"
    needs_key: ClassVar[bool] = True

    seed: int = parameter(0, minimum=0, maximum=2**63 - 1, help="another seed gives the keys other tasks")

    def route(self, share: Share, table: Table) -> Targets:
        k = np.uint64(share.width)
        mixed = mix(share.keys ^ np.uint64(self.seed))
        first = mixed % k
        second = (first + np.uint64(1) + mix(mixed ^ _OTHER) % max(k - np.uint64(1), np.uint64(1))) % k
        sent = [0] * share.width
        targets = []
        for i, j in zip(first.tolist(), second.tolist(), strict=True):
            target = j if sent[j] < sent[i] else i
            sent[target] += 1
            targets.append(target)
        return np.array(targets, dtype=np.int64)

    def online(self, k: int, seed: int, before: Any = None) -> Online:
        return Online(Sent(np.full(1, self.seed, dtype=np.uint64), np.zeros(k, dtype=np.int64)), less_loaded)


class Sent(NamedTuple):
    """The seed of the hashes, and the number of records sent to each replica."""

    seed: Hashes
    records: npt.NDArray[np.int64]


@kernel
def less_loaded(state: Sent, key: int, now: float, free: npt.NDArray[np.float64], queue: npt.NDArray[np.int64]) -> int:
    k = len(state.records)
    mixed = mixed_one(int(np.uint64(key) ^ state.seed[0]))
    i = np.int64(mixed % np.uint64(k))
    j = (i + 1 + np.int64(mixed_one(int(mixed ^ _OTHER)) % np.uint64(max(k - 1, 1)))) % k
    target = j if state.records[j] < state.records[i] else i
    state.records[target] += 1
    return int(target)
