"""Writers that close: while another thread waits in a call of theirs, and all of a client together. Nobody waits for
what may never come."""

from __future__ import annotations

import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replayd
from replayd_client import Client, errors
from replayd_client.writer_core import CLOSE_TIMEOUT_MS
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


# All writers of a client.


def with_an_open_step(client: Any, table: str) -> Any:
    """A writer whose item can leave only when its step is finished."""
    writer = client.trajectory_writer(1)
    writer.append(1, partial_step=True)
    writer.create_item(table, 1.0, writer.history[:])
    return writer


def test_the_writers_of_a_client_close_by_one_deadline(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(replayd.Table.queue("q", 1), fifo("free"))
    client = client_of(server)
    # In whatever order they close, none keeps another from sending what it has.
    writers = [make(client) for _ in range(3) for make in (full, lambda client: with_an_open_step(client, "free"))]
    with caplog.at_level(logging.WARNING, "replayd_client"):
        client.close(timeout_ms=1000)
    assert all(writer.closed for writer in writers)
    assert size(client_of(server), "free") == 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    waits = sorted(float(re.search(r"close: [34] items not acknowledged after (\d+\.\d) s", text)[1]) for text in told)
    # The deadline is over for all when it is for one.
    assert waits[2] >= 0.9
    assert waits[1] < 0.9
    assert all("max_diff" in text for text in told), "each says what held it back"


def test_a_client_closes_by_the_time_of_one_writer_unless_told_otherwise(serve: Any) -> None:
    assert inspect.signature(Client.close).parameters["timeout_ms"].default == CLOSE_TIMEOUT_MS
    client = Client(serve(fifo("t")).address)
    writer = with_an_open_step(client, "t")
    for wrong in (-1, "soon"):
        with pytest.raises(errors.DataError, match="timeout_ms must be"):
            client.close(timeout_ms=wrong)
    assert not writer.closed
    client.close(timeout_ms=None)
    client.close()
    assert writer.closed


def refused(client: Any) -> Any:
    """A writer whose item the server will refuse."""
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append(1)
    writer.create_item("nowhere", 1.0, writer.history[:])
    return writer


def test_a_refusal_is_raised_when_all_of_a_client_is_closed(serve: Any) -> None:
    server = serve(fifo("t"))
    client = Client(server.address)
    writers = [refused(client), with_an_open_step(client, "t"), refused(client), with_an_open_step(client, "t")]
    with pytest.raises(errors.UnknownTableError, match="refused 1 item that was created earlier"):
        client.close()
    assert all(writer.closed for writer in writers)
    with pytest.raises(errors.ClosedError):
        client.info()
    with Client(server.address) as other:
        assert size(other, "t") == 2


@pytest.mark.parametrize("kind", ["client", "writer"])
def test_the_error_of_a_block_is_not_replaced_by_a_refusal(
    serve: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(serve(fifo("t")).address)
    writer = refused(client)
    with pytest.raises(KeyError, match="mine"), client if kind == "client" else writer:
        raise KeyError("mine")
    assert writer.closed
    client.close()
    assert [record.getMessage() for record in caplog.records if "refused 1 item" in record.getMessage()]


def test_who_leaves_with_an_error_of_replayd_is_not_kept_for_an_explanation(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    with pytest.raises(errors.DataError, match="mine"), full(client):
        raise errors.DataError("mine")
    [text] = [record.getMessage() for record in caplog.records]
    assert "close: 4 items not acknowledged" in text or "close: 3 items not acknowledged" in text
    assert "max_diff" not in text
