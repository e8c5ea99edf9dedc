"""The name of a user's function, and the types in its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from springtide.errors import TopologyError
from springtide.model import schema as schemas


def called(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or of an object's ``__call__``; {} if they cannot be resolved."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError):
        return {}


def returned(
    function: Callable[..., Any], schema: object, many: bool = False, where: str = ""
) -> tuple[pa.Schema, type | None]:
    """The schema of what a function returns: ``schema=``, or its annotation. ``where`` names the operator in errors."""
    where = where or called(function)
    if schema is not None:
        return schemas.as_schema(schema, where)
    hint = _hints(function).get("return")
    if many and typing.get_args(hint):
        hint = typing.get_args(hint)[0]
    if not schemas.is_record_class(hint):
        wanted = "Iterator[a dataclass]" if many else "a dataclass"
        raise TopologyError(
            f"operator {where!r}: no schema; annotate what it returns as {wanted} that can be resolved"
            f" where the function is defined, or pass schema= (its annotation is {hint!r})"
        )
    assert isinstance(hint, type)
    return schemas.schema_of(hint), hint


def accepted(function: Callable[..., Any]) -> type | None:
    """The dataclass in the annotation of a function's first parameter; None if there is none."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # some built-in functions have no signature
        return None
    hint = _hints(function).get(first)
    return hint if isinstance(hint, type) and schemas.is_record_class(hint) else None
