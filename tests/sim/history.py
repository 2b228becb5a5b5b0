"""What a server was asked and what it answered, in its order: what its tables must hold now, and after a crash.

Fed at the server's own boundary, after each turn of its loop. Each item has a number, the whole part of its priority.
After a crash the state must be that of one moment, which the disk tells, and no earlier one than was promised. Reads
the service's tables to compare them, and knows nothing of clients.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replayd.messages import Failed, Peer, Reply, Result, Sampled
from replayd.service import Service
from replayd.table import Table
from tests.sim.contents import (
    Accept,
    Acknowledge,
    Contents,
    Draw,
    Event,
    NewLife,
    Removed,
    Reset,
    Settings,
    Sizes,
    Update,
)

PROMISES = frozenset(("insert", "update", "reset", "set"))
"""What a journal in the mode `sync` promises when it is acknowledged (protocol.md §9.2)."""

Header = dict[str, Any]


@dataclass(slots=True)
class _Turn:
    now: float
    events: list[Event]


@dataclass(slots=True)
class _Reading:
    """A turn's messages, of which so many have had their effect."""

    taken: Sequence[tuple[Peer, Header]]
    refused: Counter[tuple[Peer, int]]
    pushed: Collection[tuple[bytes, int]]
    """Stream and number of the pushed ones that were accepted: nobody is answered."""
    at: int = 0
    events: list[Event] = field(default_factory=list)


