"""SIGKILL of real processes at random instants, and at every step of the protocol: nothing is lost, nothing doubled."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crash import outputs
from crash.job import Settings
from crash.ledger import Ledger
from crash.processes import Kill, started, strike

pytestmark = [pytest.mark.spark, pytest.mark.crash]

VICTIMS = ("driver", "jvm", "both", "worker", "helper")
STEPS = (
    "planned", "ran", "state counted", "fenced", "committed", "publishing", "published", "state kept", "merge begun",
)  # fmt: skip


def endure(folder: Path, seed: int, victims: Sequence[str]) -> tuple[Settings, list[Kill]]:
    """Run a job to its end, and kill these on the way, one after the other."""
    rng = random.Random(f"{' '.join(victims)} {seed}")
    settings = Settings(str(folder), records=1_920, fused=seed % 2 == 1, grouping=("tide", "round-robin")[seed % 2])
    landed: list[Kill] = []
    planned: dict[int, dict[str, Any]] = {}
    with started(settings) as running:
        for victim in victims:
            kill = strike(running, victim, rng)
            while kill is None and running.exit_code() not in (
                None,
                0,
            ):  # a JVM that is killed while it starts fails its driver
                running.start()
                kill = strike(running, victim, rng)
            if kill is None:
                break
            landed.append(kill)
            if kill.phase in ("staged", "committed", "published"):
                planned[kill.batch] = outputs.plan(settings, kill.batch)
            if running.exit_code() is not None:
                running.start()
        running.run_to_the_end(failures=len(landed))
    assert_replayed_as_planned(settings, planned)
    return settings, landed


def assert_replayed_as_planned(settings: Settings, planned: Mapping[int, Mapping[str, Any]]) -> None:
    """A batch that was begun keeps its plan, though the driver that runs it again would have made another one."""
    done = outputs.manifests(settings)
    assert {batch: done[batch]["plan"] for batch in planned} == planned


def check(settings: Settings, landed: Sequence[Kill], ledger: Ledger) -> None:
    """What is there is what an undisturbed run writes, record for record."""
    expected, found = outputs.expected(settings.seed, settings.records), outputs.written(settings)
    ledger.add(landed, found, expected)
    assert (found.lost(expected), found.doubled(expected)) == (0, 0)
    assert found == expected
    assert outputs.visible(settings) == outputs.committed(settings)


def test_a_run_that_nobody_kills(tmp_path: Path, ledger: Ledger) -> None:
    """The undisturbed run, to which all others are held: it writes what plain Python makes of the same records."""
    settings = Settings(str(tmp_path))
    with started(settings) as running:
        assert running.wait() == 0, running.tail()
    check(settings, [], ledger)
    found = outputs.written(settings)
    assert found.parts and found.everything
    assert {letter[0] for letter in found.letters} == {"parse", "tag"}


def test_a_context_that_stops_in_a_jvm_that_lives(tmp_path: Path, ledger: Ledger) -> None:
    """Another JVM takes the place of the old one, which has to let go of the checkpoint, and to end."""
    settings = Settings(str(tmp_path), strikes=[("context", "committed", 2)])
    with started(settings) as running:
        assert running.wait_until(lambda: outputs.epoch(settings) == 2, "another epoch"), running.tail()
        assert running.wait_until(lambda: len(running.jvm()) == 1, "the end of the old JVM"), running.tail()
        assert running.wait() == 0, running.tail()
    assert (tmp_path / "struck-0").exists()
    check(settings, [], ledger)


@pytest.mark.parametrize("seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.soak) for seed in range(25)])
def test_every_victim_at_a_random_instant(seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """All in one run, each seed in another order: a start of Spark takes most of the time."""
    victims = random.Random(seed).sample(VICTIMS, len(VICTIMS))
    settings, landed = endure(tmp_path, seed, victims)
    check(settings, landed, ledger)
    assert [kill.victim for kill in landed] == victims, "the job ended before the last kill"


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_a_kill_at_every_step(victim: str, tmp_path: Path, ledger: Ledger) -> None:
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
    check(settings, [Kill(victim, batch, f"after {step}") for victim, step, batch in strikes], ledger)


@pytest.mark.soak
@pytest.mark.parametrize("step", ["fenced", "committed"])
def test_a_driver_that_stalls_in_a_commit_while_its_jvm_dies(step: str, tmp_path: Path, ledger: Ledger) -> None:
    """The thread of the old batch is still in its commit when the supervisor starts the query again."""
    settings = Settings(str(tmp_path), strikes=[("jvm, stalled", step, 2)])
    with started(settings) as running:
        running.run_to_the_end()
    assert (tmp_path / "struck-0").exists()
    check(settings, [Kill("jvm", 2, f"stalled after {step}")], ledger)
