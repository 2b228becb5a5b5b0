"""What peers and the service say to each other, as plain values: requests in, replies out.

No bytes of headers, no sockets. Arrays are numpy, one entry per chunk or item; payloads are opaque buffers of which
only the length is looked at. `wire` makes requests from frames and frames from replies.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.columns import Schema, Template

Peer = Hashable
"""Whom a reply goes to; opaque to the core. None: a PUSH peer, which hears nothing."""

Buffer = Any
"""bytes, or a received frame kept as it came: has a length, and memoryview() takes it."""

BLOB_RECORD = np.dtype([("stored_bytes", "<u4"), ("codec", "u1"), ("flags", "u1"), ("zero", "<u2")])
FLAG_DELTA, FLAG_SPARSE, FLAG_OMITTED = 1, 2, 4
CODECS = (0, 1, 2)

Int64s = NDArray[np.int64]
Uint8s = NDArray[np.uint8]
Uint64s = NDArray[np.uint64]
Float64s = NDArray[np.float64]


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hello:
    """Who a peer is, and the question what the server is like; `client` is for people."""

    id: int
    client: str = ""


@dataclass(slots=True)
class ChunkBatch:
    """n new chunks of one stream, numbered `first`, `first + 1`, …"""

    first: int
    rows: Int64s
    episodes: Uint64s
    schemas: Sequence[Schema]
    schema_of: Int64s
    records: Uint64s
    """Blob records, the columns of each chunk one behind the other."""
    nbytes: Int64s
    """Of each chunk's payload."""
    body: Sequence[Buffer]
    """Frames that hold the payloads, one behind the other."""
    stops: Sequence[int]
    """How many payloads lie before the end of each frame."""
    policy_versions: Int64s | None = None
    """Version of the policy that acted in each chunk, 0 where none is said; None: for no chunk."""

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def columns(self) -> Int64s:
        """How many each chunk has."""
        counts = [len(schema.columns) for schema in self.schemas]
        return np.full(len(self), counts[0]) if len(counts) == 1 else np.array(counts, np.int64)[self.schema_of]

    def part(self, which: slice, first: int) -> ChunkBatch:
        """What is known of some of the chunks, of which the first has this number; without records and payloads."""
        nothing = np.zeros(0, np.uint64)
        rows, episodes, schema_of = self.rows[which], self.episodes[which], self.schema_of[which]
        return ChunkBatch(first, rows, episodes, self.schemas, schema_of, nothing, self.nbytes[which], [], [])


@dataclass(slots=True)
class ItemBatch:
    """m new items, each a window over chunks of the message's stream."""

    tables: Sequence[str]
    table_of: Int64s
    chunk: Int64s
    chunks: Int64s
    longest: int
    """The largest of `chunks`: nearly always 1, and then much is simpler."""
    offset: Int64s
    length: Int64s
    templates: Sequence[Template]
    template_of: Int64s
    priority: Float64s
    at_max: NDArray[np.bool_] | None = None
    """Items that enter with the largest priority there is, 1.0 if there is none; None: none of them."""

    def __len__(self) -> int:
        return len(self.priority)

    def part(self, which: slice | NDArray[np.bool_]) -> ItemBatch:
        """Some of the items."""
        return replace(
            self,
            table_of=self.table_of[which],
            chunk=self.chunk[which],
            chunks=self.chunks[which],
            offset=self.offset[which],
            length=self.length[which],
            template_of=self.template_of[which],
            priority=self.priority[which],
            at_max=None if self.at_max is None else self.at_max[which],
        )


@dataclass(slots=True)
class Insert:
    """One message of a stream: new chunks, new items, or neither (then only `seq` and `keep_from` move)."""

    id: int
    stream: bytes
    seq: int
    keep_from: int
    chunks: ChunkBatch | None
    items: ItemBatch | None
    nbytes: int
    """Bytes of the whole message, which count against the peer's window."""


