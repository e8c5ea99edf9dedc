"""How a driver and its control process talk: one JSON document a line."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping
from typing import Any


def encoded(document: Mapping[str, Any]) -> bytes:
    """A document as a line. NaN and infinity pass, and are refused where they are used: both ends are Python's ``json``.

    >>> encoded({"degree": float("nan"), "reason": "asked"})
    b'{"degree": NaN, "reason": "asked"}\\n'
    """
    return json.dumps(document, default=_plain).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any]:
    """The document of a line; ValueError for any other line."""
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError(f"{type(document).__name__}, not a document")
    return document


def _plain(value: object) -> Any:
    """Numpy's numbers, and mappings other than dicts, as JSON values."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot carry {value!r}")
