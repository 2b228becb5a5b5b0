"""Workload 9: what a sample costs as tables grow, and what becomes of throughput as clients come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from benchmarks.contest import Told, measured, told
from benchmarks.crew import Job
from benchmarks.daemon import available_bytes
from benchmarks.figures import Figure, count, ratios
from benchmarks.settings import KINDS, Settings
from benchmarks.systems import Served, paced, replayd

SAMPLERS = {"prioritized": "prioritized,priority_exponent=0.6"}
"""As `serve --table` has them, where a name alone does not do."""
TABLE, PAYLOAD, BATCH, SMALL_PAYLOAD, SAMPLED = "bench", 400, 64, 16, 256
ITEMS = (1_000, 10_000, 100_000, 1_000_000)
"""In tables, as far as the largest that is asked for."""
COMPARED_ITEMS = (10_000, 1_000_000)
"""What is wanted is said of these."""
CALLS, QUICK_CALLS = 300, 50
TOGETHER_ITEMS = 1_000_000
"""With a larger table each selector has a daemon of its own, one after the other."""
ITEM_BYTES = 600
"""Of memory that an item of a few bytes takes at most, to see beforehand whether a table has room."""
CLIENTS, QUICK_CLIENTS = (8, 64, 200), (8,)
CROWD_S, QUICK_CROWD_S = 3.0, 0.3
"""At least, so that each of 200 clients ends several calls."""


def sizes(settings: Settings) -> Iterator[Figure]:
    """Samples of 256 from tables of each selector and size; how they grow, also with a writer beside them."""
    large = settings.scaled_items
    powers = [*(n for n in ITEMS if n < large), large]
    compared = sorted({*([n for n in COMPARED_ITEMS if n < large] or powers[:1]), large})
    kinds = KINDS[:2] if settings.quick else KINDS
    for together in [kinds] if large <= TOGETHER_ITEMS else [[kind] for kind in kinds]:
        if sum(powers) * ITEM_BYTES * len(together) > available_bytes():
            raise click.ClickException(f"{len(together)} tables of {large} items have no room in this machine's memory")
        tables = [f"{kind} {n},max_size={n},sampler={SAMPLERS.get(kind, kind)}" for kind in together for n in powers]
        with replayd(settings, tables) as ours:
            for n in powers:
                everywhere = [f"{kind} {n}" for kind in together]
                ours.once("insert_everywhere", tables=everywhere, payload=SMALL_PAYLOAD, count=n)
            for kind in together:
                yield from _grown(settings, ours, kind, powers, compared)
                yield from _grown(settings, ours, kind, compared, compared, beside=" beside a writer")


def _grown(
    settings: Settings, ours: Served, kind: str, powers: Sequence[int], compared: Sequence[int], beside: str = ""
) -> Iterator[Figure]:
    """Of one selector: percentiles by size, and how the larger of some compare with the smallest in the same round."""
    what = f"{kind}, sample({SAMPLED}){beside}"
    sides = []
    for n in powers:
        probe: dict[str, Any] = {
            "table": f"{kind} {n}",
            "calls": QUICK_CALLS if settings.quick else CALLS,
            "batch": SAMPLED,
        }
        side = replace(ours.side(what, "probe", **probe), table_items=n)
        # A follower works during the runs of its own side alone, so that each size needs one.
        sides.append(replace(side, followers=_writer(ours, f"{kind} {n}")) if beside else side)
    figures = told(settings, "scaling", sides, Told("p50", "ms"), Told("p99", "ms"))
    yield from figures
    runs = {(figure.table_items, figure.quantity): figure.runs for figure in figures}
    smallest = compared[0]
    for n in compared[1:]:
        for percentile, suffix in (("p50", ""), ("p99", ", p99")):
            growth = ratios(*(runs[size, f"{what}, {percentile}"] for size in (n, smallest)))
            yield measured("scaling", f"{what}{suffix}: {count(n)} over {count(smallest)} items", "×", *growth)


def _writer(ours: Served, table: str) -> Callable[[str], Sequence[Job]]:
    return lambda _: [paced(ours, table, payload=SMALL_PAYLOAD)]


def crowds(settings: Settings) -> Iterator[Figure]:
    """Throughput of all clients together, and the slowest one's share of the mean."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    numbers = QUICK_CLIENTS if settings.quick else CLIENTS
    seconds = max(settings.seconds, QUICK_CROWD_S if settings.quick else CROWD_S)
    crowd: dict[str, Any] = {"payload": PAYLOAD, "batch": BATCH, "table": TABLE, "seconds": seconds}
    with ExitStack() as stack:
        ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={full}"]))
        ours.once("insert_batch", table=TABLE, payload=PAYLOAD, batch=10_000, fill=full)
        for work in ("insert", "sample"):
            sides = [
                replace(ours, driver="drive_crowd").side(
                    f"{work} by {number}", "crowd", **crowd, work=work, members=number
                )
                for number in numbers
            ]
            results = Told("items/s", "items/s", less_is_better=False), Told("slowest over mean", "×")
            figures = told(settings, "crowd", sides, *results)
            yield from figures
            growth = ratios(figures[-2].runs, figures[0].runs)
            yield measured("crowd", f"{work}: all of {numbers[-1]} over all of {numbers[0]} clients", "×", *growth)
