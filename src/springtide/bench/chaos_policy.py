"""A policy that misbehaves in every way that a manager can, and never requests a change."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot
from springtide.policy.registry import parameter
from springtide.policy.scale import ScalePlugin, State

WAYS = ("raise", "hang", "die", "stop", "nonsense", "unknown operator", "no state", "stale")


@dataclass(frozen=True)
class Chaos(ScalePlugin):
    """Misbehaves in a share of its decisions, in one of ``WAYS``. Degrees stay the same, so that only the faults differ."""

    name = "chaos"
    source = "Springtide's benchmarks"
    summary = "misbehaves"

    share: float = parameter(0.5, minimum=0, maximum=1, help="the share of decisions in which it misbehaves")

    def initial(self) -> State:
        return {"before": None}

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> Any:
        chance = random.SystemRandom()  # not rng, which is reset by a restart: the same fault would recur for ever
        if snapshot.interval_s == 0 or chance.random() >= self.share:
            return {"before": {o.name: o.degree for o in snapshot.operators}}, ()
        first = snapshot.operators[0]
        match chance.choice(WAYS):
            case "raise":
                raise RuntimeError("chaos")
            case "hang":
                time.sleep(10**6)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "nonsense":
                return state, (Request(first.name, math.nan, "chaos"),)  # type: ignore[call-overload]
            case "unknown operator":
                return state, (Request("chaos", 3, "chaos"),)
            case "no state":
                return "chaos", ()
        return state, tuple(Request(name, degree, "stale") for name, degree in (state["before"] or {}).items())
