"""The command line: one JSON document on standard output, and wrong use told in words, with 2, before Spark starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from springtide.cli.main import cli

JOB = """
from __future__ import annotations
from dataclasses import dataclass
import springtide as st
from beside import squared

@dataclass(frozen=True)
class Part:
    name: str

@dataclass(frozen=True)
class Number:
    n: int
    part: Part
    tags: dict[str, int]

def number(draw: st.Draw) -> Number:
    return Number(draw.index, Part(f"p{draw.index}"), {"t": draw.index})

def work(one: Number) -> Number:
    if one.n == 13 and FAILS:
        raise ValueError("unlucky")
    assert one.part == Part(f"p{one.n}") and one.tags == {"t": one.n}
    return Number(squared(one.n), one.part, one.tags)

FAILS = True
numbers = st.source.generate(number, rate=LIMIT, limit=LIMIT)
job = numbers.map(work, grouping="auto", on_error=ON_ERROR).to(st.sink.files("out", format="json")).named("job")
"""


def write_job(folder: Path, limit: int = 500, on_error: str = "dead-letter") -> None:
    (folder / "job.py").write_text(JOB.replace("LIMIT", str(limit)).replace("ON_ERROR", repr(on_error)))
    (folder / "beside.py").write_text("def squared(n: int) -> int:\n    return n * n\n")


def springtide(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from springtide.cli.main import main; sys.argv[0] = 'springtide'; main()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


# On Spark


@pytest.mark.spark
def test_a_file_runs_and_prints_exactly_one_document(tmp_path: Path) -> None:
    """With a module beside it, records of nested classes, a failing record, and everything that contracts.md asks for."""
    write_job(tmp_path)
    done = springtide(
        tmp_path, "run", "job.py", "--json", "--policy", "static", "--set", "degree=2", "--max-slots", "3", "--target", "5s"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    latency, operators = document["latency_ms"], document["operators"]
    assert (document["topology"], document["policy"], document["grouping"]) == ("job", "static", "tide")
    assert (document["rows_in"], document["rows_out"], document["rows_failed"]) == (500, 499, 1)
    assert document["sinks"] == {"out": 499}
    assert document["batches"] >= 1
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
    assert latency["mean"] > 0
    assert document["throughput_rows_s"] > 0
    assert document["replicas"] == {"mean": 3.0, "max": 3}, "2 and 2 wanted, 3 slots"
    assert document["slot_seconds"] > 0
    assert document["reconfigurations"] == 0
    assert [set(operator) for operator in operators] == [
        {"name", "grouping", "degree", "width", "rows_in", "rows_out"} for _ in operators
    ]
    work = operators[0]
    assert (work["name"], work["grouping"], work["rows_in"], work["rows_out"]) == ("work", "tide", 500, 499)
    assert work["degree"].keys() == work["width"].keys() == {"mean", "max"}
    folder = tmp_path / document["run_dir"]
    assert {"run.json", "batches.jsonl", "summary.json"} <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "summary.json").read_text()) == document
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [n * n for n in range(500) if n != 13]


@pytest.mark.spark
def test_a_run_that_fails_exits_with_1_and_says_why(tmp_path: Path) -> None:
    write_job(tmp_path, on_error="stop")
    done = springtide(tmp_path, "run", "job.py", "--max-slots", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Error: operator 'work' failed with ValueError: unlucky on the record" in done.stderr
    assert "nothing of the batch was committed" in done.stderr
    assert not list((tmp_path / "out").glob("*.json"))


@pytest.mark.spark
def test_a_spark_that_does_not_start_is_told_in_a_line(tmp_path: Path) -> None:
    write_job(tmp_path)
    done = springtide(tmp_path, "run", "job.py", "--master", "nowhere")
    assert done.returncode == 1
    refusal = next(line for line in done.stderr.splitlines() if line.startswith("Error: Spark did not start: "))
    log = tmp_path / refusal.removesuffix(" has more)").split("(")[-1]
    assert "Master must" in log.read_text(), "the file that is named has the reason"
    assert "Traceback" not in done.stderr


@pytest.mark.spark
def test_sigterm_finishes_the_batch_and_exits_with_0(tmp_path: Path) -> None:
    """What was committed is whole, and the summary is printed."""
    write_job(tmp_path, limit=10**9)
    (tmp_path / "job.py").write_text((tmp_path / "job.py").read_text().replace("rate=1000000000", "rate=200"))
    code = "import sys; from springtide.cli.main import main; sys.argv[0] = 'springtide'; main()"
    command = [sys.executable, "-c", code, "run", "job.py", "--json", "--max-slots", "2"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not list((tmp_path / "out").glob("*.json")) and child.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, err
    document = json.loads(out)
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    read = document["rows_in"]
    assert read > 0
    assert sorted(row["n"] for row in rows) == [n * n for n in range(read) if n != 13]


# Wrong use


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


FLAWED = {
    "broken.py": "import springtide\n1 / 0\n",
    "typo.py": "import springtide as\n",
    "empty.py": "import springtide\n",
    "two.py": """
        import springtide as st
        def one(draw) -> None: ...
        source = st.source.generate(one, rate=1, schema={"n": int})
        first = source.to(st.sink.discard()).named("first")
        second = source.to(st.sink.discard()).named("second")
        unnamed = source.to(st.sink.discard())
        number = 5
        def failing():
            raise KeyError("gone")
        """,
    "locked.py": """
        import threading
        import springtide as st
        lock = threading.Lock()
        def one(draw): ...
        def guarded(record):
            with lock:
                return record
        source = st.source.generate(one, rate=1, schema={"n": int})
        job = source.map(guarded, schema={"n": int}).to(st.sink.discard()).named("locked")
        """,
    "trace.py": """
        import springtide as st
        def one(draw): ...
        job = st.source.generate(one, rate=st.trace("day.csv"), schema={"n": int}).to(st.sink.discard()).named("trace")
        """,
    "files.py": """
        import springtide as st
        job = st.source.files("nowhere", format="csv", schema={"n": int}).to(st.sink.discard()).named("files")
        """,
    "option.py": """
        import springtide as st
        def one(draw): ...
        source = st.source.generate(one, rate=1, schema={"n": int})
        job = source.filter(bool, paralelism=2).to(st.sink.discard()).named("option")
        """,
    "day.csv": "time,value\n0,10\n60,abc\n",
}


@pytest.fixture
def flawed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FLAWED.items():
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in [name for name in sys.modules if name not in known and name.partition("_job_")[2] + ".py" in FLAWED]:
        del sys.modules[name]


STATIC = ("tweets", "--policy", "static")

WRONG: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown topology": (("tweats",), ("no topology 'tweats': did you mean 'tweets'?", "job.py, or module:attribute")),
    "missing file": (("gone.py",), ("there is no file 'gone.py'",)),
    "missing module": (("gone.away:job",), ("module 'gone.away' cannot be imported",)),
    "file that raises": (("broken.py",), ("broken.py cannot be loaded: ZeroDivisionError: division by zero",)),
    "module that raises": (("broken:job",), ("module 'broken' cannot be imported", "ZeroDivisionError")),
    "file that is no Python": (("typo.py",), ("typo.py cannot be loaded: SyntaxError",)),
    "file without a topology": (("empty.py",), ("empty.py has 0 topologies (none)",)),
    "file with two": (("two.py",), ("two.py has 2 topologies (first, second); name one: two.py:NAME",)),
    "unknown attribute": (("two.py:frist",), ("there is no 'frist'; did you mean 'first'",)),
    "no topology": (("two.py:number",), ("two.py:number is int, not a topology; end it with .named(...)",)),
    "a flow": (("two.py:unnamed",), ("two.py:unnamed is Flow, not a topology; end it with .named(...)",)),
    "a function that fails": (("two.py:failing",), ("two.py:failing", "KeyError: 'gone'")),
    "unknown option": (("tweets", "--polcy", "static"), ("--polcy", "--policy")),
    "unknown policy": (
        ("tweets", "--policy", "statik"),
        ("no scale policy is named 'statik'; did you mean 'static'? Allowed: autoscale, ", ", threshold, ", ", module:Class"),
    ),
    "unknown grouping": (("tweets", "--grouping", "hsh"), ("no group policy is named 'hsh'; did you mean 'hash'?",)),
    "a parameter without value": (("tweets", "--set", "degree"), ("--set 'degree': write name=value",)),
    "unknown parameter": (
        ("tweets", "--policy", "static", "--set", "degre=2"),
        ("has no parameter 'degre'; did you mean 'degree'",),
    ),
    "unfit parameter": (
        ("tweets", "--policy", "static", "--set", "degree=many"),
        ("degree='many' is not allowed", "int in replicas, at least 1"),
    ),
    "unknown operator": (
        ("tweets", "--policy", "static", "--set", "degrees=enrch=4"),
        ("'enrch', which is no operator; did you mean 'enrich'?",),
    ),
    "a setting without value": (("tweets", "--conf", "spark.x"), ("--conf 'spark.x': write name=value",)),
    "a target below the floor": (
        ("tweets", "--target", "1ms"),
        ("target 1 ms is below the floor of a batch, 50 ms", "raise the target"),
    ),
    "no duration": (("tweets", "--duration", "soon"), ("duration 'soon' is not a duration", "such as '2s'")),
    "no slots": (("tweets", "--max-slots", "0"), ("max_slots=0 is not allowed; it is at least 1",)),
    "no batches": (("tweets", "--batches", "0"), ("--batches",)),
    "a trace that is malformed": (("trace.py",), ("day.csv, line 3: '60,abc' is not time,value",)),
    "a folder that is not there": (("files.py",), ("there is no folder 'nowhere'; make it before the run",)),
    "an operator's unknown option": (("option.py",), ("unknown option 'paralelism'; did you mean 'parallelism'?",)),
    "a function that does not pickle": (
        ("locked.py",),
        ("operator 'guarded': its function cannot be sent to the workers", "lock", "open them inside the function"),
    ),
    "Spark Connect": (("tweets", "--conf", "spark.remote=sc://host"), ("spark.remote asks for Spark Connect",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_exits_with_2_and_a_clear_message_and_changes_nothing(case: str, flawed: Path) -> None:
    words, expected_words = WRONG[case]
    before = {path.name for path in flawed.iterdir()}
    result = invoke("run", *words)
    assert isinstance(result.exception, SystemExit), f"not told in words: {result.exception!r}"
    assert result.exit_code == 2
    assert result.stdout == ""
    for part in expected_words:
        assert part in result.stderr
    assert "Traceback" not in result.stderr
    assert {path.name for path in flawed.iterdir()} - {"__pycache__"} == before


def test_a_checkpoint_of_another_topology_is_refused_with_the_difference(flawed: Path) -> None:
    from springtide.cli import load
    from springtide.spark.driver.checkpoint import Checkpoint

    taken = Checkpoint(flawed / "checkpoint")
    taken.acquire(load.topology("two.py:first"))
    taken.release()
    result = invoke("run", "two.py:second", "--checkpoint", "checkpoint")
    assert result.exit_code == 2
    assert "does not fit topology 'second': it belongs to topology 'first'" in result.stderr
    assert not (flawed / "runs").exists()


# Shown


def test_show_draws_a_topology_of_a_file_and_a_built_in_one(flawed: Path) -> None:
    result = invoke("show", "two.py:first")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["first", "  ● source [GenerateSource]  (n)", "    → discard [DiscardSink]"]
    drawn = invoke("show", "tweets", "--mermaid").stdout
    assert drawn.startswith("flowchart LR\n")
    assert 'n1 == "auto" ==> n2' in drawn
    assert invoke("show", "tweats").exit_code == 2


BROKEN_POLICY = """
from dataclasses import dataclass
from springtide.model.plan import Request
from springtide.policy.scale import ScalePlugin

