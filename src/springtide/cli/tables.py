"""Results for people: a run's totals as tables, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
"""Stands for a missing measurement. It is not a zero, and is plain ASCII for searches in a log."""


LIMITED_SIZE = 1_000
"""Number of operators at which ``bench decisions`` limits the time of a decision."""


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
    parts += [Text(line) for line in _open(summary)]
    if summary.get("run_dir"):
        parts += [Text(), Text(f"Run folder: {summary['run_dir']}", style="dim", overflow="fold")]
    return Group(*parts)


def _open(summary: Mapping[str, Any]) -> Iterator[str]:
    """The windows and timers that stay open after a run that has processed all, a line for each operator."""
    for name, left in (summary.get("open") or {}).items():
        windows, timers = count(left["windows"]), count(left["timers"])
        yield f"{name} keeps {windows} windows and {timers} timers open, the first until {left['first']}"


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
        ("ended", summary.get("ended") or UNKNOWN),
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
    """A mean and the maximum: ``2.5 (4)``."""
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
    """The plug-ins, a line each; or one plug-in with its parameters.

    Each parameter has its own lines: a table would cut names in 80 columns, the width of a pipe.
    """
    if not detailed:
        table = Table(box=None, pad_edge=False)
        table.add_column("name", no_wrap=True)
        table.add_column("from")
        table.add_column("what it does")
        for plugin in described:
            table.add_row(f"{plugin['kind']}/{plugin['name']}", plugin["source"], plugin["summary"])
        return table
    (plugin,) = described
    parts: list[RenderableType] = [Text(f"{plugin['kind']}/{plugin['name']} ({plugin['source']}): {plugin['summary']}")]
    for parameter in plugin["parameters"]:
        facts = [
            parameter["type"],
            parameter["unit"],
            _range(parameter["min"], parameter["max"]),
            f"default {parameter['default']!r}",
        ]
        name = Text.assemble("\n", (parameter["name"], "bold"), f"  {', '.join(filter(None, facts))}", overflow="fold")
        parts += [name, Padding(Text(parameter["help"]), (0, 0, 0, 4))]
    return Group(*parts)


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
    for row in document.get("long_keys", ()):
        limit = f"{row['ns_per_byte']:.2f} ns a byte; limit {row['limit_us']:,.1f} µs"
        table.add_row(f"hash, keys of {row['bytes']:,} bytes", f"{row['us_per_record']:,.3f}", limit)
    return table


def kafka_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench kafka``."""
    table = Table("job", "engine", "records/s (IQR)", "p50", "p95", "p99", title=f"{count(document['records'])} records")
    for row in document["rows"]:
        low, high = row.get("rate_iqr", (None, None))
        rate = f"{count(row['rate_rows_s'])} ({count(low)}–{count(high)})"
        times = [milliseconds(row[name]) for name in ("p50_ms", "p95_ms", "p99_ms")]
        table.add_row(row["job"], row["engine"], row.get("note") or rate, *times)
    return table


