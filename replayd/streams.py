"""Streams: what each writer may still refer to, and which of its messages have been accepted.

Owns leases, chunk numbers and sequence numbers. Knows nothing of tables; the chunk store counts the leases it gives up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import NO_SLOT, ChunkStore
from replayd.columns import Schema
from replayd.episodes import LastEpisode
from replayd.errors import UnknownStream
from replayd.leases import Leases
from replayd.limits import STREAMS, STREAMS_REMEMBERED, WINDOW_MESSAGES
from replayd.messages import Int64s, Peer
from replayd.slots import total
from replayd.state import Later, State, packed, unpacked


@dataclass(slots=True)
class Ticket:
    """An accepted insert message on its way into its tables."""

    first_key: int
    items: int
    nbytes: int
    waiting: int
    """Items not in their table yet."""
    askers: list[tuple[Peer, int]]
    """(peer, request id) to acknowledge; a resend of a parked message joins."""
    seq: int
    stream: Stream | None
    """None: an extension's copy, which nobody resends."""

    def acknowledgement(self, duplicate: bool) -> dict[str, Any]:
        """What the reply to its insert says (protocol.md §6.2). `duplicate`: the message came again."""
        fields: dict[str, Any] = {"items": self.items, "duplicate": duplicate}
        if self.items:
            fields["first_key"] = self.first_key
        return fields


@dataclass(slots=True, eq=False)
class Stream:
    """One writer's ordered chunks: `numbers`, rising, are those it may refer to, `slots` where they are stored."""

    id: bytes
    uid: int
    """Small name inside the chunk store, never reused."""
    heard_at: float
    next_seq: int = 0
    next_number: int = 0
    """The least number that its next chunk may have."""
    numbers: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    slots: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    leased_bytes: int = 0
    """Payload of these."""
    peer: Peer = None
    """Who wrote to it last; None: only PUSH has, or nobody since the server began."""
    is_pushed: bool = True
    """Only PUSH ever wrote to it, whose messages and keepalives may be left unread."""
    schema: Schema | None = None
    last_episode: LastEpisode = field(default_factory=LastEpisode)
    parked: int = 0
    """Accepted messages of which items wait at a table."""
    accepted: OrderedDict[int, Ticket] = field(default_factory=OrderedDict)
    """The last window of accepted messages, so that a resend is acknowledged again."""
    overdue: dict[int, Ticket] = field(default_factory=dict)
    """Accepted messages from before that window which are still parked."""

    def slot_before(self, number: int) -> int:
        """Slot of the chunk with the number before this one, NO_SLOT if it is not held."""
        return int(self.slots[-1]) if len(self.numbers) and self.numbers[-1] == number - 1 else NO_SLOT

    def find(self, numbers: Int64s) -> Int64s:
        """Slots of these chunks, all of which are held."""
        found: Int64s = self.slots[np.searchsorted(self.numbers, numbers)]
        return found

    def extend(self, numbers: Int64s, slots: Int64s) -> None:
        """Chunks of these numbers, which rise, have been stored in these slots."""
        first = int(numbers[0])
        assert first >= self.next_number, f"chunk {first} is behind {self.next_number}"
        self.next_number = int(numbers[-1]) + 1
        self.numbers = np.concatenate((self.numbers, numbers))
        self.slots = np.concatenate((self.slots, slots))

    def shorten(self, keep_from: int) -> Int64s:
        """Forget the chunks below `keep_from`; their slots, whose lease is now over."""
        dropped = int(self.numbers.searchsorted(keep_from))
        gone = self.slots[:dropped]
        self.numbers, self.slots = self.numbers[dropped:], self.slots[dropped:]
        return gone

    def find_accepted(self, seq: int) -> Ticket | None:
        """The ticket of an accepted message by its number; None if it is remembered no more, or never came."""
        return self.accepted.get(seq) or self.overdue.get(seq)

    def record(self, ticket: Ticket) -> None:
        """A message has been accepted: its number is spent."""
        self.accepted[ticket.seq] = ticket
        self.next_seq = ticket.seq + 1
        self.parked += ticket.waiting > 0
        self._forget_old()

    def record_all(self, seqs: Sequence[int], tickets: Sequence[Ticket], parked: int) -> None:
        """Messages of these numbers have been accepted, which follow each other; items of `parked` of them wait."""
        self.accepted.update(zip(seqs, tickets, strict=True))
        self.next_seq = seqs[-1] + 1
        self.parked += parked
        self._forget_old()

    def _forget_old(self) -> None:
        least = self.next_seq - WINDOW_MESSAGES.value
        for old in list(takewhile(least.__gt__, self.accepted)):
            left = self.accepted.pop(old)
            if left.waiting:
                self.overdue[old] = left

    def settle(self, ticket: Ticket) -> None:
        """All items of a message are in their tables."""
        self.parked -= 1
        self.overdue.pop(ticket.seq, None)


