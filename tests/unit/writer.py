"""A writer of the core's own words, for tests of the service: chunks of one uint8 column, items over them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from replayd import rate_limiters, selectors
from replayd.columns import Column, Schema, Template
from replayd.messages import BLOB_RECORD, ChunkBatch, Insert, ItemBatch, Shown
from replayd.service import Service
from replayd.table import Table

SCHEMA = Schema(b"schema", (Column(("x",), "uint8", ()),))


def service(*tables: Table, lease_s: float = 60.0, seed: int = 1) -> Service:
    return Service(tables, server_id=b"s" * 16, version="test", seed=seed, started_at=0.0, lease_s=lease_s)


def fifo(name: str = "t", max_size: int = 1000, **changes: object) -> Table:
    settings = {"sampler": selectors.Fifo(), "remover": selectors.Fifo(), "rate_limiter": rate_limiters.MinSize(1)}
    return Table(name, max_size=max_size, **{**settings, **changes})  # type: ignore[arg-type]


class StreamWriter:
    """Says inserts in order; each call of `insert` is one message."""

    def __init__(self, stream: bytes = b"w" * 16) -> None:
        self.stream = stream
        self.seq = 0
        self.next_chunk = 0

    def insert(
        self,
        payloads: Sequence[bytes] = (),
        items: Sequence[tuple[int, int]] = (),
        *,
        table: str = "t",
        priority: float = 1.0,
        keep_from: int | None = None,
        schema: Schema = SCHEMA,
        template: Template = Template(b""),  # noqa: B008
        id: int | None = None,
        policy_version: int | None = None,
    ) -> Insert:
        """`items` are windows (first chunk, chunks) over whole chunks of one row a byte; `keep_from` None keeps all."""
        first = self.next_chunk
        self.next_chunk += len(payloads)
        self.seq += 1
        return Insert(
            id=self.seq if id is None else id,
            stream=self.stream,
            seq=self.seq - 1,
            keep_from=0 if keep_from is None else keep_from,
            chunks=_chunks(first, payloads, schema, policy_version) if payloads else None,
            items=_items(items, table, priority, template) if items else None,
            nbytes=sum(map(len, payloads)),
        )


def _chunks(first: int, payloads: Sequence[bytes], schema: Schema, policy_version: int | None) -> ChunkBatch:
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    records = np.zeros(len(payloads), BLOB_RECORD)
    records["stored_bytes"] = sizes
    return ChunkBatch(
        first=first,
        rows=np.ones(len(payloads), np.int64),
        episodes=np.zeros(len(payloads), np.uint64),
        schemas=[schema],
        schema_of=np.zeros(len(payloads), np.int64),
        records=np.repeat(records.view("<u8").reshape(-1), len(schema.columns)),
        nbytes=sizes,
        body=[b"".join(payloads)],
        stops=[len(payloads)],
        policy_versions=None if policy_version is None else np.full(len(payloads), policy_version, np.int64),
    )


def payloads_of(shown: Shown, width: int = 1) -> list[bytes]:
    """The payload of each chunk of a reply, all of `width` columns."""
    sizes = (shown.records & np.uint64(0xFFFFFFFF)).reshape(-1, width).sum(axis=1)
    ends = [0, *np.cumsum(sizes).tolist()]
    body = b"".join(map(bytes, shown.body))
    assert len(body) == ends[-1] == shown.nbytes
    return [body[a:b] for a, b in pairwise(ends)]


def _items(windows: Sequence[tuple[int, int]], table: str, priority: float, template: Template) -> ItemBatch:
    chunks = np.array([count for _, count in windows], np.int64)
    return ItemBatch(
        tables=[table],
        table_of=np.zeros(len(windows), np.int64),
        chunk=np.array([first for first, _ in windows], np.int64),
        chunks=chunks,
        longest=int(chunks.max()),
        offset=np.zeros(len(windows), np.int64),
        length=chunks,
        templates=[template],
        template_of=np.zeros(len(windows), np.int64),
        priority=np.full(len(windows), priority),
    )
