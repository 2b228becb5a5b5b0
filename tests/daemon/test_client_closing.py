"""A writer that is closed while another thread waits in one of its calls: nobody waits for what may never come."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replayd
from replayd_client import errors
from tests.daemon.embedded import DEADLINE_S, fifo, size, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]

ROOT = Path(__file__).resolve().parents[2]


def full(client: Any) -> Any:
    """A writer with more items than their queue takes."""
    writer = client.trajectory_writer(1, timeout_ms=None)
    writer.append(1)
    for _ in range(4):
        writer.create_item("q", 1.0, writer.history[:])
    return writer


def append_for_ever(writer: Any) -> None:
    while True:
        writer.append(1)
        writer.create_item("q", 1.0, writer.history[-1:])


def ended_by(calls: dict[str, Callable[[], None]]) -> dict[str, BaseException]:
    """What each of these calls raised, one after the other begun in threads of their own; all must end."""
    raised: dict[str, BaseException] = {}

    def run(name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except errors.ReplaydError as error:
            raised[name] = error

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not any(thread.is_alive() for thread in threads)
    return raised


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda writer: writer.flush(), id="flush"),
        pytest.param(lambda writer: writer.end_episode(), id="end_episode"),
        pytest.param(append_for_ever, id="append"),
    ],
)
def test_a_call_that_waits_ends_when_another_thread_closes(
    serve: Any, client_of: Any, call: Callable[[Any], None]
) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    writer = full(client)
    raised = ended_by({"waits": lambda: call(writer), "closes": lambda: writer.close(timeout_ms=50)})
    assert isinstance(raised["waits"], errors.ClosedError)
    assert isinstance(raised["closes"], errors.DeadlineExceededError), "the queue is still full"
    assert writer.closed


def test_a_close_sends_what_another_thread_waited_for_in_vain(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1), fifo("free")))
    writer = full(client)
    writer.create_item("free", 1.0, writer.history[:])
    ended_by({"waits": writer.flush, "closes": lambda: writer.close(timeout_ms=50)})
    until(lambda: size(client, "free") == 1)


def test_a_thread_that_waits_for_ever_does_not_keep_the_process_from_ending() -> None:
    program = (
        "import threading, replayd\n"
        "server = replayd.Server([replayd.Table.queue('q', 1)])\n"
        "client = replayd.Client(server.address)\n"
        "writer = client.trajectory_writer(1, timeout_ms=None)\n"
        "writer.append(1)\n"
        "for _ in range(4): writer.create_item('q', 1.0, writer.history[:])\n"
        "threading.Thread(target=writer.flush, daemon=True).start()\n"
        "while client.server_info()['q'].current_size < 1: pass\n"
        "print('the end', flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the end\n"
