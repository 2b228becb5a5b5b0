"""A table as one would write it for twenty items: lists, one item at a time. What the columnar one must agree with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class NaiveItem:
    key: int
    priority: float
    window: tuple[tuple[bytes, ...], int, int]
    """Payloads of its chunks, offset, length."""
    touched: int
    """When it was inserted or last updated."""
    times_sampled: int = 0


@dataclass
class NaiveSample:
    id: int
    n: int
    min_n: int
    deadline: float
    kept: list[NaiveItem] = field(default_factory=list)
    """Drawn for it before items were too few for the rest."""


class NaiveServer:
    """The limit of all tables together."""

    def __init__(self, tables: list[NaiveTable], item_bytes: int, chunk_bytes: int, max_bytes: int | None) -> None:
        self.tables = tables
        self.item_bytes = item_bytes
        self.chunk_bytes = chunk_bytes
        self.max_bytes = max_bytes
        self.stirred: list[NaiveTable] = []
        for table in tables:
            table.server = self

    def held(self, *more: NaiveItem) -> int:
        """What all items hold, and these besides."""
        return self.count([*more, *(item for table in self.tables for item in table.items)])

    def count(self, items: list[NaiveItem]) -> int:
        """What these items hold: each chunk once."""
        chunks = {p for item in items for p in item.window[0]}
        return sum(map(len, chunks)) + self.chunk_bytes * len(chunks) + self.item_bytes * len(items)

    def make_room(self) -> None:
        while self.max_bytes is not None and self.held() > self.max_bytes:
            givers = [table for table in self.tables if table.when_full == "evict" and table.items]
            if not givers:
                return
            # `max` takes the first of equal ones.
            giver = max(givers, key=lambda table: table.held())
            giver.remove(giver.choose(giver.remover))
            if giver not in self.stirred:
                self.stirred.append(giver)

    def take_stirred(self) -> list[NaiveTable]:
        """Those from which items were taken, and those where one that waits has room now."""
        stirred, self.stirred = self.stirred, []
        if self.max_bytes is not None:
            stirred += [table for table in self.tables if table not in stirred and table.next_may_enter()]
        return stirred


@dataclass(eq=False)
class NaiveTable:
    """Fifo, Lifo, MinHeap or MaxHeap as sampler and as remover; the general rate limiter."""

    sampler: str
    remover: str
    max_size: int
    max_times_sampled: int
    spi: float
    min_size: int
    min_diff: float
    max_diff: float
    items: list[NaiveItem] = field(default_factory=list)
    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    clock: int = 0
    paused: tuple[str, ...] = ()
    max_bytes: int | None = None
    when_full: str = "evict"
    server: NaiveServer = field(default_factory=lambda: NaiveServer([], 0, 0, None))
    pending_inserts: deque[tuple[int, NaiveItem]] = field(default_factory=deque)
    pending_samples: deque[NaiveSample] = field(default_factory=deque)

    def can_insert(self) -> bool:
        if self.inserts + 1 - self.deletes <= self.min_size:
            return True
        return (self.inserts + 1) * self.spi - self.samples <= self.max_diff

    def can_sample(self) -> bool:
        enough = self.inserts - self.deletes >= self.min_size
        return enough and self.inserts * self.spi - self.samples - 1 >= self.min_diff

    def choose(self, selector: str) -> NaiveItem:
        if selector == "Fifo":
            return self.items[0]
        if selector == "Lifo":
            return self.items[-1]
        sign = 1 if selector == "MinHeap" else -1
        return min(self.items, key=lambda item: (sign * item.priority, item.touched))

    def remove(self, item: NaiveItem) -> None:
        self.items.remove(item)
        self.deletes += 1

    def pump(self) -> tuple[list[int], list[tuple[int, list[NaiveItem]]]]:
        """(tickets of the inserts applied, one entry an item; served requests with what they drew)."""
        applied: list[int] = []
        served: list[tuple[int, list[NaiveItem]]] = []
        moved = True
        while moved:
            moved = False
            while self.next_may_enter():
                # Of one message as many as may enter together; then the excess leaves.
                message = self.pending_inserts[0][0]
                while self.next_may_enter() and self.pending_inserts[0][0] == message:
                    ticket, item = self.pending_inserts.popleft()
                    self.insert(item)
                    applied.append(ticket)
                self.make_room()
                moved = True
                # Then whoever waits for it.
                if self.pending_samples:
                    break
            while self.pending_samples and "sample" not in self.paused and self.head_may_pass():
                request = self.pending_samples[0]
                request.kept += self.draw(request.n - len(request.kept))
                if len(request.kept) >= request.min_n:
                    self.pending_samples.popleft()
                    served.append((request.id, request.kept))
                moved = True
        return applied, served

    def head_may_pass(self) -> bool:
        """By the limiter as if no item expired, and by the draws that the items can take at most."""
        request = self.pending_samples[0]
        needed = request.min_n - len(request.kept)
        size = self.inserts - self.deletes
        if size < self.min_size or self.inserts * self.spi - self.samples - needed < self.min_diff:
            return False
        room = sum(self.max_times_sampled - item.times_sampled for item in self.items)
        return not self.max_times_sampled or room - (self.min_size - 1) >= needed

    def insert(self, item: NaiveItem) -> None:
        self.clock += 1
        item.touched = self.clock
        self.items.append(item)
        self.inserts += 1

    def make_room(self) -> None:
        while len(self.items) > self.max_size:
            self.remove(self.choose(self.remover))
        while self.when_full == "evict" and self.max_bytes is not None and self.held() > self.max_bytes:
            self.remove(self.choose(self.remover))
        self.server.make_room()

    def held(self, *more: NaiveItem) -> int:
        """What its items hold, and these besides: each chunk once."""
        return self.server.count([*more, *self.items])

    def full_by(self, *items: NaiveItem) -> str | None:
        """Whose limit these do not fit into beside what is there."""
        for limit, held, whose in (
            (self.max_bytes, self.held, "max_bytes"),
            (self.server.max_bytes, self.server.held, "server_max_bytes"),
        ):
            if limit is not None and held(*items) > limit:
                return whose
        return None

    def refusal(self, items: list[NaiveItem]) -> str | None:
        """The error code with which a message with these items is refused, None: it is not."""
        limits = [limit for limit in (self.max_bytes, self.server.max_bytes) if limit is not None]
        sizes = [self.server.count([item]) for item in items]
        if items and limits and max(sizes) > min(limits):
            return "limit_exceeded"
        return "table_full" if items and self.when_full == "reject" and self.full_by(*items) else None

    def next_may_enter(self) -> bool:
        if not self.pending_inserts or "insert" in self.paused or not self.can_insert():
            return False
        return self.when_full == "evict" or self.full_by(self.pending_inserts[0][1]) is None

    def grant(self, n: int) -> int:
        """How many of n draws could be had now."""
        copy = NaiveTable(**{**self.__dict__, "items": [NaiveItem(**item.__dict__) for item in self.items]})
        return len(copy.draw(n))

    def draw(self, n: int) -> list[NaiveItem]:
        drawn = []
        while len(drawn) < n and self.can_sample():
            item = self.choose(self.sampler)
            item.times_sampled += 1
            self.samples += 1
            drawn.append(NaiveItem(**item.__dict__))
            if item.times_sampled == self.max_times_sampled:
                self.remove(item)
        return drawn

    def update(self, updates: dict[int, float], deletes: set[int]) -> tuple[int, int]:
        doomed = [item for item in self.items if item.key in deletes]
        for item in doomed:
            self.remove(item)
        found = [item for key in updates for item in self.items if item.key == key]
        for item in found:
            self.clock += 1
            item.priority, item.touched = updates[item.key], self.clock
        return len(found), len(doomed)

    def resize(self, max_size: int, max_times_sampled: int) -> None:
        self.max_size, self.max_times_sampled = max_size, max_times_sampled
        for item in list(self.items):
            if max_times_sampled and item.times_sampled >= max_times_sampled:
                self.remove(item)
        self.make_room()

    def peek(self, order: str, n: int) -> list[NaiveItem]:
        by = {"highest": lambda item: -item.priority, "lowest": lambda item: item.priority}
        items = self.items[::-1] if order == "newest" else self.items
        return sorted(items, key=by[order])[:n] if order in by else items[:n]

    def reset(self) -> int:
        removed = len(self.items)
        self.items.clear()
        self.inserts = self.samples = self.deletes = 0
        for request in self.pending_samples:
            request.kept.clear()
        return removed
