"""Policies side by side: the document, the command line, traces by name; and what comparisons rest on in the simulator: one
queue for all replicas, and replicas that take time to come."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as some
from rich.console import Console

import springtide as st
from springtide.apps import lines, traces
from springtide.cli.compare import comparison_table
from springtide.cli.main import cli
from springtide.errors import OptionError, TraceError
from springtide.model.rate import Rate
from springtide.model.snapshot import Snapshot
from springtide.policy import registry
from springtide.policy.scale.clairvoyant import Clairvoyant
from springtide.policy.scale.erlang import erlang_b
from springtide.policy.scale.static import Static
from springtide.sim import Constant, Exponential, Model, Operator, Outcome, Reconfiguration, Source, profile, samples, simulate
from springtide.sim.compare import STARTS, compare
from springtide.sim.future import foreseen
from springtide.sim.kernels import LATE, SERVED, Replicas, Rows, share_out
from springtide.sim.model import Speeds
from springtide.sim.rules import Cluster, Node
from springtide.sim.setup import METRICS

WAVE = Rate(tuple(10.0 * i for i in range(12)), tuple(900 + 700 * math.sin(i / 2) for i in range(12)), 120.0, "wave")


# compare


@pytest.fixture(scope="module")
def document() -> Any:
    return compare(lines.line(2), WAVE, policies=["tide", "static"], interval=10.0, processes=1).document


def test_the_document_is_as_agreed(document: Any) -> None:
    assert {name: document[name] for name in ("topology", "trace", "interval_s", "target_ms", "seed", "starting_s")} == {
        "topology": "line2", "trace": "wave", "interval_s": 10.0, "target_ms": 250.0, "seed": 0, "starting_s": 0.0,
    }  # fmt: skip
    assert [row["policy"] for row in document["rows"]] == ["clairvoyant", "tide", "static"]
    for row in document["rows"]:
        assert list(row)[:3] == ["policy", "violation_ratio", "cost_vs_clairvoyant"]
        assert set(METRICS) < set(row)
    json.dumps(document, allow_nan=False)


def test_costs_are_relative_to_the_bound(document: Any) -> None:
    least = document["rows"][0]["replica_seconds"]
    for row in document["rows"]:
        assert row["cost_vs_clairvoyant"] == pytest.approx(row["replica_seconds"] / least)
    assert document["rows"][0]["violation_ratio"] == 0.0


def test_the_first_intervals_are_not_scored(document: Any) -> None:
    """static has its peak need all the time: the replicas times the 100 s that are left of 120."""
    static = document["rows"][2]
    assert static["replica_seconds"] == pytest.approx(static["replicas"]["max"] * (120.0 - STARTS * 10.0))


def test_static_gets_the_peak_need_unless_it_is_told_otherwise(document: Any) -> None:
    assert document["rows"][2]["violation_ratio"] == 0.0
    assert document["rows"][2]["replicas"]["max"] >= document["rows"][0]["replicas"]["max"]
    found = compare(
        lines.line(2), WAVE, policies=["static"], settings={"static": {"degree": 7}}, interval=10.0, processes=1
    ).document
    assert found["rows"][1]["replicas"]["max"] == 14


def test_processes_change_nothing() -> None:
    done: list[tuple[str, int, int]] = []
    names = ["threshold", "ds2"]
    alone = compare(lines.line(1), WAVE, policies=names, interval=20.0, processes=1, seed=3)
    together = compare(
        lines.line(1), WAVE, policies=names, interval=20.0, processes=3, seed=3, progress=lambda *found: done.append(found)
    )
    assert alone.document == together.document
    assert alone.replicas == together.replicas
    assert sorted(name for name, _, _ in done) == ["clairvoyant", "ds2", "threshold"]
    assert [(count, of) for _, count, of in done] == [(1, 3), (2, 3), (3, 3)]


def test_a_row_is_what_simulate_gives() -> None:
    made = compare(lines.line(1), WAVE, policies=["threshold"], interval=20.0, processes=1, seed=3, starting=4.0)
    alone = simulate(
        lines.line(1), trace=WAVE, policy="threshold", interval=20.0, target=0.25, seed=3, warmup=40.0, starting=4.0
    )
    row = made.document["rows"][1]
    assert {name: row[name] for name in METRICS} == {name: alone.summary[name] for name in METRICS}
    assert made.replicas["threshold"] == tuple((s.at, sum(s.plan.degrees.values())) for s in alone.snapshots)


@dataclass(frozen=True)
class Broken:
    """Fails in every decision but the first."""

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "broken"
    source: ClassVar[str] = "tests"
    summary: ClassVar[str] = "fails"

    def initial(self) -> dict[str, Any]:
        return {}

    def decide(self, state: Any, snapshot: Snapshot, rng: np.random.Generator) -> Any:
        if snapshot.at > 0:
            raise ValueError("no idea")
        return state, ()


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_a_policy_that_fails_is_told_of(mode: str) -> None:
    """120 s in intervals of 10 s: decisions at 10, 20, … and, in continuous mode, none at the end."""
    found = simulate(lines.line(1), trace=WAVE, policy=Broken(), interval=10.0, target=0.25, mode=mode).summary
    assert found["policy_failures"] >= 11 and found["policy_failure"] == "ValueError('no idea')"
    well = simulate(lines.line(1), trace=WAVE, policy="ds2", interval=10.0, target=0.25, mode=mode).summary
    assert (well["policy_failures"], well["policy_failure"]) == (0, None)


def test_one_that_failed_is_not_called_the_best() -> None:
    def row(policy: str, late: float | None, cost: float | None, failures: int = 0) -> dict[str, Any]:
        return {
            "policy": policy, "violation_ratio": late, "violation_ratio_records": late, "cost_vs_clairvoyant": cost,
            "replicas": {"mean": 1.0}, "latency_ms": None, "reconfigurations": 0, "policy_failures": failures,
            "policy_failure": "ValueError('no idea')" if failures else None,
        }  # fmt: skip

    rows = [row("clairvoyant", 0.0, 1.0), row("good", 0.1, 1.2), row("broken", 0.0, 1.1, 7), row("unknown", None, None)]
    document = {"topology": "t", "trace": "wave", "interval_s": 10.0, "target_ms": 250.0, "rows": rows}
    console = Console(width=200, record=True, file=io.StringIO(), force_terminal=True)
    console.print(comparison_table(document))
    text = console.export_text(styles=True)
    assert "\x1b[1mgood" in text and "\x1b[1mbroken" not in text and "\x1b[1munknown" not in text
    assert "broken failed in 7 decisions, first with ValueError('no idea')" in text


def test_nothing_stands_in_the_way_of_the_bound() -> None:
    for options in ({"guards": ["bounds:most=2"]}, {"grant": "all"}):
        with pytest.raises(OptionError, match=r"'clairvoyant' is a theoretical bound .*; leave (guards|grant) out"):
            simulate(lines.line(1), trace=WAVE, policy="clairvoyant", interval=10.0, target=0.25, **options)


def test_guards_stand_before_a_policy_that_is_an_object_too() -> None:
    made = simulate(lines.line(1), trace=WAVE, policy=Static(degree=5), guards=["bounds:most=2"], interval=10.0, target=0.25)
    assert made.summary["replicas"]["max"] == 2
    with pytest.raises(OptionError, match=r"settings=\{'degree': 3\} are for a policy by its name"):
        simulate(lines.line(1), trace=WAVE, policy=Static(), settings={"degree": 3}, interval=10.0, target=0.25)


def test_what_was_learned_without_guards_goes_on_behind_them() -> None:
    options: dict[str, Any] = {"trace": WAVE, "policy": "tide", "interval": 10.0, "target": 0.25}
    learned = simulate(lines.line(1), **options).learned
    found = simulate(lines.line(1), **options, learned=learned, guards=["bounds:most=3"])
    assert found.summary["policy_failures"] == 0 and found.learned is not None and set(found.learned) >= {"policy", "guards"}


@dataclass(frozen=True)
class Drop:
    n: int


def chained() -> st.Topology:
    """Two operators in the tasks of the source, of which one is a lambda, and nothing that can be pickled by name."""
    drops = st.source.generate(lambda draw: Drop(draw.index), rate=1, schema=Drop)
    return drops.filter(lambda drop: drop.n >= 0, name="kept").to(st.sink.discard()).named("chained")


def test_a_topology_is_measured_once_and_is_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that cannot be pickled come along, and the bound is one for chained operators too."""
    measured: list[str] = []
    whole = samples.measure

    def counted(topology: st.Topology, *args: Any, **options: Any) -> Any:
        measured.append(topology.name)
        return whole(topology, *args, **options)

    monkeypatch.setattr(profile, "measure", counted)
    document = compare(chained(), WAVE, policies=["static", "ds2"], interval=10.0, processes=2).document
    assert measured == ["chained"]
    assert all(row["policy_failures"] == 0 for row in document["rows"])
    assert min(row["cost_vs_clairvoyant"] for row in document["rows"] if row["violation_ratio"] == 0.0) == 1.0


