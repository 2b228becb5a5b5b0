"""The header of a message: one msgpack map, and the typed values and packed arrays in it.

Any bytes either read or raise a PeerError that names the field. Knows no operation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from replayd.blobs import check_name, check_nesting, is_uint
from replayd.errors import BadMessage, BadRequest, told
from replayd.limits import DESCRIPTIONS, FRAMES, HEADER_BYTES, MAP_ENTRIES, MESSAGE_BYTES
from replayd.messages import Int64s

Fields = dict[str, Any]
Frames = Sequence[Any]


def read_header(frames: Frames) -> Header:
    """The header of a message. Raises BadMessage or LimitExceeded."""
    if not frames:
        raise BadMessage("a message needs a header frame")
    FRAMES.check(len(frames))
    HEADER_BYTES.check(len(frames[0]))
    MESSAGE_BYTES.check(sum(map(len, frames)))
    fields = _plain_map(frames[0])
    return Header(_any_map(frames[0]) if fields is None else fields)


def _plain_map(packed: Any) -> Fields | None:
    """The header as nearly all are, without a map in it or an array in an array: 8 µs less than `_any_map`, which calls
    us for each map and looks at every value. None: it may be anything, and another look must tell.
    """
    try:
        fields = msgpack.unpackb(packed, raw=False, ext_hook=_no_extension, **_UNPACKER_LIMITS)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None
    if type(fields) is not dict:
        return None
    view = memoryview(packed)
    first = view[0]
    said = first & 15 if first < 0xDE else view[1] << 8 | view[2]
    if len(fields) != said:
        return None
    for value in fields.values():
        kind = type(value)
        if kind is dict or (kind is list and not _SCALARS.issuperset(map(type, value))):
            return None
    return fields


def _any_map(packed: Any) -> Fields:
    """The header, whatever it is. Raises BadMessage or LimitExceeded."""
    try:
        fields = msgpack.unpackb(packed, raw=False, object_pairs_hook=_map, ext_hook=_no_extension, **_UNPACKER_LIMITS)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        for text, limit in _UNPACKER_COMPLAINTS.items():
            if found := re.search(text, str(error)):
                limit.check(int(found[1]))
        raise BadMessage(f"the header is not one msgpack map: {str(error)[:200]}") from error
    if not isinstance(fields, dict):
        raise BadMessage("the header is not a msgpack map")
    check_nesting(fields)
    return fields


_UNPACKER_LIMITS: dict[str, int] = {
    "max_array_len": DESCRIPTIONS.value,
    "max_map_len": MAP_ENTRIES.value,
    "max_ext_len": 0,
}
_SCALARS = frozenset((bytes, str, int, float, bool, type(None)))
_UNPACKER_COMPLAINTS = {r"(\d+) exceeds max_array_len": DESCRIPTIONS, r"(\d+) exceeds max_map_len": MAP_ENTRIES}
"""The unpacker enforces these two before it allocates; all we get of it is the text."""


class Header:
    """Fields by name; each method raises BadMessage if the field is not what it must be."""

    __slots__ = ("fields",)

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def get(self, name: str, default: Any = None) -> Any:
        """The field as it was sent, `default` if it is absent."""
        return self.fields.get(name, default)

    def uint(self, name: str, default: int | None = None) -> int:
        """An unsigned integer below 2^63; `default` if it is absent and there is one."""
        value = self.fields.get(name, default)
        if not is_uint(value):
            raise BadMessage(f"{name} must be an unsigned integer below 2^63")
        return value

    def bin(self, name: str) -> bytes:
        """A string of bytes."""
        value = self.fields.get(name)
        if not isinstance(value, bytes):
            raise BadMessage(f"{name} must be bin")
        return value

    def values(self, name: str) -> list[Any]:
        """An array, of which the entries are not looked at. Raises LimitExceeded above DESCRIPTIONS entries."""
        value = self.fields.get(name)
        if not isinstance(value, list):
            raise BadMessage(f"{name} must be an array")
        DESCRIPTIONS.check(len(value))
        return value

    def blobs(self, name: str) -> list[bytes]:
        """An array of strings of bytes. Raises LimitExceeded above DESCRIPTIONS entries."""
        blobs = self.values(name)
        if not all(isinstance(blob, bytes) for blob in blobs):
            raise BadMessage(f"{name} must be an array of bin")
        return blobs

    def settings(self, name: str) -> Fields:
        """A map of settings: integers, floats, bools, nil for unlimited. Raises BadRequest for others."""
        changes = self.fields.get(name)
        if not isinstance(changes, dict):
            raise BadMessage(f"{name} must be a map of settings")
        for key, value in changes.items():
            kind = _SETTING_KINDS.get(key)
            if kind is None:
                names = list(_SETTING_KINDS)
                raise BadRequest(f"there is no setting {told(key)}; there are {', '.join(names)}", settings=names)
            if not kind(value):
                raise BadRequest(f"setting {key} is {_SETTING_RULES.get(key, 'a finite number')}, not {told(value)}")
        return changes

    def stream(self) -> bytes:
        """The id of a stream: the field `stream`, 16 bytes."""
        stream = self.bin("stream")
        if len(stream) != 16:
            raise BadMessage("stream must be 16 bytes")
        return stream

    def table(self) -> str:
        """The name of a table: the field `table`. Raises LimitExceeded above NAME_BYTES."""
        return check_name(self.fields.get("table"), "table")

    def array(
        self, name: str, dtype: str, n: int | None = None, *, default: int | None = None, optional: bool = False
    ) -> np.ndarray[tuple[int], np.dtype[Any]]:
        """A packed array of n values (any number if None). Absent: n times `default`, or empty if `optional`."""
        if name not in self.fields and default is not None:
            assert n is not None
            return np.full(n, default, dtype)
        raw = b"" if optional and name not in self.fields else self.bin(name)
        size = np.dtype(dtype).itemsize
        if len(raw) % size or (n is not None and len(raw) != n * size):
            wanted = f"{n} values" if n is not None else "a multiple"
            raise BadMessage(f"{name} has {len(raw)} bytes, it must be {wanted} of {size}")
        return np.frombuffer(raw, dtype)

    def index(self, name: str, n: int, among: int) -> Int64s:
        """u16[n], each below `among`, as int64[n]; zeros if it is absent."""
        if name not in self.fields:
            return np.zeros(n, np.int64)
        index = self.array(name, "<u2", n).astype(np.int64)
        if int(index.max()) >= among:
            raise BadMessage(f"{name} points to entry {int(index.max())} of {among}")
        return index


def _map(pairs: list[tuple[Any, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice in a map")
    return fields


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not used")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_SETTING_RULES = {
    "max_size": "an integer of at least 1",
    "max_times_sampled": "an integer of at least 0 (0: no limit)",
    "max_bytes": "an integer of at least 1, or nil for unlimited",
    "when_full": "a str",
    "min_size_to_sample": "an integer of at least 1",
    "min_diff": "a finite number, or nil for unlimited",
    "max_diff": "a finite number, or nil for unlimited",
    "paused_inserts": "a bool",
    "paused_samples": "a bool",
}
"""What those are that are not any finite number, for people."""
_SETTING_KINDS: dict[str, Callable[[Any], bool]] = {
    "max_size": is_uint,
    "max_times_sampled": is_uint,
    "max_bytes": lambda value: value is None or is_uint(value),
    "when_full": lambda value: isinstance(value, str),
    "samples_per_insert": _is_number,
    "min_size_to_sample": is_uint,
    "min_diff": lambda value: value is None or _is_number(value),
    "max_diff": lambda value: value is None or _is_number(value),
    "priority_exponent": _is_number,
    "paused_inserts": lambda value: isinstance(value, bool),
    "paused_samples": lambda value: isinstance(value, bool),
}
