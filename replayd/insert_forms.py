"""Inserts that look alike: small ones whose headers have a form that is known are read as arrays, none by itself.

Owns the forms of the inserts that came last, and what all messages of one have in common. What is not as it was with
the message that a form was learned from is read by `insert_runs`, which checks everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.errors import PeerError
from replayd.header import Fields, Frames, Header
from replayd.header_forms import FORM_BYTES, Form, column
from replayd.insert_reader import read_chunks, read_items
from replayd.insert_runs import CHUNK_FIELDS, ITEM_FIELDS, SMALL_BODY_BYTES, NotPlain, assembled, require
from replayd.limits import CHUNK_NUMBER, SMALL_PAYLOAD_BYTES
from replayd.messages import BLOB_RECORD, ChunkBatch, InsertRun, Int64s, ItemBatch, Likeness, Peer
from replayd.slots import all_true

FORMS = 64
"""Lengths of headers of which a form is known, those learned last."""

_TOGETHER = 128
"""Messages of which what they have in common is kept as arrays: as many as one turn brings."""


class InsertForm:
    """The form of the header of a plain insert, `fields` being those of the header that it was learned from.

    `kind`: headers of several forms can be read together if it is equal, which says that they have the same
    descriptions, and as many values. `has_id`: whether a peer that is answered may send it.
    """

    __slots__ = ("chunks", "fields", "form", "has_id", "items", "kind", "same")

    def __init__(self, packed: bytes, fields: Fields) -> None:
        self.form = Form(packed, _UINTS, _BINS)
        self.fields = fields
        self.has_id = "id" in self.form
        descriptions = [tuple(fields.get(name, ())) for name in _DESCRIPTIONS]
        self.kind = (*descriptions, self.has_id, tuple(sorted(self.form.sizes.items())))
        self.chunks, self.items = (
            self.form.sizes.get(name, 0) // size for name, size in (("rows", 4), ("priority", 8))
        )
        self.same = _Same.of(self)


@dataclass(frozen=True, slots=True)
class _Same:
    """What messages have in common that say the same of their chunks and of their windows, payload aside: nearly all
    that one peer sends. It has been checked, and each array is that of _TOGETHER such messages."""

    said: dict[str, bytes]
    """The fields in which they are the same."""
    payload: int
    """Bytes of each message."""
    chunks: ChunkBatch
    items: ItemBatch | None
    offsets: Int64s
    """From the number of a message's first chunk to those of its windows."""
    likeness: Likeness

    @classmethod
    def of(cls, form: InsertForm) -> _Same | None:
        """None if such messages are to be looked at more closely."""
        fields, n = form.fields, _TOGETHER
        joined = {name: fields[name] for name in _DESCRIPTIONS if name in fields}
        joined |= {name: fields[name] * n for name in form.form.sizes if name != "stream"}
        try:
            nbytes = int(np.frombuffer(joined["blobs"], BLOB_RECORD)["stored_bytes"].sum(dtype=np.int64))
            payload = nbytes // n
            if not 0 < payload < SMALL_PAYLOAD_BYTES or not form.form.sizes.keys() <= _KNOWN:
                return None
            chunks = read_chunks(Header({**joined, "first_chunk": 0}), [bytes(nbytes)])
            items = read_items(Header(joined))
        except PeerError:
            return None
        assert chunks is not None, "a form has chunks"
        offsets = first = np.zeros(0, np.int64)
        if items is not None:
            offsets = items.chunk - fields["first_chunk"]
            first = offsets + np.arange(n).repeat(form.items) * form.chunks
        said = {name: fields[name] for name in form.form.sizes if name in _SAID}
        return cls(said, payload, chunks, items, offsets, Likeness(first))

    def holds(self, joined: Mapping[str, bytes], bodies: Sequence[Any]) -> bool:
        """Whether it is so with these messages, whose fields are joined one behind the other."""
        n = len(bodies)
        if n > _TOGETHER or set(map(len, bodies)) != {self.payload}:
            return False
        return all(joined[name] == said * n for name, said in self.said.items())

    def parts(
        self, joined: Mapping[str, bytes], body: bytes, n: int, firsts: Int64s
    ) -> tuple[ChunkBatch, ItemBatch | None, Likeness | None]:
        """The chunks and items of n messages with which it is so: no more is looked at of them than numbers.

        `firsts` are those of each one's first chunk.
        """
        end = n * len(self.chunks) // _TOGETHER
        versions = None
        if "policy_versions" in joined:
            versions = np.frombuffer(joined["policy_versions"], "<i8")
            require(int(versions[versions.argmin()]) >= 0)
        of = self.chunks
        chunks = ChunkBatch(
            first=0,
            rows=of.rows[:end],
            episodes=np.frombuffer(joined["episodes"], "<u8") if "episodes" in joined else of.episodes[:end],
            schemas=of.schemas,
            schema_of=of.schema_of[:end],
            records=of.records[: len(joined["blobs"]) // BLOB_RECORD.itemsize],
            nbytes=of.nbytes[:end],
            body=[body],
            stops=[end],
            policy_versions=versions,
        )
        if self.items is None:
            return chunks, None, self.likeness
        end = n * len(self.items) // _TOGETHER
        chunk = np.frombuffer(joined["chunk"], "<i8")
        is_alike = all_true(chunk - firsts.repeat(end // n) == self.offsets[:end])
        require(is_alike or (int(chunk.min()) >= 0 and int(chunk.max()) <= CHUNK_NUMBER.value))
        priority = np.frombuffer(joined["priority"], "<f8")
        # `replace` takes 6 µs more.
        like = self.items
        items = ItemBatch(
            tables=like.tables,
            table_of=like.table_of[:end],
            chunk=chunk,
            chunks=like.chunks[:end],
            longest=like.longest,
            offset=like.offset[:end],
            length=like.length[:end],
            templates=like.templates,
            template_of=like.template_of[:end],
            priority=priority,
        )
        return chunks, items, self.likeness if is_alike else None


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
        """Know the form of this header, which is that of a message of a run that was taken."""
        fields = header.fields
        if len(packed) > FORM_BYTES or len(fields["schemas"]) != 1 or "at_max" in fields:
            return
        form = InsertForm(bytes(packed), fields)
        if all(name in form.form for name in _NEEDED):
            self._forms.pop(len(packed), None)
            self._forms[len(packed)] = form
            if len(self._forms) > FORMS:
                del self._forms[next(iter(self._forms))]


def read_alike(messages: Sequence[tuple[Peer, InsertForm, Frames]]) -> InsertRun | None:
    """These inserts as one, if each has the form that it may have, and all are of one kind; else None.

    4 µs a message of 32, where unpacking each and joining their fields takes 30.
    """
    try:
        return _alike(messages)
    except (NotPlain, PeerError):
        return None


def _alike(messages: Sequence[tuple[Peer, InsertForm, Frames]]) -> InsertRun:
    peers, forms, all_frames = zip(*messages, strict=True)
    headers, bodies = zip(*all_frames, strict=True)
    n, first = len(messages), forms[0]
    rows = _rows(forms, headers)
    seqs, keeps, firsts = (column(rows, name, np.int64, n) for name in ("seq", "keep_from", "first_chunk"))
    ids = column(rows, "id", np.int64, n) if first.has_id else np.zeros(n, np.int64)
    require(all(int(values[values.argmin()]) >= 0 for values in (ids, seqs, keeps, firsts)))
    require(int(firsts[firsts.argmax()]) + first.chunks - 1 <= CHUNK_NUMBER.value)
    streams = column(rows, "stream", "V16", n).tolist()
    joined = {
        name: column(rows, name, f"V{size}", n).tobytes() for name, size in first.form.sizes.items() if name != "stream"
    }
    ends = np.arange(n + 1) * first.chunks
    item_ends = ends if first.items == first.chunks else np.arange(n + 1) * first.items
    same = first.same
    if same is None or not same.holds(joined, bodies):
        fields: Fields = {name: first.fields[name] for name in _DESCRIPTIONS if name in first.fields}
        fields |= {**joined, "first_chunk": 0}
        frames = [[body] for body in bodies]
        return assembled(peers, ids.tolist(), streams, (seqs, keeps, firsts), ends[1:], item_ends[1:], fields, frames)
    chunks, items, likeness = same.parts(joined, b"".join(bodies), n, firsts)
    nbytes = np.array([same.payload]).repeat(n)
    return InsertRun(
        *(peers, ids.tolist(), streams, seqs, keeps, firsts),
        *(ends[:-1], ends[1:], item_ends[:-1], item_ends[1:]),
        *(nbytes, chunks, items, likeness),
    )


def _rows(forms: Sequence[InsertForm], headers: Sequence[Any]) -> list[tuple[Any, NDArray[np.void]]]:
    """The headers by their forms: where those of each stand among all, and their fields."""
    distinct = dict.fromkeys(forms)
    rows: list[tuple[Any, NDArray[np.void]]] = []
    for form in distinct:
        where: Any = slice(None)
        if len(distinct) > 1:
            where = [n for n, other in enumerate(forms) if other is form]
        fields = form.form.read(headers if len(distinct) == 1 else [headers[n] for n in where])
        if fields is None:
            raise NotPlain
        rows.append((where, fields))
    return rows


_DESCRIPTIONS = ("schemas", "tables", "templates")
_UINTS = frozenset(("id", "seq", "keep_from", "first_chunk"))
_BINS = frozenset(("stream", "blobs", "table_of", "template_of", *CHUNK_FIELDS, *ITEM_FIELDS))
"""What differs from one insert of a form to the next."""
_NEEDED = ("stream", "seq", "keep_from", "first_chunk", "rows", "blobs")
_SAID = frozenset(("rows", "blobs", "chunks", "offset", "length", "table_of", "template_of"))
_KNOWN = _SAID | {"stream", "episodes", "policy_versions", "chunk", "priority"}
"""What may be in messages that are nearly the same, and in which of these they are."""
