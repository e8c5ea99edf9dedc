"""Hosts an attachment's policy in a process of its own, which a watchdog restarts."""

from __future__ import annotations

from springtide.control.decider import InThread
from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plane.spec import Spec
from springtide.control.ports import PolicyHost
from springtide.policy.scale import ScalePolicy

ANSWER_S = 2.0
"""Limits the wait of a cycle for a decision. No batch waits for it; a later answer serves the next cycle."""


def hosted(spec: Spec, here: ScalePolicy) -> PolicyHost:
    """The policy in its own process; or ``here``, in the attachment's thread, if it cannot be moved."""
    return RemotePolicy(spec, Patience(answer_s=ANSWER_S)) if spec.movable else InThread(here)
