"""Springtide's part of a checkpoint: the fence, and for every batch its plan and its manifest.

<checkpoint>/spark/        Spark's own offset and commit logs
<checkpoint>/springtide/
    topology.json          what may not change: the graph, the schemas, the keys
    driver.lock, jvm.lock  held by the one driver, and by its JVM
    epoch.json             the fencing token: grows by one at every start
    knowledge/N.npz        what groupings learned, edition by edition; plans name them
    secret.json            the secret that seeds the hashes of keys, for routes and state; mode 0600
    state.json             what stateful operators declare, and where state lies; in older checkpoints also the secret of state
    ticks.json             whether there are batches without records, for timers
    seed.json              imported state, by operator: what the first batch begins with
    imported.json          by operator, the checkpoint and batch that imported state was exported from
    state/OPERATOR/        their state, unless it lies elsewhere: segments, which manifests name
    policy.json            what the policy learned; the same one, with the same parameters, goes on with it
    tables.json            the tables whose batches are this checkpoint's own
    floor.json             how long a batch takes at least, as measured
    schedule.json          when the schedule of generated sources started: before the first batch
    sources/SOURCE.json    by which the plan's read limit and width reach a generated source
    staged/SINK/           what tasks wrote for a sink that the driver hands it to
    dead/                  the dead letters, unless the topology has a sink for them
    workers/EPOCH/         a page for each Python worker with the record it is at; removed when the run ends
    plans/N.json           the plan from batch N on, written before N runs; a replay takes the same
    begun.json             the batch that began last: Spark's offsets, and checksums of its sources' logs
    manifests/N.json       batch N is committed if and only if this is there
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

from springtide.errors import CheckpointError, DamageError
from springtide.model.plan import Plan
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
from springtide.spark.shared.durable import read_json, write_atomic
from springtide.spark.shared.program import staging_of
from springtide.spark.shared.remedies import ANEW, PUT_BACK, ways_out
from springtide.spark.state.store import below

log = logging.getLogger("springtide.spark")


class Checkpoint:
    """One topology's checkpoint, held by this driver from ``acquire`` to ``release``."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.own = self.root / "springtide"
        self.epoch = 0
        self.identity = ""
        self._lock = Lock(self.root, self.own / "driver.lock")
        self.logs = Logs(self.root / "spark")
        self._manifests = Manifests(self.own / "manifests")
        self._topology: dict[str, Any] = {}  # its id and its fingerprint's checksum, for manifests
        self._settled: dict[str, Any] = {}  # the documents that never change, for manifests
        self._begun: Begun | None = None
        self._plans = PlanFiles(self.own / "plans")
        self._note = Note(self.own / "begun.json")
        self._staged: tuple[Path, ...] = ()

    @property
    def spark_location(self) -> str:
        return self.logs.folder.as_uri()

    @property
    def schedule(self) -> Path:
        """The document that says when the schedule of generated sources started."""
        return self.own / "schedule.json"

    @property
    def editions(self) -> Editions:
        return Editions(self.own / "knowledge")

    @property
    def jvm_lock(self) -> Path:
        return self.own / "jvm.lock"

    def source_control(self, source: str) -> Path:
        """The file by which the plan's read limit and width reach a generated source."""
        return self.own / "sources" / f"{source}.json"

    # Taking and giving back

    def acquire(self, topology: Topology) -> None:
        """Become its one driver: lock it, and check that it is this topology's and that its parts agree."""
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
        self._begun, self._manifests = None, Manifests(self.own / "manifests")  # another driver may have gone on meanwhile
        try:
            self._identify(topology, wanted)
            self._agree(topology)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._note.close()
        self._lock.release()

    # Whose it is

    def _check_fits(self, topology: Topology, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """The fingerprint that is stored, if the topology has it; None if it is gone or damaged."""
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
        """Take the checkpoint's id, from topology.json or from where it is repeated; or give it one, if it is new."""
        stored = self._check_fits(topology, wanted)  # again: another driver may have made it until now
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
            held = "batches that are committed" if last is not None else "state that was imported"
            raise self._is_gone("topology.json", held)
        log.warning("%s is gone or damaged; it is written again, because the topology is the one that ran last", file)
        return str(repeated["id"])

    def _is_gone(self, file: str, held: str) -> DamageError:
        path = self.own / file
        fault = "is damaged" if path.exists() else "is gone"
        return DamageError(path, f"{fault}, but the checkpoint has {held}", ways_out(PUT_BACK, ANEW))

    # What it holds, at a start

    def _agree(self, topology: Topology) -> None:
        """Refuse parts that do not agree, and mend what can be mended."""
        places, letters = staging_of(topology, str(self.own), self.identity)
        staged = tuple(place for place in (*places.values(), letters) if place is not None)
        self._staged = tuple(Path(place.folder) for place in staged)
        noted = self.recall("begun")
        begun = None if noted is None else Begun.from_json(noted)
        note, has_state = self.own / "begun.json", (self.own / "state.json").exists()
        Parts(self.root, self._manifests, self.logs, note, begun, topology, staged, has_state).agree()
        self._settle(self.last_manifest() or {}, begun)

    def _settle(self, last: Mapping[str, Any], begun: Begun | None) -> None:
        """Put back the documents that never change, from where they are repeated."""
        for name in SETTLED:
            repeated = last.get(name) or (begun.settled.get(name) if begun is not None else None)
            file, stored = self.own / f"{name}.json", None
            try:
                stored = self.recall(name)
            except DamageError as error:
                if repeated is None and last:  # an older manifest, which does not repeat it
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
        """Take the next fencing token; whatever an earlier one staged can no longer be committed."""
        self.epoch = 1 + max(self._epochs(), default=0)
        self.remember("epoch", {"epoch": self.epoch, "pid": os.getpid(), "host": socket.gethostname()})

    def _epochs(self) -> Iterator[int]:
        """All that were taken, as far as anything names them: an older copy of epoch.json brings none of them back."""
        yield (self.recall("epoch") or {"epoch": 0})["epoch"]
        yield (self.last_manifest() or {"epoch": 0})["epoch"]
        yield (self.recall("begun") or {"epoch": 0})["epoch"]
        for folder in self._staged:
            for path in folder.glob("epoch-*"):
                found = re.fullmatch(r"epoch-(\d+)", path.name)
                yield 0 if found is None else int(found[1])

    def check_fence(self, epoch: int) -> None:
        """Fail if another epoch has begun: of this driver, or of another one, as when a network file system lost the lock."""
        current = read_json(self.own / "epoch.json", known("epoch").shape)
        if current is None or current["epoch"] != epoch:
            raise CheckpointError(f"checkpoint {self.root} was taken over by another driver ({current}); this one ends")

    # State

    def secret(self) -> str:
        """By which keys are hashed, so that nobody who sends records can choose keys of one task, or of one hash. It is made at
        the first start, and anew where it is lost: nothing but the place of keys depends on it, see ``state/rehash.py``."""
        found = self.known_secret()
        if found is None:
            found = secrets.token_hex(16)
            self.remember("secret", {"secret": found})
        return found

    def known_secret(self) -> str | None:
        """The secret, if it is there and can be read."""
        found: str | None = (self.recall("secret") or {"secret": None})["secret"]
        return found

    def state_secret(self, stored: Mapping[str, Any]) -> str | None:
        """By which keys of state are hashed. Checkpoints of earlier versions have one in state.json, for state alone."""
        return stored.get("secret") or self.known_secret()

    def catalogs(self) -> dict[str, Any]:
        """By operator, the catalog of its state now: after the last batch, or as it was imported before the first."""
        last = self.last_manifest()
        return (self.recall(SEED) or {}) if last is None else last.get("state", {})

    def keep_state(self, declared: Mapping[str, Mapping[str, Any]], location: str | None = None) -> str:
        """The secret of this checkpoint's keys. The number of an operator's shards may not differ from before.

        ``location``: the URI where state shall lie; None for where it lies, which is in the checkpoint if nothing was said.
        """
        stored = self.recall("state")
        if stored is None:
            if (self.last_manifest() or {}).get("state") or self.recall(SEED):
                raise self._is_gone("state.json", "state, whose shards and variables are declared in it")
            stored = {"declared": {}, "location": location}
        lies = stored.get("location")
        if location is not None and location != lies:
            where = "inside it" if lies is None else f"at {lies!r}"
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
        """Where the operators' folders are: in the checkpoint, or at a URI, in a folder that no other checkpoint has."""
        location, topology = (self.recall("state") or {}).get("location"), self.recall("topology")
        if location is None:
            return str(self.state_folder())
        if topology is None:
            raise CheckpointError(f"checkpoint {self.root}: its topology.json is gone, so its state at {location} is not found")
        return below(location, topology["id"])

    # Batches

    def begun(self) -> int:
        """The last batch that Spark's offset log knows, -1 for none: batches up to it may have run before."""
        return max(self.logs.numbers("offsets"), default=-1)

    def begin(self, batch: int, *, handed_on: bool) -> None:
        """Note what Spark logged for a batch, before it runs, so that a replay has the same records.

        The note takes 0.1 to 0.3 ms. It is fsynced, which takes as long as a commit, only if the batch is ``handed_on`` to
        somebody before its commit: otherwise what a loss of power takes away is planned anew.
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

    def batch_time(self, batch: int) -> int:
        """When a batch was begun first, in microseconds since 1970, as Spark's offset log has it: a replay has the same."""
        return self.logs.batch_time(batch)

    def plan(self, batch: int) -> Plan | None:
        """The plan that holds for a batch: the latest that was written for it or for one before it. None if that is damaged."""
        return self._plans.read(batch)

    def write_plan(self, batch: int, plan: Plan) -> None:
        """Fix the plan of a batch and of those after it, before it runs."""
        self._plans.write(batch, plan)

    def manifest(self, batch: int) -> dict[str, Any] | None:
        return self._manifests.read(batch)

    def manifests(self) -> Iterator[dict[str, Any]]:
        """Those that are kept and can be read, the newest first."""
        return self._manifests.readable()

    def last_manifest(self) -> dict[str, Any] | None:
        return self._manifests.last()

    def commit(self, manifest: Mapping[str, Any]) -> None:
        """The commit of a batch: one rename."""
        self.check_fence(int(manifest["epoch"]))
        batch = int(manifest["batch"])
        if self._begun is not None and self._begun.batch == batch:
            logged = {"offsets": self._begun.offsets, "logs": dict(self._begun.logs)}
        else:
            offsets = self.logs.text("offsets", batch)
            logged = {} if offsets is None else {"offsets": offsets}
        self._manifests.add({**manifest, **logged, "topology": self._topology, **self._settled})

    def amend(self, manifest: Mapping[str, Any]) -> None:
        """Put another manifest in the place of the last one, of the same batch: the same state in other files."""
        self._manifests.amend(manifest)

    def uncommit(self, batch: int) -> None:
        """Take back the commit of the last batch, which Spark has not logged: it is replayed with its offsets and its plan."""
        self._manifests.remove(batch)

    def is_finished(self, batch: int) -> bool:
        """Whether Spark has logged the commit of a batch, which it does once all output of the batch is published."""
        return batch in self.logs.numbers("commits")

    def manifest_file(self, batch: int) -> Path:
        return self._manifests.file(batch)

    # Documents

    def remember(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a small document that outlives the run, such as the schedule's start or the measured floor."""
        write_atomic(self.own / f"{name}.json", document)
        if name in SETTLED:
            self._settled[name] = dict(document)

    def recall(self, name: str) -> dict[str, Any] | None:
        """A document that was remembered. One that is damaged and not needed counts as if there were none."""
        expected = known(name)
        try:
            return read_json(self.own / f"{name}.json", expected.shape)
        except DamageError as error:
            if expected.without is None:
                raise DamageError(error.path, error.fault, ways_out(error.remedy, ANEW)) from None
            log.warning("%s. The run goes on: %s", error, expected.without)
            return None
