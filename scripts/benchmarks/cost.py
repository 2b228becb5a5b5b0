"""Workload 10: what an item costs the daemon in CPU time, by thread, and the split by function in samples of its stack.

The table is small here, so that the time of its filling disappears in that of the work.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contest import measured, tell
from benchmarks.crew import Crew
from benchmarks.daemon import cpu_s_of_threads
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import Served, replayd
from benchmarks.throughput import BATCH, ENVIRONMENTS, call_items

TABLE = "bench"
MOST_ITEMS = 20_000
FUNCTIONS = 15
"""Rows of the split; what they leave is shown as the rest."""
WAITING = ("poll.Poller.poll", "server.Daemon._loop")
"""Functions in which the daemon is while it waits for work; what they do otherwise is next to nothing."""
PROFILE_S = 5.0
"""At least, for enough samples."""


def costs(settings: Settings) -> Iterator[Figure]:
    """CPU time of the daemon for an item in and an item out, and which functions take it."""
    for payload in settings.payloads:
        insert = {"table": TABLE, "payload": payload}
        work: dict[str, tuple[str, dict[str, Any]]] = {
            "inserted item": ("insert_batch", {**insert, "batch": call_items(payload)}),
            f"inserted item, {ENVIRONMENTS} a call": ("insert_batch", {**insert, "batch": ENVIRONMENTS}),
            "sampled item": ("sample_dataset", {"table": TABLE, "batch": BATCH}),
        }
        if settings.quick:
            del work[f"inserted item, {ENVIRONMENTS} a call"]
        with _full_daemon(settings, payload) as ours:
            cpu_us = {what: _cpu_us(settings.seconds, ours, *done) for what, done in work.items()}
        for what, (role, job) in work.items():
            with tempfile.TemporaryDirectory() as directory:
                profile = Path(directory) / "profile"
                with _full_daemon(settings, payload, profile) as ours:
                    _cpu_us(settings.seconds if settings.quick else max(settings.seconds, PROFILE_S), ours, role, job)
                split = _split(profile)
            main, libzmq = cpu_us[what]
            notes: dict[str, Any] = {"libzmq's threads": libzmq, "split": split}
            yield measured("cost", f"daemon, {what}", "µs", main + libzmq, payload=payload, **notes)
            for function, share in split.items():
                tell(f"{share:39.1%}  {function}")


@contextmanager
def _full_daemon(settings: Settings, payload: int, profile: Path | None = None) -> Iterator[Served]:
    full = min(settings.table_items(payload), MOST_ITEMS)
    with replayd(settings, [f"{TABLE},max_size={full}"], profile) as ours:
        ours.once("insert_batch", table=TABLE, payload=payload, batch=call_items(payload), fill=full)
        yield ours


def _cpu_us(seconds: float, ours: Served, role: str, job: dict[str, Any]) -> tuple[float, float]:
    """Let one client work: CPU time of the daemon an item, of its main thread and of libzmq's."""
    with Crew([ours.job(role, **job)]) as crew:
        before = cpu_s_of_threads(ours.pid)
        items = crew.run(seconds, 0.0)[role].items
        after = cpu_s_of_threads(ours.pid)
    us = {name: (used_s - before.get(name, 0.0)) * 1e6 / items for name, used_s in after.items()}
    libzmq = sum(used for name, used in us.items() if name.startswith("ZMQbg"))
    return sum(us.values()) - libzmq, libzmq


def _split(profile: Path) -> dict[str, float]:
    """Shares of the main thread's time by function, callees not included."""
    samples = Counter(json.loads(profile.read_text()))
    for function in WAITING:
        del samples[function]
    most = samples.most_common(FUNCTIONS)
    total = max(samples.total(), 1)
    shares = {function: count / total for function, count in most}
    return {**shares, "the rest": 1 - sum(shares.values())}
