"""Report a condition when it begins, and again only after it has ended."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping


class Once:
    """The conditions that hold now, each named by any hashable value.

    >>> failures = Once()
    >>> [failures.begins("disk full"), failures.begins("disk full")]
    [True, False]
    >>> failures.end("disk full")
    >>> failures.begins("disk full")
    True
    """

    def __init__(self, holding: Iterable[Hashable] = ()) -> None:
        self._holding = dict.fromkeys(holding)

    def begins(self, condition: Hashable = None) -> bool:
        """Note that a condition holds; True if it did not hold before."""
        new = condition not in self._holding
        self._holding[condition] = None
        return new

    def end(self, condition: Hashable = None) -> None:
        self._holding.pop(condition, None)

    def end_others(self, holding: Container[Hashable]) -> None:
        """All conditions but these have ended."""
        self._holding = {condition: None for condition in self._holding if condition in holding}

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._holding)

    def __bool__(self) -> bool:
        return bool(self._holding)


def begun(
    before: Mapping[str, float], holding: Iterable[str], now: float, *, ended: Container[str] = (), quiet_s: float, most: int
) -> tuple[list[str], dict[str, float]]:
    """The same as a pure function: the conditions to report now, and when each that was reported last held.

    ``before``: the second value of the previous call. A condition is over when it is in ``ended``, or did not hold for more
    than ``quiet_s`` seconds. At most ``most`` are reported; the others are, if they still hold, in the next call.

    >>> new, state = begun({}, ["a", "b"], 10.0, quiet_s=60.0, most=1)
    >>> new, state
    (['a'], {'a': 10.0})
    >>> begun(state, ["a", "b"], 20.0, quiet_s=60.0, most=1)
    (['b'], {'a': 20.0, 'b': 20.0})
    >>> begun(state, ["a"], 80.0, quiet_s=60.0, most=1)
    (['a'], {'a': 80.0})
    """
    going_on = {name: last for name, last in before.items() if name not in ended and now - last <= quiet_s}
    found = dict.fromkeys(holding, now)
    new = [name for name in found if name not in going_on][:most]
    again = {name: now for name in found if name in going_on}
    return new, {**going_on, **again, **dict.fromkeys(new, now)}
