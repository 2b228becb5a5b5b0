"""Integers, indices and flags that callers hand in, which may be numpy's: checked where they come in.

Each function returns the argument as Python's, or raises as those of `arguments` do. Pure; knows nothing of what the
arguments are for.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from replayd_client.arguments import value_text
from replayd_client.errors import ArgumentTypeError, DataError


def checked_integer(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An integer from `least` to `most`, which may be one of numpy's. Bools are none."""
    found = integer_of(value)
    if found is None or found < least or (most is not None and found > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        kind = DataError if found is not None else ArgumentTypeError
        raise kind(f"{name} must be an integer {bounds}, got {value_text(value)}")
    return found


def checked_index(index: Any, of: str) -> int:
    """An index, or a part of a slice, of what `of` names. Bools are none: a list of them would be a mask."""
    found = integer_of(index)
    if found is None:
        raise ArgumentTypeError(f"{of} is indexed by integers and slices of them, not {type(index).__name__}")
    return found


def checked_flag(name: str, value: Any) -> bool:
    """A bool, which may be one of numpy's; nothing else has a truth here."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{name} must be a bool, got {value_text(value)}")
    return bool(value)


def integer_of(value: Any) -> int | None:
    """An integer as Python's, None for what is none."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def python_value(value: Any) -> Any:
    """A scalar of numpy as Python's; everything else as it is."""
    return value.item() if isinstance(value, np.generic) else value
