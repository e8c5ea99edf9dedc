"""Staged output: files that tasks write and the driver commits.

A task writes a file of its own, whose name no other attempt has, and sends the driver a receipt with its size and checksum.
Only files of receipts that reached the manifest, and that are still as they were written, are ever moved to where readers
look; the rest is swept away at the next start.

A receipt holds plain names: the folders are those of the sink that it belongs to, whatever a manifest says.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from springtide.errors import RunError
from springtide.spark.shared.durable import make_folder, sync_folder
from springtide.spark.shared.program import Staging
from springtide.spark.task.encoding import FORMATS, Refusal, encoded

BLOCK = 1 << 20
"""Bytes of a file that are read at once for its checksum."""
_FORMATS = "|".join(FORMATS)  # of any sink: a sink's own may have changed since
_NAME = re.compile(rf"(\d+-\d+-\d+)\.({_FORMATS})", re.ASCII)
_FILE = re.compile(rf"(\d+-\d+-\d+)-\d+\.({_FORMATS})", re.ASCII)


class StagedFileError(Exception):
    """A file that is not as its task wrote it. It is no ``SpringtideError``, which would end the run: the query starts again,
    and that start has the batch computed again."""


@dataclass(frozen=True)
class Place:
    """Which attempt of which task writes."""

    epoch: int
    batch: int
    level: int
    gate: int
    task: int
    attempt: int


@dataclass(frozen=True)
class Receipt:
    """A staged file. ``sink`` is "" for dead letters; ``name`` is what readers see. Size and checksum are None in manifests of
    versions that did not write them."""

    sink: str
    epoch: int
    file: str
    name: str
    rows: int
    bytes: int | None = None
    crc32: int | None = None


@dataclass(frozen=True)
class Written:
    """The receipts of a task's records for one sink, as JSON: one, or none if no record could be written."""

    receipts: tuple[dict[str, Any], ...]
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Output:
    """A staged file on the driver. ``target`` is None where the driver reads it and hands its records on."""

    receipt: Receipt
    staged: Path
    target: Path | None = None


def write(staging: Staging, sink: str, place: Place, batches: list[pa.RecordBatch]) -> Written:
    """Write the records that the format can hold to one file, durably. ``sink`` is "" for dead letters."""
    content = encoded(pa.Table.from_batches(batches), staging.format)
    if not content.rows:
        return Written((), content.refused)
    stem = f"{staging.stem}-{place.batch:08d}-{place.level}-{place.gate}-{place.task:05d}"
    file = f"{stem}-{place.attempt}.{staging.format}"
    path = _folder(staging, place.epoch) / file
    try:
        _write_durably(path, content.content, staging.mode)
    except OSError as error:  # a full disk, say: no record's fault, so the attempt fails
        raise OSError(error.errno, f"{error.strerror}, while {content.rows} records were staged", str(path)) from error
    size, checksum = len(content.content), zlib.crc32(content.content)
    receipt = Receipt(sink, place.epoch, file, f"{stem}.{staging.format}", content.rows, size, checksum)
    return Written((asdict(receipt),), content.refused)


def _write_durably(path: Path, content: bytes | pa.Buffer, mode: int) -> None:
    make_folder(path.parent)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _folder(staging: Staging, epoch: int) -> Path:
    return Path(staging.folder) / f"epoch-{epoch:06d}"


def located(document: Mapping[str, Any], staging: Staging, target: str | None, batch: int) -> Output:
    """The file of a receipt, in the folders of its sink. ValueError if no task of that sink can have written the receipt."""
    receipt = _parsed(document, staging)
    prefix = f"{staging.stem}-{batch:08d}-"
    if _task_of(_NAME, prefix, receipt.name) is None:
        raise ValueError(f"{receipt.name!r} is not a name that output of batch {batch} can have")
    if _task_of(_FILE, prefix, receipt.file) != _task_of(_NAME, prefix, receipt.name):
        raise ValueError(f"{receipt.file!r} is not the name of a file that a task stages as {receipt.name!r}")
    visible = None if target is None else Path(target) / receipt.name
    return Output(receipt, _folder(staging, receipt.epoch) / receipt.file, visible)


def _task_of(pattern: re.Pattern[str], prefix: str, name: str) -> tuple[str | Any, ...] | None:
    """Level, gate, task and format, from a file's name behind the prefix that all files of a sink have in a batch."""
    found = pattern.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
    return None if found is None else found.groups()


def _parsed(document: Mapping[str, Any], staging: Staging) -> Receipt:
    """A receipt from its JSON. Before receipts had plain names, they had the path of the file as ``staged``."""
    fields = dict(document)
    if "staged" in fields:
        folder, file = os.path.split(str(fields.pop("staged")))
        epoch = re.fullmatch(r"epoch-(\d+)", os.path.basename(folder), re.ASCII)
        if epoch is None or os.path.realpath(folder) != os.path.realpath(_folder(staging, int(epoch[1]))):
            raise ValueError(f"{os.path.join(folder, file)!r} is not in its staging folder {staging.folder}")
        fields |= {"epoch": int(epoch[1]), "file": file}
    try:
        receipt = Receipt(**fields)
    except TypeError as error:
        raise ValueError(f"it has other fields than a receipt ({error})") from None
    numbers, names = (receipt.epoch, receipt.rows, receipt.bytes or 0, receipt.crc32 or 0), (receipt.name, receipt.file)
    if not all(isinstance(one, int) and one >= 0 for one in numbers) or not all(isinstance(one, str) for one in names):
        raise ValueError("its fields do not have the types of a receipt's")
    if "staged" not in document and None in (receipt.bytes, receipt.crc32):
        raise ValueError("its size or its checksum is missing")
    return receipt


def have_paths(receipts: Any) -> bool:
    """Whether these are receipts of an earlier version, which had the paths of files."""
    return isinstance(receipts, list) and any(isinstance(one, dict) and "staged" in one for one in receipts)


def check_staged(output: Output) -> None:
    """Refuse to commit a batch of which the driver does not see a file, or not as it was written."""
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


def is_hidden(output: Output) -> bool:
    """Whether a committed file is still to be published; it is not if its target is there, as it was written."""
    fault = _fault(output.staged, output.receipt)
    if fault is None:
        return True
    if output.target is None:
        return False
    elsewhere = _fault(output.target, output.receipt)
    if elsewhere is None:
        return False
    raise StagedFileError(f"the staged file {output.staged} {fault}, and {output.target} {elsewhere}")


def publish(output: Output) -> None:
    """Move a staged file to where readers look."""
    assert output.target is not None
    os.replace(output.staged, output.target)


def _fault(path: Path, receipt: Receipt) -> str | None:
    """What is wrong with a file, None if it is as the receipt says. Links are not followed: a task writes none."""
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


def sweep(staging: Staging, before_epoch: int) -> None:
    """Remove what earlier epochs staged and did not commit."""
    for folder in Path(staging.folder).glob("epoch-*"):
        epoch = re.fullmatch(r"epoch-(\d+)", folder.name, re.ASCII)
        if epoch is not None and int(epoch[1]) < before_epoch:
            shutil.rmtree(folder, ignore_errors=True)
