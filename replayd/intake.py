"""Intake: inserts that are accepted, one message at a time or a run of plain ones at once.

Everything is checked before anything changes, so a refusal leaves nothing behind. An accepted message has its chunks
stored under its stream's lease, its items parked at their tables, and a ticket. Whoever pumps the tables and answers is
not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from replayd.accounts import Accounts
from replayd.admission import (
    OwnWindows,
    check_capacity,
    check_chunks,
    check_items,
    check_leases,
    check_own_windows,
    check_priorities,
)
from replayd.capacity import REJECT
from replayd.chunks import ChunkStore
from replayd.columns import Signature, Template
from replayd.errors import BadRequest, PeerError, SequenceGap, UnknownTable
from replayd.interned import Interned
from replayd.items import Keys
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES, LEASED_BYTES, WINDOW_BYTES, WINDOW_MESSAGES
from replayd.messages import Insert, InsertRun, Int64s, ItemBatch, Likeness, Peer
from replayd.pending import ENTER_TOGETHER, PendingInsert
from replayd.reports import Counters
from replayd.selectors import Fifo
from replayd.slots import all_true, total
from replayd.streams import Stream, Streams, Ticket
from replayd.table import Table

LIKENESSES = 64
"""Of runs, the last ones: more than there are forms of the headers of inserts."""


class Intake:
    """The way in for inserts; shares the state of the service that it is made for."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        chunks: ChunkStore,
        streams: Streams,
        templates: Interned[Template],
        keys: Keys,
        accounts: Accounts,
        counters: Counters,
    ) -> None:
        self._tables = tables
        self._chunks = chunks
        self._streams = streams
        self._templates = templates
        self._keys = keys
        self._accounts = accounts
        self._counters = counters
        self._proven: dict[Likeness, None] = {}
        """What was found right of the windows of messages is right of all that are like them."""

    def accept(self, peer: Peer, request: Insert, now: float) -> tuple[Ticket, list[Table]]:
        """Take one message, which is new; its ticket, and the tables at which its items are parked."""
        stream = self._stream_of(peer, request)
        if stream is not None and request.seq < stream.next_seq:
            raise BadRequest(f"message {request.seq} was acknowledged long ago; the stream is at {stream.next_seq}")
        if peer is not None:
            self._accounts.check_insert(peer, request.nbytes)
        tables = self._named(request.items)
        if request.chunks:
            check_chunks(stream, request.chunks)
            check_leases(peer, stream, request.chunks, request.keep_from, self._chunks, self._streams.leases, now)
        if request.items:
            check_items(request.items, stream, request.chunks, self._chunks, _signatures(tables))
            if any(table.capacity.largest_item_bytes is not None for table in tables):
                capacities = [(table.name, table.capacity) for table in tables]
                check_capacity(request.items, stream, request.chunks, self._chunks, capacities)
        if stream is None:
            self._streams.check_open()
            # Nothing below refuses.
            stream = self._streams.open(request.stream, now)
        self._streams.heard(stream, now)
        if request.chunks:
            n = len(request.chunks)
            numbers = np.arange(request.chunks.first, request.chunks.first + n)
            episodes = self._chunks.episodes.enter(request.chunks.episodes, [0], [stream.last_episode])
            slots = self._chunks.add(request.chunks, numbers, stream.uid, episodes)
            self._chunks.link([stream.slot_before(request.chunks.first)], slots[:1], slots[:-1], slots[1:])
            stream.extend(numbers, slots)
            stream.schema = request.chunks.schemas[int(request.chunks.schema_of[-1])]
        count = len(request.items) if request.items else 0
        ticket = Ticket(self._keys.take(count), count, request.nbytes, count, [], request.seq, stream)
        stream.record(ticket)
        if request.items:
            whole = self._hold(request.items, stream.find(request.items.chunk), ticket, now)
            _park(whole, ticket, slice(0, count), request.items, tables)
        if peer is not None:
            ticket.askers.append((peer, request.id))
            self._accounts.open_insert(peer, request.nbytes)
        self._chunks.unlease(stream.shorten(request.keep_from))
        self._streams.weigh(stream, peer)
        return ticket, list(dict.fromkeys(tables))

    def accept_run(self, run: InsertRun, now: float) -> AcceptedRun | None:
        """Take all messages of a run; None, and nothing has changed, if one of them needs a closer look.

        What it leaves behind is what `accept` would have, message after message.
        """
        is_proven = run.likeness is not None and run.likeness in self._proven
        own = OwnWindows.of_proven(run) if is_proven else OwnWindows.of(run)
        try:
            tables = self._named(run.items)
            lanes = self._plain_lanes(run, own, tables)
            if lanes is None:
                return None
            if run.items is not None and is_proven:
                check_priorities(run.items.priority)
            elif run.items is not None:
                signatures = _signatures(tables)
                check_own_windows(run.items, run.chunks, own, signatures)
                for n in own.reach_back:
                    stream = self._streams.get(run.streams[n])
                    chunks, items = slice(run.chunk_starts[n], run.chunk_ends[n]), slice(*_items_of(run)[n])
                    batch = run.chunks.part(chunks, int(run.firsts[n]))
                    check_items(run.items.part(items), stream, batch, self._chunks, signatures)
        except PeerError:
            return None
        if run.likeness is not None and not is_proven and not own.reach_back:
            self._proven[run.likeness] = None
            if len(self._proven) > LIKENESSES:
                del self._proven[next(iter(self._proven))]
        streams = [self._streams.get(id) or self._streams.open(id, now) for id in lanes.ids]
        counts = run.chunk_ends - run.chunk_starts
        numbers = np.arange(len(run.chunks)) + (run.firsts - run.chunk_starts).repeat(counts)
        uids: Int64s | int = streams[0].uid
        if len(streams) > 1:
            uids = np.array([stream.uid for stream in streams])[lanes.of].repeat(counts)
        slots = self._chunks.add(run.chunks, numbers, uids, self._enter_episodes(run, lanes, streams))
        first_slots = slots[own.first]
        gone = self._extend_streams(run, own, lanes, streams, numbers, slots, first_slots)
        # Last comes who was heard last.
        for lane in reversed(dict.fromkeys(lanes.of[::-1].tolist())) if len(streams) > 1 else (0,):
            self._streams.heard(streams[lane], now)
        key = self._keys.take(0 if run.items is None else len(run.items))
        whole = None
        if run.items is not None:
            together = Ticket(key, len(run.items), int(run.nbytes.sum()), len(run.items), [], 0, None)
            whole = self._hold(run.items, first_slots, together, now)
        self._chunks.unlease(gone)
        for stream, peer in zip(streams, lanes.owners, strict=True):
            self._streams.weigh(stream, peer)
        is_in = whole is None or (len(tables) == 1 and _enter_at_once(whole, tables[0], now))
        tickets = self._issue(run, lanes, streams, key, is_in)
        if whole is not None and run.items is not None and not is_in:
            for (start, stop), ticket in zip(_items_of(run), tickets, strict=True):
                if ticket.items:
                    _park(whole, ticket, slice(start, stop), run.items, tables)
        return AcceptedRun(tickets, tables, is_in)

    # --- one message --------------------------------------------------------------------------------------------------

    def _stream_of(self, peer: Peer, request: Insert) -> Stream | None:
        """The open stream of this message, None for a new one; refuses numbers out of turn."""
        stream = self._streams.get(request.stream)
        expected = 0 if stream is None else stream.next_seq
        if request.seq <= expected:
            return stream
        if peer is None:
            self._counters.push_gaps += 1
            return stream
        if stream is None:
            self._streams.opened(request.stream)
        raise SequenceGap(f"message {request.seq} came before {expected}", expected=expected)

    def _named(self, items: ItemBatch | None) -> list[Table]:
        return [table_named(name, self._tables) for name in items.tables] if items is not None else []

    # --- a run --------------------------------------------------------------------------------------------------------

    def _plain_lanes(self, run: InsertRun, own: OwnWindows, tables: Sequence[Table]) -> _Lanes | None:
        """The messages by streams; None unless each is its stream's next, goes on with its chunks and its schema, and
        fits its peer's window, those before it in the run taken into account."""
        limits = [table.capacity.largest_item_bytes for table in tables]
        least = min((limit for limit in limits if limit is not None), default=None)
        if least is not None and any(table.capacity.when_full == REJECT for table in tables):
            return None
        lanes = _Lanes.of_run(run)
        order, firsts = lanes.order, lanes.firsts
        if lanes.change_hands or any(n not in lanes.begins for n in own.reach_back):
            return None
        starts, seqs, numbers = run.chunk_starts, run.seqs[order], run.firsts[order]
        ends = numbers + (run.chunk_ends - starts)[order]
        schema_of = run.chunks.schema_of[starts][order]
        goes_on = (seqs[1:] == seqs[:-1] + 1) & (numbers[1:] >= ends[:-1]) & (schema_of[1:] == schema_of[:-1])
        if len(firsts) > 1:
            goes_on[firsts[1:] - 1] = True
        if not all_true(goes_on):
            return None
        nbytes = np.add.reduceat(np.add.reduceat(run.chunks.nbytes, starts)[order], firsts).tolist()
        counts = np.add.reduceat((run.chunk_ends - starts)[order], firsts).tolist()
        heads = zip(lanes.ids, seqs[firsts].tolist(), numbers[firsts].tolist(), schema_of[firsts].tolist(), strict=True)
        # As a rule streams keep nothing of what they bring; else it counts as if they kept all.
        keeps = np.logical_or.reduceat(run.keep_froms[order] < ends, firsts)
        grows = np.where(keeps, nbytes, 0).tolist()
        growth: dict[Peer, int] = {}
        opened = 0
        for (id, seq, number, schema), held, chunks, grown, owner in zip(
            heads, nbytes, counts, grows, lanes.owners, strict=True
        ):
            growth[owner] = growth.get(owner, 0) + grown
            stream = self._streams.get(id)
            if stream is None:
                if seq != 0 or self._streams.accepted(id, seq) is not None:
                    return None
                opened += 1
            else:
                if seq != stream.next_seq or number < stream.next_number:
                    return None
                if stream.schema is not None and stream.schema.blob != run.chunks.schemas[schema].blob:
                    return None
                if grown and stream.leased_bytes and stream.peer != owner:
                    return None
                held += stream.leased_bytes
                chunks += len(stream.slots)
            # No item shows more than all of its stream's chunks, none of which has more columns than the last ones.
            each = CHUNK_BYTES + COLUMN_BYTES * len(run.chunks.schemas[schema].columns)
            if held > LEASED_BYTES.value or (least is not None and held + each * chunks + ITEM_BYTES > least):
                return None
        if opened > self._streams.room or not self._streams.leases.fit(growth) or not self._fit_windows(run):
            return None
        return lanes

    def _fit_windows(self, run: InsertRun) -> bool:
        """Whether each peer may leave so many messages and bytes unacknowledged, if all of them have to wait."""
        opened: dict[Peer, int] = dict.fromkeys(run.peers, len(run))
        nbytes = dict.fromkeys(opened, total(run.nbytes))
        if len(opened) > 1:
            opened, nbytes = Counter(run.peers), dict.fromkeys(opened, 0)
            for peer, more in zip(run.peers, run.nbytes.tolist(), strict=True):
                nbytes[peer] += more
        for peer, messages in opened.items():
            account = self._accounts.copy_of(peer)
            is_over = account.insert_messages + messages > WINDOW_MESSAGES.value
            if peer is not None and (is_over or account.insert_bytes + nbytes[peer] > WINDOW_BYTES.value):
                return False
        return True

    def _enter_episodes(self, run: InsertRun, lanes: _Lanes, streams: Sequence[Stream]) -> Int64s:
        """Names for the chunks of a run. Messages of one stream that follow each other count as one."""
        if len(streams) == 1:
            return self._chunks.episodes.enter(run.chunks.episodes, [0], [streams[0].last_episode])
        begins = np.concatenate(([0], (lanes.of[1:] != lanes.of[:-1]).nonzero()[0] + 1))
        lasts = [streams[lane].last_episode for lane in lanes.of[begins].tolist()]
        return self._chunks.episodes.enter(run.chunks.episodes, run.chunk_starts[begins].tolist(), lasts)

    def _extend_streams(
        self,
        run: InsertRun,
        own: OwnWindows,
        lanes: _Lanes,
        streams: Sequence[Stream],
        numbers: Int64s,
        slots: Int64s,
        first_slots: Int64s,
    ) -> Int64s:
        """Bring each stream to where its last message takes it, with one step for all of them.

        `numbers` and `slots` are those of the run's chunks. Completes `first_slots`; returns the slots that the streams
        let go of.
        """
        starts = [0, len(slots)]
        if len(streams) > 1:
            lane_of = lanes.of.repeat(run.chunk_ends - run.chunk_starts)
            order = lane_of.argsort(kind="stable")
            lane_of, numbers, slots = lane_of[order], numbers[order], slots[order]
            begins = lane_of[1:] != lane_of[:-1]
            starts = [0, *(begins.nonzero()[0] + 1).tolist(), len(slots)]
        follows = numbers[1:] == numbers[:-1] + 1
        if len(streams) > 1:
            follows &= ~begins
        keep_froms = [int(run.keep_froms.max())]
        if len(streams) > 1:
            keep_froms = np.maximum.reduceat(run.keep_froms[lanes.order], lanes.firsts).tolist()
        schema_of = run.chunks.schema_of[run.chunk_starts[lanes.begins]].tolist()
        before: list[int] = []
        gone: list[Int64s] = []
        for lane, (stream, (start, stop)) in enumerate(zip(streams, pairwise(starts), strict=True)):
            first = lanes.begins[lane]
            before.append(stream.slot_before(int(run.firsts[first])))
            stream.extend(numbers[start:stop], slots[start:stop])
            stream.schema = run.chunks.schemas[schema_of[lane]]
            if first in own.reach_back:
                # Only a stream's first message may.
                assert run.items is not None, "who reaches back has items"
                items = slice(*_items_of(run)[first])
                is_back = ~own.is_own[items]
                first_slots[items][is_back] = stream.find(run.items.chunk[items][is_back])
            gone.append(stream.shorten(keep_froms[lane]))
        self._chunks.link(before, slots[starts[:-1]], slots[:-1][follows], slots[1:][follows])
        return gone[0] if len(gone) == 1 else np.concatenate(gone)

    def _issue(self, run: InsertRun, lanes: _Lanes, streams: list[Stream], first_key: int, is_in: bool) -> list[Ticket]:
        """A ticket for each message of a run; with one whose items are in their table already, nobody waits."""
        keys, items = (first_key + run.item_starts).tolist(), (run.item_ends - run.item_starts).tolist()
        nbytes, seqs = run.nbytes.tolist(), run.seqs.tolist()
        waiting = [0] * len(run) if is_in else items
        whose = [streams[lane] for lane in lanes.of.tolist()] if len(streams) > 1 else streams * len(run)
        tickets = list(map(Ticket, keys, items, nbytes, waiting, [[] for _ in whose], seqs, whose))
        if len(streams) == 1:
            streams[0].record_all(seqs, tickets, sum(map(bool, waiting)))
        else:
            for stream, lane in zip(streams, lanes.each(), strict=True):
                mine = [tickets[n] for n in lane]
                stream.record_all([seqs[n] for n in lane], mine, sum([ticket.waiting > 0 for ticket in mine]))
        if not is_in:
            for peer, id, ticket in zip(run.peers, run.ids, tickets, strict=True):
                if peer is not None:
                    ticket.askers.append((peer, id))
                    self._accounts.open_insert(peer, ticket.nbytes)
        return tickets

    # --- both ---------------------------------------------------------------------------------------------------------

    def _hold(self, items: ItemBatch, first: Int64s, ticket: Ticket, now: float) -> PendingInsert:
        """Hold what the items show; all of them as one that can be parked, with keys from the ticket's first one on."""
        self._chunks.hold(first if items.longest == 1 else self._chunks.windows(first, items.chunks))
        if len(items.templates) == 1:
            ids = np.array([self._templates.hold(items.templates[0], len(items))]).repeat(len(items))
        else:
            holders = np.bincount(items.template_of, minlength=len(items.templates)).tolist()
            held = [self._templates.hold(t, n) if n else -1 for t, n in zip(items.templates, holders, strict=True)]
            ids = np.array(held, np.int64)[items.template_of]
        keys = np.arange(ticket.first_key, ticket.first_key + len(items), dtype=np.uint64)
        priority = items.priority if items.at_max is None else np.where(items.at_max, np.nan, items.priority)
        at_max = items.at_max is not None
        return PendingInsert(
            ticket, keys, priority, first, items.chunks, items.offset, items.length, ids, since=now, at_max=at_max
        )


