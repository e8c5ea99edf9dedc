"""A user's topology, simulated: costs that are measured or read, chains that fold, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import springtide as st
from springtide.cli.main import cli
from springtide.errors import OptionError
from springtide.model.rate import Rate
from springtide.sim import simulate
from springtide.sim.profile import model_of
from springtide.sim.samples import measure


@dataclass(frozen=True)
class Number:
    n: int
    kind: str


@dataclass(frozen=True)
class Part:
    n: int


def number(draw: st.Draw) -> Number:
    return Number(draw.index, "slow" if draw.index % 4 == 0 else "fast")


def wait(one: Number) -> Number:
    if one.n == 13:
        raise ValueError("unlucky")
    time.sleep(0.003 if one.kind == "slow" else 0.0005)
    return one


def parts(one: Number) -> Iterator[Part]:
    yield from (Part(i) for i in range(3))


def odd(part: Part) -> bool:
    return part.n % 2 == 1


def same(part: Part) -> Part:
    return part


def topology(**options: Any) -> st.Topology:
    """source → wait (chained) | parts → odd (chained) | same → sink (chained)"""
    return (
        st.source.generate(number, rate=20, limit=200)
        .map(wait)
        .flat_map(parts, grouping="auto", **options)
        .filter(odd)
        .map(same, grouping="auto")
        .to(st.sink.discard())
        .named("numbers")
    )


COSTS = {
    "wait": {"seconds": [0.02, 0.01]},
    "parts": {"seconds": 0.005},
    "odd": {"seconds": 0.001, "rows": 3},
    "same": {"seconds": [0.002, 0.004], "keys": ["a", "b"]},
}


def written(folder: Path, operators: object = COSTS) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps({"topology": "numbers", "operators": operators}))
    return path


def test_costs_are_measured_with_the_operators_own_functions() -> None:
    samples = measure(topology())
    assert samples.count == 200
    slow = np.arange(200) % 4 == 0
    assert samples.seconds["wait"][slow].min() >= 0.003
    assert np.median(samples.seconds["wait"][~slow]) < 0.002
    reached = np.arange(200) != 13  # one record failed, and went no further
    np.testing.assert_array_equal(samples.rows["wait"], np.ones(200))
    for name, rows in {"parts": 1, "odd": 3, "same": 1}.items():
        np.testing.assert_array_equal(samples.rows[name], np.where(reached, rows, 0))


def test_chains_fold_into_their_head(tmp_path: Path) -> None:
    model = model_of(topology(parallelism=5), costs=written(tmp_path))
    assert [(o.name, [e.source for e in o.edges], o.parallelism) for o in model.operators] == [
        ("wait", ["source"], None), ("parts", ["wait"], 5), ("same", ["parts"], None),
    ]  # fmt: skip
    costs = {operator.name: operator.cost.seconds.tolist() for operator in model.operators}  # type: ignore[attr-defined]
    assert costs["wait"] == pytest.approx([0.02, 0.01])
    assert costs["parts"] == pytest.approx([0.008, 0.008])  # its own, and the filter's for three records
    assert [name for name, _, _ in model.operators[1].folded] == ["parts", "odd"]
    assert [share for _, share, _ in model.operators[1].folded] == pytest.approx([5 / 8, 3 / 8])
    assert [rows for _, _, rows in model.operators[1].folded] == pytest.approx([1, 3])
    assert model.topology == topology(parallelism=5)


def united(**options: Any) -> st.Topology:
    """Two sources, one three times as fast as the other, and a chain in the tasks of both."""
    sources = [st.source.generate(number, rate=rate, limit=5 * rate, name=name) for name, rate in (("a", 30), ("b", 10))]
    return sources[0].union(sources[1]).map(wait, **options).map(same_number).to(st.sink.discard(), name="end").named("united")


def same_number(one: Number) -> Number:
    return one


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_a_chain_behind_a_union_of_sources_is_one_operator_to_the_policy(mode: str) -> None:
    model = model_of(united())
    assert [(o.name, [e.source for e in o.edges]) for o in model.operators] == [("wait@a", ["a"]), ("wait@b", ["b"])]
    for operator in model.operators:
        assert [(name, rows) for name, _, rows in operator.folded][:1] == [("wait", 1.0)]
        assert operator.cost.seconds.max() >= 0.003, "all of its work, not half of it"  # type: ignore[attr-defined]
    outcome = simulate(united(), mode=mode, policy="static", settings={"degree": 2}, grouping="round-robin", duration=10)
    assert outcome.summary["rows_in"] == outcome.summary["rows_out"] == 200
    assert {operator.name for operator in outcome.snapshots[0].operators} == {"wait", "same_number", "end"}
    reported = sum(snapshot["wait"].rows_in or 0 for snapshot in outcome.snapshots)
    assert 160 <= reported <= 200, "all but those after the last cycle"
    assert outcome.snapshots[0].plan.degrees == {"wait": 2, "same_number": 2, "end": 2}
    for report in outcome.reports:
        tasks = [task.task for task in report.tasks if task.operator == "wait"]
        assert tasks == list(range(len(tasks))), "tasks are numbered over all inputs of the union"


def test_each_source_of_a_union_counts_by_its_own_samples() -> None:
    outcome = simulate(united(grouping="auto"), policy="static", grouping="round-robin", duration=20)
    assert outcome.summary["processed_ratio"] == 1.0
    assert outcome.summary["throughput_degradation"] < 0.2, "not one half, as if a sample had to come from both sources"


def test_a_chain_behind_a_union_of_chains_does_all_of_its_work() -> None:
    a, b = (st.source.generate(number, rate=10, limit=50, name=name) for name in ("a", "b"))
    whole = a.map(same_number).union(b).map(wait).to(st.sink.discard()).named("half")
    model = model_of(whole)
    assert [o.name for o in model.operators] == ["same_number", "wait"]
    rows = [{name: per for name, _, per in o.folded} for o in model.operators]
    assert [one["wait"] for one in rows] == pytest.approx([1.0, 1.0])
    for operator in model.operators:
        seconds = operator.cost.seconds  # type: ignore[attr-defined]
        assert np.median(seconds[seconds > 0]) >= 0.0005, "all of its work, not half of it"


def test_what_belongs_together_stays_together(tmp_path: Path) -> None:
    outcome = simulate(
        topology(), costs=written(tmp_path), trace=Rate((0.0,), (5.0,), 60.0), grouping="round-robin", duration=70,
        policy="static", settings={"degree": 2}, interval=10.0,
    )  # fmt: skip
    latency = outcome.summary["latency_ms"]  # 20 + 8 + 2 ms for one sample, 10 + 8 + 4 for the other
    assert latency["p50"] == pytest.approx(22, rel=0.01) or latency["p50"] == pytest.approx(30, rel=0.01)
    assert latency["p99"] == pytest.approx(30, rel=0.01)
    assert outcome.summary["rows_out"] == outcome.summary["rows_in"] == 300
    # two chained operators with two replicas each have four together, as on Spark they have four slots
    assert outcome.summary["replicas"]["max"] == 10
    reported = outcome.snapshots[0]
    parts, same = reported["parts"].rows_in or 0, reported["same"].rows_in or 0
    assert reported["odd"].rows_in == 3 * parts
    assert reported["odd"].busy_s == pytest.approx(0.003 * parts)
    assert (reported["same"].busy_s or 0.0) <= 0.004 * same


def test_a_measured_topology_can_be_simulated() -> None:
    outcome = simulate(topology(), grouping="round-robin")
    assert outcome.summary["rows_in"] == 200  # the source's own limit
    assert 185 <= outcome.summary["rows_out"] <= 200  # one in 200 samples fails
    assert 1.0 < outcome.summary["latency_ms"]["mean"] < 20


def test_what_cannot_be_measured_wants_a_file(tmp_path: Path) -> None:
    files = st.source.files(tmp_path, format="json", schema=Part).map(same).to(st.sink.discard()).named("files")
    with pytest.raises(OptionError, match=r"'source' is a source that is not generated.*hand in a file of them with costs="):
        simulate(files, duration=1)
    costs = written(tmp_path, {"same": {"seconds": 0.001}})
    assert simulate(files, costs=costs, trace=10.0, duration=2, grouping="round-robin").summary["rows_in"] == 20
    whole = (
        st.source.generate(number, rate=1).map_batches(lambda batch: batch, name="whole").to(st.sink.discard()).named("whole")
    )
    with pytest.raises(OptionError, match="'whole' is map_batches"):
        simulate(whole, duration=1)


@pytest.mark.parametrize(
    ("operators", "reported"),
    [
        ({**COSTS, "wiat": {"seconds": 1}}, "'wiat', which is no operator of 'numbers'; did you mean 'wait'"),
        ({"wait": {"seconds": 1}}, "does not tell the seconds of 'parts'; it has to for wait, parts, odd, same"),
        ({**COSTS, "parts": {"seconds": [1, 2, 3]}}, r"lists of \[2, 3\] samples; all of them have the same length"),
        ({**COSTS, "parts": {"seconds": -1}}, "'parts': seconds are numbers, 0 or more"),
        ({**COSTS, "parts": {"seconds": "much"}}, "'parts': seconds are numbers, 0 or more"),
        ([], "cannot be read as JSON of the form"),
    ],
)
def test_wrong_costs_are_told(tmp_path: Path, operators: object, reported: str) -> None:
    with pytest.raises(OptionError, match=reported):
        simulate(topology(), costs=written(tmp_path, operators), duration=1)


TWEETS = {"classify": {"seconds": 0.0001}, "enrich": {"seconds": [0.001, 0.005, 0.025], "keys": [1, 2, 3]}}
KEYS = [
    "topology", "policy", "grouping", "mode", "trace", "seed", "target_ms", "latency_ms", "violation_ratio",
    "violation_ratio_records",
    "throughput_rows_s", "processed_ratio", "dephased_ratio", "throughput_degradation", "saved_resources", "speedup", "balance",
    "replicas", "replica_seconds", "slot_seconds", "executor_seconds", "reconfigurations", "downtime_ratio",
    "control_messages", "rows_in", "rows_out", "rows_lost", "rows_timed_out", "rows_there", "duration_s", "batches",
    "batch_ms", "constants", "operators", "policy_failures", "policy_failure",
]  # fmt: skip


def simulated(folder: Path, *words: str) -> Any:
    trace = folder / "trace.csv"
    trace.write_text("time,value\n0,50\n10,100\n20,20\n")
    common = ("--trace", str(trace), "--costs", str(written(folder, TWEETS)), "--grouping", "round-robin", "--policy", "static")
    return CliRunner().invoke(cli, ["simulate", "tweets", *common, *words])


def test_the_command_prints_one_document(tmp_path: Path) -> None:
    result = simulated(
        tmp_path, "--json", "--target", "2s", "--seed", "7", "--policy", "scripted", "--set", "script=enrich 0:2 9:3"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert list(document) == KEYS
    assert (document["topology"], document["policy"], document["mode"]) == ("tweets", "scripted", "continuous")
    assert (document["seed"], document["target_ms"], document["rows_in"]) == (7, 2000.0, 1700)
    assert (document["reconfigurations"], document["violation_ratio"], document["dephased_ratio"]) == (1, 0.0, None)
    assert document["replicas"]["max"] == 5
    assert result.stderr == ""
    assert json.loads(simulated(tmp_path, "--json", "--seed", "7").stdout) == json.loads(
        simulated(tmp_path, "--json", "--seed", "7").stdout
    )


def test_the_document_has_the_same_keys_in_either_mode(tmp_path: Path) -> None:
    words = ("--json", "--seed", "7", "--set", "degree=2", "--max-slots", "8")
    one, other = (json.loads(simulated(tmp_path, *words, "--mode", mode).stdout) for mode in ("continuous", "micro-batch"))
    assert list(one) == list(other) == KEYS
    undefined = {"saved_resources", "speedup", "balance", "executor_seconds", "dephased_ratio", "violation_ratio"}
    undefined |= {"violation_ratio_records", "policy_failure"}
    assert {name for name, value in one.items() if value is None} == {
        *undefined, "target_ms", "slot_seconds", "batches", "batch_ms", "constants", "control_messages",
    }  # fmt: skip
    assert {name for name, value in other.items() if value is None} == {
        *undefined, "target_ms", "throughput_degradation", "control_messages",
    }  # fmt: skip
    assert [list(operator) for operator in one["operators"]] == [list(operator) for operator in other["operators"]]
    for here, there in zip(one["operators"], other["operators"], strict=True):
        assert here["name"] == there["name"]
        assert here["rows_in"] == pytest.approx(there["rows_in"], rel=0.05)
        assert here["busy_s"] == pytest.approx(there["busy_s"], rel=0.15, abs=0.01)
    saved = json.loads(simulated(tmp_path, *words, "--r-over", "12").stdout)
    assert saved["saved_resources"] == pytest.approx(1 - saved["replicas"]["mean"] / 12)


def test_the_command_prints_a_table_for_people(tmp_path: Path) -> None:
    result = simulated(tmp_path, "--arrivals", "poisson", "--reconfiguration", "pause", "--pause", "2s")
    assert result.exit_code == 0, result.output
    assert "tweets · static · round-robin · continuous · seed 0" in result.stdout
    assert "latency, 95th percentile" in result.stdout


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("--mode", "batch"), "mode 'batch' does not exist; did you mean 'micro-batch'"),
        (("--set", "degree"), "write name=value"),
        (("--set", "grouping.sped=1"), "sped"),
        (("--reconfiguration", "stop"), "reconfiguration 'stop' does not exist; "),
        (("--pause", "5s"), "a pause of 5 s has no effect with reconfiguration 'none'; choose pause or restart"),
        (("--trigger", "1s"), "trigger='1s' has no effect in continuous mode; give mode='micro-batch' with it"),
        (("--arrivals", "evn"), "did you mean 'even'"),
        (("--duration", "soon"), "duration 'soon' is not a duration"),
        (("--costs", "nowhere.json"), "'nowhere.json' cannot be read as JSON"),
    ],
)
def test_wrong_use_exits_with_2(tmp_path: Path, words: tuple[str, ...], reported: str) -> None:
    result = simulated(tmp_path, *words)
    assert result.exit_code == 2
    assert reported in result.stderr
    assert "Traceback" not in result.stderr


def test_numba_is_imported_by_the_simulator_only() -> None:
    code = "import sys, springtide, springtide.cli.main, springtide.sim; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
