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
PERCENTILES = Told("p50", "ms"), Told("p99", "ms")


def priorities(settings: Settings) -> Iterator[Figure]:
    """Updates of 256 keys, and the latency of a sample of one item, alone and while somebody asks for info."""
    full = min(settings.table_items(PAYLOAD), 100_000)
    with ExitStack() as stack:
        ours = stack.enter_context(
            replayd(settings, [f"{TABLE},max_size={full},sampler=prioritized,priority_exponent=0.6"])
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
        counted = [Counted("probe", "sample(1), info polled")]
        polled = [
            replace(side, counted=counted, followers=_poller(served)) for side, served in zip(sides, both, strict=True)
        ]
        yield from told(settings, "latency", polled, *PERCENTILES)


def _poller(served: Served) -> Callable[[str], list[Job]]:
    return lambda _: [served.job("poll_info", pause_s=POLL_PAUSE_S)]
