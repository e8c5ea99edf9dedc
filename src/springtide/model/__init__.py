"""Frozen values: what a topology is, what was measured, what is wanted and what was granted."""
