"""Workload 7: a prioritized learner's small calls: new priorities, and one item as soon as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from benchmarks.contest import Counted, Told, contest, measured, told
from benchmarks.crew import Job
from benchmarks.figures import Figure, ratios
from benchmarks.settings import Settings
from benchmarks.systems import Served, paced, replayd, reverb

TABLE, ELSEWHERE, PAYLOAD, BATCH = "ranked", "elsewhere", 400, 256
POLL_PAUSE_S = 0.01
SCRAPE_PAUSE_S = 0.5
SCRAPED_CALLS = 4000
"""Samples of a turn beside scrapes: some seconds of them, so that several scrapes fall into each."""
PERCENTILES = Told("p50", "ms"), Told("p99", "ms")


@dataclass(frozen=True, slots=True)
class Beside:
    """What goes on while learners are measured; `table` is where somebody writes."""

    name: str
    jobs: Callable[[Served, str], Sequence[Job]]
    peers_too: bool = False


def _polled(served: Served, table: str) -> Sequence[Job]:
    return [served.job("poll_info", pause_s=POLL_PAUSE_S)]


def _scraped(served: Served, table: str) -> Sequence[Job]:
    return [served.job("scrape", http=served.http, pause_s=SCRAPE_PAUSE_S)]


def _written(served: Served, table: str) -> Sequence[Job]:
    return [paced(served, table, payload=PAYLOAD)]


def _checkpointed(served: Served, table: str) -> Sequence[Job]:
    """Each checkpoint has what was written since the one before."""
    return [paced(served, table, payload=PAYLOAD), served.job("checkpoint")]


SCRAPED = Beside("scraped", _scraped)
BESIDE = (
    Beside("info polled", _polled, peers_too=True),
    Beside("beside a writer", _written, peers_too=True),
    SCRAPED,
    Beside("beside a writer and checkpoints", _checkpointed),
)


def priorities(settings: Settings) -> Iterator[Figure]:
    """Updates of 256 keys, and the latency of a sample of one item: alone, and while others do this and that."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    with ExitStack() as stack:
        ranked = f"{TABLE},max_size={full},sampler=prioritized,priority_exponent=0.6"
        ours = stack.enter_context(replayd(settings, [ranked, f"{ELSEWHERE},max_size={full}"], stores=True))
        tables = {"name": TABLE, "max_size": full, "sampler": "prioritized"}, {"name": ELSEWHERE, "max_size": full}
        theirs = stack.enter_context(reverb(settings, *tables))
        both = [served for served in (ours, theirs) if served is not None]
        ours.once("insert_batch", table=TABLE, payload=PAYLOAD, batch=10_000, fill=full)
        if theirs is not None:
            theirs.once("write_steps", table=TABLE, payload=PAYLOAD, fill=full)
        # Written to beside updates is another table, so that the items stay which are updated.
        sides = [served.side(f"mutate_priorities of {BATCH}", "mutate", table=TABLE, keys=BATCH) for served in both]
        yield from contest(settings, "priorities", sides, unit="keys/s")
        for beside in BESIDE:
            name = f"mutate_priorities of {BATCH}, {beside.name}"
            disturbed = [
                replace(side, counted=[Counted("mutate", name)], followers=_with(beside, served, ELSEWHERE))
                for side, served in zip(sides, both, strict=True)
                if served is ours or beside.peers_too
            ]
            yield from contest(settings, "priorities", disturbed, unit="keys/s")
        calls = 200 if settings.quick else 1000
        sides = [served.side("sample(1)", "probe", table=TABLE, calls=calls) for served in both]
        yield from told(settings, "latency", sides, *PERCENTILES)
        yield from _beside_scrapes(settings, ours)
        for beside in BESIDE:
            if beside is SCRAPED:
                continue
            disturbed = [
                replace(
                    side,
                    counted=[Counted("probe", f"sample(1), {beside.name}")],
                    followers=_with(beside, served, TABLE),
                )
                for side, served in zip(sides, both, strict=True)
                if served is ours or beside.peers_too
            ]
            yield from told(settings, "latency", disturbed, *PERCENTILES)


def _beside_scrapes(settings: Settings, ours: Served) -> Iterator[Figure]:
    """Samples without scrapes and with them, in turn, and what these make of the latency."""
    alone = ours.side("sample(1), not scraped", "probe", table=TABLE, calls=200 if settings.quick else SCRAPED_CALLS)
    scraped = replace(alone, counted=[Counted("probe", "sample(1), scraped")], followers=_with(SCRAPED, ours, TABLE))
    figures = told(settings, "latency", [alone, scraped], *PERCENTILES)
    yield from figures
    runs = {figure.quantity: figure.runs for figure in figures}
    for percentile in PERCENTILES:
        with_them, without = (runs[f"sample(1), {which}, {percentile.name}"] for which in ("scraped", "not scraped"))
        quantity = f"sample(1), {percentile.name}: scraped over not scraped"
        yield measured("priorities", quantity, "×", *ratios(with_them, without))


def _with(beside: Beside, served: Served, table: str) -> Callable[[str], Sequence[Job]]:
    return lambda _: beside.jobs(served, table)
