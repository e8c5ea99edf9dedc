"""The job of ``springtide bench kafka`` on Bytewax, in two processes.

``python kafka_bytewax.py PROCESS ADDRESSES TASK`` runs one of the processes, with an interpreter that has bytewax and msgspec.
It prints when its first record came, when its last left, and how many came out, by key and window for the job with windows.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

_SPEC = importlib.util.spec_from_file_location("kafka_jobs", Path(__file__).with_name("kafka_jobs.py"))
assert _SPEC is not None and _SPEC.loader is not None
jobs: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["kafka_jobs"] = jobs
_SPEC.loader.exec_module(jobs)


class Seen:
    """What this process saw."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.rows = 0
        self.windows: Counter[tuple[str, int]] = Counter()

    def begin(self) -> None:
        self.first = self.first or time.time()

    def stateless(self, records: list[Any]) -> None:
        self.rows += len(records)
        self.last = time.time()

    def counted(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        for key, (window, count) in items:
            if window * jobs.WINDOW_S < jobs.CLOSING.total_seconds():
                self.windows[key, window] += count
        self.last = time.time()


def flow(task: dict[str, Any], seen: Seen) -> Any:
    """The dataflow: batches of messages are decoded, mapped and filtered in one loop."""
    import bytewax.operators as op
    import msgspec
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.operators import windowing
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    decode = msgspec.json.Decoder(jobs.Measured).decode

    class Part(StatelessSinkPartition):  # type: ignore[misc]
        def write_batch(self, items: list[Any]) -> None:
            (seen.stateless if task["job"] == "stateless" else seen.counted)(items)

    class Sink(DynamicSink):  # type: ignore[misc]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
            return Part()

    def warm(messages: list[Any]) -> list[Any]:
        seen.begin()
        return [out for message in messages if jobs.is_warm(out := jobs.convert(decode(message.value)))]

    made = Dataflow("bench")
    source = KafkaSource([task["servers"]], [task["topic"]], tail=False, batch_size=10_000)
    records = op.flat_map_batch("warm", op.input("in", made, source), warm)
    if task["job"] == "window":
        # a process reads its partitions one ahead of another: nothing is late within a day
        clock = windowing.EventClock(lambda record: record.at, wait_for_system_duration=2 * jobs.CLOSING)
        windower = windowing.TumblingWindower(length=timedelta(seconds=jobs.WINDOW_S), align_to=jobs.BEGIN)
        records = windowing.count_window("count", records, clock, windower, lambda record: record.key).down
    op.output("out", records, Sink())
    return made


def main() -> None:
    from bytewax._bytewax import cluster_main

    seen, task = Seen(), json.loads(sys.argv[3])
    cluster_main(flow(task, seen), sys.argv[2].split(";"), int(sys.argv[1]))
    windows = [[key, window, count] for (key, window), count in seen.windows.items()]
    print(json.dumps({"first": seen.first, "last": seen.last, "rows": seen.rows, "windows": windows}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
