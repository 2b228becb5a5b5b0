"""Replaying: a journal's entries, handled again by a service that was brought to the state before them.

The same requests at the same times, through the same reception: what was drawn is drawn again, keys and order are the
same. Times are those of the clock that recorded them, shifted as the snapshot's are. Knows no LMDB.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from replayd.journal_format import (
    READ,
    READING,
    REQUEST,
    TIME_PASSED,
    TOGETHER,
    count_of,
    most_of,
    state_sum,
    unpack,
)
from replayd.messages import Peer
from replayd.reception import Reception
from replayd.service import Service
from replayd.store_format import Damaged
from replayd.wire import Undecodable

Values = Iterable[tuple[int, memoryview]]
"""A journal's values by number, from some number on."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was, by two clocks."""

    clock: float
    """Of the server that wrote it."""
    wall_s: float
    """Seconds since 1970."""


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
    """Requests in that rest; of a value that is damaged itself all entries, as far as can be told how many it has."""


def journal_end(entries: Callable[[int], Values], first: int, saved: Moment) -> Moment | None:
    """When the journal ends that begins with entry `first`; None if it does not begin.

    That is the moment of the last value that can be read, and `saved`, that of the checkpoint, if none can.
    """
    numbers = array("Q", (number for number, _ in _chain(entries(first), first)))
    for last in reversed(numbers):
        for _, value in entries(last):
            try:
                read = unpack(value)
            except Damaged:
                break
            return Moment(read.entries[-1].now, read.wall_s)
    return saved if numbers else None


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

    values = _chain(values, first)
    for number, value in values:
        try:
            read = unpack(value)
        except Damaged as damage:
            told.damage, told.behind = str(damage), _lost(chain([(number, value)], values))
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
        told.entries += len(read.entries)
        if read.sum:
            handle()
            told.differs |= read.sum != state_sum(service)
    handle()
    service.drain(are_read=False)
    return told


def _chain(values: Values, first: int) -> Iterator[tuple[int, memoryview]]:
    """The values that go on from each other; behind one that does not tell how many entries it has, any that may."""
    expected = range(first, first + 1)
    for number, value in values:
        if number not in expected:
            break
        yield number, value
        try:
            expected = range(number + count_of(value), number + count_of(value) + 1)
        except Damaged:
            # What is further away is of a checkpoint that was not finished.
            expected = range(number + 1, number + most_of(value) + 1)


def _lost(values: Values) -> int:
    """How many requests there are from a damaged value on, as far as that can be told."""
    lost, untold = 0, None
    for number, value in values:
        if untold is not None:
            lost, untold = lost + number - untold, None
        try:
            lost += sum(entry.kind in (REQUEST, TOGETHER) for entry in unpack(value).entries)
        except Damaged:
            try:
                lost += count_of(value)
            except Damaged:
                untold = number
    return lost if untold is None else lost + 1