class History:
    """Of one disk's servers. `sync`: what is acknowledged is promised. `is_bounded`: the server has a limit in bytes.
    `tables` are made anew for each life.
    """

    def __init__(self, tables: Sequence[Table], *, sync: bool, is_bounded: bool = False) -> None:
        self._sync = sync
        self._sizes: Sizes | None = None
        self._configured = {table.name: (table.max_size, table.limiter.max_diff is None) for table in tables}
        self._turns: list[_Turn] = []
        self._times: list[float] = []
        self._is_bounded = is_bounded
        self.contents = Contents(self._configured, is_bounded=is_bounded)
        self.rolled_back: Counter[tuple[str, int]] = Counter()
        """Items, by table and number, whose insert a crash took."""
        self.drawn_back: Counter[tuple[str, int]] = Counter()
        """Draws of items that a crash took, likewise: they may be drawn again."""
        self.acknowledged: set[tuple[str, int]] = set()
        """Items of which an acknowledgement left, whatever became of it."""
        self.pushed_items: set[tuple[str, int]] = set()
        """All items, by table and number, that entered by a pushed message."""
        self.last_pushed: dict[bytes, int] = {}
        """Number of the last message of each stream that was pushed."""
        self._promised = 0
        """So many turns must survive."""
        self._said: dict[int, tuple[Reply, int]] = {}
        """Replies that promise, by identity, and how many turns."""
        self._begin_life()

    def _begin_life(self) -> None:
        self._said.clear()
        self._inserts: dict[tuple[Peer, int], tuple[bytes, int]] = {}
        self._samples: dict[tuple[Peer, int], str] = {}
        self._checkpoints: dict[tuple[Peer, int], int] = {}

    # --- turns --------------------------------------------------------------------------------------------------------

    def turn(
        self,
        now: float,
        taken: Sequence[tuple[Peer, Header]],
        replies: Sequence[tuple[Peer, Reply]],
        tables: Collection[Table],
        pushed: Collection[tuple[bytes, int]],
    ) -> None:
        """A turn was taken: these messages, in their order, and these replies, in theirs; so the tables are now. Of
        pushed messages, those of the peer None, these were accepted.
        """
        before = len(self._turns)
        at: dict[tuple[Peer, int], int] = {}
        for n, (peer, header) in enumerate(taken):
            if peer is None:
                continue
            at[peer, header["id"]] = n
            if header["op"] == "sample":
                self._samples[peer, header["id"]] = header["table"]
            elif header["op"] == "insert":
                self._inserts[peer, header["id"]] = header["stream"], header["seq"]
            elif header["op"] == "checkpoint":
                self._checkpoints[peer, header["id"]] = before
        refused = Counter((peer, reply.id) for peer, reply in replies if isinstance(reply, Failed))
        reading = _Reading(taken, refused, pushed)
        for peer, reply in replies:
            self._read_reply(reading, at.get((peer, reply.id)), peer, reply)
        self._read_up_to(reading, len(taken))
        sizes = Sizes({table.name: (table.size, table.pending_items) for table in tables})
        if reading.events or sizes != self._sizes:
            self._sizes = sizes
            self._happens(reading, sizes)
            self._log(now, reading.events)
            self.contents.check_bands(tables)
        for _, reply in replies:
            if isinstance(reply, Result) and self._sync and reply.op in PROMISES:
                self._said[id(reply)] = reply, len(self._turns)
        for peer, reply in replies:
            if isinstance(reply, Result) and reply.op == "checkpoint" and (peer, reply.id) in self._checkpoints:
                self._said[id(reply)] = reply, self._checkpoints[peer, reply.id]

    def sent(self, peer: Peer, reply: Reply) -> None:
        """A reply has left, and what it promises must be true from now on."""
        if id(reply) in self._said:
            self._promised = max(self._promised, self._said.pop(id(reply))[1])
        if isinstance(reply, Result) and reply.op == "insert":
            stream, seq = self._inserts[peer, reply.id]
            self.acknowledged.update(self.contents.items_of(stream, seq))

    def _log(self, now: float, events: list[Event]) -> None:
        self._turns.append(_Turn(now, events))
        self._times.append(now)

    def _happens(self, reading: _Reading, event: Event) -> None:
        self.contents.apply(event)
        reading.events.append(event)

    def _read_up_to(self, reading: _Reading, stop: int) -> None:
        """Inserts before this message have had their effect, those that were refused aside."""
        while reading.at < stop:
            peer, header = reading.taken[reading.at]
            reading.at += 1
            if header["op"] != "insert":
                continue
            if peer is None:
                self._read_pushed(reading, header)
            elif reading.refused[peer, header["id"]]:
                reading.refused[peer, header["id"]] -= 1
            elif not self.contents.has_accepted(header["stream"], header["seq"]):
                self._happens(reading, Accept(header["stream"], header["seq"], _items_of(header)))

    def _read_pushed(self, reading: _Reading, header: Header) -> None:
        stream, seq = header["stream"], header["seq"]
        if (stream, seq) in reading.pushed and not self.contents.has_accepted(stream, seq):
            last = self.last_pushed.get(stream, -1)
            assert seq > last, f"a pushed message entered after {last}, which had been sent later: {seq}"
            self.last_pushed[stream] = seq
            items = _items_of(header)
            self.pushed_items.update(items)
            self._happens(reading, Accept(stream, seq, items))

    def _read_reply(self, reading: _Reading, at: int | None, peer: Peer, reply: Reply) -> None:
        if isinstance(reply, Sampled):
            shown = reply.shown
            keys = shown.keys.tolist()
            while self.contents.next_key <= max(keys) and reading.at < len(reading.taken):
                self._read_up_to(reading, reading.at + 1)
            draws = (keys, shown.priorities.tolist(), shown.times_sampled.tolist())
            self._happens(reading, Draw(self._samples[peer, reply.id], *draws))
        elif isinstance(reply, Result):
            if reply.op == "insert":
                self._read_up_to(reading, 0 if at is None else at + 1)
                stream, seq = self._inserts[peer, reply.id]
                fields = reply.fields
                self._happens(reading, Acknowledge(stream, seq, fields["items"], fields.get("first_key")))
            elif reply.op in PROMISES:
                assert at is not None, f"{reply.op} is answered at once"
                self._read_up_to(reading, at + 1)
                self._happens(reading, _change_of(reading.taken[at][1], reply))

    # --- crashes ------------------------------------------------------------------------------------------------------

    def turns_until(self, time: float) -> int:
        """How many turns there were up to this time, that included."""
        return bisect_right(self._times, time)

    def crash(self, durable_to: float) -> None:
        """The server is gone. It said that all before this time is durable, in seconds."""
        self._promised = max(self._promised, self.turns_until(durable_to - 1e-6))

    def recover(self, service: Service, now: float, clock: float | None) -> None:
        """A server begins with what the disk knows up to a time: that moment, all that was promised, nothing else."""
        kept = 0 if clock is None else self.turns_until(clock)
        assert kept >= self._promised, (
            f"{self._promised} turns were promised, the last at {self._times[self._promised - 1]}, and the disk knows "
            f"{kept}, up to {clock}"
        )
        first_key, given = service._keys.take(0), self.contents.next_key
        assert first_key >= given, f"keys from {first_key} on are given anew, of those before {given}"
        self._forget(kept)
        self.contents = Contents(self._configured, is_bounded=self._is_bounded)
        for turn in self._turns:
            for event in turn.events:
                self.contents.apply(event)
        anew = _Reading((), Counter(), ())
        self._happens(anew, NewLife(first_key))
        self._happens(anew, Sizes({table.name: (table.size, table.pending_items) for table in service.tables.values()}))
        self._log(now, anew.events)
        self._promised = kept
        self._begin_life()
        self.contents.compare(service)

    def _forget(self, kept: int) -> None:
        for turn in self._turns[kept:]:
            for event in turn.events:
                if isinstance(event, Accept):
                    self.rolled_back.update(event.items)
                elif isinstance(event, Draw):
                    self.drawn_back.update((event.table, int(priority)) for priority in event.priorities)
        del self._turns[kept:]
        del self._times[kept:]


def _items_of(header: Header) -> list[tuple[str, int]]:
    """Table and number of each item of an insert."""
    numbers = np.frombuffer(header.get("priority", b""), "<f8").astype(int).tolist()
    tables = np.frombuffer(header["table_of"], "<u2").tolist() if "table_of" in header else [0] * len(numbers)
    return [(header["tables"][table], number) for table, number in zip(tables, numbers, strict=True)]


def _change_of(header: Header, reply: Result) -> Event:
    if reply.op == "reset":
        return Reset(header["table"], reply.fields["removed"])
    if reply.op == "set":
        return Settings(header["table"], reply.fields["after"], bool(header["changes"]), reply.fields.get("removed", 0))
    keys, deletes = (np.frombuffer(header.get(name, b""), "<u8").tolist() for name in ("keys", "deletes"))
    priorities = np.frombuffer(header.get("priorities", b""), "<f8").tolist()
    fields = reply.fields
    answer = Removed(fields["updated"], fields["deleted"], set(fields["missing"].tolist()))
    return Update(header["table"], dict(zip(keys, priorities, strict=True)), deletes, answer)
