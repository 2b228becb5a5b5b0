"""A server's view of a writer's messages, for tests of writers without a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd_client.array_messages import BLOB_RECORD, ShownItems
from replayd_client.batches import SampledBatch
from replayd_client.columns import Schema
from replayd_client.outbox import Message
from replayd_client.structure import Structure


class Store:
    """A server's view of a writer: takes its messages, checks what the protocol asks, and shows items."""

    def __init__(self) -> None:
        self.chunks: dict[int, tuple[int, bytes, np.ndarray[Any, Any], bytes]] = {}
        self.next_number = 0
        self.items: list[tuple[int, int, int, int, bytes]] = []
        self.tables: list[str] = []
        self.keep_from = 0

    def take(self, message: Message) -> None:
        assert message.keep_from >= self.keep_from
        if message.chunks is not None:
            self._take_chunks(message.chunks)
        if message.items is not None:
            items = message.items
            absent = np.zeros(len(items), int)
            template_of = absent if items.template_of is None else items.template_of
            table_of = absent if items.table_of is None else items.table_of
            chunks = absent + 1 if items.chunks is None else items.chunks
            offsets = absent if items.offset is None else items.offset
            for i in range(len(items)):
                first, count, offset = int(items.chunk[i]), int(chunks[i]), int(offsets[i])
                assert first >= self.keep_from, "an item shows a chunk that was given up"
                rows = [self.chunks[number][0] for number in range(first, first + count)]
                end = offset + int(items.length[i])
                assert offset < rows[0], "a window begins in its first chunk"
                assert sum(rows[:-1]) < end <= sum(rows), "a window ends in its last chunk"
                template = items.templates[int(template_of[i])]
                self.items.append((first, count, offset, int(items.length[i]), template))
                self.tables.append(items.tables[int(table_of[i])])
        self.keep_from = message.keep_from

    def _take_chunks(self, batch: Any) -> None:
        assert batch.first >= self.next_number, "chunk numbers never go back"
        self.next_number = batch.end
        records = np.frombuffer(batch.records, BLOB_RECORD)
        body = b"".join(bytes(frame) for frame in batch.body)
        schema_of = np.zeros(len(batch), int) if batch.schema_of is None else batch.schema_of
        for i in range(len(batch)):
            schema = batch.schemas[int(schema_of[i])]
            width = len(Schema.decode(schema).columns)
            mine, records = records[:width], records[width:]
            size = int(mine["stored_bytes"].sum())
            self.chunks[batch.first + i] = (int(batch.rows[i]), schema, mine, body[:size])
            body = body[size:]
        assert not body
        assert not len(records)

    def item(self, index: int) -> Any:
        paths, arrays = self.sampled([index]).item(0)
        return Structure.from_paths(paths).rebuild(arrays)

    def sampled(self, indices: list[int]) -> SampledBatch:
        """These items as a reply has them; each brings chunks of its own."""
        items = [self.items[index] for index in indices]
        numbers = [number for first, count, *_ in items for number in range(first, first + count)]
        chunks = [self.chunks[number] for number in numbers]
        schemas = list(dict.fromkeys(schema for _, schema, _, _ in chunks))
        templates = list(dict.fromkeys(template for *_, template in items))
        counts = [count for _, count, *_ in items]
        m = len(items)
        shown = ShownItems(
            *(np.ones(m, dtype) for dtype in ("u8", "f8", "u4")),
            (np.cumsum(counts) - counts).astype("u4"),
            np.array(counts, "u4"),
            np.array([offset for _, _, offset, _, _ in items], "u4"),
            np.array([length for _, _, _, length, _ in items], "u4"),
            templates,
            np.array([templates.index(template) for *_, template in items], "u2"),
            np.array([rows for rows, _, _, _ in chunks], "u4"),
            schemas,
            np.array([schemas.index(schema) for _, schema, _, _ in chunks], "u2"),
            np.concatenate([records for _, _, records, _ in chunks]),
            [payload for _, _, _, payload in chunks],
        )
        return SampledBatch(shown, np.ones(m), np.ones(m, "u8"))
