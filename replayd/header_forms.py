"""Forms: headers that differ in their numbers alone, many of which are read at once.

A peer makes one header like the other: the same fields in the same order, whose values have the same sizes. Once one
has been read, the places of its values are known, and others of its form are a matrix of bytes, from which a column is
taken for each field. Owns where the bytes lie. Which fields may differ is for whoever asks to say.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from replayd.messages import Buffer

FORM_BYTES = 1024
"""Headers beyond it have no form: they hold so much that reading them by themselves costs little for what is in them.
"""


class Form:
    """The form of one header, which has been read as a plain map: `uints` and `bins` name the fields that may differ.

    `sizes` are the bytes of each field of bytes that may.
    """

    __slots__ = ("_bytes", "_fixed", "_row", "sizes")

    def __init__(self, packed: bytes, uints: Container[str], bins: Container[str]) -> None:
        places: dict[str, tuple[str, int]] = {}
        self.sizes: dict[str, int] = {}
        fixed = np.full(len(packed), 0xFF, np.uint8)
        unpacker = msgpack.Unpacker(raw=False)
        unpacker.feed(packed)
        for _ in range(unpacker.read_map_header()):
            name, start = unpacker.unpack(), unpacker.tell()
            value, end = unpacker.unpack(), unpacker.tell()
            if name in uints and type(value) is int and value >= 0:
                if packed[start] < 0x80:
                    # A number below 128 is its own tag, whose highest bit tells that it is one.
                    places[name] = "u1", start
                    fixed[start] = 0x80
                else:
                    kind = "u" if packed[start] < 0xD0 else "i"
                    places[name] = f">{kind}{end - start - 1}", start + 1
                    fixed[start + 1 : end] = 0
            elif name in bins and type(value) is bytes and value:
                self.sizes[name] = len(value)
                places[name] = f"V{len(value)}", end - len(value)
                fixed[end - len(value) : end] = 0
        formats, offsets = zip(*places.values(), strict=True) if places else ((), ())
        self._row = np.dtype({"names": list(places), "formats": formats, "offsets": offsets, "itemsize": len(packed)})
        self._bytes = np.frombuffer(packed, np.uint8)
        self._fixed = fixed

    def __contains__(self, name: str) -> bool:
        return self._row.names is not None and name in self._row.names

    def read(self, headers: Sequence[Buffer]) -> NDArray[np.void] | None:
        """The fields of these headers, each as long as the first one was; None if one of them has another form.

        Numbers may be below 0 or above 2^63 where the encoding allows it.
        """
        joined = b"".join(headers)
        matrix = np.frombuffer(joined, np.uint8).reshape(len(headers), -1)
        if np.count_nonzero((matrix ^ self._bytes) & self._fixed):
            return None
        return np.frombuffer(joined, self._row)


def column(rows: Sequence[tuple[Any, NDArray[np.void]]], name: str, dtype: Any, n: int) -> NDArray[Any]:
    """A field of n headers. `rows` of each form there is: where its headers stand among all, and what `read` gave."""
    values = np.empty(n, dtype)
    for where, fields in rows:
        values[where] = fields[name]
    return values
