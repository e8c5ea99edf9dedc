"""Where an attachment's policy decides: in a process of its own, with a watchdog that starts it again."""

from __future__ import annotations

from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plane.spec import Spec
from springtide.policy.scale import ScalePolicy

ANSWER_S = 2.0
"""How long a decision is waited for. No batch waits for it, and one that comes later counts after the next batch only."""


def deciding(spec: Spec, here: ScalePolicy) -> ScalePolicy:
    """The policy in its process; ``here``, for the attachment's own thread, where it cannot be moved to one."""
    return RemotePolicy(spec, Patience(answer_s=ANSWER_S)) if spec.movable else here
