"""One control cycle: monitor → analyze → plan → execute, every interval, beside the data flow.

Runs, attached queries and simulations share it; they differ in how they measure and carry out a plan (``Planning``). The data
flow never waits for it: it takes the plan in force and hands over reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from springtide.control.decider import Decider
from springtide.control.ports import Clock, Planning
from springtide.control.switch import Mode
from springtide.model.snapshot import Snapshot
from springtide.once import Once

log = logging.getLogger("springtide.control")


class ControlLoop:
    """``cycle`` is a round; ``start`` runs rounds in a thread until ``stop``, or until ``over()``."""

    def __init__(
        self, plans: Planning, decider: Decider, clock: Clock, interval_s: float, over: Callable[[], bool] = lambda: False,
        name: str = "springtide-control",
    ) -> None:  # fmt: skip
        self._plans, self._decider, self._clock, self._interval_s, self._over = plans, decider, clock, interval_s, over
        self._started = self._last = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.snapshot: Snapshot | None = None
        self.failures = 0  # cycles in which anything but the policy failed
        self.first_failure: str | None = None

    def cycle(self) -> None:
        """Monitor, analyze, plan, execute."""
        now = self._clock()
        snapshot = self._plans.measure(now - self._started, now - self._last)
        self._last = now
        if snapshot is None:
            return  # nothing new to decide on
        try:
            if self._decider.look_at_switch(snapshot.at) is not Mode.OFF:
                requests = self._decider.decide(snapshot)
                plan = self._plans.next_plan(snapshot, requests)
                self._plans.adopt(plan, requests, snapshot)
        finally:
            self.snapshot = snapshot
            self._decider.save_if_due()

    def start(self) -> None:
        """Begin: time counts from here."""
        self._started = self._last = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and the policy's process."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
        self._decider.close()

    @property
    def active(self) -> bool:
        return not self._stopped.is_set()

    def _run(self) -> None:
        failing = Once()
        while not self._stopped.wait(self._interval_s) and not self._over():
            try:
                self.cycle()
                failing.end()
            except Exception as error:  # the control flow may fail; the data flow goes on with the last plan
                if self._over():
                    continue
                self.failures += 1
                self.first_failure = self.first_failure or repr(error)
                if failing.begins():
                    log.exception("the control loop failed; the last plan stays in force")
