"""All that Springtide uses of Spark's private interfaces, in one place, tested on 4.2 and 4.3.

The stages of a batch are built from RDDs of bytes rather than DataFrames, because a DataFrame is planned anew in every
batch: three shuffled stages of 1,000 rows took 316 ms as ``mapInArrow`` and ``repartitionById``, and 250 ms as RDDs.
What Spark does is the same: its scheduler, its shuffle, its Python workers, its retries.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pyspark import SparkContext
from pyspark.core.rdd import RDD, _wrap_function
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.streaming import StreamingQuery

from springtide.errors import CheckpointError
from springtide.model.executor import Executor
from springtide.spark.private import properties
from springtide.spark.private.properties import is_on

LARGE_ANSWER = 5_000
"""Bytes of an answer of the JVM's, which Py4J sends as text, above which TCP cuts it into segments."""

StageFunction = Callable[[int, Iterable[bytes]], Iterator[bytes]]


class Stages:
    """Builds and runs the stages of batches. Functions are wrapped for Spark once, and kept while the plan holds."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._jvm = context._jvm
        self._python_rdd = self._jvm.PythonRDD  # a name is looked up by a call: 0.5 ms
        self._pairwise_rdd, self._partitioner = self._jvm.PairwiseRDD, self._jvm.PythonPartitioner
        self._shuffled_rdd, self._pair_rdd = self._jvm.org.apache.spark.rdd.ShuffledRDD, self._jvm.JavaPairRDD
        self._serializer = self._jvm.org.apache.spark.serializer.JavaSerializer(context._jsc.sc().conf())
        self._async_actions = self._jvm.org.apache.spark.rdd.AsyncRDDActions
        self._tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName("[B"))
        self._concat = self._jvm.org.apache.spark.unsafe.types.ByteArray.concat
        self._wrapped: dict[StageFunction, Any] = {}
        self._large = False

    def entry(self, frame: DataFrame) -> Any:
        """The rows of a DataFrame as Arrow record batches."""
        return frame._jdf.toArrowBatchRdd()

    def apply(self, stage: Any, function: StageFunction) -> Any:
        """A stage that runs a function on every partition."""
        if function not in self._wrapped:
            nothing = NoOpSerializer()
            self._wrapped[function] = _wrap_function(self._context, function, nothing, nothing)
        return self._python_rdd(stage, self._wrapped[function], False, False)

    def shuffle(self, stage: Any, width: int) -> Any:
        """Bring each block to the partition that its key names.

        ``partitionBy`` would take Kryo for blocks. Every task makes one of its own, with all that it registers: of the time
        that tasks of two Python stages had a core, 29 %. Java's own serializer writes a block as fast, and is there at once.
        """
        placed = self._shuffled_rdd(self._pairwise_rdd(stage), self._partitioner(width, 0), self._tag, self._tag, self._tag)
        pairs = self._pair_rdd(placed.setSerializer(self._serializer), self._tag, self._tag)
        return self._python_rdd.valueOfPair(pairs).rdd()

    def union(self, stages: list[Any]) -> Any:
        united = stages[0]
        for stage in stages[1:]:
            united = united.union(stage)
        return united

    def elements(self, stage: Any) -> RDD[bytes]:
        """A stage as an RDD of Python's, for the few that must become DataFrames again."""
        return RDD(stage.toJavaRDD(), self._context, NoOpSerializer())

    def persist(self, stage: Any) -> Callable[[], None]:
        """Keep what a stage produced, for those that are read twice; call what is returned to let go."""
        stage.persist(self._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
        return lambda: stage.unpersist(False)

    def collect(self, stage: Any) -> bytes:
        """Run the job; returns all elements one after the other.

        ``RDD.collect`` would read the class file of ``RDD``, 189 kB, to clean its closure: 4 ms more. Fetching elements one
        by one takes 0.3 ms each, by a socket 3 ms, and all of them in one answer 0.3 ms; but an answer of more than 8 kB waits
        44 ms for a delayed TCP acknowledgement. So after one that was large, the next comes by a file: 2 ms.
        """
        elements = self._async_actions(stage, self._tag).collectAsync().get()
        fetched = self._by_file(elements) if self._large else bytes(self._concat(elements.toArray(self._tag)))
        self._large = len(fetched) > LARGE_ANSWER
        return fetched

    def _by_file(self, elements: Any) -> bytes:
        """The elements through a file that only this user can read."""
        with tempfile.NamedTemporaryFile(prefix="springtide-") as file:
            stream = self._jvm.java.io.DataOutputStream(self._jvm.java.io.FileOutputStream(file.name))
            self._python_rdd.writeIteratorToStream(elements.iterator(), stream)
            stream.close()
            return b"".join(_prefixed(file.read()))

    def forget(self) -> None:
        """Drop the wrapped functions of an old plan."""
        self._wrapped.clear()


def _prefixed(data: bytes) -> Iterator[bytes]:
    """Byte strings, each behind its length, as Spark writes them."""
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        yield data[start + 4 : end]
        start = end


def hold_jvm_lock(session: SparkSession, path: Path, wait_s: float = 30.0) -> Any:
    """Have the JVM lock a file for as long as it lives, so that a new driver waits for an orphaned JVM to die.

    A JVM whose Python driver was killed may still write to the checkpoint until it notices.
    """
    jvm = session._jvm
    channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
    end = time.monotonic() + wait_s
    while True:
        lock = channel.tryLock()
        if lock is not None:
            return channel
        if time.monotonic() > end:
            raise CheckpointError(
                f"the JVM of an earlier driver still holds {path} after {wait_s:.0f} s; stop that process and start again"
            )
        time.sleep(0.1)


class _BatchSink:
    """The sink of a query, as Spark's JVM sees it: it calls ``addBatch`` for every batch.

    ``foreachBatch`` is such a sink too, but wraps the rows into a DataFrame that is analysed twice, and planned again when
    it is used: 8 ms a batch.
    """

    def __init__(self, session: SparkSession, function: Callable[[DataFrame, int], None]) -> None:
        self._session, self._function = session, function

    def addBatch(self, batch: int, rows: Any) -> None:  # noqa: N802  Spark's name
        self._function(DataFrame(rows, self._session), batch)

    def toString(self) -> str:  # noqa: N802
        return "Springtide"

    def equals(self, other: object) -> bool:
        return other is self

    def hashCode(self) -> int:  # noqa: N802
        return 0

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.execution.streaming.Sink"]


def start_query(
    frame: DataFrame, name: str, checkpoint: str, function: Callable[[DataFrame, int], None], available_now: bool
) -> StreamingQuery:
    """Start a query that hands every batch to a function, which may only consume it; see ``detached``."""
    session = frame.sparkSession
    gateway = session.sparkContext._gateway
    ensure_callback_server_started(gateway)
    jvm = gateway.jvm
    nothing, some = jvm.scala.Option.empty(), jvm.scala.Option.apply
    triggers = jvm.org.apache.spark.sql.streaming.Trigger
    query = session.streams._jsqm.startQuery(
        some(name), nothing, some(checkpoint), frame._jdf, jvm.PythonUtils.toScalaMap({}), _BatchSink(session, function),
        jvm.org.apache.spark.sql.streaming.OutputMode.Append(), False, True,
        triggers.AvailableNow() if available_now else triggers.ProcessingTime(0),
        jvm.org.apache.spark.util.SystemClock(), nothing, nothing,
    )  # fmt: skip
    return StreamingQuery(query)


def found_nothing_new(query: StreamingQuery) -> bool:
    """Whether the last thing that a query did was to ask its sources for more, and there was nothing.

    Spark ends a query with the trigger ``AvailableNow`` then, and only then. A query that was stopped, or whose thread died
    before Spark could note the cause, has no exception either.
    """
    return bool(query._jsq.streamingQuery().noNewData())


def empty_like(frame: DataFrame) -> DataFrame:
    """A DataFrame with the schema of another one, and no row."""
    session = frame.sparkSession
    rows = session._jvm.java.util.ArrayList()
    return DataFrame(session._jsparkSession.createDataFrame(rows, frame._jdf.schema()), session)


def detached(frame: DataFrame) -> DataFrame:
    """The rows of a batch as a DataFrame of their own, on which operators may be applied."""
    session = frame.sparkSession
    rows = frame._jdf.queryExecution().toRdd()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, frame._jdf.schema(), False), session)


