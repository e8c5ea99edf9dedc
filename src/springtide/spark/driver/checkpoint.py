"""Springtide's part of a checkpoint: the fence, and for every batch its plan and its manifest.

<checkpoint>/spark/        Spark's own offset and commit logs
<checkpoint>/springtide/
    topology.json          the properties that may not change: the graph, the schemas, the keys
    driver.lock, jvm.lock  locked by the driver, and by its JVM
    epoch.json             the fencing token: grows by one at every start
    knowledge/N.npz        the knowledge of groupings, by edition; plans name the edition
    secret.json            the secret that seeds the hashes of keys, for routes and state; mode 0600
    state.json             the declarations of stateful operators, and the location of state; in older checkpoints also a secret
    ticks.json             whether there are batches without records, for timers
    seed.json              imported state by operator, from which the first batch begins
    imported.json          by operator, the checkpoint and batch from which imported state was exported
    state/OPERATOR/        the state, unless it is located elsewhere: segments, which manifests name
    policy.json            the learned state of the policy, for a policy with the same parameters
    tables.json            the tables to which this checkpoint writes batches
    floor.json             the measured minimal duration of a batch
    schedule.json          the start of the schedule of generated sources, written before the first batch
    origins.json           by source, what other sources decided before the first batch, such as the first offsets
    sources/SOURCE.json    the plan's read limit for a source that tasks read
    sources/SOURCE/        the list of the files that a source of files has seen
    staged/SINK/           the output of tasks for a sink to which the driver delivers it
    dead/                  the dead letters, unless the topology has a sink for them
    workers/EPOCH/         a page for each Python worker with its current record; removed when the run ends
    plans/N.json           the plan from batch N on, written before N runs; a replay uses the same plan
    begun.json             the batch that began last: Spark's offsets, and checksums of its sources' logs
    manifests/N.json       batch N is committed if and only if this file exists
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from springtide.durable import read_json, write_atomic
from springtide.errors import CheckpointError, DamageError
from springtide.model.topology import Topology
from springtide.spark.driver.begun import Begun, Note
from springtide.spark.driver.documents import SEED, SETTLED, known
from springtide.spark.driver.editions import Editions
from springtide.spark.driver.fingerprint import checksum, compare, fingerprint
from springtide.spark.driver.lock import Lock
from springtide.spark.driver.manifests import Manifests
from springtide.spark.driver.plan_files import PlanFiles
from springtide.spark.driver.starting import Parts
from springtide.spark.private.logs import Logs
from springtide.spark.shared.program import staging_of
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state.store import below

log = logging.getLogger("springtide.spark")


class Checkpoint:
    """The checkpoint of a topology, locked by this driver from ``acquire`` to ``release``."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.own = self.root / "springtide"
        self.epoch = 0
        self.identity = ""
        self._lock = Lock(self.root, self.own / "driver.lock")
        self.logs = Logs(self.root / "spark")
        self.manifests = Manifests(self.own / "manifests")
        self._topology: dict[str, Any] = {}  # its id and its fingerprint's checksum, for manifests
        self._settled: dict[str, Any] = {}  # the documents that never change, for manifests
        self._begun: Begun | None = None
        self.plans = PlanFiles(self.own / "plans")
        self._note = Note(self.own / "begun.json")
        self._staged: tuple[Path, ...] = ()

    @property
    def spark_location(self) -> str:
        return self.logs.folder.as_uri()

    @property
    def editions(self) -> Editions:
        return Editions(self.own / "knowledge")

    @property
    def jvm_lock(self) -> Path:
        return self.own / "jvm.lock"

    def source_control(self, source: str) -> Path:
        """The file with the plan's read limit for a source that tasks read."""
        return self.own / "sources" / f"{source}.json"

    def source_folder(self, source: str) -> Path:
        """The folder for what a source stores, such as a list of files."""
        return self.own / "sources" / source

    # Locking

    def acquire(self, topology: Topology) -> None:
        """Lock the checkpoint, check that it belongs to this topology and that its parts agree."""
        if self.root.exists() and not self.root.is_dir():
            raise CheckpointError(f"checkpoint {self.root} is a file; give a folder")
        if self.root.is_dir() and any(self.root.iterdir()) and not self.own.is_dir():
            raise CheckpointError(
                f"{self.root} holds files but no checkpoint of Springtide; give an empty or new folder. If it was a checkpoint,"
                f" its folder {self.own} is gone: put it back from a copy"
            )
        wanted = fingerprint(topology)
        self._check_fits(topology, wanted)
        try:
            for folder in ("plans", "manifests", "staged", "sources"):
                (self.own / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.root} cannot be made: {error.strerror}; give another folder") from None
        self._lock.take()
        self._begun, self.manifests = None, Manifests(self.own / "manifests")  # another driver may have written meanwhile
        try:
            self._identify(topology, wanted)
            self._agree(topology)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._note.close()
        self._lock.release()

    # Identity

    def _check_fits(self, topology: Topology, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """Refuse another topology. Returns the stored fingerprint; None if it is gone or damaged."""
        try:
            stored = self.recall("topology")
        except DamageError:
            return None
        differences = [] if stored is None else compare(stored, wanted)
        if differences:
            raise CheckpointError(
                f"checkpoint {self.root} does not fit topology {topology.name!r}: {'; '.join(differences)}."
                " Give a new checkpoint, or change the topology back"
            )
        return stored

    def _identify(self, topology: Topology, wanted: Mapping[str, Any]) -> None:
        """Read the checkpoint's id from topology.json or from a copy; make one for a new checkpoint."""
        stored = self._check_fits(topology, wanted)  # again: another driver may have made the checkpoint meanwhile
        if stored is None:
            stored = {**wanted, "id": self._known_id(wanted) or uuid.uuid4().hex[:12]}
            self.remember("topology", stored)
        self.identity = stored["id"]
        self._topology = {"id": self.identity, "fingerprint": checksum(wanted)}

    def _known_id(self, wanted: Mapping[str, Any]) -> str | None:
        """The id of a checkpoint whose topology.json is gone or damaged; None if nothing depends on it."""
        file = self.own / "topology.json"
        last, state = self.last_manifest(), None
        if last is None and self.recall(SEED):
            state = self.recall("state")
        if last is None and state is None:
            if file.exists():
                log.warning("%s is damaged; no batch is committed yet, so it is written again", file)
            return None
        repeated = (last or state or {}).get("topology")
        if not isinstance(repeated, dict) or repeated.get("fingerprint") != checksum(wanted):
            raise self._is_gone("topology.json", "state that was imported" if last is None else "batches that are committed")
        log.warning("%s is gone or damaged; it is written again, because the topology is the one that ran last", file)
        return str(repeated["id"])

    def _is_gone(self, file: str, content: str) -> DamageError:
        """The error for a lost file on which ``content`` of the checkpoint depends."""
        path = self.own / file
        fault = "is damaged" if path.exists() else "is gone"
        return DamageError(path, f"{fault}, but the checkpoint has {content}", ways_out(PUT_BACK, ANEW))

    # Agreement of the parts

    def _agree(self, topology: Topology) -> None:
        """Refuse parts that do not agree, or mend them."""
        places, letters = staging_of(topology, str(self.own), self.identity)
        staged = tuple(place for place in (*places.values(), letters) if place is not None)
        self._staged = tuple(Path(place.folder) for place in staged)
        noted = self.recall("begun")
        begun = None if noted is None else Begun.from_json(noted)
        note, has_state = self.own / "begun.json", (self.own / "state.json").exists()
        Parts(self.root, self.manifests, self.logs, note, begun, topology, staged, has_state).agree()
        self._settle(self.last_manifest() or {}, begun)

    def _settle(self, last: Mapping[str, Any], begun: Begun | None) -> None:
        """Restore the documents that never change from their copies in the last manifest and in begun.json."""
        for name in SETTLED:
            repeated = last.get(name) or (begun.settled.get(name) if begun is not None else None)
            file, stored = self.own / f"{name}.json", None
            try:
                stored = self.recall(name)
            except DamageError as error:
                if repeated is None and last:  # older manifests have no copy
                    raise
                if repeated is None:
                    log.warning("%s %s; no batch is committed yet, so it is written again", file, error.fault)
                    file.unlink()
            if repeated is not None and stored != repeated:
                log.warning("%s is gone or damaged; it is put back", file)
                self.remember(name, repeated)
            elif stored is not None:
                self._settled[name] = stored

    # Epochs

    def next_epoch(self) -> None:
        """Take the next fencing token. Files that an earlier epoch staged can no longer be committed."""
        self.epoch = 1 + max(self._epochs(), default=0)
        self.remember("epoch", {"epoch": self.epoch, "pid": os.getpid(), "host": socket.gethostname()})

    def _epochs(self) -> Iterator[int]:
        """All epochs that any file names, so that an older copy of epoch.json does not repeat an epoch."""
        yield (self.recall("epoch") or {"epoch": 0})["epoch"]
        yield (self.last_manifest() or {"epoch": 0})["epoch"]
        yield (self.recall("begun") or {"epoch": 0})["epoch"]
        for folder in self._staged:
            for path in folder.glob("epoch-*"):
                found = re.fullmatch(r"epoch-(\d+)", path.name)
                yield 0 if found is None else int(found[1])

    def check_fence(self, epoch: int) -> None:
        """Fail if another epoch has begun, of this driver, or of another one if a network file system lost the lock."""
        current = read_json(self.own / "epoch.json", known("epoch").shape)
        if current is None or current["epoch"] != epoch:
            raise CheckpointError(f"checkpoint {self.root} was taken over by another driver ({current}); this one ends")

    # State

    def secret(self) -> str:
        """The secret that seeds the hashes of keys, so that senders of records cannot choose keys of one task, or of one hash.
        A start without one makes it anew: only the place of keys depends on the secret, see ``state/rehash.py``."""
        found = self.known_secret()
        if found is None:
            found = secrets.token_hex(16)
            self.remember("secret", {"secret": found})
        return found

    def known_secret(self) -> str | None:
        """The secret; None if it is gone or damaged."""
        found: str | None = (self.recall("secret") or {"secret": None})["secret"]
        return found

    def state_secret(self, stored: Mapping[str, Any]) -> str | None:
        """The secret for the keys of state. Checkpoints of earlier versions have a separate one in state.json."""
        return stored.get("secret") or self.known_secret()

    def catalogs(self) -> dict[str, Any]:
        """By operator, the catalog of its state after the last batch, or as imported before the first."""
        last = self.last_manifest()
        return (self.recall(SEED) or {}) if last is None else last.get("state", {})

    def keep_state(self, declared: Mapping[str, Mapping[str, Any]], location: str | None = None) -> str:
        """Store the declarations of stateful operators; returns the secret of their keys. The number of shards may not change.

        ``location``: the URI for state; None for its present location, which is in the checkpoint by default.
        """
        stored = self.recall("state")
        if stored is None:
            if (self.last_manifest() or {}).get("state") or self.recall(SEED):
                raise self._is_gone("state.json", "state, whose shards and variables are declared in it")
            stored = {"declared": {}, "location": location}
        present = stored.get("location")
        if location is not None and location != present:
            where = "inside it" if present is None else f"at {present!r}"
            raise CheckpointError(
                f"state={location!r}, but the state of checkpoint {self.root} lies {where}, for ever. Leave that option out, or"
                " export the state and import it into a new checkpoint"
            )
        for name, before in stored["declared"].items():
            now = declared.get(name, before)
            if before["shards"] != now["shards"]:
                raise CheckpointError(
                    f"operator {name!r}: shards={now['shards']}, but in checkpoint {self.root} it has {before['shards']}, for"
                    " ever. Change that back, or export its state and import it into a new checkpoint"
                )
        self.remember("state", {**stored, "declared": {**stored["declared"], **declared}, "topology": self._topology})
        return self.state_secret(stored) or self.secret()

    def state_folder(self) -> Path:
        return self.own / "state"

    def state_root(self) -> str:
        """The parent of the operators' folders: in the checkpoint, or at a URI, in a folder of this checkpoint alone."""
        location, topology = (self.recall("state") or {}).get("location"), self.recall("topology")
        if location is None:
            return str(self.state_folder())
        if topology is None:
            raise CheckpointError(f"checkpoint {self.root}: its topology.json is gone, so its state at {location} is not found")
        return below(location, topology["id"])

    # Batches

    def begun(self) -> int:
        """The last batch in Spark's offset log, -1 for none. Batches up to it may have run before."""
        return max(self.logs.numbers("offsets"), default=-1)

    def begin(self, batch: int, *, handed_on: bool) -> None:
        """Note Spark's log of a batch before it runs, so that a replay has the same records.

        The note takes 0.1 to 0.3 ms. It is fsynced, which takes as long as a commit, only if a sink receives the batch before
        its commit (``handed_on``): otherwise the batch can be planned anew after a loss of power.
        """
        self.check_fence(self.epoch)
        offsets = self.logs.text("offsets", batch)
        if offsets is None:
            return
        for name in set(SETTLED) - self._settled.keys():  # a source starts the schedule, before the first batch
            if (stored := self.recall(name)) is not None:
                self._settled[name] = stored
        before = (self.last_manifest() or {}).get("logs", {}) if self._begun is None else self._begun.logs
        self._begun = Begun(batch, self.epoch, offsets, self.logs.settled(offsets, before), dict(self._settled))
        self._note.write(self._begun, synced=handed_on)

    def manifest(self, batch: int) -> dict[str, Any] | None:
        return self.manifests.read(batch)

    def last_manifest(self) -> dict[str, Any] | None:
        return self.manifests.last()

    def commit(self, manifest: Mapping[str, Any]) -> None:
        """The commit of a batch: one rename."""
        self.check_fence(int(manifest["epoch"]))
        batch = int(manifest["batch"])
        if self._begun is not None and self._begun.batch == batch:
            logged = {"offsets": self._begun.offsets, "logs": dict(self._begun.logs)}
        else:
            offsets = self.logs.text("offsets", batch)
            logged = {} if offsets is None else {"offsets": offsets}
        self.manifests.add({**manifest, **logged, "topology": self._topology, **self._settled})

    def is_finished(self, batch: int) -> bool:
        """Whether Spark has logged the commit of a batch. By then all output of the batch is published."""
        return batch in self.logs.numbers("commits")

    # Documents

    def remember(self, name: str, document: Mapping[str, Any]) -> None:
        """Store a small document that outlives the run, such as the schedule's start or the measured floor."""
        write_atomic(self.own / f"{name}.json", document)
        if name in SETTLED:
            self._settled[name] = dict(document)

    def recall(self, name: str) -> dict[str, Any] | None:
        """A stored document. None if there is none, or if it is damaged and not needed."""
        expected = known(name)
        try:
            return read_json(self.own / f"{name}.json", expected.shape)
        except DamageError as error:
            if expected.without is None:
                raise DamageError(error.path, error.fault, ways_out(error.remedy, ANEW)) from None
            log.warning("%s. The run goes on: %s", error, expected.without)
            return None
