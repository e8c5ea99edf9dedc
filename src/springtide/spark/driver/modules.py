"""Ships functions to the workers whose modules the workers could not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

from pyspark import cloudpickle

_BY_NAME = ("__main__", "pyspark", "springtide")  # __main__ travels by value as it is


def ship_loaded_modules() -> None:
    """Pickle functions by value if the workers could not import their modules: the user's script, modules beside it, files
    that were loaded by their path. Functions of installed packages are still pickled by name."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(_importable_roots()):
            continue
        if module.__name__ == name and name.split(".")[0] not in _BY_NAME:
            cloudpickle.register_pickle_by_value(module)


@cache
def _importable_roots() -> tuple[str, ...]:
    """Where a fresh Python finds modules: not in the script's folder, nor where this process added paths."""
    command = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own Python
    return tuple(os.path.join(root, "") for root in json.loads(answer.stdout) if root)