_LOCAL_FILES = """
package springtide;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
      } else {
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
      }
    }
  }
}
"""
"""Hadoop's local files, whose permissions are set by a system call."""


def write_logs_quickly(session: SparkSession) -> None:
    """Have the driver's JVM write local files, of which a batch has two, its offsets and its commit, without processes.

    Hadoop starts a process, ``chmod``, for every file that it makes, where it lacks its native library, as in the pip
    package: 5 to 6 ms. So what it has for local files is replaced, in this JVM, by ``_LOCAL_FILES``, which the compiler
    translates that Spark has for its own code; and no ``.crc`` is written beside them, as manifests have the offsets.
    """
    jvm = session._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(session.sparkContext._jsc.hadoopConfiguration())
    root = jvm.org.apache.hadoop.fs.Path("file:///")
    if not jvm.org.apache.hadoop.io.nativeio.NativeIO.isAvailable() and conf.get("fs.file.impl") is None:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(conf.getClassLoader())
        compiler.cook(_LOCAL_FILES)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set("fs.file.impl", "springtide.LocalFiles")
        root.getFileSystem(conf).close()  # Hadoop keeps one for all who ask: the next one that is made
        root.getFileSystem(conf)
        conf.unset("fs.file.impl")  # a copy of this may go to executors, which have no such class
    root.getFileSystem(conf).setWriteChecksum(False)


