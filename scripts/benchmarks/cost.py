"""Workload 10: what an item costs the daemon in CPU time, by thread, and which functions take it, there and in clients.

The daemon's split is of samples of its stack (see `profiled`), that of a client is cProfile's (see `threads_profile`).
The table is small here, so that the time of its filling disappears in that of the work.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contest import measured, tell
from benchmarks.crew import Crew, Done, Job
from benchmarks.daemon import cpu_s_of_threads
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import Served, replayd
from benchmarks.throughput import BATCH, ENVIRONMENTS, call_items

TABLE = "bench"
MOST_ITEMS = 20_000
QUEUE_ITEMS, QUEUE_BYTES, DRAINED = 20_000, 32_000_000, 64
SETTLE_S = 0.2
FUNCTIONS = 15
"""Rows of a split; what they leave is shown as the rest."""
WAITING = ("poll.Poller.poll", "server.Daemon._loop")
"""Functions in which the daemon is while it waits for work; what they do otherwise is next to nothing."""
PROFILE_S = 3.0
"""At least, for enough samples."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a client does to a full table, and what that is called."""

    what: str
    role: str
    job: Mapping[str, Any]
    driver: str = "drive_replayd"

    def at(self, ours: Served) -> Job:
        return replace(ours, driver=self.driver).job(self.role, **self.job)


def costs(settings: Settings) -> Iterator[Figure]:
    """CPU time of the daemon for an item in and an item out, and which functions take it, also in clients."""
    profile_s = settings.seconds if settings.quick else max(settings.seconds, PROFILE_S)
    for payload in settings.payloads:
        insert = {"table": TABLE, "payload": payload}
        batches = Work("inserted item", "insert_batch", {**insert, "batch": call_items(payload)})
        samples = Work("sampled item", "sample_dataset", {"table": TABLE, "batch": BATCH})
        smaller = Work(f"inserted item, {ENVIRONMENTS} a call", "insert_batch", {**insert, "batch": ENVIRONMENTS})
        singles = Work("inserted item, single-item messages", "insert", insert, "drive_plain")
        updates = Work(f"updated key, {BATCH} a call", "mutate", {"table": TABLE, "keys": BATCH})
        steps = Work("inserted item, TrajectoryWriter", "write_steps", insert)
        # What is small calls costs the same with any payload that is small beside them.
        in_calls = [smaller, singles, updates] if payload == settings.payloads[0] and not settings.quick else []
        yield from _of_daemon(settings, payload, [batches, samples, *in_calls], profile_s)
        if in_calls:
            with _full_daemon(settings, payload) as ours:
                for work in (batches, updates, steps):
                    yield _of_client(work.what, work.at(ours), payload, profile_s)
        if not settings.quick:
            with _full_daemon(settings, payload) as ours:
                yield _of_client(samples.what, samples.at(ours), payload, profile_s)
        yield _of_learner(payload, profile_s)


def _of_daemon(settings: Settings, payload: int, works: list[Work], profile_s: float) -> Iterator[Figure]:
    with _full_daemon(settings, payload) as ours:
        cpu_us = [_cpu_us(settings.seconds, ours, work) for work in works]
    for work, (main, libzmq) in zip(works, cpu_us, strict=True):
        with tempfile.TemporaryDirectory() as directory:
            profile = Path(directory) / "profile"
            with _full_daemon(settings, payload, profile) as ours:
                _cpu_us(profile_s, ours, work)
            samples = Counter(json.loads(profile.read_text()))
        for function in WAITING:
            del samples[function]
        notes: dict[str, Any] = {"libzmq's threads": libzmq, "split": _split(samples)}
        yield measured("cost", f"daemon, {work.what}", "µs", main + libzmq, payload=payload, **notes)
        _tell(notes["split"])


def _of_learner(payload: int, seconds: float) -> Figure:
    """The process of a learner with the server in it, while another one writes."""
    most = min(QUEUE_ITEMS, QUEUE_BYTES // payload)
    learner = Job("drive_replayd", "drain_embedded", {"table": TABLE, "most": most, "batch": DRAINED})
    writer = Job("drive_replayd", "write_batches", {"table": TABLE, "payload": payload, "batch": most // 4})
    return _of_client("queue with the server in the learner", learner, payload, seconds, writer)


def _of_client(what: str, job: Job, payload: int, seconds: float, follower: Job | None = None) -> Figure:
    """CPU time of a client's process, and in a run of its own, which that disturbs, the shares of functions."""
    done = _done(job, seconds, follower)
    profiled = _done(replace(job, settings={**job.settings, "profile": True}), seconds, follower)
    split = _split(Counter(profiled.functions_s))
    cpu_us = done.cpu_s * 1e6 / max(done.items, 1)
    figure = measured("cost", f"client, {what}", "µs", cpu_us, payload=payload, split=split)
    _tell(split)
    return figure


def _done(job: Job, seconds: float, follower: Job | None) -> Done:
    with Crew([job]) as crew, ExitStack() as stack:
        if follower is not None:
            stack.enter_context(Crew([follower.at(crew.ready[0]["address"])])).let_run()
        return crew.run(seconds, SETTLE_S)[job.role]


@contextmanager
def _full_daemon(settings: Settings, payload: int, profile: Path | None = None) -> Iterator[Served]:
    full = min(settings.table_items(payload), MOST_ITEMS)
    with replayd(settings, [f"{TABLE},max_size={full}"], profile) as ours:
        ours.once("insert_batch", table=TABLE, payload=payload, batch=call_items(payload), fill=full)
        yield ours


def _cpu_us(seconds: float, ours: Served, work: Work) -> tuple[float, float]:
    """Let one client work: CPU time of the daemon an item, of its main thread and of libzmq's."""
    with Crew([work.at(ours)]) as crew:
        before = cpu_s_of_threads(ours.pid)
        items = crew.run(seconds, 0.0)[work.role].items
        after = cpu_s_of_threads(ours.pid)
    us = {name: (used_s - before.get(name, 0.0)) * 1e6 / items for name, used_s in after.items()}
    libzmq = sum(used for name, used in us.items() if name.startswith("ZMQbg"))
    return sum(us.values()) - libzmq, libzmq


def _split(spent: Counter[str]) -> dict[str, float]:
    """Shares of the time by function, callees not included."""
    most = spent.most_common(FUNCTIONS)
    total = sum(spent.values()) or 1
    shares = {function: time / total for function, time in most}
    return {**shares, "the rest": 1 - sum(shares.values())}


def _tell(split: dict[str, float]) -> None:
    for function, share in split.items():
        tell(f"{share:39.1%}  {function}")
