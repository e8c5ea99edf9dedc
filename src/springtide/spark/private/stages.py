"""The stages of a batch as RDDs of blocks, by the classes that PySpark itself calls.

Why: the stages are built from RDDs of bytes rather than DataFrames, because a DataFrame is planned anew in every batch:
three shuffled stages of 1,000 rows took 316 ms as ``mapInArrow`` and ``repartitionById``, and 250 ms as RDDs. Both use
Spark's scheduler, its shuffle, its Python workers and its retries.
Seen to work on: Spark 4.2 and 4.3.
Without it (``PythonRDD``, ``PairwiseRDD``, ``PythonPartitioner``, ``AsyncRDDActions``, ``ByteArray`` of the JVM;
``_wrap_function`` and ``_jdf.toArrowBatchRdd`` of PySpark): a run fails at its first batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.core.rdd import RDD, _wrap_function
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame

LARGE_ANSWER = 5_000
"""Bytes of an answer of the JVM above which TCP may cut the text that Py4J sends into segments."""

StageFunction = Callable[[int, Iterable[bytes]], Iterator[bytes]]


class Stages:
    """Builds and runs the stages of batches. Functions are wrapped for Spark once per plan."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._jvm = context._jvm
        self._python_rdd = self._jvm.PythonRDD  # the look-up of a name is a call of 0.5 ms
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

    def scattered(self, elements: list[bytes]) -> Any:
        """A stage with one of these elements in each partition."""
        listed = self._jvm.java.util.ArrayList()
        for element in elements:
            listed.add(element)
        return self._context._jsc.parallelize(listed, len(elements)).rdd()

    def apply(self, stage: Any, function: StageFunction) -> Any:
        """A stage that runs a function on every partition."""
        if function not in self._wrapped:
            nothing = NoOpSerializer()
            self._wrapped[function] = _wrap_function(self._context, function, nothing, nothing)
        return self._python_rdd(stage, self._wrapped[function], False, False)

    def shuffle(self, stage: Any, width: int) -> Any:
        """Move each block to the partition that its key names.

        ``partitionBy`` would serialize blocks with Kryo. Every task makes and registers its own Kryo: 29 % of the CPU time of
        two Python stages. Java's own serializer writes a block as fast, and needs no set-up.
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
        """A stage as a Python RDD, for stages that become DataFrames again."""
        return RDD(stage.toJavaRDD(), self._context, NoOpSerializer())

    def persist(self, stage: Any) -> Callable[[], None]:
        """Cache the output of a stage that is read twice; returns a function that releases it."""
        stage.persist(self._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
        return lambda: stage.unpersist(False)

    def collect(self, stage: Any) -> bytes:
        """Run the job; returns the concatenated elements.

        ``RDD.collect`` would read the class file of ``RDD``, 189 kB, to clean its closure: 4 ms more. Fetching elements one
        by one takes 0.3 ms each, by a socket 3 ms, and all of them in one answer 0.3 ms; but an answer of more than 8 kB waits
        44 ms for a delayed TCP acknowledgement. So after a large answer, the next is fetched by a file: 2 ms.
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
    """Byte strings that follow their lengths, as Spark writes them."""
    start = 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        yield data[start + 4 : end]
        start = end
