"""``springtide demo``: the tweets topology from Kafka to Kafka where a broker can be had, else on tweets that it generates."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from springtide.cli.common import errors, print_result
from springtide.errors import SetupError
from springtide.model.ending import Ending

if TYPE_CHECKING:
    from springtide.bench.kafka_broker import BrokerProcess
    from springtide.bench.keeper import Kept
    from springtide.cli.view import LiveView
    from springtide.model.snapshot import Snapshot
    from springtide.model.topology import Topology
    from springtide.options import RunOptions
    from springtide.running.result import Result

BROKER_S = 60.0
"""Limits the wait for a broker; one starts in about 5 s."""
OTHER_S = 120.0
"""Limits the time of the run before the tweets come, in which workers start, and after them, in which it reads what waits."""
TWEETS, ENRICHED, GROUP, PARTITIONS = "tweets", "enriched-tweets", "springtide-demo", 4


@click.command()
@click.option("--duration", default="60s", show_default=True, help="How long tweets come.")
@click.option("--target", default="2s", show_default=True, help="Latency target for the size of batches.")
@click.option("--max-slots", default=8, show_default=True, help="Maximum number of concurrent tasks.")
@click.option("--runs", default="runs", show_default=True, help="Folder in which run folders are created.")
@click.option("--no-kafka", is_flag=True, help="Generate the tweets in the topology, and write files.")
def demo(no_kafka: bool, duration: str, **options: Any) -> None:
    """Run the tweets topology: from Kafka to Kafka, with a broker that starts and ends with the command; or, where none can be
    had, on tweets that the topology generates, into files."""
    from springtide.apps import tweets
    from springtide.bench.kafka_broker import temporary_broker
    from springtide.options import RunOptions, operators_of, positive_s

    with errors(), contextlib.ExitStack() as ends:
        generated, seconds, broker = tweets.topology(), positive_s(duration, "--duration"), None
        asked = RunOptions.of(operators_of(generated), {**options, "policy": "tide", "duration": seconds})
        if not no_kafka:
            try:
                broker = ends.enter_context(temporary_broker(BROKER_S))
            except SetupError as error:
                why = str(error).splitlines()[0].removesuffix("; the end of its log:")
                click.echo(f"The tweets are generated without Kafka: {why}", err=True)
        if broker is None:
            print_result(_run(generated, asked))
            return
        with Feed(broker, seconds) as feed:
            topology = tweets.on_kafka(broker.servers, TWEETS, ENRICHED, GROUP, PARTITIONS)
            result = _run(topology, replace(asked, ending=Ending(seconds + OTHER_S)), feed)
            print_result(result)
            words, right = feed.compared(result.summary)
        click.echo(words)
        sys.exit(0 if right else 1)


def _run(topology: Topology, asked: RunOptions, feed: Feed | None = None) -> Result:
    from springtide.cli.view import LiveView
    from springtide.running import execute

    with LiveView(topology.name, asked.policy.policy) as view:
        if feed is None:
            return execute(topology, asked, watch=view.update)
        return execute(topology, asked, watch=feed.watching(view), stop=feed.over)


class Feed:
    """A process that writes tweets to a topic, from the run's first batch on. ``over`` is set once all of them were read."""

    def __init__(self, broker: BrokerProcess, seconds: float) -> None:
        self.over = Event()
        self._broker, self._seconds = broker, seconds
        self._process: Kept | None = None
        self._log = broker.log.with_name("feed.log")

    def __enter__(self) -> Feed:
        from confluent_kafka.admin import AdminClient, NewTopic

        from springtide.apps.tweets_feed import write_first

        admin = AdminClient({"bootstrap.servers": self._broker.servers})
        admin.create_topics([NewTopic(TWEETS, PARTITIONS, 1)])[TWEETS].result(30)
        write_first(self._broker.servers, TWEETS)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()

    def watching(self, view: LiveView) -> Any:
        """Shows snapshots, starts the process once the first batch is committed, and ends the run."""

        from confluent_kafka import KafkaException

        def watch(snapshot: Snapshot, elapsed_s: float) -> None:
            view.update(snapshot, elapsed_s)
            with contextlib.suppress(KafkaException):  # a busy broker is asked again with the next snapshot
                if self._process is None:
                    self._process = self._started() if self._read() else None
                elif not self._process.running() and self._read() == self._produced():
                    self.over.set()

        return watch

    def compared(self, summary: Mapping[str, Any]) -> tuple[str, bool]:
        """The tweets in the topic of enriched tweets and those produced, in words; and whether they agree."""
        produced, read, ids = self._produced(), summary["rows_in"], self._enriched() if summary["rows_out"] else []
        twice, missing = len(ids) - len(set(ids)), read - summary["rows_failed"] - len(set(ids))
        failed = self._log.read_text().strip().rpartition("\n")[2] if self._log.exists() else ""
        waiting = f" and {produced - read:,} wait to be read" if produced > read else ""
        return (
            f"Kafka: {produced:,} tweets were produced{waiting}; {read:,} were read, and {len(ids):,} are in the topic"
            f" {ENRICHED}, read with read_committed: {missing:,} missing, {twice:,} twice"
            + (f"; the process that writes tweets failed: {failed}" if failed else "")
        ), not (missing or twice or failed)

    def _started(self) -> Kept:
        from springtide.bench.keeper import Kept

        module = "springtide.apps.tweets_feed"
        command = [sys.executable, "-P", "-m", module, self._broker.servers, TWEETS, str(self._seconds)]
        return Kept(command, self._log, os.environ)

    def _produced(self) -> int:
        from confluent_kafka import TopicPartition

        with self._consumer() as consumer:
            places = [TopicPartition(TWEETS, number) for number in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(place, timeout=10)[1] for place in places)

    def _read(self) -> int:
        """The tweets in batches that are committed: the run notes them in its group."""
        from confluent_kafka import TopicPartition

        with self._consumer(GROUP) as consumer:
            places = consumer.committed([TopicPartition(TWEETS, number) for number in range(PARTITIONS)], timeout=10)
        return sum(max(0, place.offset) for place in places)

    def _enriched(self) -> list[int]:
        """The ids in the topic of enriched tweets."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        ids: list[int] = []
        with self._consumer(config={"isolation.level": "read_committed", "enable.partition.eof": True}) as consumer:
            for number in range(PARTITIONS):
                consumer.assign([TopicPartition(ENRICHED, number, OFFSET_BEGINNING)])
                while (message := consumer.poll(30)) is not None and not message.error():
                    ids.append(json.loads(message.value())["id"])
                if message is None or message.error().code() != KafkaError._PARTITION_EOF:
                    raise SetupError(f"topic {ENRICHED} cannot be read: {message and message.error()}")
        return ids

    def _consumer(self, group: str = "springtide-demo-count", config: Mapping[str, Any] | None = None) -> Any:
        from confluent_kafka import Consumer

        plain = {"bootstrap.servers": self._broker.servers, "group.id": group, "enable.auto.commit": False}
        return Consumer({**plain, **(config or {})})
