"""Reads trips from Kafka, adds the tax, and writes them to files, exactly once.

    python examples/trips.py make    # the topic `trips`, with 100,000 trips
    python examples/trips.py run     # until Ctrl-C; `run now` ends where the topic ended at its start

KAFKA is the address of a broker, by default localhost:9094, as examples/compose.yaml has it; WORK is the folder for results.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import springtide as st

KAFKA = os.environ.get("KAFKA", "localhost:9094")
WORK = Path(os.environ.get("WORK", "trips"))
TOPIC = os.environ.get("TOPIC", "trips")


@dataclass(frozen=True)
class Trip:
    id: int
    route: str
    fare: float


@dataclass(frozen=True)
class Taxed:
    route: str
    fare: float
    tax: float


def taxed(trip: Trip) -> Taxed:
    return Taxed(trip.route, trip.fare, round(trip.fare * 0.19, 2))


def make(count: int = 100_000) -> None:
    """Create the topic and fill it."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": KAFKA})
    admin.create_topics([NewTopic(TOPIC, num_partitions=4, replication_factor=1)])[TOPIC].result()
    producer, chance = Producer({"bootstrap.servers": KAFKA}), random.Random(7)
    for number in range(count):
        route = f"r{chance.randrange(20)}"
        trip = {"id": number, "route": route, "fare": round(chance.uniform(3, 30), 2)}
        producer.produce(TOPIC, json.dumps(trip).encode(), route.encode())
        producer.poll(0)
    producer.flush()


def run(until: str | None = None) -> None:
    trips = st.source.kafka(KAFKA, TOPIC, value=Trip, until=until, group="trips")
    flow = trips.map(taxed, grouping="round-robin").to(st.sink.files(WORK / "out"))
    result = st.run(flow.named("trips"), target="5s", max_slots=4, checkpoint=WORK / "checkpoint", runs=WORK / "runs")
    print(f"{result.summary['rows_in']:,} trips; results in {WORK / 'taxed'}")


if __name__ == "__main__":
    if sys.argv[1:] == ["make"]:
        make()
    elif sys.argv[1:2] == ["run"]:
        run(*sys.argv[2:])
    else:
        sys.exit(__doc__)
