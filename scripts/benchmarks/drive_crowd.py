"""Many client processes at once, forked from one that has everything imported: 200 starts would take minutes else."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

import blosc2  # noqa: F401 - the client's first insert imports it, which takes every process half a second

from benchmarks.drive_replayd import noise
from benchmarks.worker import Turns, main
from replayd_client import Client

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
        for pipe in pipes:
            pipe.send(seconds)
        rates = [pipe.recv() for pipe in pipes]
        yield {"items/s": sum(rates), "slowest over mean": min(rates) * len(rates) / sum(rates)}


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
            seconds = pipe.recv()
            items = 0
            started = time.perf_counter()
            while time.perf_counter() - started < seconds:
                items += turn()
            pipe.send(items / (time.perf_counter() - started))


ROLES: dict[str, Any] = {"crowd": crowd}

if __name__ == "__main__":
    main(ROLES)
