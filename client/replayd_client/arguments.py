"""What callers hand in, checked where it comes in: names of tables, integers, numbers, flags and deadlines.

Each function returns the argument as the rest of the client has it, numpy's integers as Python's, or raises: DataError
for a value that makes no sense, ArgumentTypeError, which is a DataError and a TypeError, for what is of another kind.
Pure; knows nothing of what the arguments are for.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from replayd_client.errors import ArgumentTypeError, DataError


def checked_table(table: Any) -> str:
    """The name of a table. Whether there is such a table is the server's to say."""
    if not isinstance(table, str):
        raise ArgumentTypeError(f"a table is named by a string, not {value_text(table)}")
    if not table.isascii():
        try:
            table.encode()
        except UnicodeEncodeError:
            raise DataError(f"{table!r} is no name of a table: it cannot be encoded as UTF-8") from None
    return table


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


def checked_number(name: str, value: Any, least: float, most: float) -> float:
    """A real number from `least` to `most`, which may be one of numpy's. Bools and NaN are none."""
    if not _is_real(value):
        raise ArgumentTypeError(f"{name} must be a number from {least:g} to {most:g}, got {value_text(value)}")
    if not least <= value <= most:
        raise DataError(f"{name} must be a number from {least:g} to {most:g}, got {value_text(value)}")
    return float(value)


def checked_flag(name: str, value: Any) -> bool:
    """A bool, which may be one of numpy's; nothing else has a truth here."""
    if not isinstance(value, bool | np.bool_):
        raise ArgumentTypeError(f"{name} must be a bool, got {value_text(value)}")
    return bool(value)


def checked_timeout(value: Any, name: str = "timeout_ms", unit: str = "milliseconds") -> float | None:
    """A time to wait, any number from 0 on, infinity included; None is for ever."""
    if value is None:
        return None
    is_real = _is_real(value)
    if not is_real or not value >= 0:
        kind = DataError if is_real else ArgumentTypeError
        raise kind(f"{name} must be {unit}, at least 0, or None for ever, got {value_text(value)}")
    return float(value)


def checked_members(name: str, values: Any) -> list[Any]:
    """The members of anything that can be iterated but is no str, no bytes and no dict."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ArgumentTypeError(f"{name} must be a sequence, got {value_text(values)}")
    return list(values)


def value_text(value: Any) -> str:
    """A value as messages show it, however long it is."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({type(value).__name__})"


def integer_of(value: Any) -> int | None:
    """An integer as Python's, None for what is none."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
