"""An S3 server of our own (moto), and its files."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from springtide.model import location


@pytest.fixture(scope="module")
def s3_address() -> Iterator[str]:
    """An S3 server of our own."""
    server = importlib.import_module("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The files of that server; its address and keys are in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    location.filesystem.cache_clear()  # connections to the server of another module
    from pyarrow.fs import FileSystem

    files, _ = FileSystem.from_uri("s3://bucket?allow_bucket_creation=true")
    files.create_dir("bucket")
    return files
