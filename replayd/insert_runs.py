"""Reading several small inserts as one: their fields are joined, and what checks one message checks all.

A message costs some hundred calls of numpy whatever it holds, so small ones that came together are read, checked and
stored together. Owns what can be joined; the rest is read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from replayd.blobs import is_uint
from replayd.errors import PeerError
from replayd.header import Fields, Frames, Header
from replayd.insert_reader import read_chunks, read_items
from replayd.limits import CHUNK_NUMBER, DESCRIPTIONS, SMALL_PAYLOAD_BYTES
from replayd.messages import BLOB_RECORD, InsertHead, InsertRun, Int64s, Peer

SMALL_BODY_BYTES = 1 << 16
"""Messages below it are joined: in larger ones the payload costs more than the message."""

Message = tuple[Peer, int, Header, Frames]
"""Whom it is from, its request id, its header and its body."""


def is_joinable(header: Header, body: Frames) -> bool:
    """Whether it may be worth while to read this insert together with others."""
    return sum(map(len, body)) < SMALL_BODY_BYTES and "at_max" not in header


def read_run(messages: Sequence[Message]) -> InsertRun | None:
    """These inserts as one; None if one of them is anything but plain, and they must be read one by one."""
    joint = _Joint()
    for peer, id, header, body in messages:
        if not joint.add(peer, id, header, body):
            return None
    try:
        return joint.run()
    except PeerError:
        # Whose fault it is, and which one, is told when each is read by itself.
        return None


class _Joint:
    def __init__(self) -> None:
        self._heads: list[InsertHead] = []
        self._chunks = self._items = 0
        self._schemas: dict[bytes, int] = {}
        self._tables: dict[str, int] = {}
        self._templates: dict[bytes, int] = {}
        self._schema_of: list[int] = []
        self._table_of: list[Int64s | int] = []
        self._template_of: list[Int64s | int] = []
        self._parts: dict[str, list[bytes]] = {name: [] for name in (*_CHUNK_FIELDS, *_ITEM_FIELDS, "blobs")}
        self._body: list[Any] = []

    def add(self, peer: Peer, id: int, header: Header, body: Frames) -> bool:
        """Join one message; False if that cannot be."""
        get = header.get
        rows, priority, stream = get("rows", b""), get("priority", b""), get("stream")
        seq, keep_from, first = get("seq"), get("keep_from"), get("first_chunk")
        if not (type(rows) is type(priority) is type(stream) is bytes and len(stream) == 16):
            return False
        n, m = len(rows) // 4, len(priority) // 8
        if not (n and is_uint(seq) and is_uint(keep_from) and is_uint(first) and first + n <= CHUNK_NUMBER.value):
            return False
        blobs, schemas = get("blobs"), get("schemas")
        if not (_is_list_of(schemas, bytes) and len(schemas) == 1 and type(blobs) is bytes) or "schema_of" in header:
            return False
        if not self._join(_CHUNK_FIELDS, header, n) or (m and not self._join_items(header, m)):
            return False
        if len(blobs) % (n * BLOB_RECORD.itemsize):
            return False
        self._parts["blobs"].append(blobs)
        self._schema_of.append(self._schemas.setdefault(schemas[0], len(self._schemas)))
        chunks, items = self._chunks, self._items
        self._chunks += n
        self._items += m
        nbytes = sum(map(len, body))
        widths = len(blobs) // BLOB_RECORD.itemsize
        span, mine = slice(chunks, self._chunks), slice(items, self._items)
        self._heads.append(InsertHead(peer, id, stream, seq, keep_from, first, span, mine, nbytes, widths))
        self._body += body
        return True

    def run(self) -> InsertRun | None:
        """All of them. Raises PeerError for the fault of any."""
        heads = self._heads
        counts = [head.chunks.stop - head.chunks.start for head in heads]
        fields: Fields = {name: b"".join(parts) for name, parts in self._parts.items() if parts}
        fields["first_chunk"] = 0
        fields["schemas"] = list(self._schemas)
        if len(self._schemas) > 1:
            fields["schema_of"] = np.repeat(np.array(self._schema_of, "<u2"), counts).tobytes()
        if self._items:
            fields["tables"], fields["templates"] = list(self._tables), list(self._templates)
            m = [head.items.stop - head.items.start for head in heads if head.items.stop > head.items.start]
            for name, of, among in (
                ("table_of", self._table_of, self._tables),
                ("template_of", self._template_of, self._templates),
            ):
                if len(among) > 1:
                    each = [np.broadcast_to(index, count) for index, count in zip(of, m, strict=True)]
                    fields[name] = np.concatenate(each).astype("<u2").tobytes()
        if max(len(self._schemas), len(self._tables), len(self._templates)) > DESCRIPTIONS.value:
            return None
        header = Header(fields)
        chunks = read_chunks(header, _packed(self._body))
        items = read_items(header)
        assert chunks is not None, "each message has a chunk"
        # What is right in sum must be right for each: its bytes, and its records.
        ends = np.array([head.chunks.stop for head in heads]) - 1
        if not np.array_equal(np.cumsum(chunks.nbytes)[ends], np.cumsum([head.nbytes for head in heads])):
            return None
        widths = np.array([len(schema.columns) for schema in chunks.schemas])[np.array(self._schema_of)]
        if not np.array_equal(widths * counts, [head.records for head in heads]):
            return None
        return InsertRun(heads, chunks, items)

    def _join(self, names: dict[str, tuple[int, int]], header: Header, n: int) -> bool:
        for name, (size, default) in names.items():
            value = header.get(name)
            if value is None:
                if default == _NONE:
                    return False
                value = default.to_bytes(size, "little") * n
            elif type(value) is not bytes or len(value) != size * n:
                return False
            self._parts[name].append(value)
        return True

    def _join_items(self, header: Header, m: int) -> bool:
        tables, templates = header.get("tables"), header.get("templates", _IDENTITY)
        if not (_is_list_of(tables, str) and _is_list_of(templates, bytes)) or not tables or not templates:
            return False
        if len(set(tables)) != len(tables) or not self._join(_ITEM_FIELDS, header, m):
            return False
        for name, values, known, joined in (
            ("table_of", tables, self._tables, self._table_of),
            ("template_of", templates, self._templates, self._template_of),
        ):
            numbers = [known.setdefault(value, len(known)) for value in values]
            index = header.get(name)
            if index is None:
                joined.append(numbers[0])
                continue
            if type(index) is not bytes or len(index) != 2 * m:
                return False
            mine = np.frombuffer(index, "<u2")
            if int(mine.max()) >= len(numbers):
                return False
            joined.append(np.array(numbers, np.int64)[mine])
        return True


def _packed(frames: Frames) -> list[Any]:
    """The same bytes in fewer frames: small ones that follow each other as one."""
    packed: list[Any] = []
    for is_large, group in groupby(frames, lambda frame: len(frame) >= SMALL_PAYLOAD_BYTES):
        together = list(group)
        packed += together if is_large else [b"".join(together)]
    return packed


_NONE = -1
_CHUNK_FIELDS = {"rows": (4, _NONE), "episodes": (8, 0)}
_ITEM_FIELDS = {
    "priority": (8, _NONE),
    "chunk": (8, _NONE),
    "chunks": (4, 1),
    "offset": (4, 0),
    "length": (4, _NONE),
}
"""Bytes of a value, and its default."""
_IDENTITY = [b""]


def _is_list_of(value: Any, kind: type) -> bool:
    return type(value) is list and all(type(entry) is kind for entry in value)
