"""``springtide calibrate``: from a run's folder to a simulation that behaves like the run. The run is a simulated one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from springtide.apps import tweets
from springtide.cli.main import cli
from springtide.record.folder import RunFolder
from springtide.sim import simulate
from springtide.sim.constants import Constants

TRUE = Constants(batch_s=0.030, stage_s=0.010, task_s=0.002, row_s=0.000_01, gap_s=0.020)
KINDS = {3: 0.025, 5: 0.005, 7: 0.001}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tweets cost, by key, without measuring it."""
    file = tmp_path_factory.mktemp("costs") / "costs.json"
    seconds = np.repeat([KINDS[3], KINDS[5], KINDS[7]], [10, 30, 60]).tolist()
    keys = np.repeat([3, 5, 7], [10, 30, 60]).tolist()
    operators = {"classify": {"seconds": 0.00001}, "enrich": {"seconds": seconds, "keys": keys}}
    file.write_text(json.dumps({"operators": operators}))
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, costs: Path) -> Path:
    """The folder of a run, with all that a real one has of it."""
    topology = tweets.topology(rate=200)
    outcome = simulate(
        topology, policy="static", settings={"degree": 3}, mode="micro-batch", costs=costs, constants=TRUE, duration=30,
        max_slots=4,
    )  # fmt: skip
    folder = RunFolder.create(tmp_path_factory.mktemp("runs"), "tweets", 0.0)
    for report in outcome.reports:
        folder.batch(report)
    checkpoint = folder.path / "checkpoint"
    folder.write_run({"topology": "tweets", "stages": dict(topology.stages), "checkpoint": str(checkpoint)})
    pytest.importorskip("pyspark")
    from springtide.spark.driver.editions import Editions

    weights = np.array([10.0, 30.0, 60.0])
    learned = {"keys": np.array([3, 5, 7], dtype=np.uint64), "weights": weights, "seconds": weights * list(KINDS.values())}
    Editions(checkpoint / "springtide" / "knowledge").save(
        4, {"enrich/": np.array(["kind"]), **{f"enrich/{name}": values for name, values in learned.items()}}
    )
    return folder.path


def springtide(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.long
def test_a_calibrated_simulation_is_like_the_run(run: Path, tmp_path: Path) -> None:
    result = springtide("calibrate", run, "--json", "--output", tmp_path / "fitted.json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "fitted.json").read_text())
    assert document["constants"]["gap_s"] == pytest.approx(TRUE.gap_s, rel=0.1)
    enrich = document["operators"]["enrich"]
    assert sorted(set(enrich["hashes"])) == [3, 5, 7]
    assert np.mean(enrich["seconds"]) == pytest.approx(0.0046, rel=0.1)
    words = ("simulate", "tweets", "--mode", "micro-batch", "--policy", "static", "--duration", "30s",
             "--max-slots", 4, "--set", "degree=3",
             "--trace", constant_rate(tmp_path), "--json", "--costs")  # fmt: skip
    again = json.loads(springtide(*words, tmp_path / "fitted.json").stdout)
    before = [report.duration_s for report in RunFolder.open(run).batches()]
    assert again["batch_ms"] == pytest.approx(1000 * np.mean(before), rel=0.1)
    assert again["constants"] == document["constants"]


def constant_rate(folder: Path) -> Path:
    file = folder / "rate.csv"
    file.write_text("time,value\n" + "".join(f"{second},200\n" for second in range(60)))
    return file


def test_it_is_written_beside_the_run_and_shown(run: Path) -> None:
    result = springtide("calibrate", run)
    assert result.exit_code == 0, result.output
    assert (run / "calibration.json").is_file()
    assert "between two batches" in result.stdout
    assert "by key" in result.stdout


def test_what_is_no_run_or_too_short_is_refused(run: Path, tmp_path: Path) -> None:
    missing = springtide("calibrate", tmp_path / "nowhere")
    assert missing.exit_code == 2
    assert "is not a run's folder" in missing.stderr
    short = RunFolder.create(tmp_path, "short", 0.0)
    short.write_run({"stages": {"work": 0}, "checkpoint": str(tmp_path)})
    refusal = springtide("calibrate", short.path)
    assert refusal.exit_code == 2
    assert "let it run longer" in refusal.stderr
    old = RunFolder.create(tmp_path, "old", 0.0)
    old.write_run({"checkpoint": str(tmp_path)})
    assert "record a run with this version" in springtide("calibrate", old.path).stderr
    assert "cannot be written" in springtide("calibrate", run, "--output", tmp_path / "no" / "file").stderr


@pytest.mark.parametrize("constants", [{"batch_s": -1}, {"gap_s": "long"}, [1]])
def test_constants_that_make_no_sense_are_refused(constants: Any, costs: Path, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({**json.loads(costs.read_text()), "constants": constants}))
    result = springtide(
        "simulate", "tweets", "--mode", "micro-batch", "--policy", "static", "--duration", "1s", "--costs", file
    )
    assert result.exit_code == 2, result.output
    assert "constants" in result.stderr
