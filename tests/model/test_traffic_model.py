"""Any traffic, with limits in bytes and each policy at them, is answered as a naive service answers it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from replayd import capacity, intake, selectors
from replayd.capacity import WHEN_FULL
from replayd.messages import Failed, ItemBatch, Reply, Sampled, Update
from replayd.rate_limiters import RateLimiter
from replayd.service import Service
from replayd.table import Table
from tests.model.naive import NaiveServer, NaiveTable
from tests.model.naive_service import ACKNOWLEDGED, NaiveService
from tests.model.traffic import LEASE_S, PRIORITIES, TABLES, Traffic, Writer

STEPS = 150
ITEM_BYTES, CHUNK_BYTES, COLUMN_BYTES = 2, 1, 1
"""So little that payloads, of 1 to 18 bytes an item, decide who fits."""
KINDS = ("Fifo", "Lifo", "MinHeap", "MaxHeap")
SERVER_BYTES = (None, 60, 150)


class PlainTraffic(Traffic):
    """Without what the naive tables do not know: priorities that ask for the largest, and a key twice in one update."""

    def _items(self, writer: Writer, n: int) -> ItemBatch:
        items = super()._items(writer, n)
        items.at_max = None
        return items

    def _update(self, service: Service) -> None:
        name = self._table()
        items = service.tables[name].items
        there = [*items.key[items.in_order()].tolist(), self._id()]
        keys = np.array(sorted(self.random.sample(there, min(4, len(there)))), np.uint64)
        values = np.array([self.random.choice(PRIORITIES) for _ in keys], np.float64)
        deletes = np.array([key for key in there if self.random.random() < 0.05], np.uint64)
        self._ask(service, "learner", Update(self._id(), name, keys, values, deletes))


def naive_table(draw: random.Random, when_full: str) -> NaiveTable:
    return NaiveTable(
        sampler=draw.choice(KINDS),
        remover=draw.choice(KINDS),
        max_size=draw.randint(5, 30),
        max_times_sampled=draw.choice([0, 0, 1, 3]),
        spi=draw.choice([0.5, 1.0, 2.0]),
        min_size=draw.randint(1, 4),
        min_diff=draw.choice([-3.0, 0.0]),
        max_diff=draw.choice([6.5, 20.0, 1e9]),
        max_bytes=draw.choice([None, 30, 60]),
        when_full=when_full,
    )


def table_of(name: str, naive: NaiveTable) -> Table:
    return Table(
        name,
        getattr(selectors, naive.sampler)(),
        getattr(selectors, naive.remover)(),
        naive.max_size,
        RateLimiter(naive.spi, naive.min_size, naive.min_diff, naive.max_diff),
        naive.max_times_sampled,
        max_bytes=naive.max_bytes,
        when_full=naive.when_full,
    )


@pytest.mark.parametrize("server_bytes", SERVER_BYTES)
@pytest.mark.parametrize("policies", [(one, other) for one in WHEN_FULL for other in WHEN_FULL], ids="-".join)
def test_any_traffic_is_answered_as_a_naive_service_answers_it(
    policies: tuple[str, str], server_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (capacity, intake):
        monkeypatch.setattr(module, "ITEM_BYTES", ITEM_BYTES)
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
        monkeypatch.setattr(module, "COLUMN_BYTES", COLUMN_BYTES)
    run(policies, server_bytes, seed=1)


def run(policies: tuple[str, str], server_bytes: int | None, seed: int) -> None:
    draw = random.Random(f"{policies} {server_bytes} {seed}")
    naive = {name: naive_table(draw, policy) for name, policy in zip(TABLES, policies, strict=True)}
    server = NaiveServer(list(naive.values()), ITEM_BYTES, CHUNK_BYTES, server_bytes)
    model = NaiveService(naive, server, COLUMN_BYTES)
    service = Service(
        [table_of(name, table) for name, table in naive.items()],
        server_id=bytes(16),
        version="test",
        seed=1,
        started_at=0.0,
        lease_s=LEASE_S,
        max_bytes=server_bytes,
    )
    traffic = PlainTraffic(draw.getrandbits(32))
    for step in range(STEPS):
        traffic.said = []
        traffic.step(service)
        for _, request, now, replies in traffic.said:
            failed = {reply.id: code_of(reply) for _, reply in replies if isinstance(reply, Failed)}
            answers = model.handle(request, now, failed)
            assert {reply.id: answer_of(reply) for _, reply in replies} == {
                id: keys_of(answer) for id, answer in answers.items()
            }, f"step {step}, {request}"
        agree(service, model, server_bytes)
    service.validate()


def code_of(reply: Failed) -> str:
    """Of what is too much for a peer the name of that limit, which the naive one does not know."""
    limit = reply.detail.get("limit")
    return str(limit) if reply.code == "limit_exceeded" and limit != "max_bytes" else reply.code


def answer_of(reply: Reply) -> object:
    if isinstance(reply, Sampled):
        shown = reply.shown
        return [shown.keys.tolist(), shown.priorities.tolist(), shown.times_sampled.tolist()]
    return code_of(reply) if isinstance(reply, Failed) else ACKNOWLEDGED


def keys_of(answer: object) -> object:
    if isinstance(answer, list):
        columns = ("key", "priority", "times_sampled")
        return [[getattr(item, name) for item in answer] for name in columns]
    return answer


def agree(service: Service, model: NaiveService, server_bytes: int | None) -> None:
    for name, naive in model.tables.items():
        table = service.tables[name]
        live = table.items.in_order()
        assert table.items.key[live].tolist() == [item.key for item in naive.items]
        assert table.items.times_sampled[live].tolist() == [item.times_sampled for item in naive.items]
        counted = (table.limiter.inserts, table.limiter.samples, table.limiter.deletes)
        assert counted == (naive.inserts, naive.samples, naive.deletes)
        assert table.capacity.nbytes == naive.held()
        if naive.when_full == "evict":
            assert naive.max_bytes is None or table.capacity.nbytes <= naive.max_bytes
    assert service.capacity.nbytes == next(iter(model.tables.values())).server.held()
