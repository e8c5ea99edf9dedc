"""What ``springtide submit`` has spark-submit run: an unchanged application, whose queries are attached to as they start.

Usage: launch.py app.py [arguments]. How to scale is in ``spark.springtide.*``.
"""

from __future__ import annotations

import functools
import logging
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

log = logging.getLogger("springtide.attach")


def launch(arguments: Sequence[str]) -> None:
    """Run the application as Python would: as ``__main__``, with its own arguments, and its folder first on the path."""
    if not arguments:
        sys.exit("launch.py runs an application: launch.py app.py [arguments]; see `springtide submit --help`")
    app = arguments[0].removeprefix("local://").removeprefix("file://")
    sys.argv = [app, *arguments[1:]]
    sys.path[0] = os.path.dirname(os.path.abspath(app))  # Python put this file's folder there
    _log_to_stderr()
    attach_to_all()
    runpy.run_path(app, run_name="__main__")


def attach_to_all() -> None:
    """Attach to every query that is started from Python from now on, in whichever session.

    A listener would hear of the same queries, but only its own session's, and through a server for callbacks.
    """
    from pyspark.sql.streaming import DataStreamWriter

    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, attaching(getattr(DataStreamWriter, name)))


def attaching(start: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, and what it returns is attached to. Whatever keeps that from working, the query goes on."""

    @functools.wraps(start)
    def started(*given: Any, **named: Any) -> Any:
        query = start(*given, **named)
        try:
            from springtide.spark.attach.entry import begin

            begin(query, {}, time.time)
        except Exception as error:  # noqa: BLE001  the application is somebody else's, and has to go on
            log.error("query %s runs, but is not attached to: %s", query.name or query.id, error)
        return query

    return started


def _log_to_stderr() -> None:
    """Decisions are told, whatever the application does with its own log."""
    own, handler = logging.getLogger("springtide"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    own.propagate = False


if __name__ == "__main__":
    launch(sys.argv[1:])
