"""The arithmetic of positions: pure functions of offsets.

A position names for each topic its id and the next offset of each partition: ``{"orders": {"id": "Qx1…", "0": 17, "1": 4}}``.
A topic that was deleted and made again has another id, and its offsets begin again. A partition that a position does not name
begins at offset 0: it is newer than the position.

Offsets count more than records do: markers of transactions and compacted records leave gaps. So a number of records here is an
upper bound, and a batch may have fewer.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from springtide.model.source import Position, Range

ID = "id"
"""The key of a topic's id among its partitions; "" if the brokers do not say it."""

UNEVEN = 1.25
"""Partitions are cut if some task would get more than this multiple of its share. A cut costs the partition's order and another
fetch of some milliseconds; a task with a quarter more than its share delays the batch by that quarter."""
NEAR = 0.1
"""A cut this close to the end of a partition, in shares, is made at the end: a sliver would cost a fetch of its own."""


class Part(NamedTuple):
    """The offsets from ``first`` to ``last``, exclusive, of a partition; without ``last`` there is no end."""

    topic: str
    number: int
    first: int
    last: int | None
    id: str = ""

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.number}"


Lows = Mapping[tuple[str, int], int]
"""The first offset of each partition that retention has left."""


def partitions(topic: Mapping[str, Any]) -> dict[int, int]:
    """The offsets of a topic's partitions in a position."""
    return {int(name): int(offset) for name, offset in topic.items() if name != ID}


def same_topic(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two positions speak of one topic, and not of another that was made later under its name."""
    ids = {one.get(ID, ""), other.get(ID, "")} - {""}
    return len(ids) <= 1


def first_offset(since: Position, topic: str, wanted: Mapping[str, Any], number: int) -> int:
    """Where a batch from ``since`` to the offsets ``wanted`` of a topic begins."""
    before = since.get(topic, {})
    return int(before.get(str(number), 0)) if same_topic(before, wanted) else 0


def parts(since: Position, until: Position) -> list[Part]:
    """What lies between two positions, by topic and partition."""
    found = [
        Part(topic, number, first_offset(since, topic, wanted, number), last, wanted.get(ID, ""))
        for topic, wanted in sorted(until.items())
        for number, last in sorted(partitions(wanted).items())
    ]
    return [part for part in found if part.first < (part.last or 0)]


def waiting(since: Position, until: Position, lows: Lows) -> dict[tuple[str, int], int]:
    """The number of offsets that can still be read, for each partition that has any."""
    counts = {
        (part.topic, part.number): (part.last or 0) - max(part.first, lows.get((part.topic, part.number), 0))
        for part in parts(since, until)
    }
    return {place: count for place, count in counts.items() if count > 0}


def limited(since: Position, end: Position, most: int, lows: Lows) -> Position:
    """The end of a batch of ``most`` records. What retention has deleted takes nothing of the limit, and is passed at once."""
    counts = waiting(since, end, lows)
    if sum(counts.values()) <= most:
        return end
    granted = shares(counts, max(1, most))
    position: dict[str, dict[str, Any]] = {}
    for topic, wanted in end.items():
        position[topic] = {ID: wanted.get(ID, "")}
        for number, last in partitions(wanted).items():
            place = (topic, number)
            first = max(first_offset(since, topic, wanted, number), lows.get(place, 0))
            position[topic][str(number)] = min(last, first + granted.get(place, 0))
    return position


def shares(counts: Mapping[tuple[str, int], int], most: int) -> dict[tuple[str, int], int]:
    """Divide ``most`` in proportion to what waits, so that all partitions catch up at the same time. As long as there is
    enough, each gets at least one, so that a small partition does not wait until a large one is read.

    >>> shares({("a", 0): 90, ("a", 1): 9, ("a", 2): 1}, 50)
    {('a', 0): 45, ('a', 1): 4, ('a', 2): 1}
    """
    order = sorted(counts, key=lambda place: (-counts[place], place))
    granted = dict.fromkeys(counts, 0)
    for place in order[:most]:
        granted[place] = 1
    left = most - min(most, len(order))
    rest = sum(counts.values()) - len(order)
    # each place takes its part of what is left for it and those after it: the sum is exact, and none gets more than waits
    for place in reversed(order):
        if left <= 0 or rest <= 0:
            break
        extra = left * (counts[place] - 1) // rest
        granted[place] += extra
        left, rest = left - extra, rest - (counts[place] - 1)
    return granted


def ranges(since: Position, until: Position, tasks: int) -> list[Range]:
    """A batch cut for tasks: whole partitions if they can be shared out evenly, otherwise equal parts of them all, so that the
    records of a hot partition are read by several tasks."""
    whole = parts(since, until)
    share = sum(map(_length, whole)) / max(1, tasks)
    packed = _packed(whole, max(1, tasks))
    if any(sum(map(_length, held)) > UNEVEN * max(1.0, share) for held in packed):
        packed = _sliced(whole, max(1, tasks))
    return [as_range(held) for held in sorted(map(sorted, packed)) if held]


def _packed(whole: Sequence[Part], tasks: int) -> list[list[Part]]:
    """Whole partitions for each task: the largest first, each to the task with the least."""
    loads: list[tuple[int, int, list[Part]]] = [(0, index, []) for index in range(min(tasks, len(whole)))]
    for part in sorted(whole, key=lambda part: (-_length(part), part)):
        load, index, held = heapq.heappop(loads)
        heapq.heappush(loads, (load + _length(part), index, [*held, part]))
    return [held for _, _, held in loads]


def _sliced(whole: Sequence[Part], tasks: int) -> list[list[Part]]:
    """The partitions one after another, cut into equal slices; a cut close to the end of a partition is made there."""
    ends = list(accumulate(map(_length, whole)))
    slices = min(tasks, ends[-1])
    near = ends[-1] / slices * NEAR
    cuts = {_snapped(ends[-1] * index // slices, ends, near) for index in range(1, slices)} | {ends[-1]}
    found: list[list[Part]] = []
    start = 0
    for end in sorted(cuts):
        found.append([])
        for part, last in zip(whole, ends, strict=True):
            low, high = max(start, last - _length(part)), min(end, last)
            if low < high:
                shift = part.first - (last - _length(part))
                found[-1].append(part._replace(first=low + shift, last=high + shift))
        start = end
    return found


def _snapped(edge: int, ends: Sequence[int], near: float) -> int:
    closest = min(ends, key=lambda end: abs(end - edge))
    return closest if abs(closest - edge) <= near else edge


def as_range(held: Sequence[Part]) -> Range:
    return {"parts": [list(part) for part in held]}


def parts_of(given: Range) -> list[Part]:
    return [Part(*part) for part in given["parts"]]


def _length(part: Part) -> int:
    return (part.last or 0) - part.first
