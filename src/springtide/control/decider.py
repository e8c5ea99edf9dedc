"""The decider asks the policy, and owns everything around a decision.

It owns the policy's state and randomness, the process it runs in, its failures, the refusals of its guards and managers, the
switch between on, dry run and off, and its saved state. Whatever a policy does, a decision is a list of valid requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from springtide.control.ports import Clock, PolicyHost
from springtide.control.switch import FixedMode, Mode, Switch
from springtide.control.unknown_backlog import UnknownBacklog
from springtide.model.plan import Request
from springtide.model.request import Action, Migrate, Verdict
from springtide.model.snapshot import Snapshot
from springtide.once import Once
from springtide.policy import scale
from springtide.policy.scale import ScalePolicy, State, decided

log = logging.getLogger("springtide.control")

SAVE_EVERY_S = 10.0
"""Seconds between two saves of a policy's state. A crash loses at most what the policy learned in this time."""


class InThread:
    """Hosts a policy in the thread that asks it."""

    restarts = 0

    def __init__(self, policy: ScalePolicy) -> None:
        self._policy, self.name = policy, str(getattr(policy, "name", "?"))

    def initial(self) -> State:
        return self._policy.initial()

    def decide(self, state: State, snapshot: Snapshot, rng: np.random.Generator) -> tuple[State, tuple[Request, ...]]:
        return self._policy.decide(state, snapshot, rng)

    def refusals(self, state: State) -> list[Verdict]:
        return scale.refusals(self._policy, state)

    def forget(self) -> None:
        """The state is the caller's."""

    def close(self) -> State | None:
        return None


class Decider:
    """Turns snapshots into requests. ``record`` gets an entry for each refusal, switch and dry-run decision.

    ``state``: the policy's state from an earlier run; ``save`` gets its state every ``SAVE_EVERY_S`` seconds and at the end.
    ``subject``: a prefix of log lines that names what the policy decides about.
    """

    def __init__(
        self, host: PolicyHost, *, record: Callable[[Mapping[str, object]], None], clock: Clock, seed: int = 0,
        state: State | None = None, save: Callable[[State], None] | None = None, switch: Switch | None = None,
        subject: str = "",
    ) -> None:  # fmt: skip
        self._host, self._record, self._clock, self._subject = host, record, clock, subject
        self._rng = np.random.default_rng(seed)
        self._state = state
        self._restored = state is not None  # and no decision on a measurement has used it yet
        self._save, self._saved_at = save, clock()
        self._switch = switch or FixedMode()
        self.mode = self._switch.mode()
        self._wishes = Once()  # of a dry run
        self.requested: tuple[Request, ...] = ()  # the policy's last requests, also in a dry run
        self._unknown_backlog = UnknownBacklog()
        self._failing = Once()
        self.failures = 0
        self.first_failure: str | None = None

    @property
    def state(self) -> State | None:
        """The policy's state; None before its first decision."""
        return self._state

    @property
    def failing(self) -> bool:
        """Whether the last decision failed."""
        return bool(self._failing)

    @property
    def restarts(self) -> int:
        """The number of restarts of the policy's process."""
        return self._host.restarts

    def look_at_switch(self, at: float) -> Mode:
        """Read the mode, and record a change of it."""
        mode, before = self._switch.mode(), self.mode
        if mode is not before:
            log.warning("%scontrol is switched from %s to %s", self._subject, before, mode)
            self._record({"control": mode, "at_s": round(at, 3), "reason": f"switched from {before}"})
            self.mode, self._wishes = mode, Once()
        return mode

    def decide(self, snapshot: Snapshot) -> tuple[Request, ...]:
        """Ask the policy. A policy that fails requests nothing; a dry run records its requests, and returns none."""
        requests = self.requested = self._ask(snapshot)
        if self.mode is Mode.DRY_RUN:
            self._record_dry_run(requests, snapshot)
            return ()
        return requests

    def save_if_due(self) -> None:
        if self._clock() - self._saved_at >= SAVE_EVERY_S:
            self._save_state()

    def close(self) -> None:
        """End the policy's process, and save its last state."""
        self._state = self._host.close() or self._state
        self._save_state()
        self._save = None

    def _ask(self, snapshot: Snapshot) -> tuple[Request, ...]:
        try:
            before = self._host.initial() if self._state is None else self._state
            self._state, requests = decided(self._host, before, snapshot, self._rng)
            self._restored = self._restored and snapshot.rate is None  # without one, a policy uses little of its state
            requests, blind = self._unknown_backlog.review(snapshot, requests)
            self._record_refusals([*self._host.refusals(self._state), *blind], snapshot)
        except Exception as error:  # a policy may raise anything; it must not reach the data flow
            if self._restored:
                self._discard_state(error)
                return self._ask(snapshot)
            self.failures += 1
            self.first_failure = self.first_failure or repr(error)
            if self._failing.begins():
                log.exception("%spolicy %s failed; the last plan stays in force", self._subject, self._host.name)
            return ()
        self._failing.end()
        return requests

    def _discard_state(self, error: Exception) -> None:
        """Start without the restored state: the policy would fail on it for the whole run."""
        fault = str(error).strip().rpartition("\n")[2] or repr(error)
        log.warning("policy %s cannot use its saved state (%s); it starts without it", self._host.name, fault)
        self._restored, self._state = False, None
        self._host.forget()

    def _record_refusals(self, refusals: Sequence[Verdict], snapshot: Snapshot) -> None:
        """``refusals``: the new ones; each is there once while it lasts."""
        for verdict in refusals:
            log.info("%s%s", self._subject, verdict)
            self._record({**verdict.refusal(), "at_s": round(snapshot.at, 3)})

    def _record_dry_run(self, requests: tuple[Request, ...], snapshot: Snapshot) -> None:
        """Record the requests of a dry run, once while they are the same."""
        degrees = degrees_of(requests)
        origins = sorted({_origin(request.action) for request in requests if not request.operator})
        wish = frozenset(degrees.items()), *origins
        self._wishes.end_others({wish})
        if requests and self._wishes.begins(wish):
            reason = "; ".join(request.reason for request in requests)
            log.info("%sdry run: degrees %s would change to %s: %s",
                     self._subject, dict(snapshot.plan.degrees), degrees, reason)  # fmt: skip
            relieved = {"relieved": origins} if origins else {}
            self._record({
                "dry_run": True, "degrees": degrees, **relieved, "at_s": round(snapshot.at, 3), "reason": reason,
            })  # fmt: skip

    def _save_state(self) -> None:
        self._saved_at = self._clock()
        if self._save is None or self._state is None:
            return
        try:
            self._save(self._state)
        except Exception as error:  # noqa: BLE001  a full disk, or a state that is not JSON, must not stop the run
            log.warning("the state of policy %s cannot be saved: %r", self._host.name, error)
            self._save = None


def degrees_of(requests: Sequence[Request]) -> dict[str, int]:
    """The requested degrees. A request without an operator is a move, which changes no degree."""
    return {request.operator: request.degree for request in requests if request.operator}


def _origin(action: Action | None) -> str:
    """Where a move takes load from. The replica or executor that moves may differ in every round."""
    return action.origin if isinstance(action, Migrate) else f"executor {getattr(action, 'executor', '')}"
