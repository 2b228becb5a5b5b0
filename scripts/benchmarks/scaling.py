"""Workload 9: what a sample costs as tables grow, and what becomes of throughput as clients come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.contest import Told, measured, told
from benchmarks.crew import Crew, Job
from benchmarks.figures import Figure, ratios
from benchmarks.settings import Settings
from benchmarks.systems import replayd

KINDS = ("uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap")
SAMPLERS = {"prioritized": "prioritized,priority_exponent=0.6"}
"""As `serve --table` has them, where a name alone does not do."""
TABLE, PAYLOAD, BATCH, SMALL_PAYLOAD = "bench", 400, 64, 16
MOST_ITEMS, COMPARED_ITEMS = 1_000_000, 10_000
"""In each of the tables of a daemon; selectors alone are measured with ten times as many."""
CLIENTS, QUICK_CLIENTS = (8, 64, 200), (8,)


def sizes(settings: Settings) -> Iterator[Figure]:
    """Draws of each selector alone up to 10^7 slots, then whole samples of 256 from a daemon up to 10^6 items."""
    powers = [10**power for power in ((3, 4) if settings.quick else (3, 4, 5, 6, 7))]
    kinds = KINDS[:2] if settings.quick else KINDS
    with Crew([Job("drive_selectors", "draw", {"kinds": kinds, "sizes": powers, "counts": [256, 1]})]) as crew:
        for what, took_us in crew.turn()[0].items():
            yield measured("draw", what, "µs", took_us)
    powers = [power for power in powers if power <= MOST_ITEMS]
    tables = [f"{kind} {size},max_size={size},sampler={SAMPLERS.get(kind, kind)}" for kind in kinds for size in powers]
    with replayd(settings, tables) as ours:
        for size in powers:
            everywhere = [f"{kind} {size}" for kind in kinds]
            ours.once("insert_everywhere", tables=everywhere, payload=SMALL_PAYLOAD, count=size)
        calls = 50 if settings.quick else 400
        for kind in kinds:
            sides = [
                ours.side(f"{kind} of {size}, sample(256)", "probe", table=f"{kind} {size}", calls=calls, batch=256)
                for size in powers
            ]
            figures = told(settings, "scaling", sides, Told("p50", "ms"))
            yield from figures
            runs = dict(zip(powers, (figure.runs for figure in figures), strict=True))
            growth = ratios(runs[powers[-1]], runs[COMPARED_ITEMS])
            yield measured("scaling", f"{kind}, sample(256): {powers[-1]} over {COMPARED_ITEMS} items", "×", *growth)


def crowds(settings: Settings) -> Iterator[Figure]:
    """Throughput of all clients together, and the slowest one's share of the mean."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    numbers = QUICK_CLIENTS if settings.quick else CLIENTS
    with replayd(settings, [f"{TABLE},max_size={full}"]) as ours:
        ours.once("insert_batch", table=TABLE, payload=PAYLOAD, batch=10_000, fill=full)
        for work in ("insert", "sample"):
            crowd: dict[str, Any] = {
                "work": work,
                "payload": PAYLOAD,
                "batch": BATCH,
                "table": TABLE,
                "seconds": settings.seconds,
            }
            sides = [
                replace(ours, driver="drive_crowd").side(f"{work} by {number}", "crowd", **crowd, members=number)
                for number in numbers
            ]
            results = Told("items/s", "items/s", less_is_better=False), Told("slowest over mean", "×")
            figures = told(settings, "crowd", sides, *results)
            yield from figures
            growth = ratios(figures[-2].runs, figures[0].runs)
            yield measured("crowd", f"{work}: all of {numbers[-1]} over all of {numbers[0]} clients", "×", *growth)