@dataclass(frozen=True)
class {name}(ScalePlugin):
    name = source = summary = "{name}"

    def initial(self):
        return {{"seen": 0}}

    def decide(self, state, snapshot, rng):
        {body}
"""


@pytest.mark.parametrize(
    ("name", "body", "fault"),
    [
        ("Blind", "return state, () if snapshot.rate > 0 else ()", "it fails without measurements: TypeError"),
        ("InPlace", "state['seen'] += 1; return state, ()", "it changes its state in place"),
        ("Clock", "import time; return {'seen': time.perf_counter_ns()}, ()", "equal arguments give different decisions"),
        ("Greedy", "return state, (Request('first', 99, 'more'),)", "a degree outside of 1 to 8"),
        ("Tuples", "return {'seen': (1,)}, (Request('first', 2, str(type(state['seen']))),)", "otherwise after a restart"),
        ("Unstorable", "return {'seen': {1}}, ()", "not JSON serializable"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_named(
    name: str, body: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"broken_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(BROKEN_POLICY.format(name=name, body=body))
    monkeypatch.syspath_prepend(tmp_path)
    result = invoke("policies", f"scale/{module}:{name}", "--check")
    assert result.exit_code == 1
    assert fault in result.stderr


def test_built_in_policies_break_no_rule() -> None:
    result = invoke("policies", "scale/tide", "--check")
    assert (result.exit_code, result.stdout) == (0, "scale/tide: rules broken: 0\n")
    assert invoke("policies", "group/tide", "--check").exit_code == 2


def test_policies_are_listed_and_one_is_described() -> None:
    document = json.loads(invoke("policies", "--json").stdout)
    assert {(one["kind"], one["name"]) for one in document} >= {
        ("scale", "static"), ("scale", "scripted"), ("group", "round-robin"), ("group", "hash"),
    }  # fmt: skip
    for one in document:
        assert one.keys() == {"kind", "name", "source", "summary", "parameters"}
        for parameter in one["parameters"]:
            assert parameter.keys() == {"name", "type", "unit", "min", "max", "default", "help"}
    assert "scale/scripted" in invoke("policies").stdout
    (static,) = json.loads(invoke("policies", "scale/static", "--json").stdout)
    assert static["parameters"][0] | {"help": ""} == {
        "name": "degree", "type": "int", "unit": "replicas", "min": 1, "max": None, "default": 1, "help": "",
    }  # fmt: skip
    assert "replicas" in invoke("policies", "scale/static").stdout
    assert "'static' lacks its kind; write scale/static" in invoke("policies", "static").stderr
    refused = invoke("policies", "scale/statik")
    assert refused.exit_code == 2
    assert "did you mean 'static'?" in refused.stderr


@pytest.mark.parametrize("columns", ["80", "40"])
def test_names_of_parameters_are_not_cut(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for one in json.loads(invoke("policies", "--json").stdout):
        shown = invoke("policies", f"{one['kind']}/{one['name']}").stdout
        assert "…" not in shown
        whole = shown.replace("\n", "") if columns == "40" else shown
        assert all(parameter["name"] in whole for parameter in one["parameters"])
    listed = invoke("policies").stdout
    assert "scale/model-based" in listed and "group/load-balancing" in listed


def test_a_kind_alone_lists_what_is_of_it() -> None:
    document = json.loads(invoke("policies", "guard", "--json").stdout)
    assert {one["kind"] for one in document} == {"guard"} and len(document) > 5
    listed = invoke("policies", "guard").stdout
    assert "guard/cooldown" in listed and "scale/" not in listed
    refused = invoke("policies", "gaurd")
    assert refused.exit_code == 2 and "guard" in refused.stderr


def test_doctor_prints_one_document() -> None:
    result = invoke("doctor", "--json")
    findings: list[dict[str, Any]] = json.loads(result.stdout)
    assert {"Python", "Java", "PySpark", "cores", "memory"} <= {finding["what"] for finding in findings}
    assert result.exit_code == (0 if all(finding["ok"] for finding in findings) else 1)


def test_help_and_version_need_no_spark() -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from click.testing import CliRunner; from springtide.cli.main import cli\n"
        "for words in (['--version'], ['--help'], ['run', '--help'], ['policies'], ['show', 'tweets']):\n"
        "    assert CliRunner().invoke(cli, words).exit_code == 0, words\n"
        "refused = CliRunner().invoke(cli, ['run', 'tweets'])\n"
        "assert refused.exit_code == 2 and 'pip install' in refused.stderr, refused.output"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
