"""What transcripts are written in, after protocol.md alone: an actor's messages, and readings of replies."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from tests.daemon.harness import Peer

SCHEMA = msgpack.packb([[["x"], "float32", [2]]])


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def u16(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def f64(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def rows(*values: float) -> bytes:
    """The payload of one chunk: for each value a step whose `x` is the value and its negative."""
    return np.array([[value, -value] for value in values], "<f4").tobytes()


@dataclass
class Stream:
    """An actor's stream, which numbers messages and chunks."""

    id: bytes = field(default_factory=lambda: os.urandom(16))
    seq: int = 0
    number: int = 0

    def message(
        self, *payloads: bytes, tables: Sequence[str] = (), keep_from: int = 0, **items: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Fields and body of the next insert: these chunks, and in each table an item over the first of them."""
        fields: dict[str, Any] = {"stream": self.id, "seq": self.seq, "keep_from": keep_from}
        if payloads:
            fields["first_chunk"] = self.number
            fields["rows"] = u32(*(len(payload) // 8 for payload in payloads))
            fields["schemas"] = [SCHEMA]
            fields["blobs"] = b"".join(struct.pack("<IBBH", len(payload), 0, 0, 0) for payload in payloads)
        if tables:
            m = len(tables)
            fields["tables"] = list(dict.fromkeys(tables))
            fields["table_of"] = u16(*(fields["tables"].index(table) for table in tables))
            fields["chunk"] = u64(*[self.number] * m)
            fields["length"] = u32(*[1] * m)
            fields["priority"] = f64(*[1.0] * m)
        self.seq += 1
        self.number += len(payloads)
        return {**fields, **items}, [b"".join(payloads)] if payloads else []

    def one(self, table: str, value: float) -> tuple[dict[str, Any], list[bytes]]:
        """A message with one step and one item, after which the stream needs its chunks no more."""
        return self.message(rows(value), tables=[table], keep_from=self.number + 1)


def insert(peer: Peer, message: tuple[dict[str, Any], list[bytes]]) -> dict[str, Any]:
    fields, body = message
    return peer.ask("insert", body, **fields)


def send_insert(peer: Peer, message: tuple[dict[str, Any], list[bytes]]) -> int:
    fields, body = message
    return peer.send("insert", body, **fields)


def sample(peer: Peer, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
    id = peer.send("sample", **fields)
    header, body = peer.receive()
    assert header["id"] == id
    return header, body


def numbers(header: dict[str, Any], name: str, dtype: str) -> list[Any]:
    values: list[Any] = np.frombuffer(header[name], dtype).tolist()
    return values


def error(header: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    assert "error" in header, header
    assert header["error"]["message"]
    return header["error"]["code"], header["error"]["detail"]


def table_info(peer: Peer, name: str) -> dict[str, Any]:
    [found] = [table for table in peer.ask("info")["tables"] if table["name"] == name]
    assert isinstance(found, dict)
    return found


def wait_until(peer: Peer, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for `info` until the condition holds; each answer is a turn of the daemon's loop."""
    for _ in range(20_000):
        info = peer.ask("info")
        if holds(info):
            return info
    raise AssertionError(f"it did not come to hold: {info}")


def nothing_has_come(peer: Peer, by: Peer) -> bool:
    """True if no reply is there for this peer, once the daemon has answered another peer twice."""
    by.ask("info")
    by.ask("info")
    return not peer.dealer.poll(0)
