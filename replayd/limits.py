"""Every limit of the daemon, with its reason beside it; `hello` sends them and protocol.md §4 lists them.

`limit.check(got)` raises the wire error. Knows nothing of what is being limited.
"""

from __future__ import annotations

from dataclasses import dataclass

from replayd.errors import LimitExceeded

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on what a peer may do, by the name that `hello` gives it."""

    name: str
    value: int
    reason: str

    def check(self, got: int) -> None:
        """Raise LimitExceeded, which names limit and value, if `got` is above it."""
        if got > self.value:
            raise LimitExceeded(
                f"got {got}, the limit `{self.name}` is {self.value} ({self.reason})",
                limit=self.name,
                value=self.value,
                got=got,
            )


HEADER_BYTES = Limit("header_bytes", 4 * MIB, "a header is unpacked before anything else is known of it")
FRAMES = Limit("frames", 4097, "a header and one frame for each payload too large to be packed with others")
FRAME_BYTES = Limit("frame_bytes", 256 * MIB, "set on the socket; libzmq disconnects a peer that sends more")
MESSAGE_BYTES = Limit("message_bytes", 256 * MIB, "one message must not crowd out everybody else's memory")
MAP_ENTRIES = Limit("map_entries", 64, "fields of a header and settings of a request; more is nobody's message")
NESTING = Limit("nesting", 8, "maps and arrays within each other, in a header or a description blob")
CHUNK_NUMBER = Limit("chunk_number", (1 << 62) - 1, "so that no sum of a number and a count of chunks leaves 64 bits")
CHUNKS = Limit("chunks", 16384, "bounds the work of one message")
ITEMS = Limit("items", 16384, "bounds the work of one message")
BLOBS = Limit("blobs", 131072, "chunks times columns of one message")
CHUNK_ROWS = Limit("chunk_rows", 1 << 20, "rows of one chunk and of one window; sums stay far below 2^63")
REFERENCES = Limit(
    "references",
    1 << 20,
    "chunks spanned by all items of one message, counted for each; a reply takes no further item once it has as many",
)
COLUMNS = Limit("columns", 512, "columns of a schema and of a template")
DIMENSIONS = Limit("dimensions", 16, "dimensions of one step of a column")
STEP_BYTES = Limit("step_bytes", (1 << 31) - 33, "bytes of one step of a column: no more fits into a blosc2 chunk")
CELLS_BYTES = Limit("cells_bytes", 1 << 27, "a decoded blob of bytes or str, whose size a reader has only its word for")
PATH_DEPTH = Limit("path_depth", 16, "components of a column's path")
NAME_BYTES = Limit("name_bytes", 128, "a table's name or one path component, in UTF-8")
DESCRIPTION_BYTES = Limit("description_bytes", 64 * KIB, "one schema or template blob")
DESCRIPTIONS = Limit("descriptions", 256, "distinct schemas, templates or tables named in one message")
RUNS = Limit("runs", 4096, "runs of one output column of a template")
SAMPLES = Limit("samples", 16384, "n of one sample request")
PEEKED = Limit("peeked", 1024, "items of one peek: it is for looking, not for training")
LOOKS_PER_S = Limit(
    "looks_per_s", 2000, "hello, info, why, peek, set, reset, withdraw and checkpoint of one peer in a second"
)
UPDATES_PER_S = Limit(
    "updates_per_s", 20_000, "updates of one peer in a second: above what the loop can do of them, and below a flood"
)
STREAM_CALLS_PER_S = Limit(
    "stream_calls_per_s",
    20_000,
    "keepalives and close_streams of one peer in a second: of all streams, and all at once",
)
UNREADABLE_PER_S = Limit(
    "unreadable_per_s",
    1000,
    "messages of one peer in a second that cannot be read; then none of it is, until it is over",
)
REPLY_BYTES = Limit(
    "reply_bytes", 64 * MIB, "payload with which a reply takes no further item: the one that reaches it is its last"
)
UPDATES = Limit("updates", 131072, "keys in one update request")
WINDOW_MESSAGES = Limit("window_messages", 128, "insert messages a peer may leave unacknowledged")
WINDOW_BYTES = Limit("window_bytes", 64 * MIB, "bytes a peer may leave unacknowledged; one message is always allowed")
PARKED_SAMPLES = Limit("parked_samples", 64, "sample requests one peer may leave unanswered")
UNREAD_BYTES = Limit(
    "unread_bytes",
    128 * MIB,
    "payload of replies a peer has not read, from which on its samples wait: two full replies",
)
UNREAD_REPLIES = Limit(
    "unread_replies", 128, "replies with payload that a peer has not read, from which on its samples wait"
)
LEASED_BYTES = Limit("leased_bytes", 1 << 30, "payload a stream may keep at or above its keep_from, its items aside")
PEER_LEASED_BYTES = Limit(
    "peer_leased_bytes", 4 << 30, "the same of all streams of one peer: 20 MiB each of 200; at most what all may"
)
ALL_LEASED_BYTES = Limit(
    "all_leased_bytes",
    16 << 30,
    "the same of all streams; with a max_bytes half of that, and at least 512 MiB; twice by peers below their share",
)
PENDING_BYTES = Limit("pending_bytes", 1 << 30, "bytes of the messages parked at one table before PULL is left unread")
PENDING_INSERTS = Limit("pending_inserts", 65536, "items parked at one table before PULL is left unread")
STREAMS = Limit("streams", 65536, "open streams; each costs memory until its lease ends")
STREAMS_REMEMBERED = Limit(
    "streams_remembered", 4096, "streams ended by their lease whose last acknowledgements can be repeated"
)
WISH_ROUNDS = Limit("wish_rounds", 8, "times one request may set off wishes of extensions, each by those before")
MAX_WAIT_MS = Limit(
    "max_wait_ms", 60_000, "longest time a sample waits: a vanished learner cannot be seen, so it must ask again"
)

LIMITS: tuple[Limit, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Limit))

ALL_LEASED_SHARE, ALL_LEASED_LEAST, ALL_LEASED_EXCESS = 0.5, 512 * MIB, 2
"""What all streams may hold of a server's `max_bytes` besides, and what they may in any case: two peers one largest
message each. A table that cannot hold twice what its writers are at work on evicts what they have just written. Beyond
that a peer may still grow to an equal share of it, the bound over the number of peers that hold anything, so that those
who came first do not keep others out; but all never hold more than twice as much.
"""

PRIORITY_MAX = 1e90
"""Largest priority: with the largest priority exponent (3) and 2^32 items the sum of weights stays finite."""

SAMPLES_PER_INSERT_RANGE = (1e-9, 1e9)
DIFF_MAX = 1e15
MIN_SIZE_MAX = 1 << 50
"""What a rate limiter takes: beyond it the cursor would lose whole samples to rounding, or overflow."""

ITEM_BYTES = 200
"""What an item costs beyond its chunks and counts against `max_bytes`: its row, both selectors', the index of keys."""

