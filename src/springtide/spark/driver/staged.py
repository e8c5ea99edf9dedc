"""Staged files on the driver: located by their receipts, checked, published, swept.

A file is published only if the manifest has its receipt and the file is unchanged; the next start removes the others.
``task/staging.py`` writes the files.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from springtide.durable import make_folder, sync_folder
from springtide.errors import CheckpointError, RunError
from springtide.spark.shared.program import Staging
from springtide.spark.shared.receipt import Receipt, folder
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.task.encoding import FORMATS

BLOCK = 1 << 20
"""Bytes to read at once for the checksum of a file."""
_FORMATS = "|".join(FORMATS)  # of any sink: a sink's own may have changed since
_PART = r"\d+-\d+-\d+(?:-p\d+)?|rolled-\d+"
_NAME = re.compile(rf"({_PART})\.({_FORMATS})", re.ASCII)
_FILE = re.compile(rf"({_PART})-\d+\.({_FORMATS})", re.ASCII)
_PLACE = re.compile(r"(?:[^/=\0]+=[^/\0]+)(?:/[^/=\0]+=[^/\0]+)*")


class StagedFileError(Exception):
    """A file has changed since its task wrote it. This is no ``SpringtideError``, which would end the run: the query restarts,
    and that start has the batch computed again."""


@dataclass(frozen=True)
class Output:
    """A staged file on the driver. ``target`` is None if the driver reads the file and delivers its records."""

    receipt: Receipt
    staged: Path
    target: Path | None = None


def located(document: Mapping[str, Any], staging: Staging, target: str | None, batch: int) -> Output:
    """The file of a receipt, in the folders of its sink. ValueError if no task of that sink can have written the receipt."""
    receipt = _parsed(document, staging)
    prefix = f"{staging.stem}-{batch:08d}-"
    if _task_of(_NAME, prefix, receipt.name) is None:
        raise ValueError(f"{receipt.name!r} is not a name that output of batch {batch} can have")
    if _task_of(_FILE, prefix, receipt.file) != _task_of(_NAME, prefix, receipt.name):
        raise ValueError(f"{receipt.file!r} is not the name of a file that a task stages as {receipt.name!r}")
    if receipt.place and not _PLACE.fullmatch(receipt.place):
        raise ValueError(f"{receipt.place!r} is no folder that values of columns name")
    visible = None if target is None else Path(target) / receipt.place / receipt.name
    return Output(receipt, folder(staging, receipt.epoch) / receipt.file, visible)


def _task_of(pattern: re.Pattern[str], prefix: str, name: str) -> tuple[str | Any, ...] | None:
    """Level, gate, task and format, from a file's name after the common prefix of a sink's files in a batch."""
    found = pattern.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return None if found is None else found.groups()


def _parsed(document: Mapping[str, Any], staging: Staging) -> Receipt:
    """A receipt from its JSON. Receipts of earlier versions have the path of the file as ``staged``."""
    fields = dict(document)
    if "staged" in fields:
        place, file = os.path.split(str(fields.pop("staged")))
        epoch = re.fullmatch(r"epoch-(\d+)", os.path.basename(place), re.ASCII)
        if epoch is None or os.path.realpath(place) != os.path.realpath(folder(staging, int(epoch[1]))):
            raise ValueError(f"{os.path.join(place, file)!r} is not in its staging folder {staging.folder}")
        fields |= {"epoch": int(epoch[1]), "file": file}
    try:
        receipt = Receipt(**fields)
    except TypeError as error:
        raise ValueError(f"it has other fields than a receipt ({error})") from None
    numbers, names = (
        (receipt.epoch, receipt.rows, receipt.bytes or 0, receipt.crc32 or 0),
        (receipt.name, receipt.file, receipt.place),
    )
    if not all(isinstance(n, int) and n >= 0 for n in numbers) or not all(isinstance(name, str) for name in names):
        raise ValueError("its fields do not have the types of a receipt's")
    if "staged" not in document and None in (receipt.bytes, receipt.crc32):
        raise ValueError("its size or its checksum is missing")
    return receipt


def have_paths(receipts: Any) -> bool:
    """Whether these are receipts of an earlier version, which have the paths of files."""
    return isinstance(receipts, list) and any(isinstance(receipt, dict) and "staged" in receipt for receipt in receipts)


def check_staged(output: Output) -> None:
    """Refuse to commit a batch if the driver does not see one of its files, or sees other content than the task wrote."""
    fault = _fault(output.staged, output.receipt)
    if fault is None:
        return
    wrote = f"a task wrote {output.staged}, with {output.receipt.rows} records"
    if not os.path.lexists(output.staged):
        raise RunError(
            f"{wrote}, and the driver does not see it; nothing of the batch was committed. Mount that folder on every node, and"
            " start again"
        )
    raise StagedFileError(f"{wrote}, and now it {fault}; nothing of the batch was committed")


def check_part(output: Output) -> None:
    """Refuse to go on if a file of an earlier batch, which waits to be rolled, has changed: that batch cannot run again."""
    fault = _fault(output.staged, output.receipt)
    if fault is not None:
        raise CheckpointError(
            f"{output.staged} {fault}. It has {output.receipt.rows} records of a committed batch, which no reader has seen yet."
            f" {ways_out(PUT_BACK, 'restore the whole checkpoint and the output from an older copy', ANEW)}"
        )


def measured(path: Path) -> tuple[int, int]:
    """Size and checksum of a file."""
    with open(path, "rb", buffering=0) as file:
        checksum = _checksum(file)
        return file.tell(), checksum


def write_durably(path: Path, write: Callable[[IO[bytes]], None], mode: int) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def check_waiting(output: Output) -> None:
    """Refuse to publish a committed file that is gone or damaged: the batch has to be computed again."""
    fault = _fault(output.staged, output.receipt)
    if fault is not None:
        raise StagedFileError(f"the staged file {output.staged} {fault}, and sink {output.receipt.sink!r} does not have it")


def is_hidden(output: Output) -> bool:
    """Whether a committed file still has to be published. It has not if its target exists unchanged."""
    fault = _fault(output.staged, output.receipt)
    if fault is None:
        return True
    if output.target is None:
        return False
    target_fault = _fault(output.target, output.receipt)
    if target_fault is None:
        return False
    raise StagedFileError(f"the staged file {output.staged} {fault}, and {output.target} {target_fault}")


def publish(output: Output) -> None:
    """Make a staged file visible to readers: one rename."""
    assert output.target is not None
    if output.receipt.place:
        make_folder(output.target.parent)
    os.replace(output.staged, output.target)


def publish_all(outputs: Iterable[Output]) -> None:
    """Make files visible that are still hidden. All are checked before the first is moved."""
    visible = [output for output in outputs if output.target is not None]
    for output in [output for output in visible if is_hidden(output)]:
        publish(output)
    for parent in {output.target.parent for output in visible if output.target is not None and output.target.parent.is_dir()}:
        sync_folder(parent)


def _fault(path: Path, receipt: Receipt) -> str | None:
    """The difference between a file and its receipt; None if there is none. Links are not followed: a task writes none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "is no regular file"
        if receipt.bytes is None:
            return None
        if status.st_size != receipt.bytes:
            return f"has {status.st_size} bytes, not {receipt.bytes}"
        try:
            return None if _checksum(file) == receipt.crc32 else "has another checksum than when it was written"
        except OSError as error:
            return f"cannot be read ({error.strerror})"


def _checksum(file: Any) -> int:
    checksum = 0
    while block := file.read(BLOCK):
        checksum = zlib.crc32(block, checksum)
    return checksum


def sweep(staging: Staging, before_epoch: int, waiting: Collection[Path] = ()) -> None:
    """Remove files that earlier epochs staged and did not commit. ``waiting``: committed files that are not visible yet."""
    for place in Path(staging.folder).glob("epoch-*"):
        epoch = re.fullmatch(r"epoch-(\d+)", place.name, re.ASCII)
        if epoch is None or int(epoch[1]) >= before_epoch:
            continue
        if not any(file.parent == place for file in waiting):
            shutil.rmtree(place, ignore_errors=True)
            continue
        for file in place.iterdir():
            if file not in waiting:
                file.unlink(missing_ok=True)