@dataclass(slots=True)
class InsertRun:
    """n plain inserts that came together, each with chunks: one entry a message, and the chunks and items of all.

    Those of a message stand behind those of the one before it. `chunks.first` is without meaning; `items` is None if no
    message has any.
    """

    peers: Sequence[Peer]
    ids: Sequence[int]
    streams: Sequence[bytes]
    seqs: Int64s
    keep_froms: Int64s
    firsts: Int64s
    """The number of each one's first chunk."""
    chunk_starts: Int64s
    chunk_ends: Int64s
    """Where each one's chunks begin and end among all."""
    item_starts: Int64s
    item_ends: Int64s
    nbytes: Int64s
    chunks: ChunkBatch
    items: ItemBatch | None
    likeness: Likeness | None = None
    """None: each message may say something else."""

    def __len__(self) -> int:
        return len(self.peers)


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """Messages of runs that have the same one say the same of their chunks and windows; they differ in their streams
    and numbers, in episodes, priorities and payload."""

    first: Int64s
    """Where each item's window begins among the run's chunks: of as many messages as any run has."""


@dataclass(slots=True)
class Sample:
    """A wish for `min_n` to `n` items, which may wait for `timeout_s` seconds."""

    id: int
    table: str
    n: int
    min_n: int
    timeout_s: float


@dataclass(slots=True)
class Withdraw:
    """Take back all samples of this peer that wait."""

    id: int


@dataclass(slots=True)
class Update:
    """Priorities by key, one entry each, and keys of items to delete; the deletes come first."""

    id: int
    table: str
    keys: Uint64s
    priorities: Float64s
    deletes: Uint64s


@dataclass(slots=True)
class Reset:
    """Remove all items of a table and set its counters to 0."""

    id: int
    table: str


@dataclass(slots=True)
class Peek:
    """Items by key if there are `keys`, else the first `n` in an order of PEEK_ORDERS."""

    id: int
    table: str
    order: str
    n: int
    keys: Uint64s


PEEK_ORDERS = ("oldest", "newest", "highest", "lowest")


@dataclass(slots=True)
class Set:
    """Change settings of a live table (see `settings`), all or none."""

    id: int
    table: str
    changes: dict[str, Any]


@dataclass(slots=True)
class Why:
    """Who waits at a table, and for what."""

    id: int
    table: str


@dataclass(slots=True)
class Info:
    """State and counters of the whole server."""

    id: int


@dataclass(slots=True)
class Checkpoint:
    """Asks that all there is be made durable."""

    id: int


@dataclass(slots=True)
class KeepAlive:
    """Renew a stream's lease."""

    id: int
    stream: bytes


@dataclass(slots=True)
class CloseStream:
    """End a stream: its lease is given up."""

    id: int
    stream: bytes


Request = (
    Hello | Insert | Sample | Withdraw | Update | Reset | Info | Why | Peek | Set | KeepAlive | CloseStream | Checkpoint
)

OPS: dict[str, type[Request]] = {
    "hello": Hello,
    "insert": Insert,
    "sample": Sample,
    "update": Update,
    "reset": Reset,
    "info": Info,
    "why": Why,
    "peek": Peek,
    "set": Set,
    "keepalive": KeepAlive,
    "close_stream": CloseStream,
    "checkpoint": Checkpoint,
    "withdraw": Withdraw,
}


# --- replies ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """A reply whose fields are plain values."""

    op: str
    id: int
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Shown:
    """m items over n distinct chunks, complete: nothing in it is looked up again."""

    keys: Uint64s
    priorities: Float64s
    times_sampled: Int64s
    chunk: Int64s
    chunks: Int64s | None
    """None: each window spans one chunk."""
    offset: NDArray[np.int32]
    length: NDArray[np.int32]
    templates: Sequence[bytes]
    template_of: Int64s
    rows: NDArray[np.int32]
    schemas: Sequence[bytes]
    schema_of: Int64s
    records: Uint64s
    """Blob records, the columns of each chunk one behind the other."""
    nbytes: int
    """Of all payloads together."""
    body: Sequence[Buffer]
    """Frames that hold the payloads, one behind the other."""


@dataclass(slots=True)
class Sampled:
    """The reply to a sample."""

    id: int
    shown: Shown
    probabilities: Float64s
    table_sizes: Int64s


@dataclass(slots=True)
class Peeked:
    """The reply to a peek."""

    id: int
    shown: Shown
    ages_s: Float64s
    missing: Uint64s


@dataclass(slots=True)
class Failed:
    """A request that ended in an error."""

    op: str
    id: int
    code: str
    message: str
    detail: dict[str, Any]


Reply = Result | Sampled | Peeked | Failed
