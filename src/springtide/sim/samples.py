"""The costs of records at each operator of a topology, in samples that are measured without Spark or read from a file.

A sample is a source record, followed through the graph: its records at each operator, their time, and their key. The simulator
draws whole samples, so that correlations are preserved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.connectors.generate import GenerateSource
from springtide.errors import OptionError, TopologyError, nearest
from springtide.model.generated import draws
from springtide.model.schema import record_class
from springtide.model.topology import PASSING, Kind, Operator, Topology
from springtide.policy.group import cost_key
from springtide.policy.group.keys import key_hashes

MOST, LONGEST_S = 2_000, 2.0
"""Limits of the samples of a source, in number and in seconds."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """By operator and sample: the records that reach it, the seconds per record, and the hash of their key."""

    count: int
    rows: Mapping[str, Floats]
    seconds: Mapping[str, Floats]
    keys: Mapping[str, npt.NDArray[np.uint64]]
    sources: Mapping[str, range]  # the samples of each source


def read(topology: Topology, path: str | Path) -> Samples:
    """Read a file of costs, as JSON: {"operators": {name: {"seconds": …, "rows": …, "keys": […]}}}.

    ``seconds`` per record, and ``rows`` at the operator per record of the source (default 1): a number, or a list by sample.
    ``keys`` by sample are optional; ``springtide calibrate`` writes their ``hashes`` instead.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        operators = {str(name): dict(entry) for name, entry in document["operators"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        form = '{"operators": {name: {"seconds": 0.001, "rows": 1}}}'
        raise OptionError(f"costs: {str(path)!r} cannot be read as JSON of the form {form}: {fault!r}") from None
    wanted = [operator.name for operator in topology.scalable]
    for name in operators:
        if name not in wanted:
            raise OptionError(
                f"costs: {path} tells of {name!r}, which is no operator of {topology.name!r}; {nearest(name, wanted)}"
            )
    working = [operator.name for operator in topology.scalable if operator.kind is not Kind.SINK]
    for name in working:
        if "seconds" not in operators.get(name, {}):
            raise OptionError(f"costs: {path} does not tell the seconds of {name!r}; it has to for {', '.join(working)}")
    if len(topology.sources) > 1:
        raise OptionError(f"costs: {topology.name!r} has {len(topology.sources)} sources; a file of costs is for one")
    lengths = {len(value) for entry in operators.values() for value in entry.values() if isinstance(value, list)}
    if len(lengths) > 1 or 0 in lengths:
        raise OptionError(f"costs: {path} has lists of {sorted(lengths)} samples; all of them have the same length, 1 or more")
    count = lengths.pop() if lengths else 1

    def column(name: str, what: str, default: float) -> Floats:
        try:
            made = np.broadcast_to(np.array(operators.get(name, {}).get(what, default), dtype=np.float64), count).copy()
        except (ValueError, TypeError):
            made = np.full(1, np.nan)
        if not (np.isfinite(made).all() and (made >= 0).all()):
            raise OptionError(f"costs: {path}, {name!r}: {what} are numbers, 0 or more")
        return made

    keys = {
        name: key_hashes(pa.record_batch({"key": entry["keys"]}), ("key",))
        for name, entry in operators.items()
        if "keys" in entry
    }
    for name, entry in operators.items():
        if "hashes" in entry:
            keys[name] = _hashes(path, name, entry["hashes"])
    rows = {name: column(name, "rows", 1.0) for name in wanted}
    seconds = {name: column(name, "seconds", 0.0) for name in wanted}
    return Samples(count, rows, seconds, keys, {topology.sources[0].name: range(count)})


def _hashes(path: str | Path, name: str, given: object) -> npt.NDArray[np.uint64]:
    try:
        return np.array(given, dtype=np.uint64)
    except (ValueError, TypeError, OverflowError):
        raise OptionError(f"costs: {path}, {name!r}: hashes are whole numbers from 0 to 2⁶⁴ − 1") from None


def measure(topology: Topology) -> Samples:
    """Time the operators' functions on records of the sources."""
    for operator in topology:
        refused = operator.kind in (Kind.SQL, Kind.STATEFUL, Kind.MAP_BATCHES)
        if refused or (operator.kind is Kind.SOURCE and not isinstance(operator.source, GenerateSource)):
            what = "is a source that is not generated" if operator.kind is Kind.SOURCE else f"is {operator.kind}"
            raise OptionError(
                f"operator {operator.name!r} {what}, so its costs cannot be measured without Spark;"
                " hand in a file of them with costs= (--costs)"
            )
    trail = _Trail(topology)
    sources = {}
    for source in topology.sources:
        begin = trail.count
        trail.follow(source, LONGEST_S / len(topology.sources))
        sources[source.name] = range(begin, trail.count)
    return trail.samples(sources)


class _Trail:
    """Follows records through the graph, and measures them."""

    def __init__(self, topology: Topology) -> None:
        self._topology, self.count = topology, 0
        self._rows: dict[str, dict[int, int]] = {operator.name: {} for operator in topology}
        self._seconds: dict[str, dict[int, float]] = {operator.name: {} for operator in topology}
        self._seen: dict[str, dict[int, Any]] = {operator.name: {} for operator in topology}

    def follow(self, source: Operator, longest_s: float) -> None:
        spec = source.source
        assert isinstance(spec, GenerateSource)
        most = MOST if spec.limit is None else min(MOST, spec.limit)
        until = time.perf_counter() + longest_s
        for draw in draws(spec.seed, 0, (int(at * 1e6) for at in spec.rate.created(0, most))):
            self._emit(source, [spec.make(draw)])
            self.count += 1
            if time.perf_counter() > until:
                break

    def _emit(self, operator: Operator, records: Iterable[Any]) -> None:
        for record in records:
            for consumer in self._topology.consumers[operator.name]:
                self._receive(consumer, _as(record, consumer.accepts, operator))

    def _receive(self, operator: Operator, record: Any) -> None:
        rows, seconds = self._rows[operator.name], self._seconds[operator.name]
        rows[self.count] = rows.get(self.count, 0) + 1
        self._seen[operator.name].setdefault(self.count, record)
        begin = time.perf_counter()
        records = _applied(operator, record)
        seconds[self.count] = seconds.get(self.count, 0.0) + time.perf_counter() - begin
        self._emit(operator, records)

    def samples(self, sources: Mapping[str, range]) -> Samples:
        if not self.count:
            raise OptionError(f"the sources of {self._topology.name!r} bring no records, so no costs can be measured")
        rows = {name: _column(found, self.count) for name, found in self._rows.items()}
        totals = {name: _column(found, self.count) for name, found in self._seconds.items()}
        seconds = {name: total / np.maximum(rows[name], 1.0) for name, total in totals.items()}
        keys = {operator.name: self._keys(operator, seconds[operator.name]) for operator in self._topology}
        return Samples(self.count, rows, seconds, {k: v for k, v in keys.items() if v is not None}, sources)

    def _keys(self, operator: Operator, seconds: Floats) -> npt.NDArray[np.uint64] | None:
        """The operator's key or, without one, the column that drives its costs, as on Spark."""
        seen = self._seen[operator.name]
        if operator.chained or not seen or operator.kind is Kind.SOURCE:
            return None
        schema = self._topology.input_schema(operator)
        columns = operator.key or operator.by
        names = columns or tuple(cost_key.candidates(schema))
        fields = [schema.field(name) for name in names]
        values = [pa.array([_plain(getattr(record, f.name)) for record in seen.values()], f.type) for f in fields]
        records = pa.RecordBatch.from_arrays(values, schema=pa.schema(fields))
        places = np.fromiter(seen, dtype=np.int64)
        if not columns:
            chosen = cost_key.choose(cost_key.variances(records, seconds[places]))
            if chosen is None:
                return None
            columns = (chosen[0],)
        keys = np.zeros(self.count, dtype=np.uint64)
        keys[places] = key_hashes(records, columns)
        return keys


def _applied(operator: Operator, record: Any) -> list[Any]:
    """An operator's output for a record; a record that fails goes no further."""
    if operator.kind in PASSING:
        return [record]
    if operator.kind is Kind.SINK:
        return []
    assert operator.function is not None
    try:
        result = operator.function(record)
        if operator.kind is Kind.FILTER:
            return [record] if result else []
        return list(result) if operator.kind is Kind.FLAT_MAP else [result]
    except Exception:  # noqa: BLE001  any exception of a user's function drops the record
        return []


def _as(record: Any, wanted: type | None, producer: Operator) -> Any:
    """A record as the class that its consumer accepts."""
    if isinstance(record, Mapping):
        record = record_class(producer.schema)(**record)
    if wanted is None or isinstance(record, wanted) or not is_dataclass(record):
        return record
    try:
        return wanted(**{field.name: getattr(record, field.name) for field in fields(wanted) if field.init})
    except (TypeError, AttributeError) as error:
        raise TopologyError(f"a record of {producer.name!r} is no {wanted.__name__}: {error}") from None


def _plain(value: Any) -> Any:
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value


def _column(found: Mapping[int, float], count: int) -> Floats:
    made = np.zeros(count)
    made[np.fromiter(found, dtype=np.int64)] = np.fromiter(found.values(), dtype=np.float64)
    return made
