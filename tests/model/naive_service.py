"""A service as one would write it: what each request of `traffic` is answered, by naive tables.

It knows tables, limiters and limits in bytes; whether a writer's numbers are right it takes from the real one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from replayd.messages import Insert, Request, Reset, Sample, Set, Update, Withdraw
from tests.model.naive import NaiveItem, NaiveSample, NaiveServer, NaiveTable

ACKNOWLEDGED = "acknowledged"
Answers = dict[int, Any]
"""By request id: the items that were drawn, ACKNOWLEDGED, or the code of an error."""
OF_LIMITS = ("limit_exceeded", "table_full")
"""Why an insert is refused that a stream has nothing against."""


class Chunk:
    """Of so many bytes, with what its columns count, and like no other."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._nbytes


@dataclass
class _Message:
    """An insert: who waits for it, and how many of its items are not applied."""

    first_key: int
    left: int
    askers: list[int] = field(default_factory=list)


class NaiveService:
    """Of the tables by name."""

    def __init__(self, tables: dict[str, NaiveTable], server: NaiveServer, column_bytes: int) -> None:
        self.tables = tables
        self._column_bytes = column_bytes
        self._server = server
        self._chunks: dict[tuple[bytes, int], Chunk] = {}
        self._messages: dict[tuple[bytes, int], _Message] = {}
        self._tickets: dict[int, _Message] = {}
        self._next_key = 1
        self._now = 0.0

    def handle(self, request: Request | None, now: float, failed: dict[int, str]) -> Answers:
        """What is answered to a request, or when time passes. `failed`: the errors that the real one answers, by id."""
        self._now = now
        match request:
            case None:
                return self._expire()
            case Insert():
                return self._insert(request, failed.get(request.id))
            case Sample():
                return self._sample(request, failed.get(request.id))
            case Withdraw():
                return self._withdraw(request)
            case Update():
                updates = dict(zip(request.keys.tolist(), request.priorities.tolist(), strict=True))
                self.tables[request.table].update(updates, set(request.deletes.tolist()))
                return {request.id: ACKNOWLEDGED} | self._pump([request.table])
            case Reset():
                self.tables[request.table].reset()
                return {request.id: ACKNOWLEDGED} | self._pump([request.table])
            case Set():
                self._set(self.tables[request.table], request.changes)
                return {request.id: ACKNOWLEDGED} | self._pump([request.table])
        # Who only looks, and what is said of streams.
        return {request.id: failed.get(request.id, ACKNOWLEDGED)}

    def _insert(self, request: Insert, failed: str | None) -> Answers:
        if (known := self._messages.get((request.stream, request.seq))) is not None and failed is None:
            if known.left == 0:
                return {request.id: ACKNOWLEDGED}
            known.askers.append(request.id)
            return {}
        if failed is not None and failed not in OF_LIMITS:
            return {request.id: failed}
        chunks = dict(self._chunks)
        if request.chunks is not None:
            for n, nbytes in enumerate(request.chunks.nbytes.tolist()):
                schema = request.chunks.schemas[int(request.chunks.schema_of[n])]
                chunks[request.stream, request.chunks.first + n] = Chunk(
                    nbytes + self._column_bytes * len(schema.columns)
                )
        made = self._items(request, chunks)
        for name in sorted(made):
            if refusal := self.tables[name].refusal([item for _, item in made[name]]):
                return {request.id: refusal}
        count = sum(map(len, made.values()))
        message = _Message(self._next_key, count, [request.id])
        self._messages[request.stream, request.seq] = self._tickets[request.id] = message
        self._chunks = chunks
        for name, items in made.items():
            for n, item in items:
                item.key = self._next_key + n
                self.tables[name].pending_inserts.append((request.id, item))
        self._next_key += count
        return ({} if count else {request.id: ACKNOWLEDGED}) | self._pump(sorted(made))

    def _items(self, request: Insert, chunks: dict[tuple[bytes, int], Chunk]) -> dict[str, list[tuple[int, NaiveItem]]]:
        """Of each table what enters it, with its number in the message."""
        made: dict[str, list[tuple[int, NaiveItem]]] = {}
        items = request.items
        if items is None:
            return made
        for n, table in enumerate(items.table_of.tolist()):
            first, many = int(items.chunk[n]), int(items.chunks[n])
            window = tuple(chunks[request.stream, first + i] for i in range(many))
            item = NaiveItem(0, float(items.priority[n]), (window, int(items.offset[n]), int(items.length[n])), 0)
            made.setdefault(items.tables[table], []).append((n, item))
        return made

    def _sample(self, request: Sample, failed: str | None) -> Answers:
        table = self.tables[request.table]
        if failed == "never_grantable":
            assert table.grant(request.n) < request.min_n, "it could be granted now"
            return {request.id: failed}
        waiting = NaiveSample(request.id, request.n, request.min_n, self._now + request.timeout_s)
        table.pending_samples.append(waiting)
        return self._pump([request.table])

    def _withdraw(self, request: Withdraw) -> Answers:
        """One learner asks for all samples."""
        names = [name for name, table in self.tables.items() if table.pending_samples]
        withdrawn = [sample.id for name in names for sample in self.tables[name].pending_samples]
        for name in names:
            self.tables[name].pending_samples.clear()
        return dict.fromkeys(withdrawn, "withdrawn") | {request.id: ACKNOWLEDGED} | self._pump(names)

    def _set(self, table: NaiveTable, changes: dict[str, Any]) -> None:
        table.max_diff = 1e9 if changes["max_diff"] is None else changes["max_diff"]
        table.paused = tuple(side for side in ("insert", "sample") if changes[f"paused_{side}s"])
        table.max_bytes, table.when_full = changes["max_bytes"], changes["when_full"]
        table.resize(changes["max_size"], changes["max_times_sampled"])

    def _expire(self) -> Answers:
        answers: Answers = {}
        while due := due_first(self.tables, self._now):
            name, request = due
            table = self.tables[name]
            is_first = table.pending_samples[0] is request
            table.pending_samples.remove(request)
            drawn = request.kept
            if is_first and "sample" not in table.paused:
                drawn = drawn + table.draw(request.n - len(drawn))
            answers[request.id] = drawn or "timeout"
            answers |= self._pump([name])
        return answers

    def _pump(self, names: list[str]) -> Answers:
        answers: Answers = {}
        for name in names:
            todo = [self.tables[name]]
            while todo:
                applied, served = todo.pop(0).pump()
                for ticket in applied:
                    message = self._tickets[ticket]
                    message.left -= 1
                    if message.left == 0:
                        answers |= dict.fromkeys(message.askers, ACKNOWLEDGED)
                answers |= {id: copy.copy(drawn) for id, drawn in served}
                todo += [table for table in self._server.take_stirred() if table not in todo]
        return answers


def due_first(tables: dict[str, NaiveTable], now: float) -> tuple[str, NaiveSample] | None:
    """Of the samples of all tables whose time has come the one that is answered first, and its table."""
    due = [(s.deadline, s.id, name, s) for name, table in tables.items() for s in table.pending_samples]
    deadline, _, name, request = min(due, default=(now + 1, 0, "", None), key=lambda each: each[:2])
    return (name, request) if request is not None and deadline <= now else None
