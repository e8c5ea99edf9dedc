"""``springtide control``: show or switch the mode of a run's control flow."""

from __future__ import annotations

from pathlib import Path

import click

from springtide.cli.common import AS_JSON, errors, print_json


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.argument("mode", required=False)
@AS_JSON
def control(run_dir: Path, mode: str | None, as_json: bool) -> None:
    """Show the mode of the run in RUN_DIR, or switch it to on, dry-run (decide and record, change no degree) or off."""
    with errors():
        now = _switched(run_dir, mode)
    if as_json:
        print_json({"run_dir": str(run_dir), "mode": now})
    else:
        click.echo(now)


def _switched(run_dir: Path, word: str | None) -> str:
    from springtide.control.switch import FILE, Mode, read, write
    from springtide.errors import OptionError
    from springtide.record.folder import RunFolder

    wanted = None if word is None else Mode.named(word)
    folder = RunFolder.open(run_dir)
    if wanted is None:
        begun = Mode.DRY_RUN if (folder.run() or {}).get("dry_run") else Mode.ON
        return str(read(run_dir / FILE) or begun)
    if folder.summary() is not None:
        raise OptionError(
            f"the run of {str(run_dir)!r} has ended, so {word!r} would switch nothing; name the folder of an active run"
        )
    write(run_dir / FILE, wanted)
    return str(wanted)
