"""Find the topology that the command line names: a built-in, a Python file, or ``module:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from springtide.errors import OptionError, SpringtideError, nearest
from springtide.model.duration import seconds
from springtide.model.topology import Topology

if TYPE_CHECKING:
    from springtide.sim.model import Model

BUILT_IN = {"tweets": "springtide.apps.tweets:topology"}
LINE = re.compile(r"line(\d+)(?::([^:]+))?(?::(even))?")
"""A modelled line of operators, for the simulator only: their number, a record's cost, and whether there is no randomness."""


def model_or_topology(name: str, grouping: str | None = None) -> Model | Topology:
    """A topology, or the model of a line of operators: ``line4``, ``line4:12.5ms``, ``line1:70ms:even``.

    A line's operators have one queue each, in which records wait for the first free replica. With a ``grouping`` that the user
    named, every replica has a queue of its own, and the grouping chooses among them.
    """
    found = LINE.fullmatch(name)
    if found is None:
        return topology(name)
    from springtide.apps.lines import line

    length, cost, even = found.groups()
    if not 1 <= int(length) <= 26:
        raise OptionError(f"{name!r}: a line has 1 to 26 operators")
    costs = {} if cost is None else {"cost_s": seconds(cost, "cost")}
    return line(int(length), **costs, even=even is not None, queue="shared" if grouping is None else "each")


def topology(name: str) -> Topology:
    """``tweets``, ``jobs/taxi.py``, ``jobs/taxi.py:ranking`` or ``package.module:ranking``."""
    if name in BUILT_IN:
        name = BUILT_IN[name]
    place, _, attribute = name.partition(":")
    if place.endswith(".py"):
        return _pick(_from_file(Path(place)), attribute, name)
    if attribute:
        return _pick(_from_module(place), attribute, name)
    if LINE.fullmatch(name):
        raise OptionError(f"{name!r} is a model without functions; use it with `springtide simulate` or `springtide compare`")
    raise OptionError(f"no topology {name!r}: {nearest(name, BUILT_IN)}; or give a file such as job.py, or module:attribute")


def _from_file(path: Path) -> ModuleType:
    """Load a file as a module. Workers cannot import it, so its functions are pickled by value."""
    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(f"springtide_job_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        spec.loader.exec_module(module)
    except SpringtideError:
        raise
    except Exception as error:  # a user's file may raise anything
        raise OptionError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _from_module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except SpringtideError:
        raise
    except Exception as error:  # a user's module may raise anything
        raise OptionError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _pick(module: ModuleType, attribute: str, name: str) -> Topology:
    """The named topology, or the only one there is; a function is called to make it."""
    if not attribute:
        found = {key: value for key, value in vars(module).items() if isinstance(value, Topology)}
        if len(found) != 1:
            raise OptionError(f"{name} has {len(found)} topologies ({', '.join(found) or 'none'}); name one: {name}:NAME")
        return next(iter(found.values()))
    if not hasattr(module, attribute):
        raise OptionError(f"{name}: there is no {attribute!r}; {nearest(attribute, [k for k in vars(module) if k[0] != '_'])}")
    chosen = getattr(module, attribute)
    made = _called(chosen, name) if callable(chosen) else chosen
    if not isinstance(made, Topology):
        raise OptionError(f"{name} is {type(made).__name__}, not a topology; end it with .named(...)")
    return made


def _called(function: Callable[[], object], name: str) -> object:
    try:
        return function()
    except SpringtideError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise OptionError(f"{name} cannot be called for a topology: {type(error).__name__}: {error}") from error
