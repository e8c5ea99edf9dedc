"""A start without a file that the state needs is refused by the file's name, before Spark starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from springtide.errors import DamageError

pytest.importorskip("pyspark")

from springtide.spark.state import presence
from springtide.spark.state.catalog import Catalog, File, SegmentRun

OLD, NEW = (
    SegmentRun(0, 0, (File("00000000-000001-a.state", 10, 1),)),
    SegmentRun(1, 1, (File("00000001-000001-a.state", 20, 1),)),
)
MERGED = SegmentRun(0, 1, (File("00000000-00000001-000001-m1.state", 25, 2),), (NEW, OLD))


class Case:
    """The folder of an operator's state, with the files that its catalog names."""

    def __init__(self, folder: Path, *runs: SegmentRun, manifest: bool = True) -> None:
        self.folder = folder / "state" / "count"
        self.folder.mkdir(parents=True)
        catalog = {"count": Catalog(runs, 1).to_json()} if runs else {}
        checkpoint: Any = SimpleNamespace(
            own=folder,
            last_manifest=lambda: {"batch": 1} if manifest else None,
            catalogs=lambda: catalog,
        )
        self.checkpoint, self.layouts = checkpoint, {"count": SimpleNamespace(folder=str(self.folder), operator="count")}
        for run in runs:
            for one in (run, *run.before):
                for file in one.files:
                    (self.folder / file.name).write_bytes(bytes(file.bytes))

    def check(self) -> None:
        layouts: Any = self.layouts
        presence.check(self.checkpoint, layouts)


@pytest.mark.parametrize("manifest", [True, False], ids=["a batch", "an import"])
def test_state_whose_files_are_there_passes(tmp_path: Path, manifest: bool) -> None:
    Case(tmp_path, NEW, OLD, manifest=manifest).check()


@pytest.mark.parametrize(("size", "words"), [(None, "is gone"), (7, "has 7 bytes of 10"), (0, "has 0 bytes of 10")])
def test_a_segment_that_is_gone_or_cut_is_named(tmp_path: Path, size: int | None, words: str) -> None:
    case = Case(tmp_path, NEW, OLD)
    file = case.folder / OLD.files[0].name
    file.unlink()
    if size is not None:
        file.write_bytes(bytes(size))
    with pytest.raises(DamageError, match=rf"{file} {words}: it is state of operator 'count'\. .*1\. put that file back"):
        case.check()


def test_a_merged_segment_that_is_gone_is_left_to_those_that_it_was_merged_from(tmp_path: Path) -> None:
    case = Case(tmp_path, MERGED)
    (case.folder / MERGED.files[0].name).unlink()
    case.check()
    (case.folder / OLD.files[0].name).unlink()
    with pytest.raises(DamageError, match=r"m1\.state is gone, and the files that it was merged from are not all there either"):
        case.check()


def test_what_a_whole_segment_was_merged_from_is_not_needed(tmp_path: Path) -> None:
    case = Case(tmp_path, MERGED)
    (case.folder / OLD.files[0].name).unlink()
    case.check()


def test_imported_state_that_nothing_names_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    case = Case(tmp_path, manifest=False)
    (case.folder / "00000000-000000-seed-0a1b2c3d.state").write_bytes(b"")
    with pytest.raises(
        DamageError, match=r"seed\.json is gone, .*1\. put that file.*; 2\. import .*; 3\. .*remove .*seed-0a1b"
    ):
        case.check()
