"""What tables must hold after events, as somebody would work it out who was told each one; and the comparison.

All tables remove the oldest item first. Where nothing waits, items enter as they are accepted, and all is known
exactly; else those that wait are the last accepted, and how many is taken from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from replayd.rate_limiters import RateLimiter
from replayd.service import Service
from replayd.table import Table

QUEUE = "queue"
"""The table that gives each item once, in order."""


@dataclass(frozen=True, slots=True)
class Accept:
    """An insert message was accepted: (table, number) of each item."""

    stream: bytes
    seq: int
    items: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """It was answered."""

    stream: bytes
    seq: int
    items: int
    first_key: int | None


@dataclass(frozen=True, slots=True)
class Draw:
    """A sample was answered."""

    table: str
    keys: list[int]
    priorities: list[float]
    times_sampled: list[int]


@dataclass(frozen=True, slots=True)
class Removed:
    """The answer to an update."""

    updated: int
    deleted: int
    missing: set[int]


@dataclass(frozen=True, slots=True)
class Update:
    """Priorities were set and items deleted."""

    table: str
    priorities: dict[int, float]
    deletes: list[int]
    answer: Removed


@dataclass(frozen=True, slots=True)
class Reset:
    """A table was emptied."""

    table: str
    removed: int


@dataclass(frozen=True, slots=True)
class Settings:
    """A table's settings are these now."""

    table: str
    after: Mapping[str, Any]
    has_changed: bool
    removed: int


@dataclass(frozen=True, slots=True)
class NewLife:
    """A server has begun: settings are those of the configuration, and this is its first key."""

    first_key: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The end of a turn: by table its size and how many items wait for it."""

    of: Mapping[str, tuple[int, int]]


Event = Accept | Acknowledge | Draw | Update | Reset | Settings | NewLife | Sizes


@dataclass(slots=True)
class Item:
    """One that is in its table, or waits for it."""

    number: int
    priority: float
    times_sampled: int = 0


@dataclass(slots=True)
class TableContents:
    """Items by key, in the order in which they were accepted, without those that have left."""

    name: str
    max_size: int
    never_waits: bool
    is_bounded: bool
    """It may have to evict for the server."""
    items: dict[int, Item] = field(default_factory=dict)
    accepted: set[int] = field(default_factory=set)
    """Numbers of all items that ever were."""
    samples: int = 0
    """Since the last reset."""
    is_changed: bool = False
    """Its limiter was changed since then, so that its cursor may be anywhere."""
    has_settings: bool = False
    """Others than are configured."""
    has_max_bytes: bool = False
    # Of this turn: why items may have been evicted.
    smallest: int = 0
    """`max_size`, or what it was for a moment."""
    left: int = 0
    """Items that left for another reason."""
    had_max_bytes: bool = False

    def drop_oldest(self, count: int) -> None:
        for key in list(self.items)[:count]:
            del self.items[key]


class Contents:
    """Of all tables. `configured`: by name their `max_size`, and whether inserts never wait. `is_bounded`: any table
    may be made to evict, for the server's limit in bytes.
    """

    def __init__(self, configured: Mapping[str, tuple[int, bool]], *, is_bounded: bool = False) -> None:
        self._configured = configured
        self.next_key = 0
        self.tables = {
            name: TableContents(name, max_size, never_waits, is_bounded, smallest=max_size, had_max_bytes=is_bounded)
            for name, (max_size, never_waits) in configured.items()
        }
        self._messages: dict[tuple[bytes, int], tuple[int, list[tuple[str, int]]]] = {}

    def has_accepted(self, stream: bytes, seq: int) -> bool:
        """Whether this message has had its effect."""
        return (stream, seq) in self._messages

    def items_of(self, stream: bytes, seq: int) -> list[tuple[str, int]]:
        """Table and number of a message's items."""
        return self._messages[stream, seq][1]

    # --- events -------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """This happened. Raises AssertionError for what must not."""
        match event:
            case Accept():
                self._accept(event)
            case Acknowledge():
                self._acknowledge(event)
            case Draw():
                self._draw(event, self.tables[event.table])
            case Update():
                self._update(event, self.tables[event.table])
            case Reset():
                self._reset(event, self.tables[event.table])
            case Settings():
                self._set(event, self.tables[event.table])
            case NewLife():
                self._begin(event)
            case Sizes():
                for name, (size, waiting) in event.of.items():
                    _end_turn(self.tables[name], size, waiting)

    def _accept(self, event: Accept) -> None:
        self._messages[event.stream, event.seq] = self.next_key, event.items
        entered = set()
        for key, (name, number) in enumerate(event.items, self.next_key):
            table = self.tables[name]
            assert number not in table.accepted, f"item {number} was inserted twice into {name}"
            table.accepted.add(number)
            table.items[key] = Item(number, float(number))
            entered.add(name)
        self.next_key += len(event.items)
        for name in entered:
            self._make_room(self.tables[name])

    def _acknowledge(self, event: Acknowledge) -> None:
        assert self.has_accepted(event.stream, event.seq), "a message was acknowledged that was not accepted"
        first_key, items = self._messages[event.stream, event.seq]
        assert event.items == len(items), f"a message of {len(items)} items was acknowledged as one of {event.items}"
        if items:
            assert event.first_key == first_key, f"items from key {first_key} on were given {event.first_key}"

    def _draw(self, event: Draw, table: TableContents) -> None:
        table.samples += len(event.keys)
        if table.name == QUEUE:
            if table.is_bounded and event.keys[0] in table.items:
                # Those before it were evicted.
                table.drop_oldest(list(table.items).index(event.keys[0]))
            due = list(table.items)[: len(event.keys)]
            assert event.keys == due, f"the queue gave {event.keys}, and {due} were its first"
        for key, priority, times in zip(event.keys, event.priorities, event.times_sampled, strict=True):
            item = table.items.get(key)
            assert item is not None, f"{table.name}: item {key} was drawn, which is not there"
            assert item.priority == priority, f"{table.name}: {key} was drawn with {priority}, it has {item.priority}"
            item.times_sampled += 1
            assert times == item.times_sampled, f"{table.name}: {key} was drawn {item.times_sampled} times, not {times}"
        if table.name == QUEUE:
            table.drop_oldest(len(event.keys))

    def _update(self, event: Update, table: TableContents) -> None:
        answer = event.answer
        named = {*event.priorities, *event.deletes}
        strangers = named - table.items.keys()
        assert strangers <= answer.missing, f"{table.name}: {strangers - answer.missing} are not there, and were found"
        if table.never_waits and not table.is_bounded:
            assert answer.missing == strangers, f"{table.name}: {answer.missing - strangers} are there, and were missed"
        deleted = [key for key in dict.fromkeys(event.deletes) if key not in answer.missing]
        for key in deleted:
            del table.items[key]
        table.left += len(deleted)
        updated = [key for key in event.priorities if key not in answer.missing and key not in deleted]
        for key in updated:
            table.items[key].priority = event.priorities[key]
        assert (answer.updated, answer.deleted) == (len(updated), len(deleted)), f"{table.name}: an update miscounted"

    def _reset(self, event: Reset, table: TableContents) -> None:
        table.samples = 0
        table.is_changed = False
        if table.never_waits and not table.is_bounded:
            assert event.removed == len(table.items), f"{table.name} had {len(table.items)} items, not {event.removed}"
        table.left += event.removed
        # Those that wait stay, and all others were accepted before them.
        table.drop_oldest(event.removed)

    def _set(self, event: Settings, table: TableContents) -> None:
        if not event.has_changed:
            return
        table.is_changed = table.has_settings = True
        table.max_size = event.after["max_size"]
        table.smallest = min(table.smallest, table.max_size)
        table.has_max_bytes = table.is_bounded or event.after["max_bytes"] is not None
        table.had_max_bytes |= table.has_max_bytes
        size = len(table.items)
        self._make_room(table)
        if table.never_waits and not table.is_bounded:
            assert event.removed == size - len(table.items), f"{table.name}: {event.removed} items left at once"

    def _begin(self, event: NewLife) -> None:
        self.next_key = event.first_key
        for name, (max_size, _) in self._configured.items():
            table = self.tables[name]
            table.is_changed |= table.has_settings
            table.max_size, table.has_max_bytes, table.has_settings = max_size, table.is_bounded, False
            table.smallest = min(table.smallest, max_size)
            self._make_room(table)

    def _make_room(self, table: TableContents) -> None:
        if table.never_waits:
            table.drop_oldest(max(0, len(table.items) - table.max_size))

    # --- comparison ---------------------------------------------------------------------------------------------------

    def check_bands(self, tables: Iterable[Table]) -> None:
        """Raises AssertionError for a cursor that is where no insert or sample may bring it."""
        for table in tables:
            if not self.tables[table.name].is_changed:
                _check_band(table.name, table.limiter)

    def compare(self, service: Service) -> None:
        """Raises AssertionError with what a table holds and must not, or lacks."""
        for name, table in self.tables.items():
            _compare(table, service.tables[name])