class Streams:
    """The open streams, the longest silent first."""

    def __init__(self, chunks: ChunkStore, lease_s: float, leases: Leases) -> None:
        self.lease_s = lease_s
        self.leases = leases
        self.expired = 0
        self.unread_until: float | None = None
        """Until when PULL was last left unread, since a table had no room for more; None: never."""
        self.keeps_parked = False
        """The lease of a stream does not end while a message of it is parked, as it was before format 3: so while a
        journal of then is replayed."""
        self._chunks = chunks
        self._streams: OrderedDict[bytes, Stream] = OrderedDict()
        self._ended: OrderedDict[bytes, Stream] = OrderedDict()
        """The last of those whose lease is over, with what is remembered of their messages."""
        self._waiting: dict[bytes, Stream] = {}
        """All of those whose lease is over and whose messages are parked: resent, they must not look like new data."""
        self._next_uid = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def get(self, id: bytes) -> Stream | None:
        """The open stream of this id, None if there is none."""
        return self._streams.get(id)

    def opened(self, id: bytes) -> Stream:
        """The open stream of this id; raises UnknownStream."""
        stream = self._streams.get(id)
        if stream is None:
            raise UnknownStream(f"stream {id.hex()} is not open here", stream=id)
        return stream

    @property
    def room(self) -> int:
        """How many more may be opened."""
        return STREAMS.value - len(self._streams) - len(self._waiting)

    def check_open(self) -> None:
        """Raise LimitExceeded if no further stream may be opened."""
        STREAMS.check(STREAMS.value - self.room + 1)

    def open(self, id: bytes, now: float) -> Stream:
        """A new stream of this id, which is not open; its lease begins now."""
        stream = Stream(id, self._next_uid, now)
        self._next_uid += 1
        self._streams[id] = stream
        return stream

    def heard(self, stream: Stream, now: float) -> None:
        """A message of this stream arrived: its lease begins anew."""
        stream.heard_at = now
        self._streams.move_to_end(stream.id)

    def accepted(self, id: bytes, seq: int) -> Ticket | None:
        """The message of this number, if it is among the last that were accepted; also of a stream its lease ended."""
        stream = self._streams.get(id) or self._waiting.get(id) or self._ended.get(id)
        return None if stream is None else stream.find_accepted(seq)

    def weigh(self, stream: Stream, peer: Peer) -> None:
        """A message of this peer has changed which chunks a stream holds."""
        nbytes = total(self._chunks.nbytes[stream.slots]) if len(stream.slots) else 0
        if peer is None or peer == stream.peer:
            self.leases.change(stream.peer, nbytes - stream.leased_bytes)
        else:
            self.leases.change(stream.peer, -stream.leased_bytes)
            self.leases.change(peer, nbytes)
            stream.peer = peer
        stream.is_pushed &= peer is None
        stream.leased_bytes = nbytes

    def settle(self, stream: Stream, ticket: Ticket) -> None:
        """All items of a message of this stream are in their tables."""
        stream.settle(ticket)
        if stream.parked == 0 and self._waiting.get(stream.id) is stream:
            del self._waiting[stream.id]
            self._remember(stream)

    def close(self, stream: Stream) -> None:
        """The lease is over. Parked inserts keep their own holds."""
        del self._streams[stream.id]
        self._chunks.unlease(stream.slots)
        stream.numbers = stream.slots = stream.slots[:0]
        self.weigh(stream, None)
        # Its writer may have lost the connection, and with it the answers to what was applied.
        if stream.parked:
            self._waiting[stream.id] = stream
        else:
            self._remember(stream)

    def _remember(self, stream: Stream) -> None:
        self._ended[stream.id] = stream
        if len(self._ended) > STREAMS_REMEMBERED.value:
            self._ended.popitem(last=False)

    def expire(self, now: float, wants_pushed: bool) -> float | None:
        """Close the streams that have been silent for a lease; when the next one is due, None if there is none.

        `wants_pushed`: PULL is read. Who pushes is not silent who is not heard: leases begin anew then.
        """
        while self._streams:
            oldest = next(iter(self._streams.values()))
            due = oldest.heard_at + self.lease_s
            if due > now:
                return due
            if self._was_unread(oldest, wants_pushed) or (self.keeps_parked and oldest.parked):
                self.heard(oldest, now)
                continue
            self.close(oldest)
            self.expired += 1
        return None

    def _was_unread(self, stream: Stream, wants_pushed: bool) -> bool:
        """Whether it is a pusher's whom nobody heard for some time since it was heard last."""
        if not stream.is_pushed:
            return False
        return not wants_pushed or (self.unread_until is not None and self.unread_until >= stream.heard_at)

    def orphan_bytes(self) -> int:
        """Bytes held by leases alone."""
        return self._chunks.unreferenced_bytes(self.leased())

    def leased(self) -> Int64s:
        """Slots of all chunks that a lease holds, each once."""
        return np.concatenate([stream.slots for stream in self]) if self._streams else np.zeros(0, np.int64)

    def dump(self) -> State:
        """Without the parked messages, which their tables have."""
        # What is kept of a stream here changes no more: its arrays are replaced and never written to, and of a ticket
        # only `waiting` changes, which its parked items tell.
        kept = [
            (
                *(stream.id, stream.uid, stream.heard_at, stream.next_seq, stream.next_number),
                *(stream.last_episode.number, stream.last_episode.name, stream.last_episode.serial),
                *(stream.numbers, stream.slots, stream.schema),
                [*stream.accepted.values(), *stream.overdue.values()],
                stream.is_pushed,
            )
            for streams in (self._ended, self._waiting, self._streams)
            for stream in streams.values()
        ]
        ended = len(self._ended) + len(self._waiting)
        streams = Later(lambda: {"ended": ended, **_dump_streams(kept)})
        return {"next_uid": self._next_uid, "unread_until": self.unread_until, "streams": streams}

    def load(
        self, state: State, there: NDArray[np.bool_], make_schema: Callable[[bytes], Schema], later_s: float
    ) -> None:
        """`there`: by slot, which chunks are. Tickets of parked messages wait for nothing yet: see `load_parked`."""
        self._next_uid = state["next_uid"]
        until = state["unread_until"]
        self.unread_until = None if until is None else until + later_s
        self._streams.clear()
        self._ended.clear()
        self._waiting.clear()
        self.leases.clear()
        for n, stream in enumerate(_load_streams(state["streams"], there, make_schema, later_s)):
            (self._ended if n < state["streams"]["ended"] else self._streams)[stream.id] = stream
            self._chunks.leased[stream.slots] = True
            self.weigh(stream, None)

    def tickets(self) -> dict[tuple[int, int], Ticket]:
        """All that are remembered, by their stream's small name and their number."""
        streams = [*self._ended.values(), *self._waiting.values(), *self._streams.values()]
        return {(s.uid, seq): ticket for s in streams for seq, ticket in (*s.accepted.items(), *s.overdue.items())}

    def loaded(self) -> None:
        """Tickets know again for how many items they wait."""
        for stream in (*self._ended.values(), *self._streams.values()):
            stream.overdue = {seq: ticket for seq, ticket in stream.overdue.items() if ticket.waiting}
            stream.parked = sum(t.waiting > 0 for t in (*stream.accepted.values(), *stream.overdue.values()))
        self._waiting = {id: stream for id, stream in self._ended.items() if stream.parked}
        for id in self._waiting:
            del self._ended[id]

    def renew(self, now: float) -> None:
        """Each stream gets a whole lease: while the server was away nobody could be heard."""
        for stream in self:
            stream.heard_at = now

    def validate(self) -> None:
        """Assert that the order of silence, chunks and what is remembered of messages are right."""
        heard = [stream.heard_at for stream in self]
        assert heard == sorted(heard), "streams are not in order of silence"
        assert all(stream.parked for stream in self._waiting.values()), "a stream is kept for messages that are in"
        assert not any(stream.parked for stream in self._ended.values()), (
            "a stream may be forgotten whose message waits"
        )
        leases = Leases(self.leases.of_all, self.leases.of_peer)
        for stream in self:
            leases.change(stream.peer, int(self._chunks.nbytes[stream.slots].sum()))
        assert leases == self.leases, f"{self.leases} is not what streams hold, {leases}"
        assert all(stream.peer is None for stream in self if stream.is_pushed), "who is a peer does not push"
        for stream in (*self, *self._waiting.values()):
            assert np.array_equal(self._chunks.number[stream.slots], stream.numbers), "chunk numbers and slots disagree"
            assert (np.diff(stream.numbers) > 0).all(), "chunk numbers do not rise"
            assert (stream.numbers < stream.next_number).all(), "a chunk is ahead of its stream"
            assert (self._chunks.stream[stream.slots] == stream.uid).all(), "a stream holds another stream's chunk"
            tickets = [*stream.accepted.values(), *stream.overdue.values()]
            assert stream.parked == sum(ticket.waiting > 0 for ticket in tickets), "parked messages of a stream"
            assert len(stream.accepted) <= WINDOW_MESSAGES.value, "messages out of the window are remembered"
            assert all(ticket.waiting for ticket in stream.overdue.values()), "an old message is kept that is done"
            assert stream.next_seq - 1 in stream.accepted or stream.next_seq == 0, (
                "the last accepted message is forgotten"
            )


