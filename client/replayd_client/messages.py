"""What client and server say to each other, as plain values: what an insert carries, and replies.

`wire` makes frames from requests and replies from frames. Arrays are numpy, payloads opaque buffers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.errors import ReplaydError

Buffer = Any
"""bytes, memoryview or a contiguous uint8 array."""
Numbers = NDArray[Any]

BLOB_RECORD = np.dtype([("stored_bytes", "<u4"), ("codec", "u1"), ("flags", "u1"), ("zero", "<u2")])
"""One column blob of a chunk (protocol §4.2)."""


# --- what an insert carries -------------------------------------------------------------------------------------------

AT_MAX = math.nan
"""Among the priorities of items: the largest there is when the item enters. No priority is NaN."""
PRIORITY_MAX = 1e90
"""The largest priority that a server takes (protocol.md §4)."""


@dataclass(slots=True, eq=False)
class ChunkBatch:
    """Consecutive chunks of one stream, numbered `first`, `first + 1`, …"""

    first: int
    rows: Numbers
    """Steps in each chunk, [n]."""
    schemas: Sequence[bytes]
    records: Buffer
    """Packed blob records: the columns of the first chunk, of the second, …"""
    body: Sequence[Buffer]
    """Payloads in chunk order; each frame holds whole payloads."""
    episodes: Numbers | None = None
    schema_of: Numbers | None = None
    policy_versions: Numbers | None = None
    """Version of the policy that acted in each chunk, [n]; 0, or None for all: not said."""
    is_lent: bool = False
    """Whether `body` is the memory of a caller, who may write to it once the call is over."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(frame) for frame in self.body) + nbytes_of(self.records)


@dataclass(slots=True, eq=False)
class ItemBatch:
    """m items, each a window over chunks of the same stream. An absent array stands for its default."""

    tables: Sequence[str]
    chunk: Numbers
    length: Numbers
    priority: Numbers
    """NaN (`AT_MAX`): the item enters with the largest priority in its table, 1.0 if that is empty."""
    table_of: Numbers | None = None
    chunks: Numbers | None = None
    offset: Numbers | None = None
    templates: Sequence[bytes] = (b"",)
    template_of: Numbers | None = None

    def __len__(self) -> int:
        return len(self.priority)

    @property
    def nbytes(self) -> int:
        return 48 * len(self.priority) + sum(map(len, self.templates))


# --- replies ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class TableDescription:
    """What `hello` says of a table. `signature`: None, or one (path, dtype, shape) a column; a size of None is free."""

    signature: tuple[tuple[tuple[str | int, ...], str, tuple[int | None, ...]], ...] | None


@dataclass(slots=True)
class HelloReply:
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


@dataclass(slots=True)
class InsertReply:
    id: int
    first_key: int | None
    items: int
    duplicate: bool


@dataclass(slots=True, eq=False)
class ShownItems:
    """m items over n distinct chunks, as a sample and a peek show them; `records` has one entry a column blob.

    `template_of` and `schema_of` may be None where all are 0.
    """

    keys: NDArray[np.uint64]
    priorities: NDArray[np.float64]
    times_sampled: NDArray[np.uint32]
    chunk: NDArray[np.uint32]
    chunks: NDArray[np.uint32]
    offset: NDArray[np.uint32]
    length: NDArray[np.uint32]
    templates: Sequence[bytes]
    template_of: NDArray[np.uint16] | None
    rows: NDArray[np.uint32]
    schemas: Sequence[bytes]
    schema_of: NDArray[np.uint16] | None
    records: NDArray[np.void]
    body: Sequence[Buffer]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(slots=True, eq=False)
class SampleReply:
    id: int
    shown: ShownItems
    probabilities: NDArray[np.float64]
    table_sizes: NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class UpdateReply:
    id: int
    updated: int
    deleted: int
    missing: NDArray[np.uint64]


@dataclass(slots=True)
class ResetReply:
    id: int
    removed: int


@dataclass(slots=True)
class InfoReply:
    id: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WaitingSide:
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


@dataclass(slots=True)
class WhyReply:
    id: int
    table: str
    verdict: str
    advice: str
    waiting: tuple[WaitingSide, ...]
    paused: tuple[str, ...]
    size: int
    max_size: int
    limiter: dict[str, Any]


@dataclass(slots=True, eq=False)
class PeekReply:
    """Items with their ages, and the keys that were not there."""

    id: int
    shown: ShownItems
    ages_s: NDArray[np.float64]
    missing: NDArray[np.uint64]


@dataclass(slots=True)
class SetReply:
    """Every setting of the table as it was and as it is; None is unlimited."""

    id: int
    before: dict[str, Any]
    after: dict[str, Any]
    removed: int = 0
    hint: str = ""


@dataclass(slots=True)
class CheckpointReply:
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


@dataclass(slots=True)
class DoneReply:
    """The answer of an operation that has nothing to tell: keepalive, close_stream, withdraw."""

    id: int
    op: str


@dataclass(slots=True)
class ErrorReply:
    id: int
    op: str
    error: ReplaydError


Reply = (
    HelloReply
    | InsertReply
    | SampleReply
    | UpdateReply
    | ResetReply
    | InfoReply
    | WhyReply
    | PeekReply
    | SetReply
    | CheckpointReply
    | DoneReply
    | ErrorReply
)


def nbytes_of(buffer: Buffer) -> int:
    """Bytes of a buffer."""
    return buffer.nbytes if hasattr(buffer, "nbytes") else len(buffer)
