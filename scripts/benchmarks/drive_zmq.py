"""Bare libzmq, PUSH to PULL: the ceiling for anything that moves one message of this size after the other."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from typing import Any

import zmq

from benchmarks.worker import Turns, main

MESSAGES_A_TURN = 64
SMALL_BYTES = 16 << 10
"""Below it a kept frame would pin the much larger buffer in which it came, so small messages are copied."""


def pull(ipc: bool, payload: int, keep: int) -> Turns:
    """Receive, and keep the last `keep` messages."""
    socket = zmq.Context().socket(zmq.PULL)
    socket.setsockopt(zmq.RCVHWM, 100)
    socket.bind(f"ipc://{tempfile.mkdtemp()}/socket" if ipc else "tcp://127.0.0.1:*")
    yield {"address": socket.getsockopt_string(zmq.LAST_ENDPOINT)}
    kept: deque[Any] = deque(maxlen=keep)
    copy = payload < SMALL_BYTES
    while True:
        for _ in range(MESSAGES_A_TURN):
            kept.append(socket.recv(copy=copy))
        yield MESSAGES_A_TURN


def push(address: str, payload: int) -> Turns:
    """Send frames that were made once, as fast as they are taken."""
    socket = zmq.Context().socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, 100)
    socket.connect(address)
    frames = [zmq.Frame(os.urandom(payload)) for _ in range(MESSAGES_A_TURN)]
    yield {}
    while True:
        for frame in frames:
            socket.send(frame, copy=False)
        yield len(frames)


ROLES: dict[str, Any] = {"pull": pull, "push": push}

if __name__ == "__main__":
    main(ROLES)