def _end_turn(table: TableContents, size: int, waiting: int) -> None:
    """What is there and not among the newest has been evicted, which must have had a reason."""
    assert not (waiting and table.never_waits), f"{table.name}: {waiting} items wait, and nothing holds them back"
    evicted = len(table.items) - waiting - size
    assert evicted >= 0, f"{table.name} has {size} items and {waiting} that wait, of {len(table.items)}"
    if evicted:
        is_full = table.had_max_bytes or size + table.left >= table.smallest
        evicts = is_full and (table.name != QUEUE or table.is_bounded)
        assert evicts, f"{table.name}: {evicted} items are lost beside {size}"
        table.drop_oldest(evicted)
    table.smallest, table.left, table.had_max_bytes = table.max_size, 0, table.has_max_bytes or table.is_bounded


def _check_band(name: str, limiter: RateLimiter) -> None:
    inserts, samples, size = limiter.inserts, limiter.samples, limiter.inserts - limiter.deletes
    cursor = inserts * limiter.samples_per_insert - samples
    if limiter.min_diff is not None and samples:
        assert cursor >= limiter.min_diff, f"{name}: more was sampled than the band lets"
    if limiter.max_diff is not None and size > limiter.min_size_to_sample:
        assert cursor <= limiter.max_diff, f"{name}: more was inserted than the band lets"


def _compare(table: TableContents, real: Table) -> None:
    live = real.items.in_order()
    keys = list(table.items)[: len(table.items) - real.pending_items]
    found = real.items.key[live].tolist()
    assert found == keys, (
        f"{table.name} lacks {set(keys) - set(found)} and has {set(found) - set(keys)}, or their order"
    )
    items = [table.items[key] for key in keys]
    priorities, times = real.items.priority[live].tolist(), real.items.times_sampled[live].tolist()
    assert priorities == [item.priority for item in items], f"{table.name}: priorities are not what they were set to"
    assert times == [item.times_sampled for item in items], f"{table.name}: draws of items are not those that were made"
    if table.name != QUEUE:
        assert real.limiter.samples == table.samples, f"{table.name} counts {real.limiter.samples} of {table.samples}"
