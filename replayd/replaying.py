"""Replaying: a journal's entries, handled again by a service that was brought to the state before them.

The same requests at the same times, through the same reception: what was drawn is drawn again, keys and order are the
same. Times are those of the clock that recorded them, shifted as the snapshot's are. Knows no LMDB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from replayd.journal_format import READ, READING, REQUEST, TIME_PASSED, TOGETHER, count_of, state_sum, unpack
from replayd.messages import Peer
from replayd.reception import Reception
from replayd.service import Service
from replayd.store_format import Damaged
from replayd.wire import Undecodable

Values = Iterable[tuple[int, memoryview]]
"""A journal's values by number, from some number on."""


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """Where a journal ends that goes on from an index."""

    next_entry: int
    clock: float
    """Of the server that wrote it, at the last entry."""
    wall_s: float
    """Seconds since 1970 then."""


@dataclass(slots=True)
class Replayed:
    """What was replayed."""

    entries: int = 0
    requests: int = 0
    refused: int = 0
    """Requests that had been accepted and were not this time."""
    differs: bool = False
    """The state was not the recorded one."""
    damage: str | None = None
    """Why the rest could not be read."""
    behind: int = 0
    """Requests in that rest; all entries of a value that is damaged itself, if it still tells how many it has."""


def journal_end(values: Values, first: int) -> JournalEnd | None:
    """Where the chain ends that begins with entry `first`; None if it does not begin."""
    last: deque[bytes] = deque(maxlen=2)
    for number, value in values:
        try:
            if number != first:
                break
            first += count_of(value)
        except Damaged:
            break
        last.append(bytes(value))
    while last:
        # One that is damaged tells no time.
        try:
            read = unpack(last.pop())
        except Damaged:
            continue
        return JournalEnd(first, read.entries[-1].now, read.wall_s)
    return None


def replay(values: Values, first: int, service: Service, shift_s: float, advance: Callable[[int], None]) -> Replayed:
    """Handle the entries from number `first` on, as far as they go; `advance` is told the bytes that were read."""
    told = Replayed()

    def hear_nothing(fault: object, now: float) -> None:
        """A pushed message that is refused is counted with the others."""

    reception = Reception(service, bytes, hear_nothing)
    together: list[tuple[Peer, list[bytes]]] = []
    then = 0.0

    def handle() -> None:
        nonlocal together
        if together:
            try:
                told.refused += reception.repeat(together, then)
            except Undecodable:
                told.refused += len(together)
            together = []

    values = iter(values)
    for number, value in values:
        if number != first:
            break
        try:
            read = unpack(value)
        except Damaged as damage:
            told.damage, told.behind = str(damage), _lost(chain([(number, value)], values), number)
            break
        advance(len(value))
        for entry in read.entries:
            if entry.kind != TOGETHER:
                handle()
            then = entry.now + shift_s
            if entry.kind == TIME_PASSED:
                reception.end_turn(then)
                service.drain(are_read=False)
            elif entry.kind == READ:
                try:
                    service.read(entry.peer, *READING.unpack(entry.frames[0]))
                except KeyError:
                    # It was sent something that it is not sent now.
                    told.differs = True
            else:
                told.requests += 1
                together.append((entry.peer, entry.frames))
        first += len(read.entries)
        told.entries += len(read.entries)
        if read.sum:
            handle()
            told.differs |= read.sum != state_sum(service)
    handle()
    service.drain(are_read=False)
    return told


def _lost(values: Values, first: int) -> int:
    """How many requests there are from a damaged value on, as far as that can be told."""
    lost, expected = 0, first
    for number, value in values:
        # Behind a value that does not say how many entries it has, whatever comes next goes on from it.
        if expected and number != expected:
            break
        try:
            expected = number + count_of(value)
        except Damaged:
            expected = 0
            continue
        try:
            lost += sum(entry.kind in (REQUEST, TOGETHER) for entry in unpack(value).entries)
        except Damaged:
            lost += count_of(value)
    return lost
