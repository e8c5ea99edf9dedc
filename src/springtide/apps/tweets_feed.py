"""A process that writes the tweets of ``apps/tweets`` to a topic of Kafka as they are created: ``SERVERS TOPIC SECONDS``.

It leaves out the tweet 0. ``write_first`` writes that one before, so that the first batch of a run starts its workers, which
takes seconds, and the tweets of that time do not wait for it.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from springtide.apps.tweets import tweet, wave
from springtide.model.generated import Draw, draws
from springtide.model.rate import sampled

TICK_S = 0.02
"""Between two looks at the clock; at 400 tweets/s, each look finds 8."""


def write_first(servers: str, topic: str) -> None:
    producer = _producer(servers)
    _write(producer, topic, next(draws(0, 0, [time.time_ns() // 1_000])))
    _flush(producer)


def feed(servers: str, topic: str, seconds: float) -> None:
    """Write for so many seconds, at the rate ``wave``. A message's timestamp is the creation time of its tweet."""
    producer, rate = _producer(servers), sampled(wave, seconds)
    began, made, over = time.time(), 0, False
    while not over:
        elapsed = time.time() - began
        over, due = elapsed >= seconds, rate.count(min(elapsed, seconds))
        created = np.round((began + rate.steps.created(made, due)) * 1e6).astype(np.int64)
        for draw in draws(0, made + 1, created.tolist()):
            _write(producer, topic, draw)
        made = due
        producer.poll(TICK_S)
    _flush(producer)


def _producer(servers: str) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})


def _write(producer: Any, topic: str, draw: Draw) -> None:
    producer.produce(topic, json.dumps(asdict(tweet(draw))).encode(), timestamp=round(draw.created.timestamp() * 1000))


def _flush(producer: Any) -> None:
    if left := producer.flush(60):
        sys.exit(f"the broker did not take {left:,} tweets")


if __name__ == "__main__":
    feed(sys.argv[1], sys.argv[2], float(sys.argv[3]))
