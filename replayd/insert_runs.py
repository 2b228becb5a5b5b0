"""Reading several small inserts as one: their fields are joined, and what checks one message checks all.

A message costs some hundred calls of numpy whatever it holds, so small ones that came together are read, checked and
stored together. Owns what can be joined; the rest is read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.blobs import is_uint
from replayd.errors import PeerError
from replayd.header import Fields, Frames, Header
from replayd.header_forms import FORM_BYTES, Form, column
from replayd.insert_reader import read_chunks, read_items
from replayd.limits import CHUNK_NUMBER, DESCRIPTIONS, SMALL_PAYLOAD_BYTES
from replayd.messages import BLOB_RECORD, InsertRun, Int64s, Peer
from replayd.slots import all_true

SMALL_BODY_BYTES = 1 << 16
"""Messages below it are joined: in larger ones the payload costs more than the message."""

FORMS = 64
"""Lengths of headers of which a form is known, those learned last."""

Message = tuple[Peer, int, Header, Frames]
"""Whom it is from, its request id, its header and its body."""


def is_joinable(header: Header, body: Frames) -> bool:
    """Whether it may be worth while to read this insert together with others."""
    return sum(map(len, body)) < SMALL_BODY_BYTES and "at_max" not in header


@dataclass(frozen=True, slots=True)
class InsertForm:
    """The form of the header of a plain insert, and what all of that form have in common."""

    form: Form
    fields: Fields
    """Of the header that it was learned from; those that may differ are without meaning."""
    kind: tuple[Any, ...]
    """Headers of several forms can be read together if this is equal: the same descriptions, and as many values."""

    def suits(self, peer: Peer) -> bool:
        """Whether this peer may send such a header: who is answered needs an id."""
        return peer is None or "id" in self.form

    @property
    def chunks(self) -> int:
        """Of each message."""
        return self.form.sizes["rows"] // 4

    @property
    def items(self) -> int:
        """Of each message."""
        return self.form.sizes.get("priority", 0) // 8


class InsertForms:
    """The forms of the inserts that came last, by the length of their headers."""

    def __init__(self) -> None:
        self._forms: dict[int, InsertForm] = {}

    def of(self, frames: Frames) -> InsertForm | None:
        """The form that this message may have, if it is small enough to be joined; `read_alike` sees whether it has."""
        if len(frames) != 2 or len(frames[1]) >= SMALL_BODY_BYTES:
            return None
        return self._forms.get(len(frames[0]))

    def learn(self, packed: Any, header: Header) -> None:
        """Know the form of this header, which `read_run` has read."""
        fields = header.fields
        descriptions = [tuple(fields.get(name, ())) for name in ("schemas", "tables", "templates")]
        if len(packed) > FORM_BYTES or len(descriptions[0]) != 1:
            return
        form = Form(bytes(packed), _UINTS, _BINS)
        if "at_max" in fields or not all(name in form for name in _NEEDED):
            return
        kind = (*descriptions, "id" in form, tuple(sorted(form.sizes.items())))
        self._forms.pop(len(packed), None)
        self._forms[len(packed)] = InsertForm(form, fields, kind)
        if len(self._forms) > FORMS:
            del self._forms[next(iter(self._forms))]


def read_alike(messages: Sequence[tuple[Peer, InsertForm, Frames]]) -> InsertRun | None:
    """These inserts as one, if each has the form that it may have, and all are of one kind; else None.

    2 µs a message of 64, where unpacking each and joining their fields takes 25.
    """
    try:
        return _alike(messages)
    except (_NotPlain, PeerError):
        return None


def _alike(messages: Sequence[tuple[Peer, InsertForm, Frames]]) -> InsertRun:
    peers, forms, all_frames = zip(*messages, strict=True)
    n, first = len(messages), forms[0]
    rows: list[tuple[Any, NDArray[np.void]]] = []
    for form in set(map(id, forms)):
        where = [i for i, other in enumerate(forms) if id(other) == form]
        of_form = forms[where[0]].form.read([all_frames[i][0] for i in where])
        if of_form is None:
            raise _NotPlain
        rows.append((slice(None) if len(where) == n else where, of_form))
    numbers = [column(rows, name, np.int64, n) for name in ("seq", "keep_from", "first_chunk")]
    ids = column(rows, "id", np.int64, n) if "id" in first.form else np.zeros(n, np.int64)
    _require(all(int(values.min()) >= 0 for values in (ids, *numbers)))
    _require(int(numbers[2].max()) + first.chunks - 1 <= CHUNK_NUMBER.value)
    joined: Fields = {name: first.fields[name] for name in ("schemas", "tables", "templates") if name in first.fields}
    joined["first_chunk"] = 0
    for name, size in first.form.sizes.items():
        joined[name] = column(rows, name, f"V{size}", n).tobytes()
    streams = column(rows, "stream", "V16", n).tolist()
    each = np.arange(1, n + 1)
    bodies = [frames[1:] for frames in all_frames]
    return _assembled(peers, ids.tolist(), streams, numbers, each * first.chunks, each * first.items, joined, bodies)


def read_run(messages: Sequence[Message]) -> InsertRun | None:
    """These inserts as one; None if one of them is anything but plain, and they must be read one by one."""
    try:
        return _run(messages)
    except (_NotPlain, PeerError):
        # Whose fault it is, and which one, is told when each is read by itself.
        return None


class _NotPlain(Exception):
    """A message is not what can be joined."""


def _run(messages: Sequence[Message]) -> InsertRun:
    """All of them, field after field: 21 µs a message of 32, where going through the fields of each takes 35.

    Raises _NotPlain and PeerError for the fault of any.
    """
    peers, ids, headers, bodies = zip(*messages, strict=True)
    all_fields: list[Fields] = [header.fields for header in headers]
    streams = _column(all_fields, "stream", bytes)
    seqs, keeps, firsts = (_uints(all_fields, name) for name in ("seq", "keep_from", "first_chunk"))
    counts = [len(rows) // 4 for rows in _column(all_fields, "rows", bytes)]
    items = [len(priority) // 8 for priority in _column(all_fields, "priority", bytes, b"")]
    blobs = _column(all_fields, "blobs", bytes)
    records = [len(blob) // BLOB_RECORD.itemsize for blob in blobs]
    _require(set(map(len, streams)) == {16} and min(counts) > 0)
    _require(max(map(add, firsts, counts)) <= CHUNK_NUMBER.value)
    _require(all(len(blob) % (n * BLOB_RECORD.itemsize) == 0 for blob, n in zip(blobs, counts, strict=True)))
    _require(not any("schema_of" in fields for fields in all_fields))
    schemas = _Descriptions(bytes)
    schema_of = [schemas.only(fields.get("schemas")) for fields in all_fields]

    joined: Fields = {"first_chunk": 0, "blobs": b"".join(blobs), "schemas": schemas.values}
    _join(joined, _CHUNK_FIELDS, all_fields, counts)
    if len(schemas.values) > 1:
        joined["schema_of"] = np.repeat(np.array(schema_of, "<u2"), counts).tobytes()
    if any(items):
        _join_items(joined, *zip(*((f, m) for f, m in zip(all_fields, items, strict=True) if m), strict=True))
    chunk_ends = np.cumsum(counts)
    run = _assembled(peers, ids, streams, (seqs, keeps, firsts), chunk_ends, np.cumsum(items), joined, bodies)
    widths = [len(schema.columns) for schema in run.chunks.schemas]
    _require([widths[schema] * n for schema, n in zip(schema_of, counts, strict=True)] == records)
    return run


def _assembled(
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
    _require(all_true(chunks.nbytes.cumsum()[chunk_ends - 1] == nbytes.cumsum()))
    seqs, keeps, firsts = map(np.asarray, numbers)
    starts = [np.concatenate(([0], ends[:-1])) for ends in (chunk_ends, item_ends)]
    return InsertRun(
        *(peers, ids, streams, seqs, keeps, firsts),
        *(starts[0], chunk_ends, starts[1], item_ends),
        *(nbytes, chunks, items),
    )


def _join_items(joined: Fields, all_fields: Sequence[Fields], counts: Sequence[int]) -> None:
    """`counts`: the items of each of these messages, one at least."""
    _join(joined, _ITEM_FIELDS, all_fields, counts)
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
            _require(type(index) is bytes and len(index) == 2 * m)
            mine = np.frombuffer(index, "<u2")
            _require(int(mine.max()) < len(numbers))
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
            _require(type(values) is list and {self._kind} == set(map(type, values)))
            # The same table twice is an error that a reader of the joined message would not see.
            _require(len(set(values)) == len(values))
            self._last, self._last_numbers = values, [self._number(value) for value in values]
            _require(len(self.values) <= DESCRIPTIONS.value)
        return self._last_numbers

    def only(self, values: Any) -> int:
        """The same of a message that has one."""
        numbers = self.numbers(values)
        _require(len(numbers) == 1)
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
        _require(set(map(type, values)) == {bytes} and list(map(len, values)) == [size * n for n in counts])
        joined[name] = b"".join(values)


def _column(all_fields: Sequence[Fields], name: str, kind: type, default: Any = None) -> list[Any]:
    values = [fields.get(name, default) for fields in all_fields]
    _require(set(map(type, values)) == {kind})
    return values


def _uints(all_fields: Sequence[Fields], name: str) -> list[int]:
    values = _column(all_fields, name, int)
    _require(min(values) >= 0 and is_uint(max(values)))
    return values


def _require(is_plain: bool) -> None:
    if not is_plain:
        raise _NotPlain


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
_CHUNK_FIELDS = {"rows": (4, _NONE), "episodes": (8, 0), "policy_versions": (8, 0)}
_ITEM_FIELDS = {
    "priority": (8, _NONE),
    "chunk": (8, _NONE),
    "chunks": (4, 1),
    "offset": (4, 0),
    "length": (4, _NONE),
}
"""Bytes of a value, and its default."""
_IDENTITY = [b""]
_UINTS = frozenset(("id", "seq", "keep_from", "first_chunk"))
_BINS = frozenset(("stream", "blobs", "table_of", "template_of", *_CHUNK_FIELDS, *_ITEM_FIELDS))
"""What differs from one insert of a form to the next."""
_NEEDED = ("stream", "seq", "keep_from", "first_chunk", "rows", "blobs")
