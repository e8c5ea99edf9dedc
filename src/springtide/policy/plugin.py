"""The base class of the built-in plug-ins."""

from __future__ import annotations

from typing import ClassVar

from springtide.policy.registry import validate


class Plugin:
    """A plug-in that validates its parameters. Its subclasses are frozen dataclasses, whose fields are the parameters."""

    kind: ClassVar[str]
    name: ClassVar[str]
    source: ClassVar[str]
    summary: ClassVar[str]

    def __post_init__(self) -> None:
        validate(self)
