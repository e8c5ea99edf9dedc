"""SIGKILL of the driver, its JVM, workers and the broker, Kafka to Kafka: as many out as in, none twice."""

from __future__ import annotations

import json
import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from crash import outputs
from crash.kafka_job import KEYS, KafkaSettings
from crash.processes import PATIENCE_S, Job, Kill, kill, started, victims
from servers.kafka import Broker

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.kafka]

FED = 900
"""Records that come before each kill: three batches."""


def phase(settings: Any, newest: int) -> str:
    """What the newest batch had come to: begun, committed and perhaps published, or finished."""
    if newest < 0:
        return "starting"
    if outputs.manifests(settings).get(newest) is None:
        return "running"
    return "between" if (settings.checkpoint / "spark" / "commits" / str(newest)).exists() else "publishing"


class Feed:
    """Numbers for the job."""

    def __init__(self, kafka: Broker, topic: str) -> None:
        self.kafka, self.topic, self.count = kafka, topic, 0

    def more(self) -> None:
        numbers = range(self.count, self.count + FED)
        self.kafka.produce(self.topic, [json.dumps({"n": n, "key": f"k{n % KEYS}"}).encode() for n in numbers])
        self.count += FED


def out_of(kafka: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value()) for message in kafka.messages(topic)]


def wanted(count: int) -> list[int]:
    return [n for n in range(count) if n % 101 != 7]


def hit(running: Job, kafka: Broker, victim: str, rng: random.Random) -> Kill:
    """Kill within the second after the next commit, or, for one kill in four, at any instant of the start before it."""
    settings, already = running.settings, len(outputs.manifests(running.settings))
    early = time.monotonic() + rng.uniform(0.0, 8.0) if rng.random() < 0.25 else math.inf
    while True:
        there = waited(running, lambda: len(outputs.manifests(settings)) > already or time.monotonic() > early)
        time.sleep(rng.uniform(0.0, 1.0))
        if there and (victim == "broker" or kill(*victims(running, victim, rng))):
            break
        again(running, running.starts)
    if victim == "broker":
        kafka.kill()
    if victim in ("driver", "both"):
        running.wait()
    newest = outputs.begun(settings)
    found = Kill(victim, newest, phase(settings, newest))
    if victim == "broker":
        time.sleep(rng.uniform(0.0, 4.0))
        kafka.start()
    return found


def waited(running: Job, there: Callable[[], bool]) -> bool:
    try:
        return running.wait_until(there, "a commit")
    except AssertionError:
        running.signal(signal.SIGUSR1)  # prints all stacks
        time.sleep(1.0)
        raise AssertionError(f"no commit came\n{running.log.read_text(errors='replace')[-20_000:]}") from None


def endure(running: Job, kafka: Broker, feed: Feed, chosen: Sequence[str], rng: random.Random) -> list[Kill]:
    landed: list[Kill] = []
    for victim in chosen:
        feed.more()
        landed.append(hit(running, kafka, victim, rng))
        again(running, len(landed))
    return landed


def again(running: Job, kills: int) -> None:
    """Start the job if it has ended: by a kill, or because its JVM died while Spark started."""
    if running.exit_code() is not None:
        assert running.starts <= 2 * kills + 1, running.tail()
        running.start()


def drain(running: Job, kafka: Broker, topic: str, count: int, kills: int) -> None:
    """Wait until everything is out, and stop the job."""
    end = time.monotonic() + PATIENCE_S
    while len(out_of(kafka, topic)) < len(wanted(count)):
        assert time.monotonic() < end, running.tail()
        again(running, kills)
        time.sleep(0.5)
    running.signal(signal.SIGTERM)
    assert running.wait() == 0, running.tail()


def exact(kafka: Broker, topic: str, count: int) -> tuple[int, int]:
    """How many records were lost and doubled; also by the places of each key."""
    found = out_of(kafka, topic)
    numbers, places = Counter(row["n"] for row in found), Counter((row["key"], row["place"]) for row in found)
    keys = Counter(f"k{n % KEYS}" for n in wanted(count))
    rows, own = Counter(wanted(count)), Counter((key, place + 1) for key, most in keys.items() for place in range(most))
    return (rows - numbers).total() + (own - places).total(), (numbers - rows).total() + (places - own).total()


def random_victims(seed: int, kills: int) -> list[str]:
    rng = random.Random(seed)
    return [victim for _ in range(kills) for victim in rng.sample(("driver", "jvm", "worker", "broker", "both"), 5)][:kills]


@pytest.mark.parametrize(("seed", "kills"), [(1, 5), pytest.param(2, 40, marks=pytest.mark.soak)])
def test_kafka_to_kafka_through_random_kills(seed: int, kills: int, kafka: Broker, tmp_path: Path) -> None:
    inward, outward = kafka.topic(partitions=3), kafka.topic(partitions=3)
    feed, rng = Feed(kafka, inward), random.Random(seed)
    settings = KafkaSettings(
        str(tmp_path), batch_records=FED // 3, max_slots=3, master="local[3,4]", servers=kafka.servers, inward=inward,
        outward=outward,
    )  # fmt: skip
    feed.more()
    with started(settings) as running:
        landed = endure(running, kafka, feed, random_victims(seed, kills), rng)
        drain(running, kafka, outward, feed.count, len(landed))
    tally = Counter((one.victim, one.phase) for one in landed)
    print(f"{len(landed)} kills, {feed.count} in, {len(out_of(kafka, outward))} out", dict(tally))
    assert exact(kafka, outward, feed.count) == (0, 0)
    assert len(landed) == kills
