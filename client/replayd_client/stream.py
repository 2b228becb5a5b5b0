"""The exactly-once sender of one writer: which insert message goes next, under which number, and when it is over.

Pure: messages in, transmissions and outcomes out; no socket, and clock and randomness are handed in. `sender` carries
its transmissions over a connection. Protocol §9 is the law here:

- what was sent and not answered is sent again, unchanged, in a new session with the same server;
- a server that does not know the stream gets a new one: every chunk that may still be referred to, then what is open;
- a refused message's items are over; its number and its chunks are not: it goes again without the items.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from replayd_client.array_messages import ChunkBatch, InsertReply, ItemBatch
from replayd_client.errors import ProtocolError, ReplaydError
from replayd_client.insert_message import (
    ITEM_OVERHEAD_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    InsertMessage,
    KeptChunks,
    Receipt,
    Transmission,
    chunk_bytes,
    from_number,
)
from replayd_client.messages import Buffer, ErrorReply

log = logging.getLogger("replayd_client")

WINDOW_MESSAGES = 64
"""Messages left unacknowledged at most, where the server does not grant fewer: enough to fill a long line."""
WINDOW_BYTES = 32 << 20
"""Bytes left unacknowledged at most: some messages of the largest kind, so that the server always has one. It is what a
writer may cost in memory when the server does not keep up, and what its server reads into memory at once."""
RETRY_S = (0.0, 0.01, 0.05, 0.25, 1.0)
"""Pauses before a message which the server put off goes again; the last one is repeated."""

TRANSIENT_LIMITS = ("window_messages", "window_bytes", "streams", "all_leased_bytes")
"""Limits of the server that a message may meet now and not a moment later."""

PUT_OFF_WARN_S, PUT_OFF_WARN_MAX_S = 5.0, 60.0
"""How long messages have been put off when the log is told first, and the longest until it is told again."""


class InsertStream:
    """The insert messages of one writer, from `put` to their receipt."""

    def __init__(
        self,
        draw_id: Callable[[], bytes],
        *,
        max_messages: int = WINDOW_MESSAGES,
        max_bytes: int = WINDOW_BYTES,
        max_items: int | None = None,
    ) -> None:
        self._draw_id = draw_id
        self._own = (max_messages, max_bytes)
        self._window = self._own
        self._max_items = max_items
        self._server_id: bytes | None = None
        self._stream = draw_id()
        self._next_seq = 0
        self._sent_keep_from = 0
        self._index = 0
        self._keep_from = 0
        self._chunks_end = 0
        self._kept: deque[KeptChunks] = deque()
        # A message is in one of these. Those in `_resend` keep their number and go first, in the order sent.
        self._fresh: deque[InsertMessage] = deque()
        self._resend: deque[InsertMessage] = deque()
        self._in_flight: dict[int, InsertMessage] = {}
        self._in_flight_bytes = 0
        self._open: dict[int, InsertMessage] = {}
        self._open_bytes = 0
        self._open_items = 0
        self._retry_at = 0.0
        self._retries = 0
        self._put_off: ReplaydError | None = None
        self._put_off_message: InsertMessage | None = None
        self._put_off_since = 0.0
        self._warn_at = 0.0
        self._last_keepalive = 0.0
        self.refusals: list[Receipt] = []
        """Receipts of refused messages, in order; the writer takes and clears them."""

    # What the writer asks.

    @property
    def unacknowledged_messages(self) -> int:
        return len(self._open)

    @property
    def unacknowledged_items(self) -> int:
        return self._open_items

    @property
    def unacknowledged_tables(self) -> set[str]:
        return {table for message in self._open.values() if message.items is not None for table in message.items.tables}

    @property
    def has_room(self) -> bool:
        """Whether another message may be put. One message is always allowed."""
        if not self._open:
            return True
        messages, nbytes = self._window
        items = self._max_items is None or self._open_items < self._max_items
        return items and len(self._open) < messages and self._open_bytes < nbytes

    @property
    def retry_at(self) -> float:
        """The time before which nothing is sent, since the server put a message off."""
        return self._retry_at

    @property
    def put_off(self) -> tuple[ReplaydError, float] | None:
        """The limit for which the server puts off the message that is sent next, and since when; None if it does not.

        One that is taken may wait at its table, without an answer for long.
        """
        is_next = self._resend and self._resend[0] is self._put_off_message
        return (self._put_off, self._put_off_since) if self._put_off is not None and is_next else None

    @property
    def waits_for_sending(self) -> bool:
        return bool(self._fresh or self._resend)

    def put(self, chunks: ChunkBatch | None, items: ItemBatch | None, keep_from: int) -> Receipt:
        """Take a message over. Chunk numbers must lie above those of earlier messages; the arrays must not change.

        After this message nothing put refers to a chunk with a number below `keep_from`, which never goes back.
        """
        assert keep_from >= self._keep_from, "keep_from went back"
        kept = None
        nbytes = MESSAGE_OVERHEAD_BYTES
        if chunks is not None:
            assert chunks.first >= self._chunks_end, "chunk numbers went back"
            kept = KeptChunks(chunks)
            self._kept.append(kept)
            self._chunks_end = chunks.end
            nbytes += chunk_bytes(chunks)
        if items is not None:
            nbytes += ITEM_OVERHEAD_BYTES * len(items) + sum(map(len, items.templates)) + sum(map(len, items.tables))
        receipt = Receipt(0 if items is None else len(items))
        message = InsertMessage(
            self._index, kept, items, keep_from, self._keep_from, self._chunks_end, nbytes, receipt=receipt
        )
        self._index += 1
        self._keep_from = keep_from
        self._fresh.append(message)
        self._open[message.index] = message
        self._open_bytes += nbytes
        self._open_items += receipt.items
        return receipt

    def withdraw(self, receipts: Iterable[Receipt]) -> int:
        """Take back what has never been handed to the connection of the server there is; return how many messages."""
        wanted = {id(receipt) for receipt in receipts}
        taken = [message for message in self._fresh if id(message.receipt) in wanted]
        self._fresh = deque(message for message in self._fresh if id(message.receipt) not in wanted)
        kept = {id(message.kept) for message in taken}
        self._kept = deque(chunks for chunks in self._kept if id(chunks) not in kept)
        for message in taken:
            self._close(message, None, None)
        return len(taken)

    def own_payloads(self) -> list[weakref.ref[Buffer]]:
        """Copy the payloads that may be sent again and are lent; return what was lent, dead once nothing reads it."""
        lent: list[weakref.ref[Buffer]] = []
        for kept in self._kept:
            if kept.batch.is_lent:
                lent += map(weakref.ref, kept.batch.body)
                kept.batch.body = [bytes(frame) for frame in kept.batch.body]
                kept.batch.is_lent = False
        return lent

    # What the connection tells.

    def on_session(self, server_id: bytes, window_messages: int, window_bytes: int) -> None:
        """A `hello` was answered: a first one, or one on a new socket after the connection was lost."""
        self._window = (min(self._own[0], max(window_messages, 1)), min(self._own[1], window_bytes))
        known = self._server_id
        self._server_id = server_id
        self._retry_at, self._retries = 0.0, 0
        self._put_off = self._put_off_message = None
        self._resend.extendleft(reversed(self._take_in_flight(lambda message: True)))
        if known is not None and known != server_id:
            log.warning("the server at the other end started anew; sending %d messages again", len(self._open))
            self._renumber(list(self._resend))
            self._resend.clear()
            self._open_stream()

    def on_reply(self, reply: InsertReply | ErrorReply, now: float) -> None:
        """Take the answer to a transmission. Of a message's transmissions only the last one's answer counts."""
        message = self._in_flight.get(reply.id)
        if message is None:
            return
        if isinstance(reply, InsertReply):
            del self._in_flight[reply.id]
            self._in_flight_bytes -= message.nbytes
            self._retries = 0
            if message is self._put_off_message:
                self._put_off = self._put_off_message = None
            items = 0 if message.receipt is None else message.receipt.items
            lie = f"{items} items were sent, and {reply.items} are acknowledged" if reply.items != items else None
            self._close(message, reply.first_key, None if lie is None else ProtocolError(lie))
            return
        code = reply.error.code
        if code == "sequence_gap":
            expected = reply.error.detail.get("expected")
            oldest = self._oldest_seq(message.stream)
            if isinstance(expected, int) and oldest <= expected <= message.seq:
                self._retry(message, expected, now)
            else:
                # The server has forgotten what it acknowledged: nothing it knows of this stream can be relied on.
                self._start_over(message, now)
        elif code in ("shutting_down", "loading", "not_durable"):
            self._put_off = self._put_off_message = None
            self._retry(message, message.seq, now)
        elif code == "unknown_stream":
            self._start_over(message, now)
        elif code == "limit_exceeded" and reply.error.detail.get("limit") in TRANSIENT_LIMITS:
            self._note_put_off(message, reply.error, now)
            self._retry(message, message.seq, now)
        else:
            self._refused(message, reply.error, now)

    # What the connection asks.

    def next_transmission(self, now: float) -> Transmission | None:
        """The next message to send, or None while the window is full or there is nothing. Ask again after `sent`."""
        if now < self._retry_at:
            return None
        message = self._resend[0] if self._resend else self._number_next()
        if message is None:
            return None
        messages, nbytes = self._window
        if self._in_flight and (len(self._in_flight) >= messages or self._in_flight_bytes + message.nbytes > nbytes):
            return None
        return Transmission(message)

    def sent(self, transmission: Transmission, request_id: int, now: float) -> None:
        """The transmission was handed to the socket under this request id."""
        message = transmission.message
        assert message is self._resend[0], "only the offered transmission may be sent"
        self._resend.popleft()
        self._in_flight[request_id] = message
        self._in_flight_bytes += message.nbytes
        self._last_keepalive = now

    def keepalives(self, now: float, lease_s: float) -> list[bytes]:
        """Streams to send a keepalive for: those in use, when nothing was sent for a third of the lease."""
        if now < self.keepalive_at(lease_s):
            return []
        self._last_keepalive = now
        streams = {message.stream for message in self._in_flight.values() if message.stream is not None}
        if self._next_seq:
            streams.add(self._stream)
        return sorted(streams)

    def keepalive_at(self, lease_s: float) -> float:
        return self._last_keepalive + lease_s / 3

    @property
    def stream_to_close(self) -> bytes | None:
        """The stream that the server knows of, if there is one, to be closed when the writer is done."""
        return self._stream if self._next_seq else None

    def validate(self) -> None:
        """Re-derive every count; raises AssertionError with what is wrong."""
        everywhere = [*self._fresh, *self._resend, *self._in_flight.values()]
        real = [message for message in everywhere if message.receipt is not None]
        assert len({id(message) for message in everywhere}) == len(everywhere), "a message is in two places"
        assert {message.index for message in real} == self._open.keys(), "an open message is in no queue"
        assert self._in_flight_bytes == sum(message.nbytes for message in self._in_flight.values())
        assert self._open_bytes == sum(message.nbytes for message in self._open.values())
        assert self._open_items == sum(m.receipt.items for m in self._open.values() if m.receipt is not None)
        assert all(message.stream is None for message in self._fresh), "a numbered message is among the fresh ones"
        assert all(message.stream is not None for message in self._resend), "a message to resend has no number"
        indices = [message.index for message in self._fresh]
        assert indices == sorted(indices), "fresh messages are out of order"
        numbers = [number for kept in self._kept for number in (kept.batch.first, kept.batch.end)]
        assert numbers == sorted(numbers), "kept chunks are out of order"
        low_water = self._low_water()
        assert all(kept.batch.end > low_water for kept in self._kept), "a chunk is kept that nothing refers to"

    # Numbering.

    def _number_next(self) -> InsertMessage | None:
        """Give the first fresh message its number, or first the chunks that it needs and the stream lacks."""
        if not self._fresh:
            return None
        message = self._fresh[0]
        stream = self._stream
        lacking = self._lacking(message)
        if lacking is not None:
            chunks_alone = InsertMessage(
                message.index,
                lacking,
                None,
                self._low_water(),
                lacking.batch.first,
                lacking.batch.end,
                MESSAGE_OVERHEAD_BYTES + chunk_bytes(lacking.batch),
                receipt=None,
            )
            message = chunks_alone
        else:
            self._fresh.popleft()
        if message.kept is not None and message.kept.stream != stream:
            message.kept.stream = stream
            message.with_chunks = True
        else:
            message.with_chunks = False
        message.stream = stream
        message.seq = self._next_seq
        message.keep_from = max(min(message.keep_from, self._needed_elsewhere(message)), self._sent_keep_from)
        self._sent_keep_from = message.keep_from
        self._next_seq += 1
        self._resend.append(message)
        return message

    def _lacking(self, message: InsertMessage) -> KeptChunks | None:
        for kept in self._kept:
            if kept.batch.end > message.chunks_end:
                break
            if kept.stream != self._stream and kept is not message.kept:
                return kept
        return None

    def _needed_elsewhere(self, message: InsertMessage) -> int:
        """The least chunk number that earlier messages need which are not on this stream and may come to it."""
        return min(
            (
                other.needs_from
                for other in (*self._fresh, *self._in_flight.values())
                if other.index < message.index and other.stream != message.stream
            ),
            default=message.keep_from,
        )

    # Retrying.

    def _retry(self, message: InsertMessage, from_seq: int, now: float) -> None:
        self._resend.extendleft(reversed(self._take_in_flight(from_number(message, from_seq))))
        self._pause(now)

    def _note_put_off(self, message: InsertMessage, error: ReplaydError, now: float) -> None:
        if message is not self._put_off_message:
            self._put_off_since, self._warn_at = now, now + PUT_OFF_WARN_S
        self._put_off, self._put_off_message = error, message
        if now >= self._warn_at:
            waited_s = now - self._put_off_since
            log.warning(
                "inserts have waited for %.0f s, and are sent again until the server takes them: %s", waited_s, error
            )
            self._warn_at = now + min(waited_s, PUT_OFF_WARN_MAX_S)

    def _start_over(self, message: InsertMessage, now: float) -> None:
        """The server does not know the message's stream: it and the later ones of that stream go on a new one.

        Earlier ones that are still in flight were accepted before the stream ended; their answers are yet to come.
        """
        stream = message.stream
        again = self._take_in_flight(from_number(message, message.seq))
        again.extend(other for other in self._resend if other.stream == stream)
        self._resend = deque(other for other in self._resend if other.stream != stream)
        self._renumber(again)
        if stream == self._stream:
            self._open_stream()
        self._pause(now)

    def _refused(self, message: InsertMessage, error: ReplaydError, now: float) -> None:
        """The message's items are over. Its number is not spent, so it goes again without what was refused."""
        self._close(message, None, error)
        if message.receipt is not None:
            message.receipt = message.items = None
        elif message.with_chunks:
            # Chunks that are refused by themselves are never accepted; items which refer to them will be told so.
            log.error("the server refuses chunks %d to %d: %s", message.needs_from, message.chunks_end - 1, error)
            self._kept = deque(kept for kept in self._kept if kept is not message.kept)
            message.with_chunks = False
        else:
            self._start_over(message, now)
            return
        self._resend.extendleft(reversed(self._take_in_flight(from_number(message, message.seq))))
        message.nbytes = MESSAGE_OVERHEAD_BYTES
        if message.with_chunks and message.kept is not None:
            message.nbytes += chunk_bytes(message.kept.batch)

    def _open_stream(self) -> None:
        """From here on messages go to a new stream. What is in flight on the old one is answered there."""
        self._stream = self._draw_id()
        self._next_seq = 0
        self._sent_keep_from = 0

    def _renumber(self, messages: Iterable[InsertMessage]) -> None:
        """Take the messages' numbers away. Those of chunks alone end here: they are made again if needed."""
        fresh = list(self._fresh)
        for message in messages:
            if message.receipt is not None:
                message.stream = None
                fresh.append(message)
        self._fresh = deque(sorted(fresh, key=lambda message: message.index))

    def _take_in_flight(self, wanted: Callable[[InsertMessage], bool]) -> list[InsertMessage]:
        ids = [request_id for request_id, message in self._in_flight.items() if wanted(message)]
        taken = [self._in_flight.pop(request_id) for request_id in ids]
        self._in_flight_bytes -= sum(message.nbytes for message in taken)
        return taken

    def _pause(self, now: float) -> None:
        self._retry_at = now + RETRY_S[min(self._retries, len(RETRY_S) - 1)]
        self._retries += 1

    def _oldest_seq(self, stream: bytes | None) -> int:
        return min(message.seq for message in self._numbered() if message.stream == stream)

    def _numbered(self) -> Iterator[InsertMessage]:
        yield from self._in_flight.values()
        yield from self._resend

    # Ends.

    def _close(self, message: InsertMessage, first_key: int | None, error: ReplaydError | None) -> None:
        receipt = message.receipt
        if receipt is not None:
            receipt.first_key, receipt.error, receipt.done = first_key, error, True
            del self._open[message.index]
            self._open_bytes -= message.nbytes
            self._open_items -= receipt.items
            if error is not None:
                self.refusals.append(receipt)
        low_water = self._low_water()
        while self._kept and self._kept[0].batch.end <= low_water:
            self._kept.popleft()

    def _low_water(self) -> int:
        """No open message and nothing put later refers to a chunk with a smaller number."""
        return min((message.needs_from for message in self._open.values()), default=self._keep_from)
