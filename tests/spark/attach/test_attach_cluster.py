"""``attach`` and ``submit`` on a real standalone cluster: somebody else's query, six executors of one core, one killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from springtide.attaching import attach
from springtide.bench.standalone import EXECUTOR_CONF, standalone
from springtide.errors import OptionError, SetupError
from springtide.spark.driver.session import GRACEFUL

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CONF = {
    **EXECUTOR_CONF,
    "spark.cores.max": "6",
    **GRACEFUL,
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}

QUERY = textwrap.dedent(
    '''
    """A query as people write them: files, a Python function that waits for something, an aggregation."""
    import time

    from pyspark.sql import functions as F, types as T


    @F.udf(T.IntegerType())
    def looked_up(value):
        time.sleep(0.006)  # a call to somewhere else
        return int(value) % 7


    def query(spark, folder):
        lines = spark.readStream.schema("value string").text(f"{folder}/in").repartition(6)
        counts = lines.select(looked_up("value").alias("k")).groupBy("k").count()
        writer = counts.writeStream.outputMode("complete").format("memory").queryName("theirs")
        return writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="2 seconds").start()
    '''
)

FOLLOWED = textwrap.dedent(
    '''
    import itertools, json, os, signal, sys, threading, time
    from pathlib import Path

    import psutil
    from pyspark.sql import SparkSession

    from springtide.attaching import attach
    from their_query import query

    folder, master = Path(sys.argv[1]), sys.argv[2]
    builder = SparkSession.builder.master(master).appName("theirs")
    for name, value in json.loads(sys.argv[3]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    load, numbers, done = [10], itertools.count(), threading.Event()
    (folder / "in").mkdir()


    def feed():
        for name in itertools.count():
            lines = [str(next(numbers)) for _ in range(load[0])]
            (folder / "in" / f".{name}").write_text("\\n".join(lines) + "\\n")
            (folder / "in" / f".{name}").rename(folder / "in" / f"{name}")
            if done.wait(1.0):
                return


    feeder = threading.Thread(target=feed)
    feeder.start()
    theirs = query(spark, folder)
    attachment = attach(theirs, min_executors=1, max_executors=6)
    cluster, started, steps = attachment._executors.cluster, time.monotonic(), []


    def there():
        return [one for one in cluster.executors() if not one.leaving]


    def until(what, condition):
        """Wait, and write down when it came; whatever hangs is shown by what is missing."""
        while not condition():
            if time.monotonic() - started > 400 or not theirs.isActive:
                raise SystemExit(f"waited in vain for {what}: {steps}, {attachment.history().tail(20).to_string()}")
            time.sleep(0.2)
        steps.append((what, round(time.monotonic() - started, 1), len(there())))


    try:
        until("six came", lambda: len(there()) == 6)
        until("few for little", lambda: len(there()) <= 2)
        load[0] = 300
        until("more for much", lambda: len(there()) >= 4)
        victim = there()[-1].name
        marks = ("CoarseGrainedExecutorBackend", spark.sparkContext.applicationId)
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if all(any(mark in part for part in line) for mark in marks) and line[line.index("--executor-id") + 1] == victim:
                os.kill(process.pid, signal.SIGKILL)
        until("one was killed", lambda: victim not in [one.name for one in there()])
        done.set()
        feeder.join()
        until("another came", lambda: len(there()) >= 4)
        theirs.processAllAvailable()
        attachment.detach()
        until("more, as before", lambda: len(there()) >= 5)
        table = attachment.history()
        print(json.dumps({
            "steps": steps, "rows": next(numbers),
            "found": {row["k"]: row["count"] for row in spark.table("theirs").collect()},
            "history": {name: table[name].tolist() for name in ("rows", "executors", "wanted", "batch_s", "reason")},
            "active": attachment.active,
        }))
    finally:
        done.set()
        feeder.join()
        theirs.stop()
        spark.stop()
    '''
)

APP = textwrap.dedent(
    '''
    """An application that knows nothing of Springtide."""
    import sys

    from pyspark.sql import SparkSession, functions as F

    spark = SparkSession.builder.appName("unchanged").getOrCreate()
    doubled = F.udf(lambda value: 2 * value, "long")
    rate = spark.readStream.format("rate").option("rowsPerSecond", 50).option("numPartitions", 2).load()
    query = rate.select(doubled("value").alias("d")).writeStream.format("memory").queryName("doubles").start()
    while not query.recentProgress or query.recentProgress[-1].batchId < 8:
        query.awaitTermination(1)
    query.stop()
    rows = [row["d"] for row in spark.table("doubles").collect()]
    print("RESULT", sys.argv[1:], sorted(rows) == list(range(0, 2 * len(rows), 2)), flush=True)
    spark.stop()
    sys.exit(5)
    '''
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("cluster")) as url:
        yield url


def environ() -> dict[str, str]:
    from springtide.spark.driver import java

    java.use(java.find_java())
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def test_executors_follow_a_query_that_nobody_changed(master: str, tmp_path: Path) -> None:
    (tmp_path / "their_query.py").write_text(QUERY)
    (tmp_path / "followed.py").write_text(FOLLOWED)
    conf = {**CONF, "spark.submit.pyFiles": str(tmp_path / "their_query.py")}
    command = [sys.executable, str(tmp_path / "followed.py"), str(tmp_path), master, json.dumps(conf)]
    done = subprocess.run(command, env=environ(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    reported: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(reported["steps"])
    rows = reported["rows"]  # 0, 1, 2, … of which the query counts the remainders by 7: what it finds without an attachment
    assert reported["found"] == {str(k): len(range(k, rows, 7)) for k in range(7)}
    assert max(reported["history"]["wanted"]) >= 4 and min(reported["history"]["wanted"]) <= 2
    assert any(reported["history"]["reason"]) and not reported["active"]


def test_submit_attaches_to_an_application_that_nobody_changed(master: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    pairs = [part for name, value in {**CONF, "spark.cores.max": "2"}.items() for part in ("--conf", f"{name}={value}")]
    program = "from springtide.cli.submit import submit; submit()"
    command = [sys.executable, "-c", program, "--target", "4s", "--max-executors", "2", "--master", master, *pairs]
    done = subprocess.run(
        [*command, str(tmp_path / "app.py"), "--its own"],
        env=environ(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done.stderr[-6_000:]
    assert "RESULT ['--its own'] True" in done.stdout
    # spark-submit puts Python's two streams into one
    assert "query doubles: attached, policy tide, target 4 s, 1 to 2 executors" in done.stdout
    assert "query doubles: slots 2 → 1" in done.stdout


def test_one_process_has_nothing_to_scale_but_can_be_looked_at(spark: Any) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 1).load()
    query = rate.writeStream.format("noop").queryName("looked_at").start()
    try:
        with pytest.raises(SetupError, match="no executors to add or release"):
            attach(query)
        with pytest.raises(OptionError, match="needs a query with a trigger interval"):
            attach(query, target="trigger", dry_run=True)
        with attach(query, max_executors=4, interval="200ms", dry_run=True) as attachment:
            while attachment.history().empty:  # what it sees of idle time is no line of it
                query.awaitTermination(1)
        seen = attachment.snapshot
        assert seen is not None
        assert seen["looked_at"].rate is not None and seen["looked_at"].busy_s is not None and seen.backlog == 0
        assert attachment.history()["rows"][0] > 0
    finally:
        query.stop()
    with pytest.raises(SetupError, match="not active"):
        attach(query, dry_run=True)
