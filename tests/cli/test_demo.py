"""``springtide demo``: with a real broker of its own, and what it does where there can be none."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from servers import kafka
from springtide.bench import kafka_broker
from springtide.cli import demo as demos
from springtide.cli.main import cli
from springtide.errors import SetupError

COUNTS = re.compile(
    r"Kafka: ([\d,]+) tweets were produced( and [\d,]+ wait to be read)?; ([\d,]+) were read, and ([\d,]+) are in the topic"
    r" enriched-tweets, read with read_committed: 0 missing, 0 twice"
)


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("interrupted", [False, True])
def test_as_many_tweets_come_out_of_kafka_as_went_in_and_no_process_stays(interrupted: bool, tmp_path: Path) -> None:
    kafka.require()
    command = [sys.executable, "-m", "springtide.cli.main", "demo", "--duration", "100s" if interrupted else "6s"]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen([*command, "--max-slots", "2"], cwd=tmp_path, stdout=output, stderr=output)
    try:
        children = _others(process) if interrupted else []
        if interrupted:
            process.send_signal(signal.SIGINT)
        assert process.wait(200) == 0, (tmp_path / "output").read_text()
    finally:
        process.kill()
    said = COUNTS.search((tmp_path / "output").read_text())
    assert said is not None, (tmp_path / "output").read_text()
    produced, read, enriched = (int(said[place].replace(",", "")) for place in (1, 3, 4))
    assert enriched == read > 50 and (interrupted or (produced == read and said[2] is None))
    assert not [child for child in children if "kafka.Kafka" in _command(child)]
    assert not psutil.wait_procs(children, timeout=30)[1], "Spark's JVM ends soon after"


def _others(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of the command, 5 s after the one has started that writes tweets."""
    until = time.monotonic() + 150
    while time.monotonic() < until:
        children = psutil.Process(process.pid).children(recursive=True)
        if any("springtide.apps.tweets_feed" in _command(child) for child in children):
            time.sleep(5)
            assert any("kafka.Kafka" in _command(child) for child in children)
            return children
        time.sleep(0.2)
    raise AssertionError("no tweets are written")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended since
        return []


def test_without_a_broker_it_says_why_and_generates_the_tweets(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def run(topology: Any, asked: Any, feed: Any = None) -> Any:
        ran.append((topology.sources[0].source, asked.ending.duration_s, feed))
        raise SetupError("enough")

    monkeypatch.setattr(demos, "_run", run)
    monkeypatch.setattr(kafka_broker, "missing", lambda: "no Kafka in .venv/kafka; the end of its log:\nlines\nof it")
    for words, sentence in (([], "The tweets are generated without Kafka: no Kafka in .venv/kafka\n"), (["--no-kafka"], "")):
        said = CliRunner().invoke(cli, ["demo", "--duration", "7s", *words])
        assert said.stderr == f"{sentence}Error: enough\n"
    assert [(type(source).__name__, duration, feed) for source, duration, feed in ran] == [("GenerateSource", 7.0, None)] * 2


def test_wrong_options_are_refused_before_a_broker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_broker, "BrokerProcess", None)
    for words in (["--duration", "soon"], ["--target", "-"], ["--max-slots", "0"]):
        refused = CliRunner().invoke(cli, ["demo", *words])
        assert refused.exit_code == 2 and refused.stderr.startswith("Error: "), refused.output


@pytest.mark.parametrize(
    ("produced", "failed", "ids", "words", "right"),
    [
        (5, 0, [4, 2, 0, 1, 3], "5 tweets were produced; 5 were read, and 5 are in", True),
        (9, 0, [4, 2, 0, 1, 3], "9 tweets were produced and 4 wait to be read; 5 were read, and 5 are in", True),
        (5, 1, [4, 2, 0, 1], "and 4 are in the topic enriched-tweets, read with read_committed: 0 missing, 0 twice", True),
        (5, 0, [4, 2, 0, 1], ": 1 missing, 0 twice", False),
        (5, 0, [4, 2, 0, 1, 1], ": 1 missing, 1 twice", False),
        (5, 0, [], "5 were read, and 0 are in the topic enriched-tweets, read with read_committed: 5 missing, 0 twice", False),
    ],
)
def test_tweets_that_are_missing_or_there_twice_are_counted(
    produced: int, failed: int, ids: list[int], words: str, right: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker: Any = SimpleNamespace(log=tmp_path / "broker.log")
    feed = demos.Feed(broker, 1.0)
    monkeypatch.setattr(feed, "_produced", lambda: produced)
    monkeypatch.setattr(feed, "_enriched", lambda: ids)
    said, agree = feed.compared({"rows_in": 5, "rows_failed": failed, "rows_out": len(ids)})
    assert words in said and agree is right
    (tmp_path / "feed.log").write_text("Traceback\nValueError: no\n")
    said, agree = feed.compared({"rows_in": 5, "rows_failed": failed, "rows_out": len(ids)})
    assert said.endswith("; the process that writes tweets failed: ValueError: no") and not agree
