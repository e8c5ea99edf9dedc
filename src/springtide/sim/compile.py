"""Compilation of kernels: plain functions on numbers and arrays become machine code when the simulator first needs them.

numba is imported here and nowhere else, and not before something is simulated: it takes 365 ms, which neither
``import springtide`` nor Spark's workers should pay for.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from functools import cache
from typing import Any

from springtide.errors import SetupError


@cache
def compiled(function: Callable[..., Any], allocates: bool = False) -> Callable[..., Any]:
    """The compiled version of a kernel and of all kernels that it calls.

    The function itself does not change. Its twin has the same code but other globals, in which every kernel is replaced by its
    own twin: numba cannot call a plain function.

    Unless it ``allocates`` arrays, it is compiled without reference counts: POSG passes 25 arrays from kernel to kernel for
    every record, and counting took 0.9 of its 1.5 µs.
    """
    numba = _numba()
    names = {name: value for name, value in function.__globals__.items() if name in _named(function.__code__)}
    twins = {name: compiled(value, allocates) for name, value in names.items() if getattr(value, "is_kernel", False)}
    twin = types.FunctionType(
        function.__code__, {**function.__globals__, **twins}, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__module__, twin.__qualname__ = function.__module__, function.__qualname__
    made: Callable[..., Any] = numba.njit(twin, error_model="numpy", _nrt=allocates)
    return made


@cache
def reads(function: Callable[..., Any], position: int) -> bool:
    """Whether a function reads one of its arguments: an argument that it ignores need not be computed.

    >>> reads(lambda state, key: key + 1, 0), reads(lambda state, key: key + 1, 1)
    (False, True)
    """
    name = function.__code__.co_varnames[position]
    for step in dis.get_instructions(function):
        if "LOAD" in step.opname and name in (step.argval if isinstance(step.argval, tuple) else (step.argval,)):
            return True
    return False


def _named(code: types.CodeType) -> set[str]:
    """The names that a function's code, or that of a function inside it, refers to."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_named, inner))


def failure() -> type[Exception]:
    """The exception for a kernel that cannot be compiled."""
    raised: type[Exception] = _numba().core.errors.NumbaError
    return raised


@cache
def _numba() -> Any:
    try:
        import numba
    except ImportError:
        raise SetupError("the simulator needs numba; pip install 'springtide[sim]'") from None
    return numba
