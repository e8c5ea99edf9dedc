"""Secrets for connectors: ``config={"sasl.password": st.secret.env("KAFKA_PASSWORD")}``."""

from __future__ import annotations

import os

from springtide.errors import OptionError
from springtide.model.secret import Secret


def env(name: str) -> Secret:
    """A secret in an environment variable of the driver and the executors."""
    if not isinstance(name, str) or not name or "=" in name:
        raise OptionError(
            f"secret.env({type(name).__name__}): give the name of an environment variable, for example 'KAFKA_PASSWORD'"
        )
    return Secret("env", name)


def file(path: str | os.PathLike[str]) -> Secret:
    """A secret in a file of the driver and the executors, such as a mounted secret of Kubernetes, without its last line end."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise OptionError(f"secret.file({type(path).__name__}): give the path of a file, for example '/run/secrets/kafka'")
    return Secret("file", os.fspath(path))