CHUNK_BYTES, COLUMN_BYTES = 96, 8
"""What a chunk costs beyond its payload and counts, once as that does: its row, its name and a table's references; and
the record of each of its columns. All measured: growth of resident memory by a million chunks of 16 B in items of 1
(305 B an item less payload), 2 (411 B) and 32 chunks (3530 B), and tests/unit/test_overhead.py.
"""

WAITING_BYTES = 64 * MIB
"""What may wait for the disk: entries of the journal, replies that are held back for them, and chunks that were let go
of before a checkpoint had them. Beyond it requests are left unread, or inserts are put off, until the disk has it.
"""

RESIDENT_SHARE, RESIDENT_BYTES, RESIDENT_STORE_BYTES = 1.25, 124 * MIB, WAITING_BYTES + 32 * MIB
"""What the process takes at most, in RAM: this share of the bytes that count against `max_bytes`, for fragments of the
heap and arrays that have room to grow; an interpreter with numpy and libzmq (60 MiB) and free memory that the heap
keeps (64 MiB); with a store what waits for the disk, and a transaction (32 MiB). Held to by scripts/soak; what is on
its way comes beside it.
"""


def resident_most(held_bytes: int, *, has_store: bool) -> int:
    """Resident memory at most, bytes, of a process whose tables hold `held_bytes`, requests and replies aside."""
    return int(RESIDENT_SHARE * held_bytes) + RESIDENT_BYTES + RESIDENT_STORE_BYTES * has_store


def held_most(resident_bytes: int, *, has_store: bool) -> int:
    """What tables may hold so that resident memory stays below this; 0 if not even a process without items does."""
    return max(0, int((resident_bytes - resident_most(0, has_store=has_store)) / RESIDENT_SHARE))


SMALL_PAYLOAD_BYTES = 16 * KIB
"""Payloads under it are copied out on arrival: a small kept zmq Frame pins libzmq's 8 KiB receive buffer (57 times the
memory).
"""

LEASE_S = 60.0
"""Default time after which a silent stream is closed."""

CHECKPOINT_INTERVAL_S = 600.0
"""Default time between the checkpoints of a server with a store."""
