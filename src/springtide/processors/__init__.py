"""Stateful operators: the base class of users' processors, and the ready-made operators.

Everything here is pure: an operator gets a group of keys with their records and their state, and returns the new state and the
output. It does not know where the state is stored, nor which task has a key.
"""

from __future__ import annotations

from springtide.processors.processor import Processor, State, Timer, list_of, map_of, value

__all__ = ["Processor", "State", "Timer", "list_of", "map_of", "value"]