@pytest.mark.parametrize("model", ["line1:10ms", "line2:10ms"])
def test_load_is_shed_in_continuous_mode(model: str) -> None:
    """Thousands a second for one replica that does 100/s: most are too old, or find a queue that is full."""
    words = ("simulate", model, "--trace", "steps:1", "--policy", "static", "--duration", "60s", "--json")
    old, full = (json.loads(called(*words, *more).stdout) for more in (("--shed-after", "1s"), ("--queue-limit", "20")))
    assert old["rows_timed_out"] > 0 and old["rows_lost"] == 0
    assert old["latency_ms"]["p99"] < 2_100
    assert full["rows_lost"] > 0 and full["rows_timed_out"] == 0
    assert full["latency_ms"]["p99"] < 2 * 25 * 30
    refused = called(*words, "--mode", "micro-batch", "--queue-limit", "20")
    assert refused.exit_code == 2 and "for continuous mode" in refused.stderr


def test_a_station_has_what_its_operators_have_together() -> None:
    """100/s of 100 ms each need 10 replicas and some: two operators in one task share them, and the second has one."""
    one = Operator("first", ("s",), Constant(0.1), members=(("first", 0.5, 1.0), ("second", 0.5, 1.0)))
    alone = Operator("first", ("s",), Constant(0.1))
    both, single = (Model("m", (Source("s", Rate((0.0,), (100.0,), 60.0)),), (operator,)) for operator in (one, alone))
    of_both, of_single = (foreseen(Clairvoyant(), model, 60.0, 0, 100, 10.0, 0.5) for model in (both, single))
    assert set(of_both.degrees) == {"first"}
    assert [n + 1 for n in of_both.degrees["first"]] == list(of_single.degrees["first"])


