"""The executors, by the driver's scheduler and its status store.

Why: PySpark can neither list nor request executors; Spark's developer API can only request and kill them.
Seen to work on: Spark 4.2 and 4.3; on a standalone cluster and in ``local-cluster``.
Without it (``schedulerBackend``, ``statusStore``, ``decommissionExecutors``, ``AsyncRDDActions``):
``clusters.SparkCluster`` warns once and retries for a while, and the run goes on with its present executors; a new executor
is not warmed up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark.core.rdd import _wrap_function
from pyspark.serializers import NoOpSerializer
from pyspark.sql import SparkSession

from springtide.model.executor import Executor
from springtide.spark.private.properties import is_on


class ExecutorBackend:
    """Lists, requests, warms up and releases executors."""

    def __init__(self, session: SparkSession) -> None:
        self._context = session.sparkContext._jsc.sc()
        self._jvm = session._jvm
        self._gateway = session.sparkContext._gateway
        self._python = session.sparkContext
        self._warm_up: Any = None  # the wrapped task
        self._prepared: dict[str, Any] = {}  # warm-ups by executor
        self._tag = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName("[B"))
        self._graceful = is_on(session.sparkContext.getConf().get("spark.decommission.enabled"))

    def executors(self) -> tuple[Executor, ...]:
        """The present executors. The status store also lists the driver, which is left out."""
        backend = self._context.schedulerBackend()
        listed = self._seq(self._context.statusStore().executorList(True))
        return tuple(_executor(line, not backend.isExecutorActive(line.id())) for line in listed if line.id() != "driver")

    def names(self) -> list[str]:
        """The names of the present executors, in two calls."""
        return self._seq(self._context.getExecutorIds())

    def warm(self, name: str) -> Any:
        """Have an executor start Python and import the tasks' modules, before records reach it; returns a future.

        Its first task would take 5 to 10 s on two cores, and a whole batch would wait for it. A task with the preferred
        location ``executor_<any host>_<name>`` waits for that executor (``spark.locality.wait.process``).
        """
        self.prepare_warm(name)
        return self._prepared.pop(name).collectAsync()

    def prepare_warm(self, name: str) -> None:
        """Make all calls of a warm-up but the last in advance, so that no task of a batch reaches the executor before it."""
        if name in self._prepared:
            return
        if self._warm_up is None:
            nothing = NoOpSerializer()
            self._warm_up = _wrap_function(self._python, _warm_up, nothing, nothing)
        to_seq, pair = self._jvm.PythonUtils.toSeq, self._jvm.scala.Tuple2
        placed = self._context.makeRDD(to_seq([pair(bytearray(b""), to_seq([f"executor_any_{name}"]))]), self._tag)
        started = self._jvm.PythonRDD(placed, self._warm_up, False, False)
        self._prepared[name] = self._jvm.org.apache.spark.rdd.AsyncRDDActions(started, self._tag)

    def request_total(self, total: int) -> None:
        """Blocks until the cluster manager has answered, for up to ``spark.rpc.askTimeout``."""
        if not self._context.requestTotalExecutors(total, 0, self._jvm.PythonUtils.toScalaMap({})):
            raise RuntimeError(f"the cluster manager did not accept the request for {total} executors")

    def release(self, names: list[str]) -> None:
        """Decommission executors, which then end after their running tasks; kill them if that is disabled."""
        if self._graceful:
            nowhere = self._jvm.scala.Option.empty()
            info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released by Springtide", nowhere)
            pairs = self._gateway.new_array(self._jvm.scala.Tuple2, len(names))
            for place, name in enumerate(names):
                pairs[place] = self._jvm.scala.Tuple2(name, info)
            self._context.schedulerBackend().decommissionExecutors(pairs, False, False)
        else:
            self._context.schedulerBackend().killExecutors(self._jvm.PythonUtils.toSeq(names), False, False, True)

    def _seq(self, sequence: Any) -> list[Any]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(sequence))


def _warm_up(index: int, elements: Iterable[bytes]) -> Iterator[bytes]:
    import springtide.spark.task.entry
    import springtide.spark.task.stage  # noqa: F401  the modules of tasks

    return iter(())


def _executor(summary: Any, leaving: bool) -> Executor:
    """The executor of a line of the status store."""
    memory = summary.memoryMetrics()
    used = None
    if memory.isDefined():
        used = memory.get().usedOnHeapStorageMemory() + memory.get().usedOffHeapStorageMemory()
    return Executor(
        summary.id(), summary.hostPort().rpartition(":")[0], summary.totalCores(), summary.activeTasks(),
        summary.totalDuration() / 1000, used_bytes=used, memory_bytes=summary.maxMemory(),
        leaving=leaving,
    )  # fmt: skip
