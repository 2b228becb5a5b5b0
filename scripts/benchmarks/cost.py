"""Workload 10: what an item costs the daemon in CPU time, by thread, and the split by function under cProfile.

The table is small here, so that the time of its filling disappears in that of the work.
"""

from __future__ import annotations

import pstats
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contest import Settings, measured, tell
from benchmarks.crew import Crew
from benchmarks.daemon import cpu_s_of_threads
from benchmarks.figures import Figure
from benchmarks.systems import Served, replayd
from benchmarks.throughput import BATCH, ENVIRONMENTS, call_items

TABLE = "bench"
MOST_ITEMS = 20_000
FUNCTIONS = 15
"""Rows of the split; what they leave is shown as the rest."""
WAITING = {"poll"}
"""Functions in which the daemon waits for work."""


def costs(settings: Settings) -> Iterator[Figure]:
    """CPU time of the daemon for an item in and an item out, and which functions take it."""
    for payload in settings.payloads:
        insert = {"table": TABLE, "payload": payload}
        work: dict[str, tuple[str, dict[str, Any]]] = {
            "inserted item": ("insert_batch", {**insert, "batch": call_items(payload)}),
            f"inserted item, {ENVIRONMENTS} a call": ("insert_batch", {**insert, "batch": ENVIRONMENTS}),
            "sampled item": ("sample_dataset", {"table": TABLE, "batch": BATCH}),
        }
        with _full_daemon(settings, payload) as ours:
            cpu_us = {what: _cpu_us(settings, ours, *done) for what, done in work.items()}
        for what, (role, job) in work.items():
            with tempfile.TemporaryDirectory() as directory:
                profile = Path(directory) / "profile"
                with _full_daemon(settings, payload, profile) as ours:
                    _cpu_us(settings, ours, role, job)
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


def _cpu_us(settings: Settings, ours: Served, role: str, job: dict[str, Any]) -> tuple[float, float]:
    """Let one client work: CPU time of the daemon an item, of its main thread and of libzmq's."""
    with Crew([ours.job(role, **job)]) as crew:
        before = cpu_s_of_threads(ours.pid)
        items = crew.run(settings.seconds, 0.0)[role].items
        after = cpu_s_of_threads(ours.pid)
    us = {name: (used_s - before.get(name, 0.0)) * 1e6 / items for name, used_s in after.items()}
    libzmq = sum(used for name, used in us.items() if name.startswith("ZMQbg"))
    return sum(us.values()) - libzmq, libzmq


def _split(profile: Path) -> dict[str, float]:
    """Shares of the main thread's time by function, callees not included; compiled code counts for its caller."""
    rows: dict[str, float] = {}
    for (file, _, function), (_, _, own_s, _, _) in pstats.Stats(str(profile)).stats.items():  # type: ignore[attr-defined]
        if function not in WAITING:
            name = f"{Path(file).stem}.{function}" if file != "~" else function
            rows[name] = rows.get(name, 0.0) + own_s
    total = sum(rows.values())
    most = sorted(rows, key=lambda name: -rows[name])[:FUNCTIONS]
    return {**{name: rows[name] / total for name in most}, "the rest": 1 - sum(rows[name] for name in most) / total}