@pytest.mark.parametrize(("wrong", "said"), [
    ({"policies": ["treshold"]}, "threshold"),
    ({"policies": ["threshold"], "settings": {"threshold": {"utilization": 0.5}}}, "utilisation"),
    ({"policies": ["threshold"], "interval": 0.0}, "interval"),
    ({"policies": ["threshold"], "interval": "soon"}, "interval"),
])  # fmt: skip
def test_wrong_use_fails_before_anything_is_run(wrong: dict[str, Any], said: str) -> None:
    done: list[str] = []
    with pytest.raises(OptionError, match=said):
        compare(lines.line(1), WAVE, processes=1, progress=lambda name, *_: done.append(name), **wrong)
    assert done == []


def test_a_rate_without_end_is_refused() -> None:
    with pytest.raises(OptionError, match="no end"):
        compare(lines.line(1), Rate((0.0,), (10.0,)), policies=["static"], processes=1)


def test_settings_for_a_policy_that_is_not_compared_are_refused() -> None:
    with pytest.raises(OptionError):
        compare(
            lines.line(1), WAVE, policies=["threshold"], settings={"treshold": {"utilisation": 0.5}}, interval=20.0, processes=1
        )


def test_every_policy_but_the_scripted_is_compared() -> None:
    calm = Rate((0.0,), (900.0,), 40.0)
    made = compare(lines.line(1), calm, interval=10.0, processes=1)
    names = [row["policy"] for row in made.document["rows"]]
    assert sorted(names) == sorted(cls.name for cls in registry.available("scale") if cls.name != "scripted")


# The command line


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text("".join(f"{5 * i},{300 + 200 * (i % 5)}\n" for i in range(16)))
    return file


