"""Springtide's part of a checkpoint: the fence, and for every batch its plan and its manifest.

<checkpoint>/spark/        Spark's own offset and commit logs
<checkpoint>/springtide/
    topology.json          what may not change: the graph, the schemas, the keys
    driver.lock, jvm.lock  held by the one driver, and by its JVM
    epoch.json             the fencing token: grows by one at every start
    knowledge/N.npz        what groupings learned, edition by edition; plans name them
    state.json             what stateful operators declare, the secret that their keys are hashed with, and where state lies
    ticks.json             whether there are batches without records, for timers
    seed.json              the state that was imported, which the first batch begins with
    state/OPERATOR/        their state, unless it lies elsewhere: segments, which manifests name
    policy.json            what the policy learned; the same one, with the same parameters, goes on with it
    tables.json            the tables whose batches are this checkpoint's own
    floor.json             how long a batch takes at least, as measured
    schedule.json          when the schedule of generated sources began
    sources/SOURCE.json    by which the plan's read limit and width reach a generated source
    staged/SINK/           what tasks wrote for a sink that the driver hands it to
    dead/                  the dead letters, unless the topology has a sink for them
    workers/EPOCH/         pages by which Python workers tell which record they are at; only while a run lasts
    plans/N.json           the plan from batch N on, written before N runs; a replay takes the same
    manifests/N.json       batch N is committed if and only if this is there
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from springtide.errors import CheckpointError
from springtide.model.plan import Plan
from springtide.model.schema import described
from springtide.model.topology import Kind, Topology
from springtide.spark.durable import read_json, sync_file, write_atomic, write_whole
from springtide.spark.editions import Editions
from springtide.spark.state.store import below

KEPT_BATCHES = 100
"""How many plans and manifests stay. Replays need the last one; the others are for people."""


class Checkpoint:
    """One topology's checkpoint, held by this driver from ``acquire`` to ``release``."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.own = self.root / "springtide"
        self.epoch = 0
        self.identity = ""
        self._lock: IO[str] | None = None

    @property
    def spark_location(self) -> str:
        return (self.root / "spark").as_uri()

    @property
    def editions(self) -> Editions:
        return Editions(self.own / "knowledge")

    @property
    def jvm_lock(self) -> Path:
        return self.own / "jvm.lock"

    def source_control(self, source: str) -> Path:
        """The file by which the plan's read limit and width reach a generated source."""
        return self.own / "sources" / f"{source}.json"

    def acquire(self, topology: Topology) -> None:
        """Become its one driver: check that it is this topology's, and lock it."""
        if self.root.exists() and not self.root.is_dir():
            raise CheckpointError(f"checkpoint {self.root} is a file; give a folder")
        if self.root.is_dir() and any(self.root.iterdir()) and not self.own.is_dir():
            raise CheckpointError(f"{self.root} holds files but no checkpoint of Springtide; give an empty or new folder")
        wanted = fingerprint(topology)
        self._check_fits(topology, wanted)
        try:
            for folder in ("plans", "manifests", "staged", "sources"):
                (self.own / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.root} cannot be made: {error.strerror}; give another folder") from None
        self._take_lock()
        try:
            stored = self._check_fits(topology, wanted)  # again: another driver may have made it until now
            if stored is None:
                if self.last_manifest() is not None:
                    raise self._is_gone("topology.json", "batches that are committed")
                stored = {**wanted, "id": uuid.uuid4().hex[:12]}
                write_atomic(self.own / "topology.json", stored)
            self.identity = stored["id"]
            self._mend_logs()
            self._check_offsets()
        except BaseException:
            self.release()
            raise

    def keep_state(self, declared: Mapping[str, Mapping[str, Any]], location: str | None = None) -> str:
        """The secret of this checkpoint's keys. The number of an operator's shards may not differ from before.

        ``location``: the URI where state shall lie; None for where it lies, which is in the checkpoint if nothing was said.
        """
        stored = self.recall("state")
        if stored is None:
            if (self.last_manifest() or {}).get("state") or self.recall("seed"):
                raise self._is_gone("state.json", "state, whose keys are hashed with the secret in it")
            stored = {"secret": secrets.token_hex(16), "declared": {}, "location": location}
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
        self.remember("state", {**stored, "declared": {**stored["declared"], **declared}})
        return str(stored["secret"])

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

    def _check_fits(self, topology: Topology, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        stored = read_json(self.own / "topology.json")
        differences = [] if stored is None else compare(stored, wanted)
        if differences:
            raise CheckpointError(
                f"checkpoint {self.root} does not fit topology {topology.name!r}: {'; '.join(differences)}."
                " Give a new checkpoint, or change the topology back"
            )
        return stored

    def _is_gone(self, file: str, held: str) -> CheckpointError:
        return CheckpointError(
            f"{self.own / file} is gone, but the checkpoint has {held}; put that file back, or give a new checkpoint"
        )

    def next_epoch(self) -> None:
        """Take the next fencing token; whatever an earlier one staged can no longer be committed."""
        self.epoch = int((read_json(self.own / "epoch.json") or {"epoch": 0})["epoch"]) + 1
        write_atomic(self.own / "epoch.json", {"epoch": self.epoch, "pid": os.getpid(), "host": socket.gethostname()})

    def _take_lock(self) -> None:
        lock = (self.own / "driver.lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not lockf, which does not part two drivers of one process
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "an unknown process"
            lock.close()
            raise CheckpointError(
                f"checkpoint {self.root} is in use by {holder}; stop that run first, or give another checkpoint"
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_fence(self, epoch: int) -> None:
        """Fail if another epoch has begun: of this driver, or of another one, as when a network file system lost the lock."""
        current = read_json(self.own / "epoch.json")
        if current is None or current["epoch"] != epoch:
            raise CheckpointError(f"checkpoint {self.root} was taken over by another driver ({current}); this one ends")

    def begun(self) -> int:
        """The last batch that Spark's offset log knows, -1 for none: batches up to it may have run before."""
        names = [path.name for path in (self.root / "spark" / "offsets").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _mend_logs(self) -> None:
        """Spark does not fsync its logs: after a loss of power files of the last seconds are empty, and it would not start.

        Offsets of committed batches are in the manifests. A batch that was only begun begins anew, with other offsets; and
        one whose commit Spark has forgotten is replayed, and finds its manifest.
        """
        last = (self.last_manifest() or {}).get("batch", -1)
        for file in self._empty_logs("offsets"):
            batch = int(file.name)
            written = (self.manifest(batch) or {}).get("offsets")
            if isinstance(written, str):
                write_whole(file, written)
            elif batch > last:
                file.unlink()
        for file in self._empty_logs("commits"):
            file.unlink()

    def _empty_logs(self, log: str) -> list[Path]:
        files = (self.root / "spark" / log).glob("[0-9]*")
        return [file for file in files if file.name.isdigit() and file.stat().st_size == 0]

    def _check_offsets(self) -> None:
        """Refuse to go on from offsets that are not those of the last batch: records would be lost, or come twice."""
        manifest = self.last_manifest() or {}
        wanted, batch = manifest.get("offsets"), manifest.get("batch", 0)
        found: str | int | None = self._offsets(batch)
        if isinstance(wanted, int) and isinstance(found, str):  # manifests had no more than a checksum once
            found = zlib.crc32(found.encode())
        if wanted is not None and wanted != found:
            raise CheckpointError(
                f"{self._offsets_file(batch)} is gone or was changed since batch {batch} was committed, and Spark would go on"
                " from it; put it back, or give a new checkpoint"
            )

    def _offsets(self, batch: int) -> str | None:
        try:
            return self._offsets_file(batch).read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None

    def sync_offsets(self, batch: int) -> None:
        """Have a batch begin with the same records also after a loss of power, for those who get it before its commit."""
        sync_file(self._offsets_file(batch))

    def _offsets_file(self, batch: int) -> Path:
        return self.root / "spark" / "offsets" / str(batch)

    def batch_time(self, batch: int) -> int:
        """When a batch was begun first, in microseconds since 1970, as Spark's offset log has it: a replay has the same."""
        lines = self._offsets_file(batch).read_text(encoding="utf-8").splitlines()
        return int(json.loads(lines[1])["batchTimestampMs"]) * 1000

    def plan(self, batch: int) -> Plan | None:
        """The plan that holds for a batch: the latest that was written for it or for one before it."""
        numbers = [int(path.stem) for path in (self.own / "plans").glob("[0-9]*.json")]
        latest = max((number for number in numbers if number <= batch), default=None)
        document = None if latest is None else read_json(self._plan_file(latest))
        return None if document is None else Plan.from_json(document)

    def write_plan(self, batch: int, plan: Plan) -> None:
        """Fix the plan of a batch and of those after it, before it runs."""
        write_atomic(self._plan_file(batch), plan.to_json())
        for old in sorted((self.own / "plans").glob("[0-9]*.json"))[:-KEPT_BATCHES]:
            old.unlink()

    def manifest(self, batch: int) -> dict[str, Any] | None:
        return read_json(self._manifest_file(batch))

    def manifests(self) -> Iterator[dict[str, Any]]:
        """Those that are kept, the newest first."""
        for path in sorted((self.own / "manifests").glob("[0-9]*.json"), reverse=True):
            manifest = read_json(path)
            assert manifest is not None
            yield manifest

    def last_manifest(self) -> dict[str, Any] | None:
        return next(self.manifests(), None)

    def commit(self, manifest: Mapping[str, Any]) -> None:
        """The commit of a batch: one rename."""
        self.check_fence(int(manifest["epoch"]))
        batch = int(manifest["batch"])
        offsets = self._offsets(batch)  # to fsync their own file would take as long as all of the commit
        write_atomic(self._manifest_file(batch), manifest if offsets is None else {**manifest, "offsets": offsets})
        with contextlib.suppress(FileNotFoundError):
            self._manifest_file(batch - KEPT_BATCHES).unlink()

    def remember(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep a small document that outlives the run, such as the schedule's start or the measured floor."""
        write_atomic(self.own / f"{name}.json", document)

    def recall(self, name: str) -> dict[str, Any] | None:
        return read_json(self.own / f"{name}.json")

    def _plan_file(self, batch: int) -> Path:
        return self.own / "plans" / f"{batch:08d}.json"

    def _manifest_file(self, batch: int) -> Path:
        return self.own / "manifests" / f"{batch:08d}.json"


def fingerprint(topology: Topology) -> dict[str, Any]:
    """What a checkpoint holds its topology to. Policy, bounds, grouping and parallelism may change."""
    return {
        "name": topology.name,
        "operators": {
            o.name: {
                "kind": str(o.kind),
                "inputs": list(o.inputs),
                "schema": described(o.schema),
                "key": list(o.key),
                "endpoint": type(o.source or o.sink).__name__ if o.source or o.sink else "",
            }
            for o in topology
        },
    }


def compare(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What differs between two fingerprints, in words."""
    differences = []
    if stored["name"] != wanted["name"]:
        differences.append(f"it belongs to topology {stored['name']!r}")
    before, now = stored["operators"], wanted["operators"]
    differences += [f"operator {name!r} is gone" for name in before if name not in now]
    differences += [f"operator {name!r} is new" for name in now if name not in before]
    for name in before:
        for aspect in before[name]:
            if name in now and before[name][aspect] != now[name][aspect]:
                differences.append(f"{aspect} of {name!r} was {before[name][aspect]}, is {now[name][aspect]}")
    were, are = _sources(before), _sources(now)
    if were != are and sorted(were) == sorted(are):
        differences.append(f"the sources, whose offsets Spark keeps by place, were {', '.join(were)}, are {', '.join(are)}")
    return differences


def _sources(operators: Mapping[str, Any]) -> list[str]:
    return [name for name, one in operators.items() if one["kind"] == Kind.SOURCE]
