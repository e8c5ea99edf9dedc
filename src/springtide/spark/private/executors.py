"""The executors, as the driver's scheduler and its status store know them.

Why: PySpark cannot list executors, nor ask for some; of Spark's developer API, asking and killing alone are public.
Seen to work on: Spark 4.2 and 4.3; on a standalone cluster and in ``local-cluster``.
Without it (``schedulerBackend``, ``statusStore``, ``decommissionExecutors``, ``AsyncRDDActions``):
``clusters.SparkCluster`` warns once, tries again for a while, and the run goes on with the executors that it has; a new
executor is not warmed up.
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
    import springtide.spark.task.entry
    import springtide.spark.task.stage  # noqa: F401  what tasks import

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
