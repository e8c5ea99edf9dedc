"""What stateful operators do with records and what they remember: a user's own processor, and the ready ones.

Everything here is pure: it gets a group of keys with their records and their state, and gives back the new state and the
output. Where the state is kept, and in which task a key is, is not known here.
"""

from __future__ import annotations

from springtide.processors.processor import Processor, State, Timer, list_of, map_of, value

__all__ = ["Processor", "State", "Timer", "list_of", "map_of", "value"]
