"""The test is tested: a system that ignores damage is found out, and so is one that only complains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from damage import harm, outputs, table, verdict
from damage.harm import Case
from damage.moments import Moment
from damage.trial import Tried, sample
from damage.verdict import Ending, Verdict
from springtide.errors import CheckpointError

FILE = "checkpoint/springtide/next.json"
DAMAGED = Path("/job/checkpoint/spark/offsets/3")
PUT_BACK = "put it back from a backup"


def tree(root: Path, following: int) -> Path:
    """A checkpoint of a system that does nothing but count: the next record, whose log Spark has, and a staged file."""
    for path, content in (
        (FILE, json.dumps({"next": following})), ("checkpoint/spark/offsets/0", "v1\n0"),
        ("checkpoint/spark/offsets/1", f"v1\n{following}"), ("output/sink/part-0.json", "{}"),
        ("output/sink/_springtide/epoch-1/part-1.json", '{"n": 1}'), ("runs/job-1/run.json", "{}"),
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content, encoding="utf-8")
    return root


def ignoring(life: Path) -> Ending:
    """Goes on from whatever it finds, from the start if it finds nothing."""
    try:
        following = int(json.loads((life / FILE).read_text(encoding="utf-8"))["next"])
    except (OSError, ValueError, KeyError, TypeError):
        following = 0
    return Ending(None if following == 7 else f"{7 - following} records doubled")


def refusing(life: Path) -> Ending:
    """Knows what has to be there, and says so."""
    if ignoring(life).difference is None:
        return Ending()
    return Ending(error=CheckpointError(f"{life / FILE} was changed since it was written; {PUT_BACK}"))


def complaining(life: Path) -> Ending:
    return ignoring(life) if ignoring(life).difference is None else Ending(error=KeyError("next"))


@pytest.mark.parametrize(
    ("system", "found"),
    [(ignoring, Verdict.SILENT), (refusing, Verdict.REFUSED), (complaining, Verdict.UNNAMED)],
)
def test_a_system_is_judged_by_what_it_does_after_each_harm(
    system: Callable[[Path], Ending], found: Verdict, tmp_path: Path
) -> None:
    older = tree(tmp_path / "older", 4)
    every = harm.cases(Moment("stopped", tree(tmp_path / "copy", 7)), older)
    assert {case.harm for case in every if case.path == FILE} == set(harm.HARMS)
    for number, case in enumerate(every):
        life = tree(tmp_path / str(number) / "job", 7)
        within = harm.apply(case, life, older)
        judged = verdict.attempt(lambda life=life: system(life), life / case.path, within)  # type: ignore[misc]
        concerned = Path(FILE).is_relative_to(case.path)
        assert judged.verdict is (found if concerned else Verdict.EXACT), f"{case}: {judged.text}"


def test_published_output_is_no_target_and_staged_output_is(tmp_path: Path) -> None:
    paths = [file.relative_to(tmp_path).as_posix() for file in harm.targets(tree(tmp_path, 7))]
    assert "output/sink/_springtide/epoch-1/part-1.json" in paths and "runs/job-1/run.json" in paths
    assert "output/sink/part-0.json" not in paths


def test_a_refusal_that_gives_way_to_wrong_output_is_silent() -> None:
    refusal = Ending(error=CheckpointError(f"{DAMAGED} is gone; {PUT_BACK}"))
    endings = iter([refusal, Ending("3 records lost")])
    assert verdict.attempt(lambda: next(endings), DAMAGED).verdict is Verdict.SILENT
    endings = iter([refusal, Ending()])
    assert verdict.attempt(lambda: next(endings), DAMAGED).verdict is Verdict.REFUSED


def test_a_run_that_does_not_end_is_unnamed() -> None:
    assert verdict.of(Ending(hung=True), DAMAGED) is Verdict.UNNAMED


def test_an_error_that_is_not_springtides_is_unnamed() -> None:
    assert verdict.of(Ending(error=OSError(f"{DAMAGED} is gone; {PUT_BACK}")), DAMAGED) is Verdict.UNNAMED


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("/job/checkpoint/spark/offsets/3 is gone", True),
        ("batch 3 has no offsets/3.", True),
        ("offsets/3, and offsets/2", True),
        ("batch 3 has no offsets", False),
        ("/job/checkpoint/spark/offsets/31 is gone", False),
        ("/job/checkpoint/spark/offsets/3.json is gone", False),
        ("/job/checkpoint/spark/my-offsets/3 is gone", False),
    ],
)
def test_a_message_names_a_file_by_its_folder_and_name(message: str, named: bool) -> None:
    assert verdict.names(message, DAMAGED) is named


def test_a_message_names_a_folder_by_any_file_in_it() -> None:
    assert verdict.names("/job/checkpoint/spark/offsets/3 is gone", DAMAGED.parent, [DAMAGED])
    assert verdict.names("/job/checkpoint/spark/offsets ends at 2", DAMAGED.parent, [DAMAGED])
    assert not verdict.names("/job/checkpoint/springtide/manifests/00000003.json is ahead", DAMAGED.parent, [DAMAGED])


@pytest.mark.parametrize(
    ("message", "has_one"),
    [
        ("it was changed; put it back, or give a new checkpoint", True),
        ("it was changed. Restore it from a backup", True),
        ("it was changed; give a new checkpoint", False),
        ("it was changed; give an empty or new folder", False),
        ("it was changed since it was put there, and nothing can be run", False),
        ("it was changed", False),
    ],
)
def test_a_way_out_keeps_what_is_there(message: str, has_one: bool) -> None:
    assert verdict.has_way_out(message) is has_one


def test_a_sample_has_every_kind_of_file_and_other_harms_at_other_moments(tmp_path: Path) -> None:
    copy, older = tree(tmp_path / "copy", 7), tree(tmp_path / "older", 4)
    samples = [sample(harm.cases(Moment(name, copy), older), seed=1) for name in ("stopped", "middle", "unpublished")]
    for chosen in samples:
        assert sorted(case.kind for case in chosen) == sorted(
            {case.kind for case in harm.cases(Moment("stopped", copy), older)}
        )
    assert len({case.harm for chosen in samples for case in chosen if case.path == FILE}) == 3


@pytest.mark.parametrize("content", [b'{"n": 1}\x0b', b'{"n": 1}', b'{"n": 1}\n{"n"'])
def test_a_damaged_line_end_is_no_line_end(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(content)
    with pytest.raises(ValueError, match="and not with a new line"):
        outputs.lines(tmp_path / "part")


def test_a_difference_tells_what_is_lost_and_what_is_doubled() -> None:
    wanted = {"sink": Counter({(1,): 1, (2,): 1})}
    assert outputs.difference({"sink": Counter({(1,): 2})}, wanted) == "sink: 1 lost, 1 doubled or wrong"
    assert outputs.difference(wanted, wanted) is None
    assert outputs.difference({}, wanted) == "sink: 2 lost, 0 doubled or wrong"


def test_the_matrix_counts_by_moment_and_verdict() -> None:
    tried = [
        Tried(Case(moment, FILE, "cut", FILE), found, "", 0.0)
        for moment, found in (("stopped", Verdict.EXACT), ("stopped", Verdict.SILENT), ("middle", Verdict.REFUSED))
    ]
    assert table.counts(map(table.entry, tried)) == {
        "middle": {"exact": 0, "refused": 1, "silent": 0, "unnamed": 0},
        "stopped": {"exact": 1, "refused": 0, "silent": 1, "unnamed": 0},
        "all": {"exact": 1, "refused": 1, "silent": 1, "unnamed": 0},
    }
