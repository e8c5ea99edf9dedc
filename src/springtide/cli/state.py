"""``springtide state``: read, export and import the state of stateful operators, without a query."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from springtide.cli.common import AS_JSON, errors, print_json
from springtide.cli.common import show as show_document
from springtide.cli.tables import UNKNOWN, count
from springtide.errors import OptionError

if TYPE_CHECKING:
    from springtide.spark.state.reading import Reading, StoredState

FILE = click.Path(path_type=Path)
TAIL = 1 << 20
"""Bytes that are read from the end of a run's record; a batch's line has some kB."""


class EitherOrder(click.Group):
    """``state RUN show`` is ``state show RUN``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and args[0] not in self.commands and args[1] in self.commands:
            args = [args[1], args[0], *args[2:]]
        return super().parse_args(ctx, args)


@click.group(cls=EitherOrder)
def state() -> None:
    """Read, export or import the state of stateful operators. No query is needed, and a run may be active meanwhile."""


@state.command()
@click.argument("run", type=FILE)
@click.argument("operator", required=False)
@click.option("--key", "key", multiple=True, metavar="VALUE", help="Show this key's state; once for each column of the key.")
@AS_JSON
def show(run: Path, operator: str | None, key: tuple[str, ...], as_json: bool) -> None:
    """Show the state in RUN, the folder of a run or a checkpoint: of all stateful operators, of OPERATOR, or of one key.

    A key's times are written as 2024-12-31T23:59:59Z, null as null, the text "null" in quotes.
    """
    from springtide.spark.state.reading import reading, stored_state, stored_states

    with errors():
        checkpoint = _checkpoint(run)
        if operator is not None:
            stored_state(checkpoint, operator)
        names = [operator] if operator is not None else list(stored_states(checkpoint))
        if key:
            if len(names) != 1:
                raise OptionError(f"--key needs an operator; name one of {', '.join(names)}")
            with reading(checkpoint, names[0]) as opened:
                document = {"checkpoint": str(checkpoint), **_key(opened, key)}
        else:
            marks = _watermarks(run)
            operators = []
            for name in names:
                with reading(checkpoint, name) as opened:
                    operators.append(_operator(opened, marks))
            document = {"checkpoint": str(checkpoint), "operators": operators}
    show_document(document, as_json, _key_table if key else _table)


@state.command()
@click.argument("run", type=FILE)
@click.argument("operator")
@click.argument("file", type=FILE)
@AS_JSON
def export(run: Path, operator: str, file: Path, as_json: bool) -> None:
    """Write all keys of OPERATOR with their state to FILE: .parquet, .json (a line each) or .csv.

    The columns are key.… and state.…, the shard, and the time of the key's last write.
    """
    from springtide.spark.state.exporting import exported

    with errors():
        document = exported(_checkpoint(run), operator, file)
    if as_json:
        print_json(document)
        return
    after = "before the first batch" if document["batch"] is None else f"after batch {document['batch']}"
    click.echo(f"{count(document['keys'])} keys of {operator!r}, {after}, written to {file}")


@state.command("import")
@click.argument("topology")
@click.argument("operator")
@click.argument("file", type=FILE)
@click.option(
    "--checkpoint", required=True, type=FILE, help="A new checkpoint, or one without batches; run the topology with it."
)
@click.option("--state", "location", metavar="URI", help="Location of the state. Default: in the checkpoint.")
@click.option(
    "--accept-recount", is_flag=True, help="Also import state that has counted records which the sources may deliver again."
)
@AS_JSON
def import_(
    topology: str, operator: str, file: Path, checkpoint: Path, location: str | None, accept_recount: bool, as_json: bool
) -> None:
    """Start OPERATOR of TOPOLOGY with the state in FILE, as `springtide state export` writes it.

    The columns shard and written, and those of timers that are not set, are optional. A new checkpoint reads its sources from
    their start. State that has counted their records would count them again; it is refused unless --accept-recount is given.
    """
    from springtide.cli import load
    from springtide.spark.state.seeding import seeded

    with errors():
        now = time.time_ns() // 1000
        document = seeded(load.topology(topology), operator, file, checkpoint, now, location, accept_recount)
    if as_json:
        print_json(document)
        return
    click.echo(f"{count(document['keys'])} keys of {operator!r} imported; run it with --checkpoint {checkpoint}")


def _checkpoint(run: Path) -> Path:
    """The checkpoint of a run's folder, or the given folder if it is a checkpoint."""
    from springtide.record.folder import RUN, RunFolder

    if (run / "springtide").is_dir():
        return run
    named = (RunFolder.open(run).run() or {}).get("checkpoint")
    if named is None:
        raise OptionError(f"{str(run)!r} does not name its checkpoint: its {RUN} is missing, or is not of a run; give the"
                          " checkpoint's folder itself")  # fmt: skip
    inside = run / "checkpoint"  # the folder may have been moved since
    return inside if not Path(named).is_dir() and inside.is_dir() else Path(named)


def _watermarks(run: Path) -> dict[str, tuple[int, int | None]]:
    """By operator, the last batch in the run's record and the watermark after it; a checkpoint does not have them."""
    from springtide.record.folder import BATCHES

    if not (run / BATCHES).is_file():
        return {}
    with (run / BATCHES).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        *whole, _ = file.read().split(b"\n")  # after the last newline: nothing, or a line that is being written
    try:
        last = json.loads(whole[-1]) if whole else {}
    except ValueError:  # the line is longer than TAIL
        return {}
    return {name: (last["batch"], state["watermark"]) for name, state in last.get("state", {}).items()}


