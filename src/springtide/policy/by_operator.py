"""Settings by operator, such as ``enrich=4, classify=1``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from springtide.errors import OptionError, nearest

_T = TypeVar("_T")


def by_operator(setting: str, text: str, read: Callable[[str], _T | None], allowed: str) -> dict[str, _T]:
    """The values by operator; OptionError for invalid text. ``read`` returns None for a value that is not ``allowed``.

    >>> by_operator("'static': degrees", "a=4, b=1", lambda word: int(word) or None, "a degree of 1 or more")
    {'a': 4, 'b': 1}
    """
    found: dict[str, _T] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        operator, _, word = (side.strip() for side in part.rpartition("="))
        value = read(word)
        if not operator or value is None:
            raise OptionError(f"{setting}={text!r}: {part!r} is not operator={allowed}")
        if operator in found:
            raise OptionError(f"{setting}={text!r} names {operator!r} twice")
        found[operator] = value
    return found


def check_names(setting: str, named: Iterable[str], operators: Sequence[str]) -> None:
    """Raise OptionError when a setting names an operator that does not exist."""
    for operator in named:
        if operator not in operators:
            raise OptionError(f"{setting} names {operator!r}, which is no operator; {nearest(operator, operators)}")
