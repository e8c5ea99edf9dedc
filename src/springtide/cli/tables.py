"""Results for people: a run's totals as tables, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
"""What was not measured. Not a zero, and plain ASCII, so that it can be searched for in a log."""


def count(value: float | None) -> str:
    """A whole number: ``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None, unit: str = "") -> str:
    """A number with three digits or more: ``1,234``, ``12.3``, ``0.25``.

    >>> number(1234.4, "/s"), number(12.34), number(0.25), number(3.0), number(None, "/s")
    ('1,234/s', '12.3', '0.25', '3', '-')
    """
    if value is None:
        return UNKNOWN
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def milliseconds(value: float | None) -> str:
    """A time given in milliseconds: ``850ms``, ``12.3s``.

    >>> milliseconds(850.2), milliseconds(12345), milliseconds(0.4)
    ('850ms', '12.3s', '0.4ms')
    """
    if value is None:
        return UNKNOWN
    return number(value / 1000, "s") if value >= 10_000 else number(value, "ms")


def percent(share: float | None) -> str:
    """A share as a percentage: ``73%``."""
    return UNKNOWN if share is None else f"{share:.0%}"


def summary_table(summary: Mapping[str, Any]) -> RenderableType:
    """A run's summary, as ``springtide.record.summary`` makes it: the totals, the operators, the sinks."""
    title = f"{summary['topology']} · {summary['policy']} · {summary['grouping']}"
    parts: list[RenderableType] = [
        Text(title, style="bold"),
        facts_table(_facts(summary)),
        Text(),
        _operators(summary),
        Text(),
        _sinks(summary),
    ]
    if summary.get("run_dir"):
        parts += [Text(), Text(f"Run folder: {summary['run_dir']}", style="dim", overflow="fold")]
    return Group(*parts)


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Names and values, in two columns of each."""
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    half = (len(facts) + 1) // 2
    for left, right in zip(facts[:half], [*facts[half:], ("", "")], strict=False):
        table.add_row(Text(left[0], style="dim"), Text(left[1]), Text(right[0], style="dim"), Text(right[1]))
    return table


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("batches", count(summary["batches"])),
        ("duration", number(summary.get("duration_s"), "s")),
        ("records in", count(summary["rows_in"])),
        ("records out", count(summary["rows_out"])),
        ("records failed", count(summary["rows_failed"])),
        ("throughput", number(summary["throughput_rows_s"], " records/s")),
        ("backlog at the end", count(summary.get("backlog_end"))),
        *latency_facts(summary["latency_ms"]),
        ("replicas, mean (max)", mean_max(summary["replicas"])),
        ("slot seconds", number(summary["slot_seconds"])),
        ("reconfigurations", count(summary["reconfigurations"])),
    ]


def latency_facts(latency: Mapping[str, float] | None) -> list[tuple[str, str]]:
    names = {"mean": "mean", "p50": "median", "p95": "95th percentile", "p99": "99th percentile"}
    return [(f"latency, {name}", milliseconds((latency or {}).get(key))) for key, name in names.items()]


def mean_max(value: Mapping[str, float | None]) -> str:
    """A mean and the greatest: ``2.5 (4)``."""
    return UNKNOWN if value["mean"] is None else f"{number(value['mean'])} ({number(value['max'])})"


def _operators(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operator", overflow="fold")
    table.add_column("grouping")
    for heading in ("degree (max)", "width (max)", "records in", "records out"):
        table.add_column(heading, justify="right", no_wrap=True)
    for operator in summary["operators"]:
        table.add_row(
            Text(operator["name"], style="bold"),
            Text(operator["grouping"]),
            mean_max(operator["degree"]),
            mean_max(operator["width"]),
            count(operator["rows_in"]),
            count(operator["rows_out"]),
        )
    return table


def _sinks(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("sink", overflow="fold")
    table.add_column("records", justify="right", no_wrap=True)
    for name, rows in summary["sinks"].items():
        table.add_row(Text(name, style="bold"), count(rows))
    return table


def policy_table(described: Sequence[Mapping[str, Any]], detailed: bool) -> RenderableType:
    """What can be chosen, a line each; or one plug-in with its parameters."""
    if not detailed:
        table = Table("name", "from", "what it does", box=None, pad_edge=False)
        for plugin in described:
            table.add_row(f"{plugin['kind']}/{plugin['name']}", plugin["source"], plugin["summary"])
        return table
    (plugin,) = described
    head = Text(f"{plugin['kind']}/{plugin['name']} ({plugin['source']}): {plugin['summary']}")
    table = Table("parameter", "type", "unit", "range", "default", "what it means", box=None, pad_edge=False)
    for one in plugin["parameters"]:
        low, high = (UNKNOWN if one[end] is None else f"{one[end]:g}" for end in ("min", "max"))
        table.add_row(one["name"], one["type"], one["unit"], f"{low} … {high}", str(one["default"]), one["help"])
    return Group(head, table) if plugin["parameters"] else head


def overhead_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench overhead``."""
    title = f"{document['rows_per_batch']:,} rows a batch, medians of {document['rounds']} rounds"
    table = Table("shape", "Spark's defaults", "our settings", "Springtide", "ratio (IQR)", "gain (IQR)", title=title)
    for shape in ("chained", "shuffled"):
        row = document[shape]
        table.add_row(
            shape, *(milliseconds(row[side]) for side in ("vanilla_defaults_ms", "vanilla_ms", "springtide_ms")),
            f"{row['ratio']:.2f} ({row['ratio_iqr'][0]:.2f}–{row['ratio_iqr'][1]:.2f})",
            f"{row['gain']:.2f} ({row['gain_iqr'][0]:.2f}–{row['gain_iqr'][1]:.2f})",
        )  # fmt: skip
    return table


def balance_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench balance``."""
    title = f"work: {document['work']}, k = {document['k']}, {document['warm_records']:,} records learned from before"
    columns = ("costs", "records", "grouping", "batch", "balance", "over repartition (IQR)", "over hash", "of lpt-true's gain")
    table = Table(*columns, title=title, caption=document["note"])
    for row in document["rows"]:
        low, high = row["batch_speedup_iqr"]
        table.add_row(
            row["costs"], count(row["records"]), row["grouping"], milliseconds(row["batch_ms"]), f"{row['balance']:.3f}",
            f"{row['batch_speedup']:.2f} ({low:.2f}–{high:.2f})", f"{row['batch_speedup_over_hash']:.2f}",
            percent(row["gain_of_lpt_true"]), end_section=row["grouping"] == "tide",
        )  # fmt: skip
    return table


def routing_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench routing``."""
    table = Table("grouping", "µs per record", "first batch later by (IQR)", title=f"k = {document['k']}")
    for row in document["rows"]:
        spread = row["first_batch_extra_ms_iqr"]
        later = UNKNOWN if spread is None else f"{row['first_batch_extra_ms']:.0f} ms ({spread[0]:.0f}–{spread[1]:.0f})"
        table.add_row(row["grouping"], f"{row['us_per_record']:.3f}", later)
    return table