def _operator(opened: Reading, marks: dict[str, tuple[int, int | None]]) -> dict[str, Any]:
    from springtide.model.state import moment

    stored, key = opened.stored, opened.key_schema()
    runs = stored.catalog.runs
    batch, mark = marks.get(stored.operator, (None, None))
    known = mark is not None and batch is not None and stored.batch is not None and 0 <= stored.batch - batch <= 1
    return {
        "operator": stored.operator,
        "batch": stored.batch,
        "batches": [runs[-1].first, runs[0].last] if runs and stored.batch is not None else None,
        "seeded": stored.batch is None and bool(runs),
        "shards": stored.shards,
        "keys": stored.catalog.keys,
        "bytes": stored.catalog.bytes,
        "files": sum(len(run.files) for run in runs),
        "location": stored.place,
        "watermark": moment(mark).isoformat() if known and mark is not None else None,
        "timers": opened.timers(),
        "key": [{"name": name, "type": str(key.field(name).type) if name in key.names else None} for name in stored.key],
        "variables": [{"name": name, "type": kind} for name, kind in stored.variables],
    }


def _key(opened: Reading, texts: tuple[str, ...]) -> dict[str, Any]:
    import pyarrow as pa

    from springtide.spark.state.segment import KEY, STATE, TOUCHED
    from springtide.spark.state.values import encoder

    stored, schema = opened.stored, opened.key_schema()
    _check_columns(stored, texts)
    document: dict[str, Any] = {
        "operator": stored.operator, "batch": stored.batch, "key": dict(zip(stored.key, texts, strict=True)), "found": False,
    }  # fmt: skip
    if not schema.names:
        return document
    key = pa.RecordBatch.from_arrays([_parsed(t, f) for t, f in zip(texts, schema, strict=True)], schema=schema)
    row = opened.row(key)
    asked = {name: encoder(key.column(name).type)(key.column(name)[0].as_py()) for name in stored.key}
    if row is None:
        return {**document, "key": asked}
    values = {field.name: encoder(field.type)(row.column(field.name)[0].as_py()) for field in row.schema}
    return {
        **document,
        "key": {name: values[KEY + name] for name in stored.key},
        "found": True,
        "shard": opened.shard(row),
        "written": _time(values[TOUCHED]),
        "state": {name.removeprefix(STATE): value for name, value in values.items() if name.startswith(STATE)},
    }


def _parsed(text: str, field: Any) -> Any:
    from springtide.spark.state.values import Misfit, parsed

    try:
        return parsed(text, field.type)
    except Misfit as error:
        raise OptionError(f"--key: column {field.name!r}: {error}") from None


def _check_columns(stored: StoredState, texts: tuple[str, ...]) -> None:
    if len(texts) != len(stored.key):
        raise OptionError(
            f"--key is given {len(texts)} times, but the key of {stored.operator!r} has {len(stored.key)} columns; give"
            f" {' '.join(f'--key {name.upper()}' for name in stored.key)}"
        )


def _time(at: int) -> str:
    from springtide.model.state import moment

    return moment(at).isoformat()


def _table(document: dict[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [Text(f"Checkpoint: {document['checkpoint']}", style="dim", overflow="fold")]
    for operator in document["operators"]:
        first, last = operator["batches"] or (None, None)
        of = "imported" if operator["seeded"] else UNKNOWN if first is None else f"{count(first)} to {count(last)}"
        facts = Table.grid(padding=(0, 2))
        for name, value in (
            ("keys", count(operator["keys"])), ("shards", count(operator["shards"])),
            ("bytes", count(operator["bytes"])), ("files", count(operator["files"])), ("location", operator["location"]),
            ("state of batches", of), ("last batch", count(operator["batch"])),
            ("watermark", operator["watermark"] or UNKNOWN),
            *((f"keys with a timer by {clock} time", _timers(timers)) for clock, timers in operator["timers"].items()),
        ):  # fmt: skip
            facts.add_row(Text(name, style="dim"), Text(value))
        variables = Table("variable", "type", box=None, pad_edge=False, header_style="dim")
        for kind, named in (("key ", operator["key"]), ("", operator["variables"])):
            for variable in named:
                variables.add_row(Text(kind + variable["name"]), Text(variable["type"] or UNKNOWN))
        parts += [Text(), Text(operator["operator"], style="bold"), facts, Text(), variables]
    return Group(*parts)


def _timers(timers: dict[str, Any]) -> str:
    return count(timers["keys"]) + (f", the first at {timers['first']}" if timers["first"] else "")


def _key_table(document: dict[str, Any]) -> RenderableType:
    key = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in document["key"].items())
    if not document["found"]:
        return Text(f"{document['operator']}: there is no state of the key {key}")
    head = Text(f"{document['operator']}: {key}", style="bold")
    where = Text(f"shard {document['shard']}, written {document['written']}", style="dim")
    table = Table("variable", "value", box=None, pad_edge=False, header_style="dim")
    for name, value in document["state"].items():
        table.add_row(Text(name), Text(json.dumps(value, ensure_ascii=False), overflow="fold"))
    return Group(head, where, table)
