"""Draws: how often each item had been drawn, and which numbers of the generator choose them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from replayd import rate_limiters, selectors
from replayd.messages import Sample, Sampled
from replayd.selectors import Uniform
from replayd.service import Service
from replayd.table import Table
from tests.unit.writer import StreamWriter, fifo, payloads_of, service

PEER = (b"reader",)


def sampled(s: Service, n: int) -> Sampled:
    s.handle(PEER, "sample", Sample(1, "t", n, 1, 0.0), 0.0)
    [(_, reply)] = s.drain()
    assert isinstance(reply, Sampled)
    return reply


@pytest.mark.parametrize("seed", range(8))
def test_each_draw_knows_how_often_its_item_had_been_drawn_whatever_chunks_they_share(seed: int) -> None:
    random_ = random.Random(seed)
    s = service(fifo(sampler=selectors.Uniform()), seed=seed)
    chunks = 12
    longest = random_.choice([1, 1, 4])
    counts = [random_.randint(1, longest) for _ in range(10)]
    windows = [(random_.randint(0, chunks - count), count) for count in counts]
    s.handle((b"w",), "insert", StreamWriter().insert([bytes([n]) for n in range(chunks)], windows), 0.0)
    s.drain()
    drawn: dict[int, int] = {}
    for n in (1, 2, 3, 40, 1, 200):
        reply = sampled(s, n)
        for key, times in zip(reply.shown.keys.tolist(), reply.shown.times_sampled.tolist(), strict=True):
            drawn[key] = drawn.get(key, 0) + 1
            assert times == drawn[key]
    s.validate()


def test_one_item_is_chosen_by_the_number_that_would_choose_it_among_many() -> None:
    # A journal is repeated with the numbers of the generator, whatever version wrote it.
    selector, slots = Uniform(), np.arange(3, 1000)
    selector.add(slots, np.ones(len(slots)))
    ours, theirs = np.random.default_rng(7), np.random.default_rng(7)
    for n in (1, 1, 5, 1, 2, 1, 1, 1):
        drawn, probabilities = selector.draw(n, ours)
        assert drawn.tolist() == slots[theirs.integers(0, len(slots), n)].tolist()
        assert probabilities.tolist() == [1 / len(slots)] * n


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_gives_each_item_once_in_order_whoever_leaves_in_between(seed: int) -> None:
    random_ = random.Random(seed)
    table = Table("t", selectors.Fifo(), selectors.Fifo(), 10_000, rate_limiters.MinSize(1), 1)
    s, writer = service(table), StreamWriter()
    waiting: list[bytes] = []
    serial = 0
    for _ in range(60):
        if random_.random() < 0.5 or not waiting:
            payloads = [(serial + n).to_bytes(3, "little") for n in range(random_.randint(1, 90))]
            windows = [(writer.next_chunk + n, 1) for n in range(len(payloads))]
            s.handle((b"w",), "insert", writer.insert(payloads, windows, keep_from=writer.next_chunk), 0.0)
            s.drain()
            serial += len(payloads)
            waiting += payloads
        elif random_.random() < 0.3:
            gone = sorted(random_.sample(range(len(waiting)), min(len(waiting), random_.randint(1, 120))), reverse=True)
            slots = table.items.in_order()
            table.update(np.zeros(0, np.uint64), np.zeros(0), table.items.key[slots[gone]])
            for place in gone:
                del waiting[place]
        else:
            n = random_.randint(1, 150)
            shown = sampled(s, n).shown
            payloads = payloads_of(shown)
            assert [payloads[chunk] for chunk in shown.chunk.tolist()] == waiting[:n]
            del waiting[:n]
        s.validate()
