"""id-echo's roles: a learner with its server inside, and writers. Runs in its own environment."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from echo import Server, TcpClient, TcpTransport

from benchmarks.worker import Turns, main

ITEMS_A_TURN = 64


def drain(payload: int, batch: int) -> Turns:
    """Take batches; they are views of its ring, valid until the next one, and nothing copies them here."""
    server = Server({"x": np.zeros(payload // 4, np.float32)}, batch, TcpTransport(port=0))
    server.start()
    yield {"address": str(server.port)}
    for _ in server.dataset_iter():
        yield batch


def send(address: str, payload: int) -> Turns:
    """Its one way in: a sample at a time, which waits when too many are unacknowledged."""
    steps = np.frombuffer(np.random.default_rng().bytes(ITEMS_A_TURN * payload), np.float32).reshape(ITEMS_A_TURN, -1)
    samples = [{"x": step} for step in steps]
    client = TcpClient("127.0.0.1", int(address), samples[0])
    yield {}
    for sample in itertools.cycle(samples):
        client.send(sample)
        yield 1


ROLES: dict[str, Any] = {"drain": drain, "send": send}

if __name__ == "__main__":
    main(ROLES)
