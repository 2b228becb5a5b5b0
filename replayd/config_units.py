"""Values of the configuration that people write with a unit: sizes. Knows no key."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**n for n, letter in enumerate("kMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}


def as_bytes(value: Any) -> Any:
    """A number of bytes as it is, and `"4GiB"` or `"500MB"` as the number that it stands for. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", value)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f'expected a size, such as "500MB", "4GiB" or a number of bytes, got {value!r}')
    return int(float(match[1]) * _UNITS[match[2]])
