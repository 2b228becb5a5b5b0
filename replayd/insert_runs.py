"""Reading several small inserts as one: their fields are joined, and what checks one message checks all.

A message costs some hundred calls of numpy whatever it holds, so small ones that came together are read, checked and
stored together. Owns what can be joined; the rest is read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import add
from typing import Any

import numpy as np

from replayd.blobs import is_uint
from replayd.errors import PeerError
from replayd.header import Fields, Frames, Header
from replayd.insert_reader import read_chunks, read_items
from replayd.limits import CHUNK_NUMBER, DESCRIPTIONS, SMALL_PAYLOAD_BYTES
from replayd.messages import BLOB_RECORD, InsertRun, Int64s, Peer
from replayd.slots import all_true

SMALL_BODY_BYTES = 1 << 16
"""Messages below it are joined: in larger ones the payload costs more than the message."""

Message = tuple[Peer, int, Header, Frames]
"""Whom it is from, its request id, its header and its body."""


def is_joinable(header: Header, body: Frames) -> bool:
    """Whether it may be worth while to read this insert together with others."""
    return sum(map(len, body)) < SMALL_BODY_BYTES and "at_max" not in header


def read_run(messages: Sequence[Message]) -> InsertRun | None:
    """These inserts as one; None if one of them is anything but plain, and they must be read one by one."""
    try:
        return _run(messages)
    except (NotPlain, PeerError):
        # Whose fault it is, and which one, is told when each is read by itself.
        return None


class NotPlain(Exception):
    """A message is not what can be joined."""


def _run(messages: Sequence[Message]) -> InsertRun:
    """All of them, field after field: 21 µs a message of 32, where going through the fields of each takes 35.

    Raises NotPlain and PeerError for the fault of any.
    """
    peers, ids, headers, bodies = zip(*messages, strict=True)
    all_fields: list[Fields] = [header.fields for header in headers]
    streams = _column(all_fields, "stream", bytes)
    seqs, keeps, firsts = (_uints(all_fields, name) for name in ("seq", "keep_from", "first_chunk"))
    counts = [len(rows) // 4 for rows in _column(all_fields, "rows", bytes)]
    items = [len(priority) // 8 for priority in _column(all_fields, "priority", bytes, b"")]
    blobs = _column(all_fields, "blobs", bytes)
    records = [len(blob) // BLOB_RECORD.itemsize for blob in blobs]
    require(set(map(len, streams)) == {16} and min(counts) > 0)
    require(max(map(add, firsts, counts)) <= CHUNK_NUMBER.value)
    require(all(len(blob) % (n * BLOB_RECORD.itemsize) == 0 for blob, n in zip(blobs, counts, strict=True)))
    require(not any("schema_of" in fields for fields in all_fields))
    schemas = _Descriptions(bytes)
    schema_of = [schemas.only(fields.get("schemas")) for fields in all_fields]

    joined: Fields = {"first_chunk": 0, "blobs": b"".join(blobs), "schemas": schemas.values}
    _join(joined, CHUNK_FIELDS, all_fields, counts)
    if len(schemas.values) > 1:
        joined["schema_of"] = np.repeat(np.array(schema_of, "<u2"), counts).tobytes()
    if any(items):
        _join_items(joined, *zip(*((f, m) for f, m in zip(all_fields, items, strict=True) if m), strict=True))
    chunk_ends = np.cumsum(counts)
    run = assembled(peers, ids, streams, (seqs, keeps, firsts), chunk_ends, np.cumsum(items), joined, bodies)
    widths = [len(schema.columns) for schema in run.chunks.schemas]
    require([widths[schema] * n for schema, n in zip(schema_of, counts, strict=True)] == records)
    return run


def assembled(
    peers: Sequence[Peer],
    ids: Sequence[int],
    streams: Sequence[bytes],
    numbers: Sequence[Sequence[int] | Int64s],
    chunk_ends: Int64s,
    item_ends: Int64s,
    joined: Fields,
    bodies: Sequence[Frames],
) -> InsertRun:
    """`numbers`: those of the messages, of what they keep, and of their first chunks."""
    header = Header(joined)
    nbytes = np.array([sum(map(len, body)) for body in bodies])
    chunks = read_chunks(header, _packed([frame for body in bodies for frame in body]))
    items = read_items(header)
    assert chunks is not None, "each message has a chunk"
    # What is right in sum must be right for each.
    require(all_true(chunks.nbytes.cumsum()[chunk_ends - 1] == nbytes.cumsum()))
    seqs, keeps, firsts = map(np.asarray, numbers)
    starts = [np.concatenate(([0], ends[:-1])) for ends in (chunk_ends, item_ends)]
    return InsertRun(
        *(peers, ids, streams, seqs, keeps, firsts),
        *(starts[0], chunk_ends, starts[1], item_ends),
        *(nbytes, chunks, items),
    )


def _join_items(joined: Fields, all_fields: Sequence[Fields], counts: Sequence[int]) -> None:
    """`counts`: the items of each of these messages, one at least."""
    _join(joined, ITEM_FIELDS, all_fields, counts)
    for name, index_name, kind, default in (
        ("tables", "table_of", str, None),
        ("templates", "template_of", bytes, _IDENTITY),
    ):
        known = _Descriptions(kind)
        of: list[Int64s | int] = []
        for fields, m in zip(all_fields, counts, strict=True):
            numbers = known.numbers(fields.get(name, default))
            index = fields.get(index_name)
            if index is None:
                of.append(numbers[0])
                continue
            require(type(index) is bytes and len(index) == 2 * m)
            mine = np.frombuffer(index, "<u2")
            require(int(mine.max()) < len(numbers))
            of.append(np.array(numbers, np.int64)[mine])
        joined[name] = known.values
        if len(known.values) > 1:
            each = [np.broadcast_to(index, m) for index, m in zip(of, counts, strict=True)]
            joined[index_name] = np.concatenate(each).astype("<u2").tobytes()


class _Descriptions:
    """Schemas, tables or templates of all messages, each once. Nearly always they are those of the message before."""

    def __init__(self, kind: type) -> None:
        self.values: list[Any] = []
        self._kind = kind
        self._known: dict[Any, int] = {}
        self._last: Any = self
        self._last_numbers: list[int] = []

    def numbers(self, values: Any) -> list[int]:
        """Where each of a message's stands among all."""
        if values != self._last:
            require(type(values) is list and {self._kind} == set(map(type, values)))
            # The same table twice is an error that a reader of the joined message would not see.
            require(len(set(values)) == len(values))
            self._last, self._last_numbers = values, [self._number(value) for value in values]
            require(len(self.values) <= DESCRIPTIONS.value)
        return self._last_numbers

    def only(self, values: Any) -> int:
        """The same of a message that has one."""
        numbers = self.numbers(values)
        require(len(numbers) == 1)
        return numbers[0]

    def _number(self, value: Any) -> int:
        number = self._known.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


