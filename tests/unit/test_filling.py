"""What is told of full tables before they are full: by `info`, and by all that reads it."""

from __future__ import annotations

from typing import Any

import pytest

from replayd.columns import Column, Schema
from replayd.filling import Forecasts
from replayd.service import Service
from replayd.table import Table
from tests.unit.writer import StreamWriter, fifo

MANY = Schema(b"many", tuple(Column((f"x{i}",), "uint8", ()) for i in range(40)))
KINDS: dict[str, dict[str, Any]] = {
    "items of a small chunk": {"size": 16},
    "items of a large chunk": {"size": 3000},
    "items that share most of their chunks": {"chunks": 16, "writers": 12},
    "items that share half of them": {"chunks": 4, "stride": 2, "size": 40, "writers": 3},
    "items of many columns": {"size": 40, "schema": MANY},
}
"""Of what is inserted, as `filled` takes it."""


def service(*tables: Table, max_bytes: int | None = None) -> Service:
    made = Service(tables, server_id=b"s" * 16, version="t", seed=1, started_at=0.0, max_bytes=max_bytes)
    made.counters.vitals.resident_bytes = 1 << 26
    return made


class Actors:
    """Writers that fill a table in turn, each with items of some chunks, `stride` of which are new."""

    def __init__(
        self, s: Service, *, table: str = "t", writers: int = 1, chunks: int = 1, stride: int = 1, **how: Any
    ) -> None:
        self.s, self.table, self.chunks, self.stride = s, table, chunks, stride
        self.size, self.how = how.pop("size", 100), how
        self.writers = [StreamWriter(table.encode() + bytes([n]) * 15) for n in range(writers)]
        self.forecasts = Forecasts()

    def fill(self, items: int) -> None:
        """Until the table has so many, looked at as a daemon does now and then."""
        size = self.s.tables[self.table].size
        for n in range(size, items, 20):
            writer = self.writers[n // 20 % len(self.writers)]
            first = max(0, writer.next_chunk - self.chunks + self.stride)
            windows = [(first + i * self.stride, self.chunks) for i in range(20)]
            new = [b"x" * self.size] * (windows[-1][0] + self.chunks - writer.next_chunk)
            keep = windows[-1][0] + self.stride
            told = writer.insert(new, windows, table=self.table, keep_from=keep, **self.how)
            assert self.s.handle("actor", "insert", told, 0.0) is None
            self.s.drain()
            if n % 100 == 0:
                self.forecasts.due(self.s.tables.values(), 0, has_store=False)


def told(s: Service, name: str = "t") -> dict[str, Any]:
    """What `info` says of a table."""
    (found,) = (table for table in s.report(0.0)["tables"] if table["name"] == name)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_when_full_what_was_told_when_it_was_not(kind: str) -> None:
    s = service(fifo("t", 8000))
    actors = Actors(s, **KINDS[kind])
    actors.fill(800)
    early, resident = told(s)["bytes_when_full"], s.report(0.0)["memory"]["bytes_when_full"]
    assert resident == (1 << 26) + early - told(s)["held_bytes"]
    actors.fill(8000)
    full = told(s)
    assert full["size"] == 8000
    assert early == pytest.approx(full["held_bytes"], rel=0.15)
    assert full["bytes_when_full"] == full["held_bytes"]
    assert s.report(0.0)["memory"]["bytes_when_full"] == 1 << 26, "nothing more comes in"


@pytest.mark.parametrize("items", [100, 5000])
@pytest.mark.parametrize(("own", "all"), [(150_000, None), (None, 150_000), (150_000, 100_000), (100_000, 150_000)])
def test_no_table_is_said_to_hold_more_than_it_may(own: int | None, all: int | None, items: int) -> None:
    s = service(fifo("t", 100_000, max_bytes=own), fifo("u", 100_000), max_bytes=all)
    Actors(s, size=16).fill(100)
    Actors(s, table="u", size=16).fill(100)
    held = s.report(0.0)["memory"]["held_bytes"]
    for n in range(100, items, 100):
        s.handle(
            "actor",
            "insert",
            StreamWriter(n.to_bytes(16, "big")).insert([b"x"] * 100, [(i, 1) for i in range(100)]),
            0.0,
        )
        s.drain()
    least = min(limit for limit in (own, all) if limit is not None)
    assert told(s)["held_bytes"] <= told(s)["bytes_when_full"] == least
    if all is not None:
        assert told(s, "u")["bytes_when_full"] == all
        memory = s.report(0.0)["memory"]
        assert memory["bytes_when_full"] == (1 << 26) + all - memory["held_bytes"]
        assert memory["held_bytes"] >= held


def test_of_a_process_that_has_no_items_or_whose_memory_is_not_known_nothing_is_told() -> None:
    s = service(fifo("t"))
    assert "bytes_when_full" not in s.report(0.0)["memory"]
    Actors(s).fill(20)
    assert "bytes_when_full" in s.report(0.0)["memory"]
    s.counters.vitals.resident_bytes = 0
    assert "bytes_when_full" not in s.report(0.0)["memory"]