@dataclass(slots=True)
class AcceptedRun:
    """A run that was taken: a ticket for each message, and the tables of their items."""

    tickets: list[Ticket]
    tables: list[Table]
    is_in: bool
    """All items are in their table already, so nobody asks at the tickets; else they are parked."""


@dataclass(slots=True)
class _Lanes:
    """The messages of a run by their streams, each of which is one lane, in the order in which they come."""

    ids: list[bytes]
    of: Int64s
    """The lane of each message."""
    order: Int64s | slice
    """The messages lane after lane."""
    firsts: Int64s
    """Where each lane begins in that order."""
    begins: list[int]
    """Each lane's first message."""
    owners: list[Peer]
    """Whose each lane is then."""
    change_hands: bool
    """One of them has messages of several peers, who do not push."""

    @classmethod
    def of_run(cls, run: InsertRun) -> _Lanes:
        if len(set(run.streams)) == 1:
            of_all, whose = np.zeros(len(run), np.int64), {peer: None for peer in run.peers if peer is not None}
            owner, change_hands = next(iter(whose), None), len(whose) > 1
            return cls([run.streams[0]], of_all, slice(None), np.zeros(1, np.int64), [0], [owner], change_hands)
        begins: dict[bytes, int] = {}
        owners: dict[bytes, Peer] = {}
        change_hands = False
        for n, (id, peer) in enumerate(zip(run.streams, run.peers, strict=True)):
            begins.setdefault(id, n)
            if owners.setdefault(id, peer) is None:
                owners[id] = peer
            change_hands = change_hands or (peer is not None and owners[id] != peer)
        lane_of = dict(zip(begins, range(len(begins)), strict=True))
        of = np.array([lane_of[id] for id in run.streams])
        order = of.argsort(kind="stable")
        firsts = of[order].searchsorted(np.arange(len(begins)))
        return cls(list(begins), of, order, firsts, list(begins.values()), list(owners.values()), change_hands)

    def each(self) -> list[list[int]]:
        """The messages of each lane, of which there are several."""
        ends = [*self.firsts[1:].tolist(), len(self.of)]
        ordered = self.of.argsort(kind="stable").tolist()
        return [ordered[start:end] for start, end in zip(self.firsts.tolist(), ends, strict=True)]


