"""Keys as they are written: CURVE keys in Z85, in files of TOML. The daemon's files are read by this too.

Owns what is a key, and what is no such file at all. Knows neither sockets nor what stands beside a key.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeGuard

KEY_CHARACTERS = 40
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE_OF = {digit: value for value, digit in enumerate(_DIGITS)}
"""Z85, ZeroMQ RFC 32: five digits to the base 85, the highest first, are four bytes."""


def is_key(value: object) -> TypeGuard[str]:
    """Whether it is a key of 32 bytes in Z85; libzmq takes no other."""
    if not isinstance(value, str) or len(value) != KEY_CHARACTERS or not _VALUE_OF.keys() >= set(value):
        return False
    groups = (value[at : at + 5] for at in range(0, KEY_CHARACTERS, 5))
    # Five digits can say more than four bytes hold.
    return all(reduce(lambda high, digit: high * 85 + _VALUE_OF[digit], group, 0) < 1 << 32 for group in groups)


def read_toml(content: bytes) -> dict[str, Any]:
    """What a file of keys says. Raises ValueError for whatever cannot be read."""
    # Few have keys, and all commands ask for them.
    import tomllib

    try:
        # What is no UTF-8 or no TOML, and a number of thousands of digits, are ValueErrors.
        return tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("brackets within brackets, deeper than anybody means") from None
