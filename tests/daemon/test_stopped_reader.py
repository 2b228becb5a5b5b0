"""A learner that is stopped for a while: what it costs, whom it holds up, and what it finds when it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from replayd.limits import UNREAD_BYTES
from replayd_client import Client
from tests.daemon.conftest import StartDaemon
from tests.daemon.harness import REPLY_S, environment

STEPS, STEP_BYTES = 1024, 8192
"""Items of one batch, each a chunk small enough to be copied into every reply: some 5 MiB a reply."""
REQUESTS = 40
OTHERS = 30
MIB = 1 << 20
SLACK_BYTES = 96 * MIB
"""Of memory that the daemon takes for other things meanwhile: what others ask for, and what the heap keeps."""

READER = """
import json, msgpack, sys, zmq
address, requests, items = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dealer = zmq.Context().socket(zmq.DEALER)
# libzmq itself would read on for a program that does not.
dealer.rcvhwm = 1
dealer.connect(address)
for id in range(requests):
    dealer.send(msgpack.packb({"v": 1, "op": "sample", "id": id, "table": "t", "n": items, "min_n": items}))
print("asked", flush=True)
sys.stdin.readline()
replies = []
for _ in range(requests):
    header, *body = dealer.recv_multipart()
    fields = msgpack.unpackb(header)
    replies.append((fields["id"], fields.get("error", {}).get("code"), sum(map(len, body))))
print(json.dumps(replies), flush=True)
"""


@contextmanager
def reader(address: str) -> Iterator[subprocess.Popen[str]]:
    """A learner that has asked for batches and reads none before a line tells it to."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, address, str(REQUESTS), str(STEPS)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def info_when(client: Client, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    deadline = time.monotonic() + REPLY_S
    while not condition(info := client.info()):
        assert time.monotonic() < deadline, info["peers"]
    return info


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fill(client: Client) -> None:
    rng = np.random.default_rng(1)
    with client.trajectory_writer(1, chunk_length=1) as writer:
        for _ in range(STEPS):
            writer.append(rng.integers(0, 256, STEP_BYTES, np.uint8))
            writer.create_item("t", 1.0, writer.history[-1:])


def test_a_stopped_learner_costs_its_quota_and_nobody_elses_time_and_finds_all_replies(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon("--table", "t,max_size=5000")
    with Client(daemon.address) as client:
        fill(client)
        client.sample_batch("t", STEPS)
        before = resident_bytes(daemon.pid)
        with reader(daemon.address) as learner:
            stuck = info_when(client, lambda info: info["peers"]["held_samples"] > 0)["peers"]
            learner.send_signal(signal.SIGSTOP)
            assert stuck["unread_bytes"] < UNREAD_BYTES.value + 2 * STEPS * STEP_BYTES
            # Others are served as ever, in the same table, as often as they like.
            for _ in range(OTHERS):
                assert len(client.sample_batch("t", 16).info.key) == 16
                client.sample("t", 1)
            still = client.info()["peers"]
            assert still["held_samples"] > REQUESTS / 4
            assert resident_bytes(daemon.pid) < before + UNREAD_BYTES.value + SLACK_BYTES
            learner.send_signal(signal.SIGCONT)
            assert learner.stdin is not None
            assert learner.stdout is not None
            learner.stdin.write("read\n")
            learner.stdin.flush()
            replies = json.loads(learner.stdout.readline())
            assert sorted(id for id, _, _ in replies) == list(range(REQUESTS))
            # Draws with replacement show each chunk once: two thirds of them.
            assert all(code is None and nbytes > STEPS * STEP_BYTES / 2 for _, code, nbytes in replies)
            info_when(client, lambda info: info["peers"]["unread_bytes"] == info["peers"]["held_samples"] == 0)
        assert client.info()["counters"]["replies_dropped"] == 0


def test_what_a_killed_learner_had_not_read_is_freed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--table", "t,max_size=5000")
    with Client(daemon.address) as client:
        fill(client)
        with reader(daemon.address) as learner:
            info_when(client, lambda info: info["peers"]["held_samples"] > 0)
            learner.send_signal(signal.SIGSTOP)
            learner.kill()
            learner.wait()
            info_when(client, lambda info: info["peers"]["unread_bytes"] == info["peers"]["held_samples"] == 0)
        assert len(client.sample_batch("t", 16).info.key) == 16