def _join(
    joined: Fields, names: dict[str, tuple[int, int]], all_fields: Sequence[Fields], counts: Sequence[int]
) -> None:
    for name, (size, default) in names.items():
        values: list[Any] = [fields.get(name) for fields in all_fields]
        if None in values and default != _NONE:
            if values.count(None) == len(values):
                continue
            missing = default.to_bytes(size, "little")
            values = [missing * n if value is None else value for value, n in zip(values, counts, strict=True)]
        require(set(map(type, values)) == {bytes} and list(map(len, values)) == [size * n for n in counts])
        joined[name] = b"".join(values)


def _column(all_fields: Sequence[Fields], name: str, kind: type, default: Any = None) -> list[Any]:
    values = [fields.get(name, default) for fields in all_fields]
    require(set(map(type, values)) == {kind})
    return values


def _uints(all_fields: Sequence[Fields], name: str) -> list[int]:
    values = _column(all_fields, name, int)
    require(min(values) >= 0 and is_uint(max(values)))
    return values


def require(is_plain: bool) -> None:
    """Raise NotPlain unless it is."""
    if not is_plain:
        raise NotPlain


def _packed(frames: Frames) -> list[Any]:
    """The same bytes in fewer frames: small ones that follow each other as one."""
    if max(map(len, frames), default=0) < SMALL_PAYLOAD_BYTES:
        return [b"".join(frames)] if frames else []
    packed: list[Any] = []
    for is_large, group in groupby(frames, lambda frame: len(frame) >= SMALL_PAYLOAD_BYTES):
        together = list(group)
        packed += together if is_large else [b"".join(together)]
    return packed


_NONE = -1
CHUNK_FIELDS = {"rows": (4, _NONE), "episodes": (8, 0), "policy_versions": (8, 0)}
ITEM_FIELDS = {
    "priority": (8, _NONE),
    "chunk": (8, _NONE),
    "chunks": (4, 1),
    "offset": (4, 0),
    "length": (4, _NONE),
}
"""Bytes of a value, and its default."""
_IDENTITY = [b""]
