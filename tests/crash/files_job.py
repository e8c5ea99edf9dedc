"""Files in, files out: ``python files_job.py FOLDER`` reads what is there, a few files at a time, and writes rolled files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import springtide as st
from springtide.model.topology import Topology


@dataclass(frozen=True)
class Row:
    n: int
    day: str


def doubled(row: Row) -> Row:
    return Row(2 * row.n, row.day)


def build(folder: Path) -> Topology:
    rows = st.source.files(folder / "in", format="json", schema=Row, max_files=3, name="rows")
    return rows.map(doubled).to(st.sink.files(folder / "out", roll_every="1s", partition_by="day")).named("files")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    st.run(build(root), checkpoint=root / "checkpoint", runs=root / "runs", available_now=True, policy="static", max_slots=2)
