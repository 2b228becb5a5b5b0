"""What client and server say to each other besides experience, as plain values: sessions, tables, settings, refusals.

`wire` makes them of frames. They must not know numpy, which takes longer to import than a command that asks for one of
them has in all: what carries arrays is in `array_messages`. All are named tuples: to make a dataclass takes four times
as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from replayd_client.errors import ReplaydError

Buffer = Any
"""bytes, memoryview or a contiguous uint8 array."""


class TableDescription(NamedTuple):
    """What `hello` says of a table. `signature`: None, or one (path, dtype, shape) a column; a size of None is free."""

    signature: tuple[tuple[tuple[str | int, ...], str, tuple[int | None, ...]], ...] | None


class HelloReply(NamedTuple):
    id: int
    server_id: bytes
    server: str
    versions: tuple[int, ...]
    codecs: tuple[int, ...]
    window_messages: int
    window_bytes: int
    lease_ms: int
    max_wait_ms: int
    limits: dict[str, int]
    tables: dict[str, TableDescription]


class ResetReply(NamedTuple):
    id: int
    removed: int


class InfoReply(NamedTuple):
    id: int
    fields: dict[str, Any]


class WaitingSide(NamedTuple):
    """The requests of one side that a table holds back, `insert` or `sample`."""

    side: str
    requests: int
    items: int
    """Items they would insert, or the most they ask for."""
    peers: int
    who: tuple[str, ...]
    """What the first few of these peers call themselves, the oldest first."""
    waited_s: float
    """Seconds since the oldest came."""
    blocked_by: str
    """`paused`, or a term of the limiter: protocol.md §10."""
    who_must_act: str
    why: str
    """The same for people, with numbers."""
    needs_inserts: int | None
    """Fewest inserts after which the first request passes; None for inserts, and while paused."""
    needs_samples: int | None
    """Fewest samples after which the first insert passes; None for samples, and while paused."""


class WhyReply(NamedTuple):
    id: int
    table: str
    verdict: str
    advice: str
    waiting: tuple[WaitingSide, ...]
    paused: tuple[str, ...]
    size: int
    max_size: int
    limiter: dict[str, Any]


class SetReply(NamedTuple):
    """Every setting of the table as it was and as it is; None is unlimited."""

    id: int
    before: dict[str, Any]
    after: dict[str, Any]
    removed: int = 0
    hint: str = ""


class CheckpointReply(NamedTuple):
    """What is durable now, and where: `path` is one of the machine `host`."""

    id: int
    path: str
    host: str
    generation: int
    duration_s: float
    held_ms: float
    items: int
    chunks: int
    nbytes: int
    size_bytes: int


class DoneReply(NamedTuple):
    """The answer of an operation that has nothing to tell: keepalive, close_stream, withdraw."""

    id: int
    op: str


class ErrorReply(NamedTuple):
    id: int
    op: str
    error: ReplaydError
