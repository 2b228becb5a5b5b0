"""What chunks and items take in memory beside their payload is what counts against `max_bytes`."""

from __future__ import annotations

import tracemalloc

import pytest

from replayd import selectors
from replayd.columns import Column, Schema
from replayd.service import Service
from tests.unit.writer import StreamWriter, fifo, service

FIRST, CHUNKS = 1024, 32768
"""Powers of two, at which arrays that double are full: what they have room for beyond that is RESIDENT_SHARE's."""
PAYLOAD = b"x" * 16
SLACK = 1.01
"""Of measured over counted, which is 0.89 to 0.996, the more so the more columns there are: those are 8 bytes each."""


def schema_of(columns: int) -> Schema:
    return Schema(b"%d" % columns, tuple(Column((f"x{n}",), "uint8", ()) for n in range(columns)))


def fill(kept: Service, writer: StreamWriter, until: int, chunks: int, columns: int) -> tuple[int, int]:
    """Memory that is allocated then and what counts, both without payloads, which lie in memory of another kind."""
    while writer.next_chunk < until:
        first = writer.next_chunk
        windows = [(start, chunks) for start in range(first, first + FIRST, chunks)]
        message = writer.insert([PAYLOAD] * FIRST, windows, schema=schema_of(columns), keep_from=first + FIRST)
        assert kept.handle("writer", "insert", message, 0.0) is None
        kept.drain()
        del message
    return tracemalloc.get_traced_memory()[0], kept.capacity.nbytes - until * len(PAYLOAD)


@pytest.mark.parametrize("columns", [1, 10, 100])
@pytest.mark.parametrize("chunks", [1, 32])
def test_what_counts_beside_payload_is_what_is_taken(chunks: int, columns: int) -> None:
    kept, writer = service(fifo(max_size=CHUNKS // chunks, sampler=selectors.Prioritized(0.8))), StreamWriter()
    tracemalloc.start()
    try:
        taken, counted = fill(kept, writer, FIRST, chunks, columns)
        taken_then, counted_then = fill(kept, writer, CHUNKS, chunks, columns)
    finally:
        tracemalloc.stop()
    assert kept.tables["t"].size == CHUNKS // chunks
    assert taken_then - taken <= SLACK * (counted_then - counted)
