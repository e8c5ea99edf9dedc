"""Lookups: tables outside that ``stream.lookup`` joins records with."""

from __future__ import annotations

from springtide.api.postgres import lookup as postgres

__all__ = ["postgres"]
