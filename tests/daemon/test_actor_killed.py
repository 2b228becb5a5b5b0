"""An actor that dies in the middle of an episode leaves nothing behind but the items it had finished."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replayd_client import Client
from tests.daemon.conftest import StartDaemon
from tests.daemon.harness import REPLY_S, environment

ACTOR = """
import sys
import numpy as np
import replayd_client

client = replayd_client.Client(sys.argv[1])
writer = client.trajectory_writer(num_keep_alive_refs=50, chunk_length=2)
for step in range(41):
    writer.append({"observation": np.random.rand(1000), "step": step})
    if step == 20:
        writer.create_item("replay", 1.0, {"observation": writer.history["observation"][-3:]})
    if step == 39:
        # Its window begins far back, so that chunks between are sent and held by the lease alone once it is deleted.
        far = writer.create_item("replay", 1.0, {"step": writer.history["step"][-30:]})
writer.flush()
client.mutate_priorities("replay", deletes=[far.key])
print("in the middle", flush=True)
sys.stdin.read()
"""


def test_chunks_of_a_killed_actor_are_freed_when_its_lease_ends(start_daemon: StartDaemon, tmp_path: Path) -> None:
    config = tmp_path / "replayd.toml"
    config.write_text('[server]\nlease = "2s"\n')
    daemon = start_daemon("--config", str(config))
    actor = subprocess.Popen(
        [sys.executable, "-c", ACTOR, daemon.address],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "in the middle\n"
        with Client(daemon.address) as client:
            before = client.info()
            assert before["streams"]["open"] == 1
            assert before["chunks"]["orphan_bytes"] > 0
            # An actor that lives keeps its lease by itself, however long it is silent.
            silent_until = before["uptime_s"] + 3.0
            assert _info_when(client, lambda info: info["uptime_s"] > silent_until)["streams"]["open"] == 1
            actor.kill()
            after = _info_when(client, lambda info: info["streams"]["open"] == 0)
            assert after["chunks"]["orphan_bytes"] == 0
            assert after["streams"]["expired"] == 1
            [table] = after["tables"]
            assert (table["size"], after["chunks"]["count"]) == (1, 2)
            [sample] = client.sample("replay", emit_timesteps=False)
            assert sample.data[0].shape == (3, 1000)
    finally:
        actor.kill()
        actor.communicate()


PARKING_ACTOR = """
import sys
import numpy as np
import replayd_client
import replayd_client.errors

client = replayd_client.Client(sys.argv[1])
writer = client.trajectory_writer(num_keep_alive_refs=50, chunk_length=2)
for step in range(41):
    writer.append({"observation": np.random.rand(1000), "step": step})
    if step in (20, 40):
        writer.create_item("replay", 1.0, {"observation": writer.history["observation"][-3:]})
try:
    writer.flush(timeout_ms=500)
except replayd_client.errors.DeadlineExceededError:
    print("parked", flush=True)
if sys.stdin.readline():
    writer.create_item("replay", 1.0, {"step": writer.history["step"][-40:]})
    writer.flush()
    print("all acknowledged", flush=True)
"""


@contextmanager
def parked(start_daemon: StartDaemon, directory: Path) -> Iterator[tuple[Client, subprocess.Popen[str]]]:
    """An actor whose second insert waits at a full queue, and a client of its server; a lease takes two seconds."""
    config = directory / "replayd.toml"
    config.write_text('[server]\nlease = "2s"\n')
    daemon = start_daemon("--config", str(config), "--table", "replay,preset=queue,max_size=1")
    command = [sys.executable, "-c", PARKING_ACTOR, daemon.address]
    actor = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "parked\n"
        with Client(daemon.address) as client:
            yield client, actor
    finally:
        actor.kill()
        actor.communicate()


def test_chunks_of_a_killed_actor_are_freed_though_its_insert_is_parked(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    with parked(start_daemon, tmp_path) as (client, actor):
        assert client.info()["chunks"]["orphan_bytes"] > 0
        actor.kill()
        after = _info_when(client, lambda info: info["streams"]["open"] == 0)
        assert after["chunks"]["orphan_bytes"] == 0
        # What it had finished is there, and what waits goes in when there is room.
        for _ in range(2):
            [sample] = client.sample("replay", emit_timesteps=False)
            assert sample.data[0].shape == (3, 1000)
        assert client.info()["chunks"]["count"] == 0


def test_an_actor_that_was_stopped_beyond_its_lease_goes_on_though_its_insert_is_parked(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    with parked(start_daemon, tmp_path) as (client, actor):
        assert actor.stdin is not None
        assert actor.stdout is not None
        actor.send_signal(signal.SIGSTOP)
        _info_when(client, lambda info: info["streams"]["open"] == 0)
        actor.send_signal(signal.SIGCONT)
        # Its next item needs chunks that are gone with the lease, and the others are there once.
        print(file=actor.stdin, flush=True)
        shapes = [next(iter(client.sample("replay", emit_timesteps=False))).data[0].shape for _ in range(3)]
        assert shapes == [(3, 1000), (3, 1000), (40,)]
        assert actor.stdout.readline() == "all acknowledged\n"
        assert client.info()["tables"][0]["size"] == 0


def _info_when(client: Client, condition: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    deadline = time.monotonic() + REPLY_S
    while not condition(info := client.info()):
        assert time.monotonic() < deadline, info
    return info