def use_executors_python(session: SparkSession, python: str) -> None:
    """The interpreter for whatever is wrapped from now on, which may be in an archive that only executors have."""
    session.sparkContext.pythonExec = python


@contextlib.contextmanager
def drivers_python(session: SparkSession) -> Iterator[None]:
    """What is wrapped here runs beside the driver too, as the planning of a Python data source does."""
    executors = session.sparkContext.pythonExec
    session.sparkContext.pythonExec = sys.executable
    try:
        yield
    finally:
        session.sparkContext.pythonExec = executors


def launch_jvm(settings: Mapping[str, str], log: Path | None) -> None:
    """Start the JVM with settings that nobody else can see.

    What it and its workers print goes to a file that only this user can read, so that a terminal stays readable; without one,
    to where this process prints its errors.
    """
    if SparkContext._gateway is not None:
        return
    with contextlib.ExitStack() as stack:
        printed = {}
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            stack.callback(os.close, file)
            printed["stderr"] = file
        stack.enter_context(properties.in_file(settings))
        SparkContext._ensure_initialized(gateway=launch_gateway(popen_kwargs=printed))


def forget_dead_jvm() -> None:
    """Make room for a new JVM in this process after the old one died."""
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # it is dead; whatever it says does not matter
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            with contextlib.suppress(OSError):  # one that only lost its context lives until then
                process.stdin.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def is_alive(session: Any) -> bool:
    """Whether the session's JVM still answers, and its context has not been stopped."""
    try:
        return not session._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001  every failure means the same here
        return False


def running_stages(session: SparkSession, group: str) -> tuple[str, ...]:
    """The stages of a job group that have tasks now, each with its tasks that are done."""
    tracker, store = session.sparkContext.statusTracker(), session.sparkContext._jsc.sc().statusStore()
    told = []
    for number in tracker.getActiveJobsIds():
        job = tracker.getJobInfo(number)
        if job is None or store.job(number).jobGroup().getOrElse(None) != group:
            continue
        for stage in filter(None, map(tracker.getStageInfo, job.stageIds)):
            if stage.numActiveTasks:
                told.append(f"stage {stage.stageId} ({stage.name}), {stage.numCompletedTasks} of {stage.numTasks} tasks done")
    return tuple(told)


