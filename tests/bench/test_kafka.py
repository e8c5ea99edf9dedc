"""The benchmark on Kafka: what is right, what has no rate, and what is skipped with its reason."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from springtide.bench import kafka
from springtide.bench import kafka_jobs as jobs
from springtide.bench.kafka_side import Result
from springtide.cli.tables import kafka_table
from springtide.errors import SetupError

RECORDS = 25_000


def outputs(records: int = RECORDS) -> list[jobs.Converted]:
    """What the functions make of the JSON of all records, with the last ones."""
    texts = [*map(jobs.value, range(records)), *(jobs.closing(records + n) for n in range(jobs.PARTITIONS))]
    read = [json.loads(text) for text in texts]
    rows = [jobs.Measured(row["id"], row["key"], datetime.fromisoformat(row["at"]), row["celsius"]) for row in read]
    return [out for row in rows if jobs.is_warm(out := jobs.convert(row))]


def test_the_right_results_are_those_of_the_functions() -> None:
    made = outputs()
    assert len(made) == jobs.kept(RECORDS) + jobs.PARTITIONS
    windows = Counter((row.key, jobs.window_of(row.at)) for row in made if row.at < jobs.BEGIN + jobs.CLOSING)
    assert windows == jobs.windows(RECORDS) and len({window for _, window in windows}) == 3


def test_a_wrong_output_has_no_rate() -> None:
    right = {"seconds": 2.0, "busy": None}
    lost = Result(1.0, rows=len(outputs()) - 1).to_json(RECORDS)
    assert "records came out" in lost["wrong"]
    doubled = jobs.windows(RECORDS)
    doubled["k00", 0] += 1
    assert "1 of " in Result(1.0, windows=doubled).to_json(RECORDS)["wrong"]
    assert Result(2.0, windows=jobs.windows(RECORDS)).to_json(RECORDS) == right
    row = kafka._row("spark", "window", RECORDS, [right, lost], None, {})
    assert row["rate_rows_s"] is None and "records came out" in row["note"]


def test_rates_are_medians_and_latencies_quantiles_by_weight() -> None:
    row = kafka._row("spark", "window", 9_996, [{"seconds": s, "busy": b} for s, b in ((1, 0.5), (2, 0.7), (4, 0.9))], None, {})
    assert (row["rate_rows_s"], row["rate_iqr"], row["busy"]) == (5_000, [3_750, 7_500], 0.7)
    assert Result(latencies=[0.3, 0.1, 0.2], weights=[1, 90, 9]).to_json(None) == {"latency_ms": [100.0, 200.0, 200.0]}
    assert Result().to_json(None) == {"latency_ms": [None] * 3}


def test_bytewax_without_an_interpreter_is_skipped_with_the_reason() -> None:
    with pytest.raises(SetupError, match="--bytewax names no interpreter"):
        kafka._Bytewax(None)
    with pytest.raises(SetupError, match="cannot import bytewax"):
        kafka._Bytewax("/bin/false")
    with pytest.raises(SetupError, match="there is no interpreter"):
        kafka._Bytewax("/nowhere/python")
    row = kafka._row("bytewax", "window", RECORDS, [], None, {"bytewax": "skipped: why"})
    assert row["note"] == "skipped: why" and row["rate_rows_s"] is None
    kafka_table({"records": RECORDS, "rows": [row]})


def test_jars_that_are_there_need_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SetupError, match="no Maven"):
        kafka.connector(tmp_path)
    for artifact, version in kafka.JARS.items():
        (tmp_path / f"{artifact.partition(':')[2]}-{version}.jar").touch()
    assert len(kafka.connector(tmp_path)) == 4
