"""Policies that misbehave when they are told to, for tests of the control process; it imports them by ``module:Class``."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from springtide.model.plan import Request
from springtide.model.snapshot import Snapshot

MOOD = "mood"
"""The file that says what to do in the next decision; taken away before it is done, so that it is done once."""
GO = "go"
"""The file that lets a decision end which waits for it; taken away too."""


@dataclass(frozen=True)
class Moody:
    """Counts its decisions, which is all that it learns, and asks for as many replicas, 1 to 5, for the first operator."""

    kind: ClassVar[str] = "scale"
    name: ClassVar[str] = "moody"
    source: ClassVar[str] = "tests"
    summary: ClassVar[str] = "counts"

    folder: str = ""

    def initial(self) -> Mapping[str, Any]:
        return {"seen": 0}

    def decide(self, state: Mapping[str, Any], snapshot: Snapshot, rng: np.random.Generator) -> Any:
        seen = state["seen"] + 1
        first = snapshot.operators[0].name
        answer = {**state, "seen": seen}, (Request(first, wanted(seen), f"seen {seen}", score=rng.random()),)
        mood = Path(self.folder, MOOD)
        if not mood.exists():
            return answer
        what = mood.read_text(encoding="utf-8")
        mood.unlink()
        return self._do(what, answer, first)

    def _do(self, what: str, answer: Any, first: str) -> Any:
        match what:
            case "raise":
                raise ZeroDivisionError("asked to")
            case "hang":
                time.sleep(10**6)
            case "grip":  # no other thread of the process runs while a regular expression is matched
                re.match(r"(a+)+$", "a" * 60 + "b")
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "exit":
                sys.exit(3)
            case "fault":
                faulthandler.disable()  # pytest's would write to the terminal
                ctypes.string_at(0)
            case "allocate":
                bytearray(2**46)
            case "wait":
                self._wait()
            case "print":
                print('{"number": 1, "requests": []}', flush=True)
                os.write(1, b"rubbish\n")
                subprocess.run([sys.executable, "-c", "print(input())"], check=False, capture_output=False)
            case "started":  # something that outlives the decision, and holds whatever it inherited
                other = subprocess.Popen(["sleep", "100000"])
                Path(self.folder, "started").write_text(str(other.pid), encoding="utf-8")
                time.sleep(10**6)
            case "unkeepable":
                return {**answer[0], "self": {1, 2}}, answer[1]
            case _:
                return NONSENSE[what](answer[0], first)
        return answer

    def _wait(self) -> None:
        while not Path(self.folder, GO).exists():
            time.sleep(0.01)
        Path(self.folder, GO).unlink()


def wanted(seen: int) -> int:
    return 1 + (seen - 1) % 5


NONSENSE: dict[str, Any] = {
    "nan": lambda state, first: (state, (Request(first, math.nan, "nan"),)),  # type: ignore[call-overload]
    "endless": lambda state, first: (state, (Request(first, math.inf, "inf"),)),  # type: ignore[call-overload]
    "none": lambda state, first: (state, (Request(first, None, "none"),)),  # type: ignore[call-overload]
    "object": lambda state, first: (state, (Request(object(), 1, "object"),)),  # type: ignore[call-overload]
    "operator": lambda state, first: (state, (Request("frist", 1, "no such operator"),)),
    "text": lambda state, first: (state, ("first=3",)),
    "no state": lambda state, first: ("learned", ()),
    "nothing": lambda state, first: None,
    "number": lambda state, first: 7,
}
