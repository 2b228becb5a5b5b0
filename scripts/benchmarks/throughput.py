"""Workloads 1 and 2: items in and items out, one chunk an item, by payload and number of clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.contest import contest, measured
from benchmarks.figures import OURS, Figure
from benchmarks.settings import Settings
from benchmarks.systems import Served, bare_zmq, replayd, reverb

TABLE, RANKED = "bench", "ranked"
FILLING = "filling an empty table"
ENVIRONMENTS = 64
"""Whose step is a small call."""
CALL_BYTES = 8_000_000
"""Of a large call: several messages, but no more than caches hold."""
BATCH = 256
ITEMS_A_CALL = 2000
"""Asked for by one call of the peer's Python client."""


def call_items(payload: int) -> int:
    """Items of a large call of insert_batch."""
    return max(CALL_BYTES // payload, ENVIRONMENTS)


def inserts(settings: Settings) -> Iterator[Figure]:
    """Into a full table, which evicts: the steady state. How fast an empty one fills is a figure of its own."""
    for payload in settings.payloads:
        full = settings.table_items(payload)
        with ExitStack() as stack:
            ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={full}"]))
            theirs = stack.enter_context(reverb(settings, {"name": TABLE, "max_size": full}))
            for served in filter(None, (ours, theirs)):
                rate = _fill(served, TABLE, payload, full)
                yield measured("insert", FILLING, "items/s", rate, system=served.system, payload=payload)
            for clients in settings.clients:
                steps: dict[str, Any] = {"clients": clients, "table": TABLE, "payload": payload}
                sides = [
                    ours.side("insert_batch", "insert_batch", **steps, batch=call_items(payload)),
                    ours.side(f"insert_batch of {ENVIRONMENTS}", "insert_batch", **steps, batch=ENVIRONMENTS),
                    ours.side("BatchWriter", "write_batches", **steps, batch=call_items(payload)),
                    ours.side(f"BatchWriter of {ENVIRONMENTS}", "write_batches", **steps, batch=ENVIRONMENTS),
                    ours.side(f"VectorWriter of {ENVIRONMENTS}", "write_vectors", **steps, environments=ENVIRONMENTS),
                    ours.side("TrajectoryWriter", "write_steps", **steps),
                    replace(ours, driver="drive_plain").side("single-item messages, plain peer", "insert", **steps),
                ]
                if theirs is not None:
                    sides.append(theirs.side("writer", "write_steps", **steps))
                if clients == 1:
                    sides.append(bare_zmq(settings, payload, "keeping as many", keep=full))
                yield from contest(settings, "insert", sides, payload=payload, clients=clients)


def samples(settings: Settings) -> Iterator[Figure]:
    """Out of a full table, as stacked arrays of batches of 256."""
    for payload in settings.payloads:
        full = settings.table_items(payload)
        with ExitStack() as stack:
            ranked = f"{RANKED},max_size={full},sampler=prioritized,priority_exponent=0.6"
            ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={full}", ranked]))
            tables = {"name": TABLE, "max_size": full}, {"name": RANKED, "max_size": full, "sampler": "prioritized"}
            theirs = stack.enter_context(reverb(settings, *tables))
            for served in filter(None, (ours, theirs)):
                for table in (TABLE, RANKED):
                    _fill(served, table, payload, full)
            for clients in settings.clients:
                uniform: dict[str, Any] = {"clients": clients, "table": TABLE, "batch": BATCH}
                prioritized = {**uniform, "table": RANKED}
                sides = [
                    ours.side("dataset", "sample_dataset", **uniform),
                    ours.side("sample_batch", "sample_batch", **uniform),
                ]
                if theirs is not None:
                    sides.append(theirs.side("tf.data", "sample_dataset", **uniform, payload=payload))
                    sides.append(theirs.side("Python client", "sample_items", clients, table=TABLE, count=ITEMS_A_CALL))
                if clients == 1:
                    sides.append(bare_zmq(settings, payload))
                yield from contest(settings, "sample", sides, payload=payload, clients=clients)
                sides = [ours.side("dataset, prioritized", "sample_dataset", **prioritized)]
                if theirs is not None:
                    name = "tf.data, prioritized"
                    sides.append(theirs.side(name, "sample_dataset", **prioritized, payload=payload))
                yield from contest(settings, "sample", sides, payload=payload, clients=clients)


def over_ipc(settings: Settings) -> Iterator[Figure]:
    """Into and out of a full table over a socket in the file system; the figures of other workloads are TCP's."""
    if settings.ipc:
        return  # Then those above are no others.
    for payload in settings.payloads:
        full = settings.table_items(payload)
        with replayd(replace(settings, ipc=True), [f"{TABLE},max_size={full}"]) as ours:
            _fill(ours, TABLE, payload, full)
            batch = call_items(payload)
            sides = [
                ours.side("insert_batch over ipc", "insert_batch", table=TABLE, payload=payload, batch=batch),
                ours.side("dataset over ipc", "sample_dataset", table=TABLE, batch=BATCH),
            ]
            yield from contest(settings, "ipc", sides, payload=payload, clients=1)


def _fill(served: Served, table: str, payload: int, full: int) -> float:
    """Let a client fill the table: items a second."""
    fill: dict[str, Any] = {"table": table, "payload": payload, "fill": full}
    if served.system == OURS:
        done = served.once("insert_batch", **fill, batch=call_items(payload))
    else:
        done = served.once("write_steps", **fill)
    return float(done["fill_per_s"])