_STREAM_NUMBERS = ("uid", "next_seq", "next_number", "episode_number", "episode_name", "episode_serial")
_TICKET_NUMBERS = ("seq", "first_key", "items", "nbytes")


def _dump_streams(kept: list[tuple[Any, ...]]) -> State:
    schemas: dict[bytes, int] = {}
    schema_of = [-1 if k[10] is None else schemas.setdefault(k[10].blob, len(schemas)) for k in kept]
    numbers = np.array([(k[1], *k[3:8]) for k in kept], np.int64).reshape(-1, len(_STREAM_NUMBERS))
    tickets = [(t.seq, t.first_key, t.items, t.nbytes) for k in kept for t in k[11]]
    return {
        "ids": np.frombuffer(b"".join(k[0] for k in kept), np.uint8),
        "heard_at": np.array([k[2] for k in kept], np.float64),
        "numbers": numbers,
        "pushed": np.array([k[12] for k in kept], np.bool_),
        "schemas": packed(list(schemas)),
        "schema_of": np.array(schema_of, np.int64),
        "chunk_counts": np.array([len(k[8]) for k in kept], np.int64),
        "chunk_numbers": np.concatenate([np.zeros(0, np.int64), *(k[8] for k in kept)]),
        "chunk_slots": np.concatenate([np.zeros(0, np.int64), *(k[9] for k in kept)]),
        "ticket_counts": np.array([len(k[11]) for k in kept], np.int64),
        "tickets": np.array(tickets, np.int64).reshape(-1, len(_TICKET_NUMBERS)),
    }


