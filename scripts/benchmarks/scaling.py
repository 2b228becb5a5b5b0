"""Workload 9: what a sample costs as tables grow, and what becomes of throughput as clients come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.contest import Settings, Told, single, told
from benchmarks.crew import Crew, Job
from benchmarks.figures import Figure
from benchmarks.systems import replayd

KINDS = ("uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap")
SAMPLERS = {"prioritized": "prioritized,priority_exponent=0.6"}
"""As `serve --table` has them, where a name alone does not do."""
TABLE, PAYLOAD, BATCH, SMALL_PAYLOAD = "bench", 400, 64, 16
MOST_ITEMS = 1_000_000
"""In each of the tables of a daemon; selectors alone are measured with ten times as many."""
CLIENTS, QUICK_CLIENTS = (8, 64, 200), (8,)


def sizes(settings: Settings) -> Iterator[Figure]:
    """Draws of each selector alone up to 10^7 slots, then whole samples of 256 from a daemon up to 10^6 items."""
    powers = [10**power for power in ((3, 4) if settings.quick else (3, 4, 5, 6, 7))]
    kinds = KINDS[:2] if settings.quick else KINDS
    with Crew([Job("drive_selectors", "draw", {"kinds": kinds, "sizes": powers, "counts": [256, 1]})]) as crew:
        for what, took_us in crew.turn()[0].items():
            yield single("draw", what, took_us, "µs")
    powers = [power for power in powers if power <= MOST_ITEMS]
    tables = [f"{kind},max_size={powers[-1]},sampler={SAMPLERS.get(kind, kind)}" for kind in kinds]
    took_ms: dict[tuple[str, int], float] = {}
    with replayd(settings, tables) as ours:
        for before, size in pairwise([0, *powers]):
            ours.once("insert_everywhere", tables=kinds, payload=SMALL_PAYLOAD, count=size - before)
            for kind in kinds:
                side = ours.side(kind, "probe", table=kind, calls=50 if settings.quick else 400, batch=256)
                [figure] = told(settings, "scaling", [side], [Told("p50", f"{kind} of {size}, sample(256)", "ms")])
                took_ms[kind, size] = figure.median
                yield figure
    for kind in kinds:
        ratio = took_ms[kind, powers[-1]] / took_ms[kind, 10_000]
        yield single("scaling", f"{kind}, sample(256): {powers[-1]} over 10000 items", ratio, "×")


def crowds(settings: Settings) -> Iterator[Figure]:
    """Throughput of all clients together, and the slowest one's share of the mean."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    with replayd(settings, [f"{TABLE},max_size={full}"]) as ours:
        ours.once("insert_batch", table=TABLE, payload=PAYLOAD, batch=10_000, fill=full)
        for work in ("insert", "sample"):
            rates = []
            for clients in QUICK_CLIENTS if settings.quick else CLIENTS:
                crowd: dict[str, Any] = {"clients": clients, "work": work, "payload": PAYLOAD, "batch": BATCH}
                crowd |= {"address": ours.address, "table": TABLE, "seconds": settings.seconds}
                with Crew([Job("drive_crowd", "crowd", crowd)]) as crew:
                    turns = [crew.turn()[0] for _ in range(settings.rounds)]
                rate, share = (median(turn[name] for turn in turns) for name in ("rate", "least_share"))
                rates.append(rate)
                quantity = f"{work} of {BATCH} a call"
                yield single("crowd", quantity, rate, "items/s", payload=PAYLOAD, clients=clients, least_share=share)
            ratio = rates[-1] / rates[0]
            yield single("crowd", f"{work}: all of {clients} over all of {CLIENTS[0]} clients", ratio, "×")
            yield single("crowd", f"{work}: slowest of {clients} over their mean", share, "×")
