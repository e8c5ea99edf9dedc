"""Secrets: where a password lies, instead of the password itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from springtide.errors import OptionError


@dataclass(frozen=True)
class Secret:
    """The place of a secret: an environment variable (``kind="env"``) or a file (``kind="file"``).

    It can be shown, stored and sent to tasks, because it has no secret in it. The process that opens a connection resolves it,
    so the variable or the file must be there in the driver and in the executors.
    """

    kind: str
    place: str

    def resolve(self) -> str:
        """The secret itself. It must not be stored, logged, or put into a message."""
        if self.kind == "env":
            value = os.environ.get(self.place)
            if not value:
                raise OptionError(
                    f"secret: the environment variable {self.place} is not set; set it in the driver and the executors"
                )
            return value
        try:
            value = Path(self.place).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise OptionError(
                f"secret: the file {self.place} cannot be read: {reason}; mount it in the driver and the executors"
            ) from None
        if not value:
            raise OptionError(f"secret: the file {self.place} is empty; write the secret into it")
        return value

    def __repr__(self) -> str:
        return f"secret.{self.kind}({self.place!r})"