def _items_of(run: InsertRun) -> list[tuple[int, int]]:
    """Where the items of each message begin and end."""
    return list(zip(run.item_starts.tolist(), run.item_ends.tolist(), strict=True))


def table_named(name: str, tables: Mapping[str, Table]) -> Table:
    """Raises UnknownTable, which tells what tables there are."""
    table = tables.get(name)
    if table is None:
        names = list(tables)
        raise UnknownTable(f"there is no table {name!r}; there are: {', '.join(names)}", table=name, tables=names)
    return table


def _signatures(tables: Sequence[Table]) -> dict[int, Signature]:
    return {i: table.signature for i, table in enumerate(tables) if table.signature is not None}


def _enter_at_once(whole: PendingInsert, table: Table, now: float) -> bool:
    """Let the items of a run into their table, if nothing tells them from one message after the other.

    False: nothing has happened, and each message is to be parked by itself, which takes 7 µs more for each.
    """
    n, is_fifo = len(whole), isinstance(table.remover, Fifo)
    if table.pending_inserts or table.pending_samples or table.paused or table.extensions or whole.at_max:
        return False
    room = ENTER_TOGETHER if is_fifo else table.max_size - table.size
    if n > room or table.limiter.insertable(n) < n or not table.capacity.takes_together(whole, is_fifo):
        return False
    table.enter(whole, n, now)
    return True


def _park(whole: PendingInsert, ticket: Ticket, items: slice, batch: ItemBatch, tables: Sequence[Table]) -> None:
    """Queue the items of one message at their tables."""
    if len(tables) == 1:
        tables[0].park_insert(whole.part(items, ticket))
        return
    table_of = batch.table_of[items]
    for i in np.unique(table_of).tolist():
        tables[i].park_insert(whole.part(np.flatnonzero(table_of == i) + items.start, ticket))
