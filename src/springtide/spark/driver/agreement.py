"""Decides whether the parts of a checkpoint agree at a start, and what to mend if they do not.

For every batch Spark logs offsets/N, then Springtide writes begun.json and manifests/N.json, then Spark logs commits/N. So the
last commit is never ahead of the last manifest, which is never ahead of the last offsets. The manifest decides: it repeats the
offsets of its batch. Later entries of Spark's log can be planned anew, unless a sink has received their batch.

Pure functions: ``starting`` reads the checkpoint, and applies the decisions.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from springtide.spark.driver.begun import Begun
from springtide.spark.private.logs import COMMIT, SourceLogEntry, are_offsets, is_commit, log_offsets


@dataclass(frozen=True)
class Found:
    """The contents of a checkpoint at a start. ``last``: the last batch with a manifest, -1 for none."""

    last: int
    recorded: Mapping[int, str | int]  # the offsets in manifests, by batch; older manifests have only their checksum
    logs: Mapping[str, int] | None  # the checksums of the sources' logs in the last manifest; None if it has none
    offsets: Mapping[int, str]
    commits: Mapping[int, str]
    entries: Mapping[str, int | None]  # the entries of the sources' logs, with checksums where a manifest or begun.json has one
    begun: Begun | None = None
    begun_is_damaged: bool = False
    hands_on: bool = False  # a sink delivers batches to others before their commit
    published: Mapping[str, int] = field(default_factory=dict)  # the newest file of each sink, with its batch

    @property
    def running(self) -> int:
        """The batch that has begun and is not committed, if there is one."""
        return self.last + 1


@dataclass(frozen=True)
class Disagreement:
    """Why a run is refused: a file, relative to the checkpoint, and what differs."""

    file: str
    differs: str


@dataclass(frozen=True)
class Mending:
    """A file of Spark's to write, or to remove if ``text`` is None. ``reason``: a warning for the log, None for no warning."""

    file: str
    text: str | None
    reason: str | None


def refusal_of(found: Found) -> Disagreement | None:
    """The reason to refuse the run; None if there is none."""
    refusals = (_ahead(found), _behind(found), _changed(found), _source_log_fault(found), _begun_fault(found))
    return next((refusal for refusal in refusals if refusal is not None), None)


def mendings_of(found: Found) -> list[Mending]:
    """What to mend before Spark starts, if the run is not refused."""
    return [*_committed_offsets(found), *_begun_offsets(found), *_unreadable_commits(found), *_lost_commit(found)]


def is_note_void(found: Found) -> bool:
    """Whether to remove begun.json: it is damaged, or its batch begins anew with other offsets."""
    return found.begun_is_damaged or (_is_witnessed(found) and not _is_replayed(found))


def _ahead(found: Found) -> Disagreement | None:
    """Manifests are missing: another file shows that a later batch was committed."""
    last = max(found.offsets, default=-1)
    known = {
        "Spark's log of commits": max(found.commits, default=-1),
        f"Spark's offsets/{last}, which it writes after the commit of batch {last - 1},": last - 1,
        **({"begun.json, which is written after that commit,": found.begun.batch - 1} if found.begun else {}),
        **{f"the published file {file}": batch for file, batch in found.published.items() if not _is_repeated(found, batch)},
    }
    witness, batch = max(known.items(), key=lambda item: item[1])
    if batch <= found.last:
        return None
    there = "there is no manifest" if found.last < 0 else f"the last manifest is that of batch {found.last}"
    return Disagreement(
        f"springtide/manifests/{batch:08d}.json",
        f"is gone: {witness} knows that batch {batch} was committed, but {there}. State and output would go on from there, and"
        " records of the batches between would be lost or counted twice",
    )


def _is_repeated(found: Found, batch: int) -> bool:
    """Whether a batch is repeated with the same offsets and plan, so that it publishes files with the same names."""
    return batch == found.running and _is_witnessed(found)


def _behind(found: Found) -> Disagreement | None:
    """Spark's logs are older than the manifests, by more than the loss of a file explains."""
    newest = max([*found.offsets, *found.commits], default=-1)
    if found.last not in found.recorded or newest >= found.last - 1:
        return None
    end = "are empty" if newest < 0 else f"end with batch {newest}"
    return Disagreement(
        f"spark/offsets/{found.last}",
        f"is gone: batch {found.last} is committed, but Spark's logs {end}, so that the folder spark is older than springtide",
    )


def _changed(found: Found) -> Disagreement | None:
    """The offsets of the last batches differ from the manifests' and cannot be put back."""
    wrong = [batch for batch in (found.last - 1, found.last) if not _is_recorded(found, batch)]
    if len([batch for batch in wrong if found.offsets.get(batch)]) == 2:
        return Disagreement(
            f"spark/offsets/{found.last}",
            f"was changed since batch {found.last} was committed, and so was offsets/{found.last - 1}: the manifests have other"
            " offsets, so that the folder spark is another checkpoint's",
        )
    if found.last in wrong and not isinstance(found.recorded[found.last], str):
        return Disagreement(f"spark/offsets/{found.last}", f"is gone or was changed since batch {found.last} was committed")
    return None


def _is_recorded(found: Found, batch: int) -> bool:
    """Whether a batch has the offsets of its manifest, as far as the manifest has any."""
    recorded, text = found.recorded.get(batch), found.offsets.get(batch)
    if recorded is None:
        return True
    return recorded == (text if isinstance(recorded, str) or text is None else zlib.crc32(text.encode()))


