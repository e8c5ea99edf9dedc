"""Every file of a checkpoint, damaged in every way at three moments: the run is exact, or refuses by name with a way out."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import pytest

from damage import moments, table
from damage.harm import Case
from damage.trial import Lab, sample

pytestmark = pytest.mark.spark

SEED = 7
PARTS = 4
"""The sample of a moment is tried in so many tests, which workers share out."""
SOAK_PARTS = 24

NEEDED_KINDS = {
    "checkpoint/spark/metadata", "last checkpoint/spark/offsets/N", "last checkpoint/spark/commits/N",
    "last checkpoint/springtide/sources/names/N.json", "checkpoint/springtide/sources/names/lock",
    *(f"checkpoint/springtide/{name}.json" for name in (
        "topology", "epoch", "state", "ticks", "schedule", "policy", "floor", "begun", "secret", "sources/numbers",
    )),
    "last checkpoint/springtide/manifests/N.json", "last checkpoint/springtide/plans/N.json",
    "last checkpoint/springtide/knowledge/N.npz", "checkpoint/springtide/driver.lock",
    *(f"last checkpoint/springtide/state/{operator}/N.state" for operator in ("position", "singles", "window")),
    "checkpoint/springtide/state/singles/merged.state", "last checkpoint/springtide/dead/dead-letters-X-N.json",
    "runs/damaged-N/batches.jsonl", "older checkpoint/spark/", "older checkpoint/springtide/",
}  # fmt: skip
STAGED_KINDS = {
    f"last output/{sink}/_springtide/{stem}-X/epoch-N/{stem}-X-N.{format}"
    for sink, stem, format in (
        ("weighed", "weighed", "parquet"), ("singles", "singles-files", "parquet"),
        ("positions", "positions", "json"), ("windows", "windows", "csv"),
    )
}  # fmt: skip


@pytest.fixture(scope="session")
def lab(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(moments.make(tmp_path_factory.mktemp("damage"), spark), lambda broken: spark)


@pytest.mark.parametrize("moment", moments.NAMES)
def test_what_nobody_has_damaged_goes_on_exactly(lab: Lab, moment: str) -> None:
    assert lab.undamaged(moment).text == "as expected"


@pytest.mark.parametrize("moment", moments.NAMES)
def test_a_moment_has_all_that_a_checkpoint_can_hold(lab: Lab, moment: str) -> None:
    kinds = {case.kind for case in lab.cases(moment)}
    wanted = NEEDED_KINDS if moment == "stopped" else NEEDED_KINDS | STAGED_KINDS
    assert wanted <= kinds, f"not there: {sorted(wanted - kinds)}"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("moment", moments.NAMES)
def test_one_harm_to_every_kind_of_file(lab: Lab, moment: str, part: int, request: pytest.FixtureRequest) -> None:
    chosen = sample(lab.cases(moment), SEED)
    check(lab, [case for case in chosen if _draw(case.kind) % PARTS == part], request)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize("moment", moments.NAMES)
def test_every_harm_to_every_file(lab: Lab, moment: str, part: int, request: pytest.FixtureRequest) -> None:
    check(lab, [case for case in lab.cases(moment) if _draw(f"{case.kind} {case.harm}") % SOAK_PARTS == part], request)


def check(lab: Lab, cases: Iterable[Case], request: pytest.FixtureRequest) -> None:
    tried = list(lab.all(cases))
    request.node.user_properties.append((table.PROPERTY, [table.entry(one) for one in tried]))
    bad = [str(one) for one in tried if not one.verdict.passes]
    assert not bad, f"{len(bad)} of {len(tried)} cases do not pass:\n" + "\n".join(bad)


def _draw(text: str) -> int:
    """Shares out cases by what they are, not by their place in a list: each worker has made moments of its own."""
    return zlib.crc32(text.encode())
