"""The view of an active run on standard error: a live table in a terminal, otherwise a plain line every 5 s.

Standard output has only results, so that ``springtide run --json > file`` can be watched.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict, deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from springtide.cli.tables import count, milliseconds, number, percent
from springtide.model.snapshot import OperatorSnapshot, Snapshot

PLAIN_EVERY_S = 5.0
HISTORY = 30

_BARS = " ▁▂▃▄▅▆▇█"
_OTHER_COLUMNS = 72  # width of the other columns; the bars get the rest of a narrow terminal


class LiveView:
    """Shows snapshots. It may show the same snapshot again with a later elapsed time."""

    def __init__(self, topology: str, policy: str, console: Console | None = None) -> None:
        self.topology = topology
        self.policy = policy
        self._console = _standard_error() if console is None else console
        self._live: Live | None = None
        self._snapshot: Snapshot | None = None
        self._elapsed_s = 0.0
        self._batches = 0
        self._printed_s = -math.inf
        self._degrees: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            # The program's output must reach a pipe unchanged, and must not overwrite the table.
            on_screen = sys.stdout.isatty()
            self._live = Live(self.render(), console=self._console, auto_refresh=False, redirect_stdout=on_screen)
            self._live.start(refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, snapshot: Snapshot, elapsed_s: float) -> None:
        """Show the latest measurements, ``elapsed_s`` seconds after the run's start."""
        if self._snapshot is None or snapshot.at != self._snapshot.at:
            self._remember(snapshot)
        self._snapshot, self._elapsed_s = snapshot, elapsed_s
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        elif not self._console.is_interactive and elapsed_s - self._printed_s > 0.9 * PLAIN_EVERY_S:
            self._printed_s = elapsed_s  # 0.9: an update that comes after 4.99 s must not wait for the next one
            self._console.print(Text(self.plain_line()), soft_wrap=True)

    def render(self) -> RenderableType:
        """The header, the operators, and the reason of the plan."""
        if self._snapshot is None:
            return Text(f"{self.topology}  {self.policy}  waiting for the first batch", style="dim")
        parts: list[RenderableType] = [self._header(self._snapshot), self._table(self._snapshot)]
        if self._snapshot.plan.reason:
            reason = f"plan: {self._snapshot.plan.reason}"
            parts.append(Text(reason, style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def plain_line(self) -> str:
        """The same in one line without colours, for a log; ``-`` stands for a missing measurement."""
        if self._snapshot is None:
            return f"{self.topology} waits for the first batch"
        facts = " ".join(f"{name}={value}" for name, value in self._facts(self._snapshot))
        degrees = ",".join(f"{o.name}:{o.degree}" for o in self._snapshot.operators)
        return f"{self.topology} {clock(self._elapsed_s)} {facts} degrees={degrees}"

    def _remember(self, snapshot: Snapshot) -> None:
        self._batches += len(snapshot.batches)
        for operator in snapshot.operators:
            self._degrees[operator.name].append(operator.degree)

    def _facts(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        latency = snapshot.latency
        return [
            ("batches", count(self._batches)),
            ("rate", number(snapshot.rate, "/s")),
            ("backlog", count(snapshot.backlog)),
            ("latency", milliseconds(latency.mean if latency else None)),
            ("p95", milliseconds(latency.p95 if latency else None)),
            ("slots", count(snapshot.plan.slots)),
        ]

    def _header(self, snapshot: Snapshot) -> Text:
        text = Text.assemble((self.topology, "bold"), f"  {self.policy}  {clock(self._elapsed_s)}")
        for name, value in self._facts(snapshot):
            text.append("  ").append(f"{name} ", style="dim").append(value)
        return text

    def _table(self, snapshot: Snapshot) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=20)
        for heading in ("degree", "width", "records/s", "backlog", "latency", "busy"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("history", no_wrap=True)
        room = max(8, min(HISTORY, self._console.width - _OTHER_COLUMNS))
        top = max((max(degrees) for degrees in self._degrees.values()), default=0)
        for operator in snapshot.operators:
            history = list(self._degrees[operator.name])[-room:]
            table.add_row(*_cells(operator), Text(bars(history, top), style="cyan"))
        return table


def _standard_error() -> Console:
    """With FORCE_COLOR, which CI services set, rich would treat a pipe as a terminal; it is to enable colours only."""
    return Console(stderr=True, force_interactive=None if sys.stderr.isatty() else False)


def _cells(operator: OperatorSnapshot) -> list[Text]:
    busy = operator.utilisation
    return [
        Text(operator.name, style="bold"),
        Text(count(operator.degree)),
        Text(count(operator.width)),
        Text(number(operator.rate)),
        Text(count(operator.backlog)),
        Text(milliseconds(operator.latency_ms)),
        Text(percent(busy), style="red" if busy is not None and busy > 1 else ""),
    ]


def bars(values: list[int], top: int) -> str:
    """One bar a value. Operators share ``top``, so that their bars compare; up to 8, a step is one replica.

    >>> bars([1, 2, 4, 8], top=8), bars([0, 16, 32], top=32)
    ('▁▂▄█', ' ▄█')
    """
    return "".join(_BARS[math.ceil(8 * value / max(8, top))] for value in values)


def clock(elapsed_s: float) -> str:
    """Elapsed time as minutes and seconds, or hours.

    >>> clock(83.9), clock(3605)
    ('01:23', '1:00:05')
    """
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes:02}:{seconds:02}"
