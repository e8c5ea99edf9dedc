"""The control process: a policy that answers its driver, line by line.

    {"message": "begin", "spec": …, "state": …, "rng": …}     → {"begun": name}
    {"message": "decide", "number": n, "snapshot": …}         → {"number": n, "requests": […], "refused": […]}
                                                                or {"number": n, "error": …}
    {"message": "state"}                                      → {"state": …, "rng": …}

``timeout_s`` in every message is how long the driver waits. The process has the policy's state and its random source. It ends
when its standard input ends, which it does when the driver ends or is killed. A failed decision changes no state; whatever the
policy prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from springtide.control.plane.spec import Spec, make
from springtide.control.plane.wire import decoded, encoded
from springtide.model.snapshot import Snapshot
from springtide.policy.scale import ScalePolicy, State, decided, refusals

SELF_END_AFTER_S = 5.0
"""A hanging process ends itself this long after its driver's timeout. Where a policy blocks the interpreter, as a regular
expression may, no thread sees the end of the input."""


class Served:
    """One policy, its state, and its random source."""

    _policy: ScalePolicy
    _state: State
    _rng: np.random.Generator

    def answer(self, asked: Mapping[str, Any]) -> bytes:
        """The line that answers a message. It contains any error of the message or the policy."""
        number = {"number": asked["number"]} if "number" in asked else {}
        try:
            return encoded({**number, **self._answer(asked)})
        except Exception:  # noqa: BLE001  a policy may raise anything
            return encoded({**number, "error": traceback.format_exc()})

    def _answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        match asked["message"]:
            case "begin":
                return self._begin(asked)
            case "decide":
                return self._decide(Snapshot.from_json(asked["snapshot"]))
            case "state":
                return {"state": self._state, "rng": self._rng.bit_generator.state}
            case other:
                raise ValueError(f"message {other!r} is not known")

    def _begin(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        spec = Spec.from_json(asked["spec"])
        self._policy = make(spec).policy
        self._state = self._policy.initial() if asked.get("state") is None else asked["state"]
        self._rng = np.random.default_rng(spec.seed)
        if asked.get("rng") is not None:
            self._rng.bit_generator.state = asked["rng"]
        return {"begun": self._policy.name}

    def _decide(self, snapshot: Snapshot) -> dict[str, Any]:
        self._state, requests = decided(self._policy, self._state, snapshot, self._rng)
        refused = [verdict.refusal() for verdict in refusals(self._policy, self._state)]
        return {"requests": [request.to_json() for request in requests], "refused": refused}


def main() -> None:
    """Answer until the driver has ended."""
    questions, answers = _own_pipes()
    with contextlib.suppress(OSError):  # if memory runs out, the kernel kills this process and not its driver
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions, lines), daemon=True).start()
    served = Served()
    while True:
        asked = decoded(lines.get())
        faulthandler.dump_traceback_later(asked["timeout_s"] + SELF_END_AFTER_S, exit=True)
        answers.write(served.answer(asked))
        faulthandler.cancel_dump_traceback_later()
        answers.flush()


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output, out of the reach of the policy's reads and prints."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers


def _listen(questions: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Runs in its own thread, which sees the end of the driver also while a policy hangs."""
    for line in questions:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
