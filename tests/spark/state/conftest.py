"""Nodes with caches, for tests of state that lies at a URI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from springtide.spark.state.cache import node_folder


@pytest.fixture
def on_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Be on a node from now on; the folder of its pieces."""

    def use(name: str) -> Path:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "nodes" / name))
        return node_folder()

    return use
