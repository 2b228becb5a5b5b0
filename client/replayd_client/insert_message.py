"""One insert message on its way: what is in it, where it stands in its stream, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from replayd_client.array_messages import ChunkBatch, ItemBatch
from replayd_client.array_wire import encode_insert
from replayd_client.errors import ReplaydError
from replayd_client.messages import Buffer

MESSAGE_OVERHEAD_BYTES = 512
CHUNK_OVERHEAD_BYTES = 16
ITEM_OVERHEAD_BYTES = 40


@dataclass(slots=True, eq=False)
class Receipt:
    """What became of one insert message: keys once acknowledged, or the error it was refused with."""

    items: int
    first_key: int | None = None
    error: ReplaydError | None = None
    done: bool = False


@dataclass(slots=True, eq=False)
class KeptChunks:
    """Chunks that may have to be sent again, and the stream on which the server has them (None: on none)."""

    batch: ChunkBatch
    stream: bytes | None = None


@dataclass(slots=True, eq=False)
class InsertMessage:
    index: int
    """Place in the order in which messages were put."""
    kept: KeptChunks | None
    items: ItemBatch | None
    keep_from: int
    needs_from: int
    """Its items refer to no chunk with a smaller number."""
    chunks_end: int
    """Every kept chunk with a smaller number goes before it or with it."""
    nbytes: int
    receipt: Receipt | None
    """None: a message of chunks alone, made for a new stream or what a refusal left."""
    stream: bytes | None = None
    """The stream it was sent on, or is to be sent again on unchanged; None: not numbered yet."""
    seq: int = 0
    with_chunks: bool = False


@dataclass(slots=True)
class Transmission:
    """One sending of one message. `frames(request_id)` encodes it; then call `InsertStream.sent`."""

    message: InsertMessage = field(repr=False)

    def frames(self, request_id: int) -> list[Buffer]:
        message = self.message
        assert message.stream is not None, "a message is numbered before it is sent"
        chunks = message.kept.batch if message.kept is not None and message.with_chunks else None
        return encode_insert(request_id, message.stream, message.seq, message.keep_from, chunks, message.items)


def from_number(message: InsertMessage, seq: int) -> Callable[[InsertMessage], bool]:
    """Tells the messages of this one's stream with this number or a later one."""
    return lambda other: other.stream == message.stream and other.seq >= seq


def chunk_bytes(chunks: ChunkBatch) -> int:
    return chunks.nbytes + CHUNK_OVERHEAD_BYTES * len(chunks) + sum(map(len, chunks.schemas))
