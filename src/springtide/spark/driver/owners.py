"""The owner of each sink's folder: the checkpoint that writes there. Another one is refused: its run would repeat records.

    <folder>/_springtide/owners/IDENTITY.json    the checkpoint's identity, where it was, and its topology

An owner is known by its identity, which a checkpoint that is moved or renamed keeps. Folders of earlier versions have no such
file; there the names of the folders for staged files, which end with an identity, say who has written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from springtide.durable import Shape, make_folder, read_json, write_atomic
from springtide.errors import CheckpointError, DamageError
from springtide.model.endpoints import FilesSink
from springtide.model.topology import Topology
from springtide.spark.driver.checkpoint import Checkpoint
from springtide.spark.shared.program import PRIVATE_FOLDER
from springtide.spark.shared.remedies import ways_out

GO_ON = "go on from that checkpoint (checkpoint=, --checkpoint)"
UNLESS = "if its records are not needed"
BESIDE = "write beside them with st.sink.files(…, append=True)"
SHAPE = Shape({"checkpoint": (str,), "topology": (str,)})
_STAGED = re.compile(r".+-([0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True)
class Claim:
    """A folder to which a sink writes. ``what``: its name in errors."""

    what: str
    folder: Path

    @property
    def owners(self) -> Path:
        return self.folder / PRIVATE_FOLDER / "owners"

    def others(self, identity: str | None) -> Iterator[str]:
        """The other checkpoints that have written here, in words."""
        known = {file.stem: file for file in sorted(self.owners.glob("*.json"))}
        for other, file in known.items():
            if other != identity:
                yield _described(other, file)
        for place in [] if known else sorted((self.folder / PRIVATE_FOLDER).glob("*-*")):
            found = _STAGED.fullmatch(place.name)
            if found is not None and found[1] not in (identity, *known):
                yield f"of identity {found[1]}"


def _described(identity: str, file: Path) -> str:
    try:
        owner = read_json(file, SHAPE)
    except DamageError:  # it still says that there is another owner
        owner = None
    return f"of identity {identity}" if owner is None else f"{owner['checkpoint']} (topology {owner['topology']!r})"


def claims(topology: Topology) -> Iterator[Claim]:
    """The folders of all sinks that want one of their own."""
    sinks = [(f"sink {operator.name!r}", operator.sink) for operator in topology.sinks]
    for what, sink in [*sinks, ("the sink of dead letters", topology.dead_letters)]:
        if isinstance(sink, FilesSink) and not sink.append:
            yield Claim(what, Path(sink.path))


def check(wanted: Iterable[Claim], identity: str | None) -> None:
    """Refuse folders that other checkpoints have written to. ``identity``: None for a new checkpoint."""
    for claim in wanted:
        for other in claim.others(identity):
            raise CheckpointError(
                f"{claim.what}: folder {claim.folder} belongs to checkpoint {other}, and another one would write records there"
                f" again. {ways_out(GO_ON, 'give the sink another folder', f'remove {claim.folder}, {UNLESS}', BESIDE)}"
            )


def check_before(topology: Topology, root: Path | None) -> None:
    """Refuse folders of others before anything is changed. In a checkpoint without a sound topology.json ``claim`` does so:
    ``acquire`` puts the identity back before, or refuses the checkpoint by what is damaged."""
    identity = None
    if root is not None and root.is_dir() and any(root.iterdir()):
        try:
            stored = Checkpoint(root).recall("topology")
        except DamageError:
            stored = None
        if stored is None:
            return
        identity = str(stored["id"])
    check(claims(topology), identity)


def claim(topology: Topology, checkpoint: Checkpoint) -> None:
    """Make the checkpoint the owner of its sinks' folders. Two that begin at once see each other's files: both are refused."""
    mine = list(claims(topology))
    check(mine, checkpoint.identity)
    document = {"checkpoint": str(checkpoint.root), "topology": topology.name}
    written = []
    for each in {each.folder: each for each in mine}.values():
        file = each.owners / f"{checkpoint.identity}.json"
        if not file.exists():
            written.append(file)
        make_folder(each.owners)
        write_atomic(file, document)
    try:
        check(mine, checkpoint.identity)
    except CheckpointError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
