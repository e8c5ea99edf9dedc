"""A checkpoint as an earlier version wrote it, whose keys are hashed in its way: ``checkpoint-v1/``.

It was recorded by running this module with the sources of the version before keys had domains::

    python -m recorded.old_checkpoint FOLDER

The absolute path of FOLDER, which Spark's log of files has, is replaced by a mark, and ``restored`` puts another in its place.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import springtide as st

RECORDED = Path(__file__).parent / "checkpoint-v1"
MARK = "@FOLDER@"


@dataclass(frozen=True)
class Place:
    x: int | None
    y: int | None


@dataclass(frozen=True)
class Visit:
    name: str | None
    number: int | None
    place: Place | None


OPERATORS = {"by_name": "name", "by_number": "number", "by_place": "place"}


def visits(first: int, last: int) -> list[dict[str, Any]]:
    """Each with keys of three types, nulls among them."""
    return [
        {
            "name": None if n % 7 == 0 else f"name {n % 7}",
            "number": None if n % 5 == 0 else n % 5 - 2,
            "place": None if n % 11 == 0 else {"x": n % 3, "y": None if n % 2 else n % 11},
        }
        for n in range(first, last)
    ]


def topology(folder: Path) -> st.Topology:
    read = st.source.files(folder / "input", format="json", schema=Visit, max_files=1, name="visits")
    counts = {name: read.key_by(column).count(shards=8, name=name) for name, column in OPERATORS.items()}
    return st.topology("visits", *(one.to(st.sink.discard(), name=f"nowhere_{name}") for name, one in counts.items()))


def write_input(folder: Path, number: int, rows: Iterable[dict[str, Any]]) -> None:
    (folder / "input").mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "input" / f"{number}.json").write_text(text, encoding="utf-8")


def expected(column: str, rows: Iterable[dict[str, Any]]) -> Counter[str]:
    """By key, as JSON, how many records it has."""
    return Counter(json.dumps(row[column]) for row in rows)


def restored(folder: Path) -> Path:
    """The recorded checkpoint in a folder, beside the input that it has read; its path."""
    shutil.copytree(RECORDED, folder, dirs_exist_ok=True)
    for file in (folder / "checkpoint" / "spark" / "sources").rglob("*"):
        if file.is_file():
            file.write_text(file.read_text(encoding="utf-8").replace(MARK, str(folder)), encoding="utf-8")
    return folder / "checkpoint"


def run(folder: Path, spark: Any = None) -> None:
    """Read what is new in the input."""
    st.run(
        topology(folder), checkpoint=folder / "checkpoint", runs=folder / "runs", available_now=True, max_slots=1, spark=spark
    )


def record(folder: Path) -> None:
    for number in range(2):
        write_input(folder, number, visits(50 * number, 50 * (number + 1)))
        run(folder)
    for file in folder.rglob(".*.crc"):  # of a text that is about to change
        file.unlink()
    for file in (folder / "checkpoint" / "spark" / "sources").rglob("*"):
        if file.is_file():
            file.write_text(file.read_text(encoding="utf-8").replace(str(folder), MARK), encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]).absolute())
