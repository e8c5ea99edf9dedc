"""Where an attachment's policy decides: in a process of its own, with a watchdog that starts it again."""

from __future__ import annotations

from springtide.control.decider import InThread
from springtide.control.plane.remote import Patience, RemotePolicy
from springtide.control.plane.spec import Spec
from springtide.control.ports import PolicyHost
from springtide.policy.scale import ScalePolicy

ANSWER_S = 2.0
"""How long a cycle waits for a decision. No batch waits for it; a later answer serves the next cycle."""


def hosted(spec: Spec, here: ScalePolicy) -> PolicyHost:
    """The policy in its process; ``here``, in the attachment's own thread, where it cannot be moved to one."""
    return RemotePolicy(spec, Patience(answer_s=ANSWER_S)) if spec.movable else InThread(here)
