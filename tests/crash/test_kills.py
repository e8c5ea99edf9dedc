"""SIGKILL of real processes at random instants, and at every step of the protocol: nothing is lost, nothing doubled."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crash import outputs
from crash.conftest import Ledger
from crash.job import Settings
from crash.outputs import Written
from crash.processes import Kill, started, strike

pytestmark = [pytest.mark.spark, pytest.mark.crash]

VICTIMS = ("driver", "jvm", "both", "worker", "helper")
STEPS = ("planned", "ran", "fenced", "committed", "publishing", "published")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """What a job writes that nobody kills; it has to be what plain Python makes of the same records."""
    settings = Settings(str(tmp_path_factory.mktemp("undisturbed")))
    with started(settings) as running:
        assert running.wait() == 0, running.tail()
    found = outputs.written(settings)
    assert found == outputs.expected(settings.seed, settings.records)
    assert found.parts and found.everything
    assert {letter[0] for letter in found.letters} == {"parse", "tag"}
    return found


def endure(folder: Path, seed: int, victim: str, kills: int) -> tuple[Settings, list[Kill]]:
    """Run a job to its end through so many kills."""
    rng = random.Random(f"{victim} {seed}")
    settings = Settings(str(folder), fused=seed % 2 == 1)
    landed: list[Kill] = []
    planned: dict[int, dict[str, Any]] = {}
    with started(settings) as running:
        for _ in range(kills):
            kill = strike(running, victim, rng)
            if kill is None:
                break
            landed.append(kill)
            if kill.phase in ("staged", "committed", "published"):
                planned[kill.batch] = outputs.plan(settings, kill.batch)
            if running.exit_code() is not None:
                running.start()
        running.run_to_the_end(failures=len(landed))  # a JVM that is killed while it starts fails its driver
    assert_replayed_as_planned(settings, planned)
    return settings, landed


def assert_replayed_as_planned(settings: Settings, planned: Mapping[int, Mapping[str, Any]]) -> None:
    """A batch that was begun keeps its plan, though the driver that runs it again would have made another one."""
    done = outputs.manifests(settings)
    assert {batch: done[batch]["plan"] for batch in planned} == planned


def check(settings: Settings, undisturbed: Written) -> None:
    found = outputs.written(settings)
    assert (found.lost(undisturbed), found.doubled(undisturbed)) == (0, 0)
    assert found == undisturbed
    assert outputs.visible(settings) == outputs.committed(settings)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_a_random_instant(victim: str, seed: int, undisturbed: Written, tmp_path: Path, ledger: Ledger) -> None:
    settings, landed = endure(tmp_path, seed, victim, kills=1)
    ledger.add(victim, landed, outputs.written(settings), undisturbed)
    assert landed, "the job ended before the kill"
    check(settings, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("seed", range(25))
def test_kills_at_random_instants(victim: str, seed: int, undisturbed: Written, tmp_path: Path, ledger: Ledger) -> None:
    """The same with up to four kills in a run."""
    settings, landed = endure(tmp_path, seed, victim, kills=1 + seed % 4)
    ledger.add(victim, landed, outputs.written(settings), undisturbed)
    check(settings, undisturbed)


@pytest.mark.parametrize("victim", ["driver", pytest.param("jvm", marks=pytest.mark.soak)])
def test_a_kill_at_every_step(victim: str, undisturbed: Written, tmp_path: Path) -> None:
    """The windows between two steps last milliseconds; here each is hit for certain, one after the other."""
    strikes = [(victim, step, batch + 1) for batch, step in enumerate(STEPS)]
    settings = Settings(str(tmp_path), strikes=strikes)
    planned: dict[int, dict[str, Any]] = {}
    with started(settings) as running:
        while running.wait() != 0:
            assert running.exit_code() == -signal.SIGKILL, running.tail()
            newest = outputs.begun(settings)
            planned[newest] = outputs.plan(settings, newest)
            running.start()
    assert len(list(tmp_path.glob("struck-*"))) == len(STEPS)
    assert_replayed_as_planned(settings, planned)
    check(settings, undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("step", ["fenced", "committed"])
def test_a_driver_that_stalls_in_a_commit_while_its_jvm_dies(step: str, undisturbed: Written, tmp_path: Path) -> None:
    """The thread of the old batch is still in its commit when the supervisor starts the query again."""
    settings = Settings(str(tmp_path), strikes=[("jvm, stalled", step, 2)])
    with started(settings) as running:
        running.run_to_the_end()
    assert (tmp_path / "struck-0").exists()
    check(settings, undisturbed)
