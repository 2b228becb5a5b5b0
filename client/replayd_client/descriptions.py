"""Description blobs: what schema and template blobs have in common (protocol.md §4.1, §4.4).

Small msgpack arrays of columns. Whatever bytes come in, they unpack or raise DataError.
"""

from __future__ import annotations

from typing import Any, Literal

import msgpack

from replayd_client.errors import DataError
from replayd_client.structure import MAX_COLUMNS, Path

MAX_DESCRIPTION_BYTES = 64 * 1024
"""Largest schema or template blob: servers keep a copy of each distinct one."""


def read_path(components: list[Any]) -> Path:
    if not all(isinstance(component, str) or type(component) is int for component in components):
        raise DataError(f"{components!r:.200} is not a path")
    return tuple(components)


def pack_description(value: list[Any], what: Literal["schema", "template"]) -> bytes:
    blob: bytes = msgpack.packb(value)
    if len(blob) > MAX_DESCRIPTION_BYTES:
        raise DataError(f"a {what} of {len(blob)} bytes is larger than the limit of {MAX_DESCRIPTION_BYTES}")
    return blob


def unpack_description(blob: bytes, what: Literal["schema", "template"]) -> list[Any]:
    if len(blob) > MAX_DESCRIPTION_BYTES:
        raise DataError(f"a {what} of {len(blob)} bytes is larger than the limit of {MAX_DESCRIPTION_BYTES}")
    try:
        value = msgpack.unpackb(blob, max_array_len=MAX_DESCRIPTION_BYTES, max_map_len=0, max_bin_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise DataError(f"a {what} that is not msgpack of arrays, strings and numbers: {error}") from None
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_COLUMNS:
        raise DataError(f"a {what} is an array of 1 to {MAX_COLUMNS} columns")
    return value
