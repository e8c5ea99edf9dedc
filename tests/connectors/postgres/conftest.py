"""Closes what the tests open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.parts import OPENED


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()