class ExecutorBackend:
    """The executors, as the driver's scheduler and its status store know them. Public are only asking and killing."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext._jsc.sc()
        self._jvm = session._jvm
        self._gateway = session.sparkContext._gateway
        self._python = session.sparkContext
        self._warmed: Any = None  # the task, wrapped
        self._prepared: dict[str, Any] = {}  # such tasks, by the executor that each is for
        self._tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName("[B"))
        self._graceful = is_on(session.sparkContext.getConf().get("spark.decommission.enabled"))

    def executors(self) -> tuple[Executor, ...]:
        """Those that are there, but for the driver, which the status store lists too."""
        backend = self._context.schedulerBackend()
        listed = self._seq(self._context.statusStore().executorList(True))
        return tuple(_executor(one, not backend.isExecutorActive(one.id())) for one in listed if one.id() != "driver")

    def names(self) -> list[str]:
        """Of all that are there, in two calls."""
        return list(self._seq(self._context.getExecutorIds()))

    def warm(self, name: str) -> Any:
        """Have an executor start Python with all that tasks import, before records reach it; returns a future.

        Its first task would take 5 to 10 s on two cores, and a whole batch would wait for it. A task that asks for a place
        by ``executor_<host>_<name>``, with whatever host, waits for that executor (``spark.locality.wait.process``).
        """
        self.prepare_warm(name)
        return self._prepared.pop(name).collectAsync()

    def prepare_warm(self, name: str) -> None:
        """All but the last call of it, ahead of time: a batch must not be faster with its own task."""
        if name in self._prepared:
            return
        if self._warmed is None:
            nothing = NoOpSerializer()
            self._warmed = _wrap_function(self._python, _warmed, nothing, nothing)
        to_seq, pair = self._jvm.PythonUtils.toSeq, self._jvm.scala.Tuple2
        placed = self._context.makeRDD(to_seq([pair(bytearray(b""), to_seq([f"executor_any_{name}"]))]), self._tag)
        started = self._jvm.PythonRDD(placed, self._warmed, False, False)
        self._prepared[name] = self._jvm.org.apache.spark.rdd.AsyncRDDActions(started, self._tag)

    def request_total(self, total: int) -> None:
        """Blocks until the cluster manager has answered, which may take ``spark.rpc.askTimeout``."""
        if not self._context.requestTotalExecutors(total, 0, self._jvm.PythonUtils.toScalaMap({})):
            raise RuntimeError(f"the cluster manager did not take the request for {total} executors")

    def release(self, names: list[str]) -> None:
        """Decommission where that is enabled: the executor takes no more tasks, and goes when it has none; else kill."""
        if self._graceful:
            info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released by Springtide", self._none())
            pairs = self._gateway.new_array(self._jvm.scala.Tuple2, len(names))
            for place, name in enumerate(names):
                pairs[place] = self._jvm.scala.Tuple2(name, info)
            self._context.schedulerBackend().decommissionExecutors(pairs, False, False)
        else:
            self._context.schedulerBackend().killExecutors(self._scala(names), False, False, True)

    def _seq(self, sequence: Any) -> list[Any]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(sequence))

    def _scala(self, names: list[str]) -> Any:
        return self._jvm.PythonUtils.toSeq(names)

    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()


def _warmed(index: int, elements: Iterable[bytes]) -> Iterator[bytes]:
    import springtide.spark.task.worker  # noqa: F401  what tasks import

    return iter(())


def _executor(summary: Any, leaving: bool) -> Executor:
    """A line of the status store."""
    memory = summary.memoryMetrics()
    used = None
    if memory.isDefined():
        used = memory.get().usedOnHeapStorageMemory() + memory.get().usedOffHeapStorageMemory()
    return Executor(
        summary.id(), summary.hostPort().rpartition(":")[0], summary.totalCores(), summary.activeTasks(),
        summary.totalDuration() / 1000, used_bytes=used, memory_bytes=summary.maxMemory(),
        leaving=leaving,
    )  # fmt: skip


class Job(NamedTuple):
    """A job of a query: seconds since 1970, and the numbers of its stages."""

    submitted: float
    completed: float | None
    stages: tuple[int, ...]


class QueryLook:
    """What the driver knows of a streaming query: its progress, and the jobs of its group in the status store."""

    def __init__(self, query: StreamingQuery, session: QuerySession) -> None:
        self._jsq, self._group = query._jsq, str(query.runId)
        self._tracker = session.sparkContext.statusTracker()
        self._store = session.sparkContext._jsc.sc().statusStore()
        self._gateway = session.sparkContext._gateway
        self._java = self._gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self._half_and_all = self._gateway.new_array(self._gateway.jvm.double, 2)
        self._half_and_all[0], self._half_and_all[1] = 0.5, 1.0

    def trigger_s(self) -> float | None:
        """The time between two batches, 0 where each starts as soon as it can; None where there are no batches."""
        trigger = self._jsq.streamingQuery().trigger()
        kind = trigger.getClass().getSimpleName().rstrip("$")
        if kind in ("ContinuousTrigger", "RealTimeTrigger"):
            return None
        return trigger.intervalMs() / 1000 if kind == "ProcessingTimeTrigger" else 0.0

    def progress(self, after: int | None, most: int) -> list[dict[str, Any]]:
        """The last documents of batches with higher numbers than ``after``, the oldest first.

        One that has its forerunner's number tells that nothing came.
        """
        kept, found = self._jsq.recentProgress(), dict[int, dict[str, Any]]()
        for place in range(len(kept) - 1, -1, -1):
            number = kept[place].batchId()
            if (len(found) == most and number not in found) or (after is not None and number <= after):
                break
            found[number] = json.loads(kept[place].json())  # the oldest of a number is the batch, the others are idle time
        return [found[number] for number in sorted(found)]

    def jobs(self) -> list[int]:
        return sorted(self._tracker.getJobIdsForGroup(self._group))

    def job(self, number: int) -> Job | None:
        """None when the store has forgotten it, or has not heard of it."""
        try:
            told = self._store.job(number)
        except Exception:  # noqa: BLE001  the store raises what Java raises for what is not there
            return None
        begun, done = told.submissionTime(), told.completionTime()
        if not begun.isDefined():
            return None
        completed = done.get().getTime() / 1000 if done.isDefined() else None
        return Job(begun.get().getTime() / 1000, completed, tuple(self._java(told.stageIds())))

    def stage(self, number: int) -> list[tuple[tuple[int, int], int, float]]:
        """Of every attempt that ran its number and the attempt's, its tasks, and the seconds that they took."""
        nothing = self._gateway.new_array(self._gateway.jvm.double, 0)
        attempts = self._java(self._store.stageData(number, False, self._gateway.jvm.java.util.ArrayList(), False, nothing))
        ran = [one for one in attempts if one.numCompleteTasks() > 0]
        return [((number, one.attemptId()), one.numTasks(), one.executorRunTime() / 1000) for one in ran]

    def task_times(self, number: int, attempt: int) -> tuple[float, float] | None:
        """The median and the longest of a stage's tasks, in seconds."""
        told = self._store.taskSummary(number, attempt, self._half_and_all)
        if not told.isDefined():
            return None
        times = told.get().executorRunTime()
        return times.apply(0) / 1000, times.apply(1) / 1000


class QuerySession:
    """The session in which a query runs, to look at. A ``SparkSession`` made for it would become what ``toDF`` uses."""

    def __init__(self, query: StreamingQuery) -> None:
        self.sparkContext = SparkContext._active_spark_context
        self.conf = RuntimeConfig(query._jsq.sparkSession().conf())
        self._jvm = self.sparkContext._jvm
