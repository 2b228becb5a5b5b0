"""Workload 7: a prioritized learner's small calls: new priorities, and one item as soon as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.contest import Counted, Told, contest, told
from benchmarks.crew import Job
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import Served, replayd, reverb

TABLE, PAYLOAD, BATCH = "ranked", 400, 256
POLL_PAUSE_S = 0.01
SCRAPE_PAUSE_S = 0.5
PERCENTILES = Told("p50", "ms"), Told("p99", "ms")


def priorities(settings: Settings) -> Iterator[Figure]:
    """Updates of 256 keys, and the latency of a sample of one item: alone, and while others do this and that."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    with ExitStack() as stack:
        ours = stack.enter_context(
            replayd(settings, [f"{TABLE},max_size={full},sampler=prioritized,priority_exponent=0.6"], stores=True)
        )
        theirs = stack.enter_context(reverb(settings, {"name": TABLE, "max_size": full, "sampler": "prioritized"}))
        both = [served for served in (ours, theirs) if served is not None]
        ours.once("insert_batch", table=TABLE, payload=PAYLOAD, batch=10_000, fill=full)
        if theirs is not None:
            theirs.once("write_steps", table=TABLE, payload=PAYLOAD, fill=full)
        sides = [served.side("mutate_priorities of 256", "mutate", table=TABLE, keys=BATCH) for served in both]
        yield from contest(settings, "priorities", sides, unit="keys/s")
        sides = [
            served.side("sample(1)", "probe", table=TABLE, calls=200 if settings.quick else 2000) for served in both
        ]
        yield from told(settings, "latency", sides, *PERCENTILES)
        jobs: list[tuple[str, Callable[[Served], Job], int]] = [
            ("info polled", lambda served: served.job("poll_info", pause_s=POLL_PAUSE_S), len(both)),
            ("scraped", lambda served: served.job("scrape", http=served.http, pause_s=SCRAPE_PAUSE_S), 1),
            ("checkpoints", lambda served: served.job("checkpoint"), 1),
        ]
        for condition, job, systems in jobs:
            disturbed = [
                replace(side, counted=[Counted("probe", f"sample(1), {condition}")], followers=_with(job, served))
                for side, served in zip(sides[:systems], both, strict=False)
            ]
            yield from told(settings, "latency", disturbed, *PERCENTILES)


def _with(job: Callable[[Served], Job], served: Served) -> Callable[[str], list[Job]]:
    return lambda _: [job(served)]
