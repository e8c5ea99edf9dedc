"""Booleans in words: yes, on, true, 1 and their opposites."""

from __future__ import annotations

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def yes_or_no(text: str) -> bool | None:
    """The boolean that a text means; None if it means neither.

    >>> yes_or_no("Yes"), yes_or_no("off"), yes_or_no("perhaps")
    (True, False, None)
    """
    return _WORDS.get(text.strip().lower())
