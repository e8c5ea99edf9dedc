"""Durations in words: ``"2s"``, ``"250ms"``, ``"1m"``; a plain number means seconds."""

from __future__ import annotations

import math
import re

from springtide.errors import OptionError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FORM = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|m|h)?\s*")


def seconds(value: str | float, what: str = "duration") -> float:
    """Turn a duration into seconds.

    >>> seconds("250ms"), seconds("2s"), seconds("1m"), seconds(3)
    (0.25, 2.0, 60.0, 3.0)
    """
    if isinstance(value, str):
        form = _FORM.fullmatch(value)
        number = float(form[1]) * _SECONDS[form[2] or "s"] if form else math.nan
    else:
        number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise OptionError(f"{what} {value!r} is not a duration: write a number with ms, s, m or h, such as '2s'")
    return number
