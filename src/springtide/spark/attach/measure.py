"""From the batches of a query to the snapshot that a policy reads: one operator, which is the whole query."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from springtide.model.plan import Plan
from springtide.model.report import Latency, latency_of
from springtide.model.snapshot import NodeSnapshot, OperatorSnapshot, Snapshot, SourceSnapshot
from springtide.spark.attach.batches import Batch

SOURCE = "input"
"""The name of all sources of the query together."""
QUANTILES = tuple((part + 0.5) / 10 for part in range(10))


def snapshot(
    name: str, batches: Sequence[Batch], *, at: float, degree: int, there: int, limit: int | None,
    trigger_s: float, target_s: float, most: int, starting_s: float, nodes: tuple[NodeSnapshot, ...] = (),
) -> Snapshot:  # fmt: skip
    """What the batches after the first one did, with the records that came since the first one began.

    A batch reads what came up to its start, so time counts from start to start. Utilisation is then the work that came by the
    slots' time: above 1 while batches grow. ``degree``: the slots that were granted; ``there``: those that were there;
    ``most``: those that may be.
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


def fixed_s(batches: Sequence[Batch], slots: int) -> float:
    """What a batch takes beside its work, which no executor shortens: the least of those that had records; 0 if not known."""
    told = [batch for batch in batches if batch.rows and batch.busy_s is not None]
    rest = [batch.duration_s - (batch.busy_s or 0.0) / (batch.slots or slots) for batch in told]
    return max(0.0, min(rest, default=0.0))


def _busy_s(batches: Sequence[Batch]) -> float | None:
    """The work of the batches. Of those whose stages Spark has forgotten, as much by the record as of the others."""
    known = [batch for batch in batches if batch.busy_s is not None]
    busy, rows, told = sum(batch.busy_s or 0.0 for batch in known), sum(b.rows for b in batches), sum(b.rows for b in known)
    if len(known) == len(batches):
        return busy
    return busy * rows / told if told else None


def latency(batches: Sequence[Batch], trigger_s: float) -> Latency | None:
    """An estimate: progress does not tell when records were created.

    A record waits for its batch to start, from no time to as long as records were gathered, then for the batch to end, and
    before that for what the source held back, at the speed at which it was read. Records are gathered since the batch before
    began, but not while nothing came: at most for that batch's duration, or for the trigger interval if that is longer.
    """
    waits: list[tuple[float, float]] = []
    for before, batch in itertools.pairwise(batches):
        period = batch.started - before.started
        gathered = max(0.0, min(period, max(trigger_s, before.duration_s)))
        held = (batch.unread or 0) * period / batch.rows if batch.rows and period > 0 else 0.0
        waits += [(held + part * gathered + batch.duration_s, batch.rows / len(QUANTILES)) for part in QUANTILES if batch.rows]
    return latency_of(waits)


def _arrivals(batches: Sequence[Batch]) -> tuple[tuple[float, ...], float | None]:
    """Records/s that arrived, in parts of a second, or of the whole time if that is shorter, and their mean.

    Between the starts of two batches, those that the later one read arrived, and those by which it left more unread. They
    arrived evenly. Where a batch does not know what it left, only what was read is known, and the mean is unknown.

    Spark's own ``inputRowsPerSecond`` is not used: it counts from the last look at the source, 10 ms ago when it was idle.
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


def _jobs_ms(batches: Sequence[Batch]) -> float | None:
    times = [batch.in_jobs_s for batch in batches if batch.in_jobs_s is not None]
    return 1000 * sum(times) / len(times) if times else None
