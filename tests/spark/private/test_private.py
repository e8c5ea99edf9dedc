"""What Springtide puts in the place of Spark's and Hadoop's own parts: it has to do the same."""

from __future__ import annotations

import gc
import stat
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import psutil
import pytest

from springtide.spark.private import pool
from springtide.spark.private.daemon import WHOLE_EVERY, TaskGarbage
from springtide.spark.private.stages import Stages

pytestmark = pytest.mark.spark


def local_files(spark: Any) -> Any:
    return spark._jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())


def test_local_files_are_made_without_a_process_with_the_permissions_that_hadoop_gives(spark: Any, tmp_path: Path) -> None:
    files, jvm = local_files(spark), spark._jvm
    assert files.getClass().getName() == "springtide.LocalFiles"
    written = files.create(jvm.org.apache.hadoop.fs.Path(str(tmp_path / "made")), True)
    written.close()
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o644
    for mode in (0o600, 0o751, 0o1777):  # the last one by a process, as Java knows no sticky bit
        permission = jvm.org.apache.hadoop.fs.permission.FsPermission(mode)
        files.setPermission(jvm.org.apache.hadoop.fs.Path(str(tmp_path / "made")), permission)
        assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["made"], "no checksum file beside it"


def test_nothing_that_goes_to_executors_names_a_class_that_they_lack(spark: Any, tmp_path: Path) -> None:
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    assert conf.get("fs.file.impl") is None and local_files(spark).getConf().get("fs.file.impl") is None
    spark.range(100).write.parquet(str(tmp_path / "rows"))
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 100


def test_a_shuffle_brings_every_block_to_its_task(spark: Any) -> None:
    stages = Stages(spark.sparkContext)

    def blocks(split: int, _: Any) -> Any:
        for target in range(5):
            yield from (target.to_bytes(8, "big"), bytes([split, target]) * 100_000)

    def here(split: int, elements: Any) -> Any:
        found = list(elements)
        assert all(block[1] == split and len(block) == 200_000 for block in found)
        yield bytes([split]) + bytes(sorted(block[0] for block in found))

    begin = stages.apply(spark.sparkContext.parallelize(range(3), 3)._jrdd.rdd(), blocks)
    shuffled = stages.apply(stages.shuffle(begin, 5), here)
    assert stages.collect(shuffled) == b"".join(bytes([split, 0, 1, 2]) for split in range(5))


def test_a_local_session_has_a_worker_for_every_slot_before_they_are_wanted(spark: Any) -> None:
    pool._filled.clear()
    pool.fill(spark)
    deadline = time.monotonic() + 60
    while len(workers()) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(workers()) >= 4
    before = threading.active_count()
    pool.fill(spark)
    assert threading.active_count() <= before, "they are there for a while"


def test_after_a_task_a_worker_looks_through_young_garbage_only_and_now_and_then_through_all(spark: Any) -> None:
    def stand_in(_: int) -> tuple[str, str]:
        import pyspark.daemon

        return type(pyspark.daemon.gc).__name__, pyspark.daemon.gc.isenabled.__name__

    assert spark.sparkContext.parallelize([0], 1).map(stand_in).collect() == [("TaskGarbage", "isenabled")]


def test_garbage_of_tasks_goes_within_sixteen_of_them() -> None:
    class Ring:
        def __init__(self) -> None:
            self.own = self

    ring = Ring()
    gc.collect()  # what outlives it is old
    gone, garbage = weakref.ref(ring), TaskGarbage()
    del ring
    for task in range(1, WHOLE_EVERY):
        garbage.collect()
        assert gone() is not None, f"after task {task} of {WHOLE_EVERY} only young garbage is looked at"
    garbage.collect()
    assert gone() is None


def workers() -> list[int]:
    """The processes that a daemon of ours, below this one, has forked."""
    below = psutil.Process().children(recursive=True)
    daemons = {one.pid for one in below if "springtide.spark.private.daemon" in " ".join(_command(one))}
    return [one.pid for one in below if one.pid in daemons and one.ppid() in daemons]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
