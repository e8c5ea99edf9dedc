"""A task's report on its way to the driver."""

from __future__ import annotations

from springtide.model.report import TaskReport
from springtide.policy.group.cost_key import Variance
from springtide.spark.shared.receipt import Receipt
from springtide.spark.shared.report import Letter, Report
from springtide.spark.state.catalog import File
from springtide.spark.state.receipt import StateReceipt

FULL = Report(
    3,
    (TaskReport("work", 3, 10, 9, 1, 0.25, 1.5, 2.5), TaskReport("query", 3, None, 9, 0, None, 1.5, 2.5)),
    (Receipt("out", 1, "a-0.json", "a.json", 9, 180, 77), Receipt("", 1, "b-0.json", "b.json", 1)),
    (StateReceipt("count", 3, File("s", 100, 4), [1, 2], added=4, piece_bytes=64, seconds={2: 0.5}), StateReceipt("other", 3)),
    {"out": 9},
    ((12.5, 4.0), (13.5, 5.0)),
    {"mark": 7},
    {"work": {"key": Variance(6, 1, 3, 0.1, 2.0)}},
    dead=1,
    shed=2,
    lost=3,
    stopped=Letter("work", "ValueError: no", "Traceback", '{"n": 1}'),
)


def test_the_driver_decodes_the_value_that_the_task_encoded() -> None:
    for report in (FULL, Report(0)):
        decoded = Report.decoded(memoryview(report.encoded()))
        assert decoded == report
        assert [type(one) for one in decoded.state] == [type(one) for one in report.state]


def test_no_field_of_the_example_is_left_at_its_default() -> None:
    assert all(getattr(FULL, name) != default for name, default in vars(Report(0)).items())
