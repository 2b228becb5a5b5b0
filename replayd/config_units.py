"""Values that people write with a unit, in the file and on the command line: sizes and times. Knows no key."""

from __future__ import annotations

import re
from typing import Any

BYTES_MOST = (1 << 63) - 1
"""A size is at most so much, as any integer of TOML."""

_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{letter}B": 1000**n for n, letter in enumerate("kMGT", 1)}
_BYTES |= {f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)}
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def as_bytes(value: Any) -> Any:
    """A number of bytes as it is, and `"4GiB"` or `"500MB"` as the number that it stands for. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", value)
    if match is None or match[2] not in _BYTES:
        raise ValueError(f'expected a size, such as "500MB", "4GiB" or a number of bytes, got {value!r}')
    nbytes = float(match[1]) * _BYTES[match[2]]
    if nbytes > BYTES_MOST:
        raise ValueError(f"expected a size that a number of 64 bits can tell, got {value[:32]!r}")
    return int(nbytes)


def as_seconds(value: Any) -> float:
    """`"500ms"`, `"60s"`, `"5min"` or `"1h"` as seconds; a number without a unit is none. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'expected a time with its unit, such as "500ms", "60s", "5min" or "1h", got {value!r}')
    return float(match[1]) * _SECONDS[match[2]]
