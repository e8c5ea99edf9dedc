"""Pure decisions, one algorithm a file, and the registry by which they are chosen."""

from springtide.policy.registry import Parameter, available, create, describe, find, parameter, parameters, validate

__all__ = ["Parameter", "available", "create", "describe", "find", "parameter", "parameters", "validate"]
