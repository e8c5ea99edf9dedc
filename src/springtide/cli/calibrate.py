"""``springtide calibrate``: fit the constants of the simulator's micro-batch mode to a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from springtide.cli.common import errors, print_json
from springtide.errors import OptionError

LAST = 5_000
"""Number of batches that are read. They suffice for five constants; a month has millions, and each takes 2 ms to parse."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Default: calibration.json in RUN.")
@click.option("--json", "as_json", is_flag=True, help="Print the file's content.")
def calibrate(run: Path, output: Path | None, as_json: bool) -> None:
    """Fit Spark's fixed times and the operators' costs to the last 5,000 batches of RUN, the folder of a run.

    Use the file with `springtide simulate --mode micro-batch --costs FILE`.
    """
    import json

    with errors():
        document = _calibrated(run)
        place = output or run / "calibration.json"
        try:
            place.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{str(place)!r} cannot be written: {error.strerror}; choose another with --output") from None
    if as_json:
        print_json(document)
        return
    console = Console()
    console.print(_table(document))
    console.print(f"Written to {place}", soft_wrap=True, highlight=False)


def _calibrated(run: Path) -> dict[str, Any]:
    from springtide.record.folder import RunFolder
    from springtide.sim.calibrate import calibrated
    from springtide.spark.driver.checkpoint import Checkpoint

    folder = RunFolder.open(run)
    about = folder.run() or {}
    if "stages" not in about:
        raise OptionError(f"{str(run)!r} does not record the stages of its operators; record a run with this version")
    editions = Checkpoint(Path(about["checkpoint"])).editions
    learned = editions.load(editions.latest()) if editions.latest() else None
    return {"run": run.name, **calibrated(about["stages"], folder.batches(LAST), learned)}


def _table(document: dict[str, Any]) -> Table:
    table = Table("", "", title=document["run"])
    names = {
        "batch_s": "a batch", "stage_s": "a stage", "task_s": "a task", "row_s": "a record", "gap_s": "between two batches",
    }  # fmt: skip
    for name, value in document["constants"].items():
        table.add_row(names[name], f"{1000 * value:.3f} ms")
    for name, cost in document["operators"].items():
        seconds = cost["seconds"]
        mean = sum(seconds) / len(seconds) if isinstance(seconds, list) else seconds
        table.add_row(f"{name}, for a record", f"{1000 * mean:.3f} ms{', by key' if 'hashes' in cost else ''}")
    return table
