"""Records the runs on this machine's Spark: ``python -m recorded.record`` in the folder ``tests``. Nothing else should run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import springtide as st
from recorded.runs import RUNS, reduced

FOLDER = Path(__file__).parent


def main() -> None:
    for name, run in RUNS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = st.run(
                run.topology(), policy=run.policy, settings=run.settings, max_slots=run.max_slots, runs=folder,
                duration=run.duration_s,
            )  # fmt: skip
            started = json.loads((result.folder / "checkpoint/springtide/schedule.json").read_text())["started"]
            lines = (result.folder / "batches.jsonl").read_text().splitlines()
            batches = reduced([json.loads(line) for line in lines], started)
        (FOLDER / f"{name}.json").write_text(json.dumps(batches, separators=(",", ":")) + "\n", encoding="utf-8")
        print(name, len(batches), "batches")


if __name__ == "__main__":
    main()