def decisions_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench decisions``: a row for each policy, a column for each number of operators."""
    rows, limit = document["rows"], document["limit_ms"]
    sizes = list(dict.fromkeys(row["operators"] for row in rows))
    took = {(row["policy"], row["operators"]): row["ms"] for row in rows}
    exempt = {row["policy"] for row in rows if row["exempt"]}
    table = Table("policy", title="Milliseconds of one decision, by operators, on as many nodes")
    for heading in (*(f"{size:,}" for size in sizes), "growth"):
        table.add_column(heading, justify="right", no_wrap=True)
    slow = [name for name, size in took if size == LIMITED_SIZE and name not in exempt and (took[name, size] or 0.0) >= limit]
    for line in document["growth"]:
        name = line["policy"]
        table.add_row(
            Text(f"{name} (exempt)" if name in exempt else name, style="bold red" if name in slow else ""),
            *(UNKNOWN if took[name, size] is None else f"{took[name, size]:.3g}" for size in sizes),
            ", ".join(UNKNOWN if factor is None else f"×{factor:.3g}" for factor in line["factors"]),
        )  # fmt: skip
    verdict = (
        f"Too slow: {', '.join(slow)}." if slow else "All do that are not exempt." if LIMITED_SIZE in sizes else "Not measured."
    )
    note = (
        f"Growth: time over that with the previous size. Limit: {limit:g} ms with {LIMITED_SIZE:,} operators."
        f" {verdict} Exempt are learners and the bound."
    )
    return Group(table, Text(note, style="dim"))


def policies_markdown(described: Sequence[Mapping[str, Any]]) -> str:
    """All that can be chosen, as a page of the documentation."""
    kinds = {
        "scale": "Scaling policies: how many replicas every operator gets (`--policy NAME --set PARAMETER=VALUE`)",
        "group": "Groupings: which task gets a record (`--grouping NAME --set grouping.PARAMETER=VALUE`)",
        "forecast": "Forecasters: how a series goes on; policies look ahead with them",
        "guard": "Guards: what stands between policy and plan (`--guard NAME:PARAMETER=VALUE,…`)",
        "shard": "Sharding: which task has a shard of a stateful operator (`--sharding NAME:PARAMETER=VALUE,…`)",
        "grant": "Granting policies: which of the managers' proposals are carried out, in hierarchical control",
    }
    found = list(dict.fromkeys([*kinds, *(plugin["kind"] for plugin in described)]))
    parts = [
        "# What can be chosen",
        "This page is what `springtide policies --markdown` prints; do not edit it. [scaling.md](scaling.md) and"
        " [routing.md](routing.md) tell which to use when.",
    ]
    for kind in found:
        chosen = [plugin for plugin in described if plugin["kind"] == kind]
        if chosen:
            parts += [f"## {kind}", f"{kinds[kind]}." if kind in kinds else "", *map(_plugin_markdown, chosen)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _plugin_markdown(plugin: Mapping[str, Any]) -> str:
    summary = plugin["summary"][:1].upper() + plugin["summary"][1:]
    head = f"### {plugin['kind']}/{plugin['name']}\n\n{_cell(summary)}. From: {_cell(plugin['source'])}."
    if not plugin["parameters"]:
        return f"{head}\n\nNo parameters."
    lines = ["| parameter | type | unit | range | default | what it means |", "| --- | --- | --- | --- | --- | --- |"]
    for parameter in plugin["parameters"]:
        default = f"`{parameter['default']}`" if parameter["default"] != "" else "empty"
        cells = (
            f"`{parameter['name']}`",
            parameter["type"],
            parameter["unit"],
            _range(parameter["min"], parameter["max"]),
            default,
            parameter["help"],
        )
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return f"{head}\n\n" + "\n".join(lines)


def _range(low: float | None, high: float | None) -> str:
    """The allowed values.

    >>> _range(0, 1), _range(1, None), _range(None, None)
    ('0 to 1', 'from 1', '')
    """
    if low is None and high is None:
        return ""
    if high is None:
        return f"from {low:,g}"
    return f"up to {high:,g}" if low is None else f"{low:,g} to {high:,g}"


def _cell(text: str) -> str:
    """Escape the text of a table's cell: a bar or an asterisk is not markup."""
    return text.replace("|", "\\|") if text.startswith("`") else text.replace("|", "\\|").replace("*", "\\*")


def executors_table(document: Mapping[str, Any]) -> RenderableType:
    """The result of ``bench executors``."""
    title = f"work: {document['work']}, {document['trace']} × {document['speed']:g}, target {document['target_ms']:.0f} ms"
    caption = f"A call takes {document['call_ms']:.0f} ms, in which a task waits and burns nothing."
    table = Table("side", "late", "executor-seconds", "95 % within", "rows left", title=title, caption=caption)
    for row in document["rows"]:
        latency = row["latency_ms"]
        table.add_row(
            row["policy"], percent(row["violation_ratio"]), count(row["executor_seconds"]),
            UNKNOWN if latency is None else milliseconds(latency["p95"]), count(row["backlog_rows_end"]),
        )  # fmt: skip
    return table


def state_tables(document: Mapping[str, Any]) -> list[RenderableType]:
    """The result of ``bench state``."""
    tables: list[RenderableType] = []
    if "throughput" in document:
        table = Table("rows a batch", "keys", "engine", "tasks", "rows/s", "batch", title="counting")
        for row in document["throughput"]:
            table.add_row(count(row["rows"]), count(row["keys"]), row["engine"], str(row["parallelism"]), count(row["rows_s"]),
                          milliseconds(row["batch_ms"]))  # fmt: skip
        ratios = Table("rows a batch", "over", "ratio", "quartiles", title="springtide at its best, times the rows/s of others")
        for row in document["ratios"]:
            other = f"{row['over']} ({row['engine']} at {row['parallelism']})"
            ratios.add_row(count(row["rows"]), other, number(row["ratio"]), " to ".join(map(number, row["ratio_iqr"])))
        tables += [table, ratios]
    if "pause" in document:
        pause = document["pause"]
        tables.append(facts_table([
            ("pause of springtide", f"{number(pause['springtide_s'])} s"), ("pause of spark", f"{number(pause['spark_s'])} s"),
            ("usual batch", f"{number(pause['usual_batch_s'])} s"), ("ratio", number(document["pause_ratio"])),
        ]))  # fmt: skip
    if "skew" in document:
        table = Table("changes a minute", "engine", "rows/s", "fullest task / mean", title="work: wait, Zipf-1.0 keys")
        for row in document["skew"]:
            table.add_row(str(row["omega"]), row["engine"], count(row["rows_s"]), number(row["fullest"]))
        tables.append(table)
    return tables