def _load_streams(
    state: State, there: NDArray[np.bool_], make_schema: Callable[[bytes], Schema], later_s: float
) -> Iterator[Stream]:
    schemas = [make_schema(blob) for blob in unpacked(state["schemas"])]
    ids = state["ids"].tobytes()
    chunk_ends, ticket_ends = np.cumsum(state["chunk_counts"]).tolist(), np.cumsum(state["ticket_counts"]).tolist()
    chunk, ticket = 0, 0
    for n, (uid, next_seq, next_number, *episode) in enumerate(state["numbers"].tolist()):
        stream = Stream(ids[16 * n : 16 * n + 16], uid, float(state["heard_at"][n]) + later_s, next_seq, next_number)
        stream.is_pushed = bool(state["pushed"][n])
        schema = int(state["schema_of"][n])
        stream.schema = schemas[schema] if schema >= 0 else None
        stream.last_episode = LastEpisode(*episode)
        slots = state["chunk_slots"][chunk : chunk_ends[n]]
        stream.numbers, stream.slots = state["chunk_numbers"][chunk : chunk_ends[n]][there[slots]], slots[there[slots]]
        for seq, first_key, items, nbytes in state["tickets"][ticket : ticket_ends[n]].tolist():
            kept = stream.accepted if seq > next_seq - 1 - WINDOW_MESSAGES.value else stream.overdue
            kept[seq] = Ticket(first_key, items, nbytes, 0, [], seq, stream)
        chunk, ticket = chunk_ends[n], ticket_ends[n]
        yield stream
