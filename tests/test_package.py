"""The package's front door: every public name opens, and none costs anything before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import springtide as st


def test_every_public_name_is_there_and_no_other() -> None:
    found = {name: getattr(st, name) for name in st.__all__}
    assert set(found) == set(st._HOMES)
    assert found["run"].__module__ == "springtide.running"
    assert set(found) <= set(dir(st))


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match=r"module 'springtide' has no attribute 'steam'"):
        st.steam  # noqa: B018


def test_control_starts_without_what_only_the_data_flow_needs() -> None:
    """pyarrow alone takes as much of a core as all that the control process needs."""
    code = (
        "import sys, springtide.control.plane.served; print([m for m in ('pyarrow', 'pandas', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
