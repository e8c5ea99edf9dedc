"""Makes a policy's snapshot from the batches of a query; the whole query is one operator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from springtide.model.plan import Plan
from springtide.model.report import Latency, latency_of
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.spark.attach.batches import QueryBatch

SOURCE = "input"
"""The name of the query's sources, which count as one."""
QUANTILES = tuple((part + 0.5) / 10 for part in range(10))


def snapshot(
    name: str, batches: Sequence[QueryBatch], *, at: float, degree: int, there: int, limit: int | None,
    trigger_s: float, target_s: float, most: int, starting_s: float, nodes: tuple[NodeSnapshot, ...] = (),
) -> Snapshot:  # fmt: skip
    """The snapshot of all batches but the first, whose start begins the interval.

    A batch reads the records that arrived before its start, so time counts from start to start. Utilisation is then the
    arrived work by the slots' time: above 1 while batches grow. ``degree``: the granted slots; ``there``: the available
    slots; ``most``: their limit.
    """
    before, done = batches[0], batches[1:]
    covered = max(0.0, done[-1].started - before.started)
    rows, busy = sum(batch.rows for batch in done), _busy_s(done)
    rate = rows / covered if covered > 0 else None
    backlog, main, sent = done[-1].unread, done[-1].main_stage, [batch.rows_out for batch in done]
    operator = OperatorSnapshot(
        name, degree, width=main.tasks if main else there, rows_in=rows,
        rows_out=None if None in sent else sum(number or 0 for number in sent), failures=None, busy_s=busy, rate=rate,
        utilisation=busy / (degree * covered) if busy is not None and covered > 0 else None, backlog=backlog,
        latency_ms=_jobs_ms(done), served=rows, inputs=((SOURCE, rows),), limit=limit,
    )  # fmt: skip
    return Snapshot(
        at, covered, Plan({name: degree}, there, {name: operator.width}, trigger_s=trigger_s), (operator,),
        batches=tuple((batch.rows, batch.duration_s) for batch in done), rate=rate, backlog=backlog,
        latency=latency(batches, trigger_s), sources=(SourceSnapshot(SOURCE, rows, *_arrivals(batches), backlog),),
        nodes=nodes, target_s=target_s, slots=most, trigger_s=trigger_s, starting_s=starting_s, there=there,
        batch_overhead_s=fixed_s(done, there),
    )  # fmt: skip


def fixed_s(batches: Sequence[QueryBatch], slots: int) -> float:
    """The time of a batch beside its work, which no executor shortens: the least of the batches with records; 0 if unknown."""
    known = (batch for batch in batches if batch.rows and batch.busy_s is not None)
    rest = [batch.duration_s - (batch.busy_s or 0.0) / (batch.slots or slots) for batch in known]
    return max(0.0, min(rest, default=0.0))


def _busy_s(batches: Sequence[QueryBatch]) -> float | None:
    """The work of the batches, estimated by the record for those whose stages Spark has forgotten."""
    known = [batch for batch in batches if batch.busy_s is not None]
    busy, known_rows = sum(batch.busy_s or 0.0 for batch in known), sum(batch.rows for batch in known)
    if len(known) == len(batches):
        return busy
    return busy * sum(batch.rows for batch in batches) / known_rows if known_rows else None


def latency(batches: Sequence[QueryBatch], trigger_s: float) -> Latency | None:
    """An estimate, since progress has no creation times of records.

    A record waits for the unread records before it, at the rate of reading, then for its batch to start, up to the whole time
    in which the batch's records gathered, and then for the batch to end. Records gather from the start of the batch before,
    at most for that batch's duration or the trigger interval, whichever is longer, since nothing arrives in an idle time.
    """
    waits: list[tuple[float, float]] = []
    for before, batch in itertools.pairwise(batches):
        period = batch.started - before.started
        gathered = max(0.0, min(period, max(trigger_s, before.duration_s)))
        ahead = (batch.unread or 0) * period / batch.rows if batch.rows and period > 0 else 0.0
        waits += [(ahead + part * gathered + batch.duration_s, batch.rows / len(QUANTILES)) for part in QUANTILES if batch.rows]
    return latency_of(waits)


def _arrivals(batches: Sequence[QueryBatch]) -> tuple[tuple[float, ...], float | None]:
    """The arrivals in records/s, for each second (or for the whole interval if that is shorter), and their mean.

    The arrivals between the starts of two batches are the later one's rows and the growth of the unread records, taken as
    evenly spread. If the unread records of a batch are unknown, only its rows count, and the mean is unknown.

    Spark's ``inputRowsPerSecond`` counts from the last look at the source, 10 ms ago when it was idle, so it is not used.
    """
    starts = [batch.started for batch in batches]
    covered = starts[-1] - starts[0]
    if covered <= 0:
        return (), None
    grown = [None if a.unread is None or b.unread is None else b.unread - a.unread for a, b in itertools.pairwise(batches)]
    arrived = [max(0.0, batch.rows + (more or 0.0)) for batch, more in zip(batches[1:], grown, strict=True)]
    parts = max(1, round(covered))
    counts = np.interp(np.linspace(starts[0], starts[-1], parts + 1), starts, np.cumsum([0.0, *arrived]))
    return tuple((np.diff(counts) * parts / covered).tolist()), None if None in grown else sum(arrived) / covered


def _jobs_ms(batches: Sequence[QueryBatch]) -> float | None:
    times = [batch.in_jobs_s for batch in batches if batch.in_jobs_s is not None]
    return 1000 * sum(times) / len(times) if times else None
