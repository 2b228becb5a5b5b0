"""The header of a message: one msgpack map, written for a request, read for a reply, with the typed values in it.

Any bytes either read or raise a ProtocolError that names the field. Knows no operation. It must not know numpy either:
to `array_wire` the packed arrays of numbers in a header are its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from replayd_client.errors import ProtocolError

VERSION = 1
"""Of the protocol."""
HEADER_BYTES_MAX = 64 << 20
"""Largest reply header read: a sample of 16384 items over 131072 blobs takes under 3 MiB, and `info` less."""
ARRAY_MAX = 1 << 16
"""Largest msgpack array or map read: long arrays of numbers are packed bytes, so these are lists of names or blobs."""


def pack_header(op: str, request_id: int, fields: Mapping[str, Any]) -> bytes:
    """The header of a request."""
    packed: bytes = msgpack.packb({"v": VERSION, "op": op, "id": request_id, **fields})
    return packed


def read_header(header: memoryview) -> Fields:
    """The header of a reply. Raises ProtocolError."""
    if header.nbytes > HEADER_BYTES_MAX:
        raise ProtocolError(f"a reply header of {header.nbytes} bytes, more than {HEADER_BYTES_MAX}")
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            max_array_len=ARRAY_MAX,
            max_map_len=ARRAY_MAX,
            max_ext_len=0,
            object_pairs_hook=_unique_keys,
            ext_hook=_refuse_extension,
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"a reply header that is not msgpack: {error}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"a reply header is a map, not {type(fields).__name__}")
    return Fields(fields, "reply")


class Fields:
    """A header's map, read field by field with checks."""

    __slots__ = ("name", "values")

    def __init__(self, values: dict[Any, Any], name: str) -> None:
        self.values = values
        self.name = name

    def wrong(self, key: str, expected: str) -> ProtocolError:
        got = "nothing" if key not in self.values else type(self.values[key]).__name__
        return ProtocolError(f"{self.name}: {key} must be {expected}, got {got}")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def binary(self, key: str) -> bytes:
        value = self.values.get(key)
        if not isinstance(value, bytes):
            raise self.wrong(key, "binary")
        return value

    def uint(self, key: str) -> int:
        value = self.values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, "an unsigned integer")
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.wrong(key, "a number")
        return float(value)

    def uint_or_none(self, key: str) -> int | None:
        return None if self.values.get(key) is None else self.uint(key)

    def uints(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(type(entry) is int and entry >= 0 for entry in value):
            raise self.wrong(key, "an array of unsigned integers")
        return tuple(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self.wrong(key, "an array of strings")
        return tuple(value)

    def child(self, key: str) -> Fields:
        value = self.values.get(key)
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self.wrong(key, "a map with string keys")
        return Fields(value, f"{self.name}: {key}")

    def children(self, key: str) -> list[Fields]:
        value = self.values.get(key)
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise self.wrong(key, "an array of maps")
        return [Fields(entry, f"{self.name}: {key}") for entry in value]

    def blobs(self, key: str, default: list[bytes] | None = None) -> list[bytes]:
        value = self.values.get(key, default)
        if not isinstance(value, list) or not value or not all(isinstance(entry, bytes) for entry in value):
            raise self.wrong(key, "a non-empty array of binaries")
        return value


def _unique_keys(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ProtocolError("a reply header names a key twice")
    return result


def _refuse_extension(code: int, _: bytes) -> Any:
    raise ProtocolError(f"a reply header holds the msgpack extension {code}")
