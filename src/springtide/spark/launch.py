"""Runs an unchanged application for ``springtide submit``, and attaches to its queries when they start.

Usage: launch.py app.py [arguments]. The settings ``spark.springtide.*`` control the scaling.
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
    """Attach to every query that Python code starts from now on, in any session.

    A listener would only see the queries of its own session, and would need a callback server.
    """
    from pyspark.sql.streaming import DataStreamWriter

    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, attaching(getattr(DataStreamWriter, name)))


def attaching(start: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that starts a query, to attach to the query. If attaching fails, the query goes on."""

    @functools.wraps(start)
    def started(*args: Any, **options: Any) -> Any:
        query = start(*args, **options)
        try:
            from springtide.spark.attach.entry import begin

            begin(query, {}, time.time)
        except Exception as error:  # noqa: BLE001  the user's application has to go on
            log.error("query %s runs, but is not attached to: %s", query.name or query.id, error)
        return query

    return started


def _log_to_stderr() -> None:
    """Log decisions to stderr, independently of the application's logging."""
    logger, handler = logging.getLogger("springtide"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    launch(sys.argv[1:])