def _committed_offsets(found: Found) -> Iterator[Mending]:
    """Spark reads the last two entries of its offset log."""
    for batch in (found.last - 1, found.last):
        recorded = found.recorded.get(batch)
        if isinstance(recorded, str) and not _is_recorded(found, batch):
            fault = "was changed" if found.offsets.get(batch) else "is gone or empty"
            yield Mending(f"spark/offsets/{batch}", recorded, f"{fault}; it is put back from the manifest of batch {batch}")


def _unreadable_commits(found: Found) -> Iterator[Mending]:
    """Spark has no state, so the commits of all batches have the same text. Without a commit Spark replays the last batch."""
    readable = next((text for text in found.commits.values() if is_commit(text)), None)
    for batch, text in found.commits.items():
        if not is_commit(text):
            mended = "removed" if readable is None else "written anew"
            yield Mending(f"spark/commits/{batch}", readable, f"cannot be read; it is {mended}, as the batch has a manifest")


def _lost_commit(found: Found) -> Iterator[Mending]:
    """Spark logs a commit before it begins the next batch, but does not fsync it. Without the commit, output that readers have
    removed since would count as damaged."""
    if found.last >= 0 and found.last not in found.commits and (found.running in found.offsets or _is_witnessed(found)):
        text = next((text for text in found.commits.values() if is_commit(text)), COMMIT)
        yield Mending(f"spark/commits/{found.last}", text, "is gone; it is written anew, as Spark began another batch after it")


# The logs of sources


def _source_log_faults(found: Found, wanted: Mapping[str, int], compacted: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The entries that are missing or changed, each with the difference. A later compaction replaces the entries before it."""
    replaced: dict[int, int] = {}  # by source, the last compaction
    for entry in map(SourceLogEntry.of, compacted):
        if entry is not None and entry.compact:
            replaced[entry.source] = max(entry.number, replaced.get(entry.source, -1))
    for name, checksum in wanted.items():
        entry = SourceLogEntry.of(name)
        if name not in found.entries:
            if entry is None or replaced.get(entry.source, -1) <= entry.number:
                yield name, "is gone"
        elif found.entries[name] != checksum:
            yield name, "was changed"


def _source_log_fault(found: Found) -> Disagreement | None:
    if found.logs is None:
        return None
    compacted = [*found.logs, *(found.begun.logs if found.begun is not None and _is_replayed(found) else ())]
    for name, differs in _source_log_faults(found, found.logs, compacted):
        return Disagreement(
            f"spark/sources/{name}",
            f"{differs} since batch {found.last} was committed: its source would read files again, or leave some out",
        )
    return None


# The batch that was begun


def _is_witnessed(found: Found) -> bool:
    return found.begun is not None and found.begun.batch == found.running


def _is_replayed(found: Found) -> bool:
    """Whether Spark resumes the batch that has begun. If no sink has received the batch, it can be planned anew."""
    if _is_witnessed(found):
        return found.hands_on or not _begun_logs_are_damaged(found)
    return found.hands_on and are_offsets(found.offsets.get(found.running, ""))


def _begun_logs_are_damaged(found: Found) -> bool:
    assert found.begun is not None
    return any(True for _ in _source_log_faults(found, found.begun.logs, found.begun.logs))


def _begun_fault(found: Found) -> Disagreement | None:
    """A sink has received a batch that cannot be repeated."""
    if not found.hands_on:
        return None
    handed = f"batch {found.running} was handed to a sink, and may not be repeated with other records"
    if _is_witnessed(found) and found.begun is not None:
        for name, differs in _source_log_faults(found, found.begun.logs, found.begun.logs):
            return Disagreement(f"spark/sources/{name}", f"{differs} since batch {found.running} was begun: {handed}")
    elif found.begun_is_damaged and found.running in found.offsets and not are_offsets(found.offsets[found.running]):
        return Disagreement(f"spark/offsets/{found.running}", f"cannot be read, nor can springtide/begun.json: {handed}")
    return None


def _begun_offsets(found: Found) -> Iterator[Mending]:
    number, text = found.running, found.offsets.get(found.running)
    if _is_replayed(found):
        if _is_witnessed(found) and found.begun is not None and text != found.begun.offsets:
            fault = "was changed" if text else "is gone or empty"
            yield Mending(f"spark/offsets/{number}", found.begun.offsets, f"{fault}; it is put back from springtide/begun.json")
        return
    if text is not None:
        fault = "belongs to a source log that is damaged" if _is_witnessed(found) else "cannot be read"
        reason = f"{fault}; nothing of batch {number} is committed, and it begins anew"
        is_damaged = _is_witnessed(found) or not are_offsets(text)
        yield Mending(f"spark/offsets/{number}", None, reason if is_damaged else None)
    for name in _planned_only(found, text):
        yield Mending(f"spark/sources/{name}", None, None)


def _planned_only(found: Found, text: str | None) -> Iterator[str]:
    """The source log entries that no committed batch has read. Spark lists those files again."""
    recorded = found.recorded.get(found.last)
    if found.logs is None and found.last >= 0:
        return  # it is not known which entries are committed
    read = log_offsets(recorded) if isinstance(recorded, str) else {}
    planned = log_offsets(text or "")
    for name in found.entries:
        entry = SourceLogEntry.of(name)
        if entry is None:
            continue
        committed = read.get(entry.source)
        is_log = committed is not None or planned.get(entry.source) is not None
        if is_log and entry.number > (-1 if committed is None else committed):
            yield name
