"""The arithmetic of offsets: no offset is lost or read twice, every batch makes progress, and all partitions catch up."""

from __future__ import annotations

import copy
import json
from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from springtide.connectors.kafka.positions import NEAR, UNEVEN, limited, parts, parts_of, ranges, shares, waiting

Offsets = dict[str, dict[str, Any]]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Offsets, Offsets, dict[tuple[str, int], int]]:
    """A position, a later end, which may have more partitions and topics, or topics made again, and the lowest offsets."""
    since: Offsets = {}
    end: Offsets = {}
    lows = {}
    for topic in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        again, known = draw(st.booleans()) and draw(st.booleans()), draw(st.booleans())
        end[topic] = {"id": "2" if again else "1"}
        if known:
            since[topic] = {"id": "1"}
        for number in range(draw(st.integers(0, 4))):
            first, more = draw(st.integers(0, 50)), draw(st.one_of(st.integers(0, 30), st.integers(0, 10**7)))
            if known and draw(st.integers(0, 3)):
                since[topic][str(number)] = first
            end[topic][str(number)] = first + more
            lows[topic, number] = draw(st.integers(0, first + more))
    return since, end, lows


def offsets(cuts: Any) -> Counter[tuple[str, int, int]]:
    """Each offset of small ranges, with how often it is read."""
    parts = [part for cut in cuts for part in parts_of(cut)]
    return Counter((part.topic, part.number, offset) for part in parts for offset in range(part.first, part.last or 0))


@given(batches(), st.integers(1, 12))
def test_ranges_are_the_batch_without_gap_or_overlap(batch: Any, tasks: int) -> None:
    since, end, _ = batch
    before = copy.deepcopy((since, end))
    cuts = ranges(since, end, tasks)
    assert (since, end) == before and cuts == ranges(*before, tasks), "it is a pure function"
    assert json.loads(json.dumps(cuts)) == cuts
    assert len(cuts) <= tasks and all(cut["parts"] for cut in cuts)
    found: dict[tuple[str, int, str], list[tuple[int, int]]] = {}
    for cut in cuts:
        for part in parts_of(cut):
            assert part.last is not None and part.first < part.last
            found.setdefault((part.topic, part.number, part.id), []).append((part.first, part.last))
    joined = {}
    for place, pieces in found.items():
        pieces.sort()
        assert all(one[1] == other[0] for one, other in pairwise(pieces))
        joined[place] = (pieces[0][0], pieces[-1][1])
    assert joined == {(part.topic, part.number, part.id): (part.first, part.last) for part in parts(since, end)}


@given(batches(), st.integers(1, 12))
def test_no_task_reads_much_more_than_its_share(batch: Any, tasks: int) -> None:
    since, end, _ = batch
    sizes = [sum((part.last or 0) - part.first for part in parts_of(cut)) for cut in ranges(since, end, tasks)]
    if sizes:
        share = max(1.0, sum(sizes) / tasks)
        assert max(sizes) <= max(UNEVEN * share, (1 + 2 * NEAR) * share + 1)


@given(batches(), st.integers(1, 10**7))
def test_a_limited_batch_makes_progress_within_its_limit(batch: Any, most: int) -> None:
    since, end, lows = batch
    before = copy.deepcopy((since, end, lows))
    until = limited(since, end, most, lows)
    assert (since, end, lows) == before and until == limited(*before[:2], most, before[2]), "it is a pure function"
    waits = waiting(since, end, lows)
    if waits:
        read = sum(waiting(since, until, lows).values())
        assert 0 < read <= most and read == min(most, sum(waits.values()))
    for part in parts(since, until):
        assert part.last is not None and part.last <= end[part.topic][str(part.number)]
    for topic, at in until.items():
        assert at["id"] == end[topic]["id"] and at.keys() == end[topic].keys(), "a topic or partition is never forgotten"


@given(batches(), st.integers(1, 40))
def test_limited_batches_end_at_the_end_and_read_everything_once(batch: Any, most: int) -> None:
    since, end, lows = batch
    end = {topic: {n: at if n == "id" else min(at, 60) for n, at in found.items()} for topic, found in end.items()}
    since = {topic: {n: at if n == "id" else min(at, 60) for n, at in found.items()} for topic, found in since.items()}
    wanted = offsets(ranges(since, end, 1))
    read: Counter[tuple[str, int, int]] = Counter()
    at: Any = since
    for _ in range(1000):
        until = limited(at, end, most, lows)
        read += offsets(ranges(at, until, 3))
        if not parts(until, end):
            break
        at = until
    assert not parts(until, end)
    assert read == wanted


@given(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 9)), st.integers(1, 10**9), min_size=1), st.integers(1, 10**6))
def test_shares_are_exact_fair_and_starve_none(counts: Any, most: int) -> None:
    most = min(most, sum(counts.values()))
    granted = shares(counts, most)
    assert sum(granted.values()) == most
    assert all(0 <= granted[place] <= counts[place] for place in counts)
    if most >= len(counts):
        assert all(granted.values())
        for one in counts:
            exact = most * counts[one] / sum(counts.values())
            assert abs(granted[one] - exact) <= len(counts) + 1


def test_a_small_partition_is_not_starved_while_the_limit_is_below_the_number_of_partitions() -> None:
    """With one record a batch the largest goes first, until all wait for as many."""
    since: Any = {"t": {"id": "1", "0": 0, "1": 0}}
    end: Offsets = {"t": {"id": "1", "0": 3, "1": 1}}
    seen = []
    for _ in range(4):
        until = limited(since, end, 1, {})
        seen += [part.origin for part in parts(since, until)]
        since = until
    assert sorted(seen) == ["t/0", "t/0", "t/0", "t/1"]


def test_a_hot_partition_is_read_by_all_tasks() -> None:
    end = {"t": {"id": "x", "0": 1_000_000, "1": 10}}
    sizes = [sum((part.last or 0) - part.first for part in parts_of(cut)) for cut in ranges({}, end, 4)]
    assert len(sizes) == 4 and max(sizes) < 260_000


def test_even_partitions_are_read_whole() -> None:
    end = {"t": {"id": "x", **{str(n): 1000 + n for n in range(8)}}}
    cuts = ranges({}, end, 4)
    assert all(part.first == 0 for cut in cuts for part in parts_of(cut)) and len(cuts) == 4
