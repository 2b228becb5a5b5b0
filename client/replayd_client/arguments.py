"""What callers hand in, checked where it comes in: names of tables, real numbers, deadlines and sequences.

Each function returns the argument as the rest of the client has it, or raises: DataError for a value that makes no
sense, ArgumentTypeError, which is a DataError and a TypeError, for what is of another kind. Pure; knows nothing of what
the arguments are for. It must not know numpy, since commands that carry no arrays check their tables here; integers and
flags, which may be numpy's, are in `scalars`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

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


def checked_number(name: str, value: Any, least: float, most: float) -> float:
    """A real number from `least` to `most`, which may be one of numpy's. Bools and NaN are none."""
    if not _is_real(value):
        raise ArgumentTypeError(f"{name} must be a number from {least:g} to {most:g}, got {value_text(value)}")
    if not least <= value <= most:
        raise DataError(f"{name} must be a number from {least:g} to {most:g}, got {value_text(value)}")
    return float(value)


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


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