def called(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def compared(trace: object, *words: object, policies: str = "static") -> Result:
    options = ("--policies", policies, "--processes", 1, "--interval", "10s")
    return called("compare", "line1", "--trace", trace, *options, *words)


def test_compare_prints_exactly_one_document(trace: Path) -> None:
    done = compared(trace, "--json", "--seed", 4, policies="threshold, static")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert [row["policy"] for row in document["rows"]] == ["clairvoyant", "threshold", "static"]
    assert (document["seed"], document["trace"]) == (4, "trace.csv")


def test_compare_draws_and_tells_where(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = compared(trace, "--plot", tmp_path / "plots" / "it.png")
    assert done.exit_code == 0
    assert (tmp_path / "plots" / "it.png").stat().st_size > 1_000
    assert "clairvoyant" in done.stdout


@pytest.mark.parametrize("place", ["it.pgn", "it", "file/it.png", "folder.png/it.png"])
def test_a_plot_that_cannot_be_drawn_is_told_before_anything_is_simulated(
    place: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").write_text("")
    monkeypatch.setattr("springtide.sim.compare.compare", lambda *_, **__: pytest.fail("it was simulated"))
    done = compared(trace, "--plot", tmp_path / place)
    assert (done.exit_code, done.stdout) == (2, "")
    assert str(tmp_path / place) in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_plot_that_fails_in_the_end_takes_no_result_away(
    as_json: tuple[str, ...], trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("springtide.record.comparison.draw", full)
    done = compared(trace, "--plot", tmp_path / "it.png", *as_json)
    assert done.exit_code == 1
    assert "could not be written: No space left on device" in done.stderr
    assert "clairvoyant" in done.stdout


@pytest.mark.parametrize("words", [
    ("--set", "static.degre=2"), ("--set", "degree=2"), ("--set", "static.degree=none"), ("--target", "fast"),
    ("--interval", "0s"), ("--max-slots", "0"), ("--starting", "-1s"),
])  # fmt: skip
def test_wrong_use_of_compare_is_told_in_words(trace: Path, words: tuple[str, str]) -> None:
    done = compared(trace, *words)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Error" in done.stderr


@pytest.mark.parametrize("name", ["nowhere.csv", "burst:1", "psps_sbac"])
def test_a_trace_that_is_not_there_is_told_in_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(traces.VARIABLE, raising=False)
    done = compared(name)
    assert done.exit_code == 2
    assert "Error" in done.stderr


@pytest.mark.parametrize("name", ["bursts:x", "bursts:-1", "steps:1.5"])
def test_a_seed_that_is_none_is_told_in_words(name: str) -> None:
    assert compared(name).exit_code == 2


def test_a_trace_shorter_than_the_start_is_told_or_shown(tmp_path: Path) -> None:
    (tmp_path / "short.csv").write_text("0,500\n10,900\n20,500\n")
    done = called(
        "compare", "line1", "--trace", tmp_path / "short.csv", "--policies", "static", "--interval", "30s", "--processes", 1
    )
    assert done.exit_code in (0, 2)


def test_what_was_trained_can_be_compared(trace: Path, tmp_path: Path) -> None:
    assert train(trace, tmp_path / "q.json").exit_code == 0
    assert compared(trace, "--set", f"q-learning.state={tmp_path / 'q.json'}", policies="q-learning").exit_code == 0


def test_the_example_in_the_error_can_be_used(trace: Path) -> None:
    example = compared(trace, "--set", "degree=2").stderr.split("such as ")[1].strip()
    assert compared(trace, "--set", example, policies="threshold").exit_code == 0


def train(trace: object, out: Path, *words: object, policy: str = "q-learning") -> Result:
    options = ("--policy", policy, "--interval", "5s", "--out", out)
    return called("train", "line1", "--trace", trace, *options, *words)


def test_what_is_learned_is_written_and_goes_on(trace: Path, tmp_path: Path) -> None:
    """Two passes are one, and another one with the next seed that begins with what the first learned."""
    both = train(trace, tmp_path / "both.json", "--passes", 2, "--seed", 5, "--json")
    assert [one["pass"] for one in json.loads(both.stdout)["passes"]] == [1, 2]
    assert train(trace, tmp_path / "new" / "first.json", "--seed", 5).exit_code == 0
    second = train(trace, tmp_path / "second.json", "--seed", 6, "--json", "--set", f"state={tmp_path / 'new' / 'first.json'}")
    assert json.loads(second.stdout)["passes"][0]["violation_ratio"] == json.loads(both.stdout)["passes"][1]["violation_ratio"]
    assert (tmp_path / "second.json").read_text() == (tmp_path / "both.json").read_text()
    assert json.loads((tmp_path / "both.json").read_text())["policy"] == "q-learning"


@pytest.mark.long
@pytest.mark.parametrize(("policy", "mode"), [
    *((cls.name, "continuous") for cls in registry.available("scale") if not getattr(cls, "simulator_only", False)),
    ("tide", "micro-batch"), ("model-based", "micro-batch"),
])  # fmt: skip
def test_every_policy_can_be_trained_and_its_file_be_read(trace: Path, tmp_path: Path, policy: str, mode: str) -> None:
    out = tmp_path / "learned.json"
    assert train(trace, out, "--mode", mode, policy=policy).exit_code == 0
    assert train(trace, out, "--mode", mode, "--set", f"state={out}", policy=policy).exit_code == 0


@pytest.mark.parametrize(("words", "policy"), [
    (("--set", "state=nowhere.json"), "q-learning"), (("--passes", "0"), "q-learning"), ((), "no-such"),
    (("--mode", "batch"), "q-learning"), (("--set", "alpha"), "q-learning"), (("--set", "alpha=2"), "q-learning"),
])  # fmt: skip
def test_wrong_use_of_train_is_told_in_words(trace: Path, tmp_path: Path, words: tuple[str, ...], policy: str) -> None:
    done = train(trace, tmp_path / "out.json", *words, policy=policy)
    assert done.exit_code == 2
    assert done.stdout == ""


def test_wrong_use_of_train_leaves_no_file(trace: Path, tmp_path: Path) -> None:
    assert train(trace, tmp_path / "out.json", policy="no-such").exit_code == 2
    assert not (tmp_path / "out.json").exists()


def test_what_another_policy_learned_is_refused(trace: Path, tmp_path: Path) -> None:
    assert train(trace, tmp_path / "tide.json", policy="tide").exit_code == 0
    done = train(trace, tmp_path / "q.json", "--set", f"state={tmp_path / 'tide.json'}")
    assert done.exit_code == 2
    assert "'tide'" in done.stderr


def test_a_place_that_cannot_be_written_is_told_in_words(trace: Path, tmp_path: Path) -> None:
    done = train(trace, trace / "out.json")
    assert done.exit_code in (1, 2)
    assert done.exception is None or isinstance(done.exception, SystemExit)


# Traces and lines by name


@pytest.mark.parametrize("kind", traces.GENERATED)
def test_generated_traces_are_the_same_everywhere(kind: str) -> None:
    made = traces.named(f"{kind}:1")
    assert made == traces.named(f"{kind}:1")
    assert made != traces.named(f"{kind}:2")
    assert traces.named(kind) == traces.named(f"{kind}:0")
    assert (len(made.values), made.end, str(made)) == (3600, 3600.0, f"{kind}:1")
    assert 0.1 * traces.MEAN < np.mean(made.values) < 4 * traces.MEAN
    others = [traces.named(f"{other}:1").values for other in traces.GENERATED if other != kind]
    assert made.values not in others


@pytest.mark.parametrize(("name", "parts"), [("s1", traces.S1), ("s2", traces.S2)])
def test_the_papers_streams_bring_their_records(name: str, parts: tuple[tuple[int, int], ...]) -> None:
    made = traces.named(name)
    assert made.total == sum(records for records, _ in parts)
    assert made.end == pytest.approx(sum(records / rate for records, rate in parts))


def test_recorded_traces_are_looked_for_where_they_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "psps_sbac.csv").write_text("0,5\n10,7\n")
    (tmp_path / "psps_dns.csv").write_text("0,5\n10000,7\n20000,1\n")
    (tmp_path / "nab_nyc_taxi.csv").write_text("0,100\n1,300\n2,100\n")
    (tmp_path / "edf_nyc_taxi_per_minute.dat").write_text("60\n120\n")
    monkeypatch.setenv(traces.VARIABLE, str(tmp_path))
    assert traces.named("psps_sbac").values == (5.0, 7.0)
    dns = traces.named("psps_dns")  # the first three hours
    assert (dns.starts, dns.end) == ((0.0, 10_000.0), 10_800.0)
    points = traces.named("nab_taxi")  # 30 s from point to point, and a mean of 2,000/s
    assert points.end == 60.0
    assert np.mean(points.values) == pytest.approx(traces.MEAN)
    assert max(points.values) == pytest.approx(1.475 * traces.MEAN, rel=0.01)
    taxi = traces.named("taxi")
    assert (taxi.values, taxi.end) == ((50.0, 100.0), 12.0)
    monkeypatch.delenv(traces.VARIABLE)
    assert traces.named("psps_sbac", tmp_path).values == (5.0, 7.0)
    with pytest.raises(OptionError, match=traces.VARIABLE):
        traces.named("psps_sbac")


def test_a_folder_without_the_file_is_told(tmp_path: Path) -> None:
    for name in traces.RECORDED:
        with pytest.raises(TraceError, match=r"no trace"):
            traces.named(name, tmp_path)


def test_a_line_is_a_line() -> None:
    made = lines.line(3, 0.002, even=True)
    assert [[edge.source for edge in operator.edges] for operator in made.operators] == [["source"], ["a"], ["b"]]
    assert {operator.queue for operator in made.operators} == {"shared"}
    assert simulate(made, trace=Rate((0.0,), (100.0,), 5.0)).summary["latency_ms"]["mean"] == pytest.approx(6.0, rel=0.01)


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_grouping_that_is_named_routes_a_lines_records(command: str, tmp_path: Path) -> None:
    """M/M/4 at a load of 0.8: in one queue a record of 10 ms stays for 17.5 ms, dealt out by chance for 50 ms (M/M/1)."""
    trace = tmp_path / "trace.csv"
    trace.write_text("0,320\n120,320\n")

    def mean_ms(*words: str) -> float:
        given = ["--policies", "static", "--set", "static.degree=4", "--interval", "1s"]
        given = ["--policy", "static", "--set", "degree=4"] if command == "simulate" else given
        done = called(command, "line1:10ms", "--trace", trace, *given, "--json", *words)
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert command == "simulate" or document.get("grouping") == (words[1] if words else None)
        summary = document if command == "simulate" else document["rows"][-1]
        return float(summary["latency_ms"]["mean"])

    assert mean_ms() == pytest.approx(17.5, rel=0.1)
    assert mean_ms("--grouping", "random") == pytest.approx(50.0, rel=0.2)


def test_parameters_of_a_grouping_need_its_name() -> None:
    done = called("compare", "line1", "--trace", "s1", "--set", "grouping.window=5")
    assert done.exit_code == 2 and "name the grouping too, with --grouping" in done.stderr
    done = called("compare", "line1", "--trace", "s1", "--grouping", "posg", "--set", "grouping.windw=5")
    assert done.exit_code == 2 and "'posg' has no parameter 'windw'" in done.stderr


# One queue for all replicas


def shared(cost: Any, rate: float, queue: str = "shared", arrivals: Any = "poisson", **options: Any) -> Model:
    return Model(
        "shared", (Source("source", rate, arrivals=arrivals),),
        (Operator("a", ("source",), cost, queue=queue, **options),),  # type: ignore[arg-type]
    )  # fmt: skip


def scripted(model: Model, script: str, **options: Any) -> Outcome:
    return simulate(model, policy="scripted", settings={"script": script}, **{"interval": 1.0, **options})


@pytest.mark.long
@pytest.mark.parametrize(("script", "k"), [("a 0:4", 4), ("a 0:9 50:4", 4), ("a 0:1 20:6", 6)])
def test_after_a_resize_it_is_m_m_k(script: str, k: int) -> None:
    """300/s of 10 ms: a load of 3. The waits' mean is Erlang C by k·μ - λ: 17 ms with 4 replicas, 0.33 ms with 6."""
    blocked = erlang_b(3.0, k)
    wait = k * blocked / (k - 3.0 * (1 - blocked)) * 0.01 / (k - 3.0)
    outcome = scripted(shared(Exponential(0.01), 300.0), script, duration=3_000.0, warmup=100.0, seed=2)
    assert outcome.summary["latency_ms"]["mean"] == pytest.approx(1000 * (0.01 + wait), rel=0.06)


@settings(max_examples=15)
@given(
    some.lists(some.integers(1, 7), min_size=1, max_size=6), some.integers(0, 10**6), some.sampled_from([None, 0.3]),
    some.sampled_from([0.0, 0.7, 2.5]),
)  # fmt: skip
def test_no_record_is_lost_or_doubled(degrees: list[int], seed: int, timeout: float | None, starting: float) -> None:
    script = "a " + " ".join(f"{2 * i}:{degree}" for i, degree in enumerate(degrees))
    base = shared(Exponential(0.02), 120.0)
    model = Model("shared", base.sources, base.operators, timeout_s=timeout)
    outcome = scripted(model, script, duration=14.0, seed=seed, starting=starting)
    found = outcome.summary
    assert found["rows_in"] == found["rows_out"] + found["rows_lost"] + found["rows_timed_out"] + found["rows_there"]
    assert found["rows_lost"] == 0
    everything = simulate(
        model, policy="scripted", settings={"script": script}, interval=1.0, records=600, by_record=True, seed=seed,
        starting=starting,
    )  # fmt: skip
    assert everything.latencies_s is not None
    assert everything.summary["rows_out"] + everything.summary["rows_timed_out"] == 600
    assert np.isfinite(everything.latencies_s).sum() == everything.summary["rows_out"]


@settings(max_examples=15)
@given(some.lists(some.integers(1, 7), min_size=1, max_size=6), some.integers(0, 10**6))
def test_records_of_equal_work_leave_in_the_order_in_which_they_came(degrees: list[int], seed: int) -> None:
    """Started in order and all of the same work: so they leave in order, whatever the degrees do."""
    script = "a " + " ".join(f"{i}:{degree}" for i, degree in enumerate(degrees))
    outcome = scripted(shared(Constant(0.02), 150.0, arrivals="even"), script, records=900, by_record=True, seed=seed)
    assert outcome.latencies_s is not None
    leaves = np.arange(1, 901) / 150.0 + outcome.latencies_s
    assert (np.diff(leaves) > -1e-9).all()
    assert outcome.latencies_s.min() >= 0.02 - 1e-9


def rows(at: list[float], cost: list[float]) -> Rows:
    size = len(at)
    columns: dict[str, Any] = {name: np.zeros(size) for name in Rows._fields}
    whole = {name: np.zeros(size, dtype=np.int64) for name in ("item", "root", "target", "origin")}
    made = {**columns, **whole, "key": np.zeros(size, dtype=np.uint64), "fate": np.zeros(size, dtype=np.int8)}
    return Rows(**{**made, "at": np.array(at), "created": np.array(at), "cost": np.array(cost)})


def replicas(count: int) -> Replicas:
    return Replicas(np.zeros(count), np.zeros(count, dtype=np.int64), np.ones(count), np.zeros(count, dtype=np.int64))


@settings(max_examples=100)
@given(
    some.lists(some.tuples(some.floats(0, 1), some.floats(0.01, 2.0)), min_size=1, max_size=30), some.integers(1, 5),
    some.integers(1, 5), some.sampled_from([math.inf, 1.5]), some.sampled_from([1.0, 1.75]),
)  # fmt: skip
def test_what_waits_is_shared_out_anew(
    work: list[tuple[float, float]], before: int, after: int, timeout: float, begin: float
) -> None:
    """All of it by hand: what is being served goes on, and the rest starts in order, each as soon as any active one is free."""
    now, at = 1.0, sorted(at for at, _ in work)
    made, there = rows(at, [cost for _, cost in work]), replicas(max(before, after))
    share_out(made, len(work), 0.0, 0.0, math.inf, there, before)  # a first deal: from 0 s on, whenever one is free
    started = made.start <= now
    untouched = made.start.copy(), made.depart.copy(), made.target.copy()
    share_out(made, len(work), now, begin, timeout, there, after)
    for column, old in zip((made.start, made.depart, made.target), untouched, strict=True):
        assert (column[started] == old[started]).all()
    waiting = np.flatnonzero(~started)
    assert (np.diff(made.start[waiting]) >= 0).all()  # first come, first started
    assert (made.start[waiting] >= begin).all()  # now, or after a pause
    assert (made.target[waiting] < after).all()
    free = [begin] * after
    for r in range(after):
        busy = made.depart[started & (made.target == r)]
        free[r] = max(begin, busy.max(initial=now))
    for i in waiting:
        start = min(free)
        assert made.start[i] == start
        late = start - made.created[i] > timeout
        assert made.fate[i] == (LATE if late else SERVED)
        assert made.depart[i] == pytest.approx(start if late else start + made.cost[i])
        free[free.index(start)] = start if late else start + made.cost[i]


def test_one_queue_waits_less_than_one_each() -> None:
    """2.7 of 3 replicas busy: routed one after another each queue has its own bad luck."""
    one = simulate(shared(Exponential(0.01), 270.0, replicas=3), duration=600.0).summary["latency_ms"]["mean"]
    each = simulate(shared(Exponential(0.01), 270.0, "each", replicas=3), duration=600.0, grouping="round-robin").summary
    assert one < 0.7 * each["latency_ms"]["mean"]


def test_a_slow_replica_is_slow_for_what_waited_too() -> None:
    """One replica does 50/s of 100/s; at 5 s 250 wait, and one of a tenth of the speed comes: 55/s, so the 500th record,
    the last that waits, leaves 250/55 = 4.5 s later."""
    model = shared(Constant(0.02), 100.0, arrivals="even", speeds=(Speeds((1.0, 10.0)),))
    outcome = scripted(model, "a 0:1 5:2", records=600, by_record=True)
    assert outcome.latencies_s is not None
    assert outcome.latencies_s[498] == pytest.approx(4.5, abs=0.2)


def test_one_queue_for_replicas_on_several_nodes_is_refused() -> None:
    """A record in one queue would be started by a replica to which it was never sent."""
    with pytest.raises(OptionError, match="queue"):
        Model(
            "far", (Source("source", 10.0, node=0),),
            (Operator("a", ("source",), Constant(0.001), queue="shared", nodes=(1,)),),
            cluster=Cluster((Node(), Node()), delay_s=3.0),
        )  # fmt: skip


# Replicas that take time to come


def served(outcome: Outcome) -> list[int | None]:
    return [snapshot["a"].served for snapshot in outcome.snapshots]


def busy(model_queue: str, script: str, **options: Any) -> Outcome:
    """1,000/s for replicas that do 50/s each: what is served tells how many there are."""
    model = shared(Constant(0.02), 1_000.0, model_queue, arrivals="even")
    return scripted(model, script, grouping="round-robin", **{"duration": 14.0, **options})


@pytest.mark.parametrize("queue", ["shared", "each"])
def test_replicas_serve_only_after_their_time(queue: str) -> None:
    """Asked for at 3 s and there at 5.5 s; those of the start are there at once."""
    outcome = busy(queue, "a 0:2 3:4", starting=2.5)
    assert [n for n in served(outcome) if n is not None] == pytest.approx(
        [100] * 5 + [150] + [200] * 7, abs=5
    )  # from 5 to 6 s half a second of each
    assert outcome.summary["replica_seconds"] == pytest.approx(2 * 3 + 4 * 11)  # paid from the request on
    assert outcome.summary["reconfigurations"] == 1


def test_what_goes_goes_at_once() -> None:
    assert served(busy("shared", "a 0:4 3:2", starting=5.0))[3:] == pytest.approx([100] * 10, abs=5)


def test_what_is_no_longer_wanted_does_not_come() -> None:
    """Four asked for at 3 s, for 8 s; at 5 s only three are wanted, and come at 8 s; at 6 s two, and none comes."""
    assert served(busy("shared", "a 0:2 3:4 5:3", starting=5.0))[5:] == pytest.approx([100] * 3 + [150] * 5, abs=5)
    assert served(busy("shared", "a 0:2 3:4 6:2", starting=5.0))[5:] == pytest.approx([100] * 8, abs=5)


def test_what_is_wanted_again_takes_its_time_again() -> None:
    """Two more at 3 s, taken back at 4 s, asked for again at 6 s: they come at 11 s, not at 8 s."""
    assert served(busy("shared", "a 0:2 3:4 4:2 6:4", starting=5.0)) == pytest.approx([100] * 11 + [200] * 2, abs=5)


def test_more_and_more_come_one_after_another() -> None:
    """3 at 2 s, 4 at 3 s, each 8 s later, beyond several intervals."""
    expected = [100] * 10 + [150] + [200] * 2
    assert served(busy("shared", "a 0:2 2:3 3:4", starting=8)) == pytest.approx(expected, abs=5)


def test_the_policy_is_told_how_long_replicas_take() -> None:
    assert {snapshot.plan.degrees["a"] for snapshot in busy("shared", "a 0:2 3:4", starting=8).snapshots} == {2, 4}
    with pytest.raises(OptionError):
        busy("shared", "a 0:1", starting=-1.0)


@pytest.mark.parametrize("queue", ["shared", "each"])
def test_a_pause_lasts_though_replicas_come_in_it(queue: str) -> None:
    """Asked for at 5 s: a pause until 10 s, and the replicas come at 7 s. Nothing starts from 5 to 10 s."""
    outcome = busy(queue, "a 0:1 5:4", starting=2.0, reconfiguration=Reconfiguration("pause", 5.0))
    assert served(outcome)[6:10] == [0, 0, 0, 0]
