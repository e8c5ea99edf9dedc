"""Runs each stream under each grouping once, whatever the number of figures that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from springtide.papers.posg_setup import CHANGE, Floats, StreamSetup, run

WINDOW = 2_000
"""The number of tuples in a point of figure 10."""
TIMEOUT_S = 30.0
"""Storm's timeout of a tuple, for figure 11."""

Progress = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class StreamResult:
    """The result of a stream under a grouping."""

    completion_s: float  # the mean
    windows_s: Floats  # [windows, 3] least, mean and greatest
    timed_out: int
    messages: int
    began: int | None  # POSG: the tuple at which RUN began
    updated: int | None  # POSG: the tuple at which the last instance's matrices arrived after the change


@dataclass
class StreamLab:
    """Runs streams and caches their results. It calls ``progress`` before every run."""

    seeds: int
    progress: Progress = lambda _: None
    _results: dict[tuple[object, ...], list[StreamResult]] = field(default_factory=dict)

    def runs(self, setup: StreamSetup, series: str, settings: Mapping[str, object] | None = None) -> list[StreamResult]:
        """A result for every seed. The stream of tweets is 15 times as long, so it has 10 times fewer seeds."""
        chosen = settings or {}
        key = (setup, series, *sorted(chosen.items()))
        if key not in self._results:
            seeds = max(1, self.seeds // 10) if setup.tweets else self.seeds
            self._results[key] = [self._run(setup, series, seed, chosen) for seed in range(seeds)]
        return self._results[key]

    def _run(self, setup: StreamSetup, series: str, seed: int, settings: Mapping[str, object]) -> StreamResult:
        self.progress(f"{series}, seed {seed}")
        watched = series == "posg" and len(setup.speeds) > 0
        done = run(setup, series, seed, settings, watched)
        machine = done.state.machine if watched else done.state
        whole = done.completion_s[: len(done.completion_s) // WINDOW * WINDOW].reshape(-1, WINDOW)
        updated = int(done.state.arrived.max()) if watched and (done.state.arrived > CHANGE).all() else None
        return StreamResult(
            float(done.completion_s.mean()),
            np.stack([whole.min(axis=1), whole.mean(axis=1), whole.max(axis=1)], axis=1),
            int((done.completion_s > TIMEOUT_S).sum()),
            done.messages,
            int(machine.began[0]) if series == "posg" and machine.began[0] >= 0 else None,
            updated,
        )
