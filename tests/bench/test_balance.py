"""What ``bench balance`` and ``bench routing`` are made of, without Spark: streams, sides' arithmetic, tables."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

pytest.importorskip("pyspark")

from springtide.bench import balance
from springtide.bench.balance import SIDES, Timing
from springtide.bench.balance_work import Item, LptTrue, burn, spark_task, stream, wait
from springtide.bench.statistics import quartiles, turned
from springtide.cli.tables import balance_table, routing_table
from springtide.policy.group import Share


def test_the_streams_are_those_of_the_papers() -> None:
    posg = stream("posg", 1.0, np.random.default_rng(1))
    assert sorted(set((posg.seconds * 1000).round().astype(int))) == list(range(1, 65))
    assert posg.chances[0] == pytest.approx(0.112, abs=0.001), "Zipf-1.0 over 4,096 items"
    tweets = stream("tweets", 8.0, np.random.default_rng(1))
    assert set(tweets.seconds.round(6)) == {0.003125, 0.000625, 0.000125}
    assert tweets.chances[0] == pytest.approx(0.065, abs=0.0005)
    constant = stream("constant", 8.0, np.random.default_rng(1))
    assert set(constant.seconds) == {0.002}
    drawn = posg.drawn(50, np.random.default_rng(2))
    assert drawn.column("seconds").to_pylist() == posg.seconds[drawn.column("key").to_numpy()].tolist()


def test_the_bound_knows_the_true_costs() -> None:
    records = pa.record_batch({"key": [1, 2, 3, 4], "seconds": [0.1, 0.4, 0.2, 0.1]})
    targets = LptTrue().route(Share.of(records, (), 2), {})
    assert np.bincount(targets, records.column("seconds").to_numpy()).tolist() == [0.4, 0.4]


def test_both_kinds_of_work_take_their_time() -> None:
    import time

    for work, clock in ((wait, time.perf_counter), (burn, time.thread_time)):
        begin = clock()
        assert work(Item(1, 0.02)) == Item(1, 0.02)
        assert 0.02 <= clock() - begin < 0.1


def test_sparks_side_tells_what_its_task_did() -> None:
    batch = pa.record_batch({"key": [1, 2], "seconds": [0.01, 0.02]})
    (times,) = spark_task("wait")([batch])
    row = times.to_pylist()[0]
    assert row["rows"] == 2
    assert row["busy"] >= 0.03
    mean = row["done"] / 2 - row["started"]  # of the two completion times, the second at least 0.02 s after the first
    assert 0.02 <= mean <= row["busy"] - 0.01 + 0.005


def test_a_row_has_the_ratios_of_the_same_batches() -> None:
    times = {"repartition": (2.0, 4.0), "hash": (4.0, 8.0), "lpt-true": (1.0, 2.0), "tide": (1.0, 3.0)}
    measured = {
        name: [(Timing(batch_s, batch_s / 2, (1.0, 2.0)), 0.5) for batch_s in times.get(name, (2.0, 4.0))] for name in SIDES
    }
    row = balance._row("posg", 100, 2, "tide", measured)
    assert row["batch_speedup"] == pytest.approx((2 + 4 / 3) / 2, abs=1e-3)
    assert row["batch_speedup_over_hash"] == pytest.approx((4 + 8 / 3) / 2, abs=1e-3)
    assert row["balance"] == pytest.approx(2 / 1.5, abs=1e-3)
    assert row["gain_of_lpt_true"] == pytest.approx(2 / 3, abs=0.01)
    assert row["batch_ms"] == 2000
    assert balance._row("constant", 100, 2, "tide", measured)["gain_of_lpt_true"] is None, "there is nothing to gain"


def test_sides_take_turns() -> None:
    assert [turned("abc", number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert quartiles([1.0]) == [1.0, 1.0]


def test_the_tables_show_what_was_measured() -> None:
    row = {
        "costs": "posg", "records": 100, "grouping": "tide", "batch_ms": 850.0, "balance": 1.01, "batch_speedup": 1.1,
        "batch_speedup_iqr": [1.0, 1.2], "batch_speedup_over_hash": 1.4, "gain_of_lpt_true": None,
    }  # fmt: skip
    document = {"work": "wait", "k": 5, "warm_records": 50_000, "note": "work is waiting", "rows": [row]}
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(balance_table(document))
    measured = {"grouping": "posg", "us_per_record": 0.5, "first_batch_extra_ms": None, "first_batch_extra_ms_iqr": None}
    console.print(
        routing_table(
            {"k": 8, "rows": [measured, {**measured, "first_batch_extra_ms": 50.0, "first_batch_extra_ms_iqr": [1, 2]}]}
        )
    )
    long = {"bytes": 1024, "us_per_record": 1.2, "ns_per_byte": 1.17, "limit_us": 3.024}
    console.print(routing_table({"k": 8, "rows": [measured], "long_keys": [long]}))
    text = console.export_text()
    assert "keys of 1,024 bytes" in text and "limit 3.0 µs" in text
    assert "work is waiting" in text
    assert "1.10 (1.00–1.20)" in text
    assert "50 ms (1–2)" in text
