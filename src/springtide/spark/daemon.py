"""The parent of Spark's Python workers, with what every worker needs imported before they are forked.

Two gains. A fresh worker starts without importing Arrow and numpy again. And what was imported is frozen out of the
garbage collector: Spark collects garbage after every task, which took 20 ms of each stage on 2 cores before.
"""

from __future__ import annotations

import gc

import pyspark.daemon
import pyspark.worker

import springtide.spark.worker  # noqa: F401  preloaded for the workers

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
