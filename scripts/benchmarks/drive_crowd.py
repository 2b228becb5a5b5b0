"""Many client processes at once, forked from one that has everything imported: 200 starts would take minutes else."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.drive_replayd import noise
from benchmarks.worker import Turns, main
from replayd_client import Client

SETTLE_S = 0.5
"""Until the last of 200 has been told."""
LOOK_S = 1.0
"""How often a waiting member looks whether there is still somebody to wait for."""


def crowd(address: str, table: str, members: int, work: str, payload: int, batch: int, seconds: float) -> Turns:
    """So many processes that `insert` or `sample` batches; each turn tells their rate and the slowest one's share."""
    fork = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(members):
        ours, theirs = fork.Pipe()
        fork.Process(target=_member, args=(theirs, address, table, work, payload, batch)).start()
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    yield {}
    while True:
        # All work from now on, and what counts is what they all end in one and the same time.
        begin = time.monotonic() + SETTLE_S
        for pipe in pipes:
            pipe.send((begin, begin + seconds))
        counts = [pipe.recv() for pipe in pipes]
        yield {"items/s": sum(counts) / seconds, "slowest over mean": min(counts) * len(counts) / max(sum(counts), 1)}


def _member(pipe: Connection, address: str, table: str, work: str, payload: int, batch: int) -> None:
    parent = os.getppid()
    steps = noise(batch, payload)[:, None]
    with Client(address) as client:

        def turn() -> int:
            if work == "sample":
                return len(client.sample_batch(table, batch))
            client.insert_batch({"x": steps}, {table: 1.0})
            return batch

        turn()
        pipe.send("ready")
        while True:
            while not pipe.poll(LOOK_S):
                if os.getppid() != parent:
                    os._exit(0)
            begin, end = pipe.recv()
            items = 0
            while time.monotonic() < end:
                done = turn()
                if begin <= time.monotonic() < end:
                    items += done
            pipe.send(items)


ROLES: dict[str, Any] = {"crowd": crowd}

if __name__ == "__main__":
    main(ROLES)
