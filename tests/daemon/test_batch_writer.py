"""The batch writer against a real server: everything arrives once and in order, and nobody waits who need not."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import errors
from tests.daemon.embedded import fifo, free_port, size, uniform, until
from tests.daemon.harness import DaemonProcess
from tests.daemon.proxy import CuttingProxy

pytest_plugins = ["tests.daemon.embedded_fixtures"]


def numbered(first: int, count: int, steps: int = 2) -> dict[str, Any]:
    """Trajectories that hold their number at each step, and something else beside it."""
    number = np.repeat(np.arange(first, first + count)[:, None], steps, axis=1)
    return {"number": number, "more": np.ones((count, steps, 3), np.float32)}


def numbers(client: Any, table: str, count: int) -> list[int]:
    drawn: list[int] = []
    while len(drawn) < count:
        drawn += client.sample_batch(table, min(1000, count - len(drawn))).data["number"][:, 0].tolist()
    return drawn


def test_batches_arrive_in_their_order_in_each_table(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", 10_000, max_times_sampled=1), fifo("u", 10_000, max_times_sampled=1)))
    with client.batch_writer() as writer:
        for first in range(0, 3000, 100):
            writer.insert(numbered(first, 100), {"t": np.arange(100.0), "u": "max"})
        writer.flush()
        assert writer.open_items == 0
        assert numbers(client, "t", 3000) == list(range(3000))
        writer.insert(numbered(3000, 10), {"t": 1.0})
    assert numbers(client, "t", 10) == list(range(3000, 3010))
    assert numbers(client, "u", 3000) == list(range(3000))


def test_priorities_and_numbers_of_steps_are_those_of_each_batch(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    with client.batch_writer(codec="raw") as writer:
        writer.insert(numbered(0, 2, steps=3), {"t": [0.5, 0.25]})
        writer.insert(numbered(2, 1, steps=1), {"t": 2.0})
    shown = client.peek("t", oldest=5)
    assert [item.info.priority for item in shown] == [0.5, 0.25, 2.0]
    assert [len(item.data["number"]) for item in shown] == [3, 3, 1]


def test_arrays_may_be_written_to_after_each_call(start_daemon: Any, client_of: Any) -> None:
    daemon: DaemonProcess = start_daemon("--table", "t,max_size=1000")
    client = client_of(daemon.address)
    batch = np.full((20, 1, 400_000), 1, np.uint8)
    with client.batch_writer(codec="raw") as writer:
        writer.insert(batch, {"t": 1.0})
        writer.flush()
        daemon.send_signal(signal.SIGSTOP)
        try:
            for value in (2, 3):
                batch[:] = value
                writer.insert(batch, {"t": 1.0})
            batch[:] = 0
        finally:
            daemon.send_signal(signal.SIGCONT)
    stored = [int(item.data[0].min()) for item in client.peek("t", oldest=60)]
    assert stored == [1] * 20 + [2] * 20 + [3] * 20


def test_a_full_window_makes_the_caller_wait_and_says_what_was_added(start_daemon: Any, client_of: Any) -> None:
    daemon: DaemonProcess = start_daemon("--table", "t,max_size=1000")
    client = client_of(daemon.address)
    writer = client.batch_writer(timeout_ms=300, codec="raw")
    writer.insert(np.zeros((1, 1, 1_000_000), np.uint8), {"t": 1.0})
    writer.flush()
    daemon.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises((errors.DeadlineExceededError, errors.ConnectionLostError)) as caught:
            writer.insert(np.ones((200, 1, 1_000_000), np.uint8), {"t": 1.0})
        added, left = caught.value.detail["trajectories_open"], caught.value.detail["trajectories_not_sent"]
        assert added + left == 200
        assert 0 < added < 80
        assert f"Of this batch {added} trajectories had been added." in str(caught.value)
        with pytest.raises((errors.DeadlineExceededError, errors.ConnectionLostError)) as caught:
            writer.insert(np.ones((3, 1, 1_000_000), np.uint8), {"t": 1.0})
        assert (caught.value.detail["trajectories_open"], caught.value.detail["trajectories_not_sent"]) == (0, 3)
    finally:
        daemon.send_signal(signal.SIGCONT)
    writer.close(timeout_ms=60_000)
    assert size(client, "t") == 1 + added


def test_a_limiter_makes_the_caller_wait_for_its_turn(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 10)))
    writer = client.batch_writer(timeout_ms=300)
    writer.insert(numbered(0, 30), {"q": 1.0})
    with pytest.raises(errors.DeadlineExceededError, match="learners must sample"):
        writer.flush()
    assert writer.open_items == 30
    assert numbers(client, "q", 30) == list(range(30))
    writer.close()


def test_lost_answers_neither_lose_nor_repeat_batches(serve: Any, client_of: Any) -> None:
    server = serve(fifo("t", 10_000, max_times_sampled=1))
    # hello takes about 1.2 kB of the server's bytes and an acknowledgement 70: both are lost, each at any place.
    proxy = CuttingProxy(("127.0.0.1", server.port), iter([50, 300, 900, *range(1300, 2000, 37)]))
    try:
        with client_of(proxy.address).batch_writer() as writer:
            for first in range(0, 2000, 10):
                writer.insert(numbered(first, 10), {"t": 1.0})
                if first % 50 == 0:
                    writer.flush()
    finally:
        proxy.close()
    assert proxy.cuts >= 5
    direct = client_of(server)
    assert size(direct, "t") == 2000
    assert numbers(direct, "t", 2000) == list(range(2000))


def test_a_server_that_started_anew_gets_what_was_not_acknowledged(serve: Any, client_of: Any) -> None:
    port = free_port()
    first = serve(replayd.Table.queue("t", 5), port=port)
    client = client_of(f"127.0.0.1:{port}")
    writer = client.batch_writer()
    writer.insert(numbered(0, 5), {"t": 1.0})
    writer.flush()
    writer.insert(numbered(5, 20), {"t": 1.0})
    first.stop()
    serve(fifo("t", 1000, max_times_sampled=1), port=port)
    writer.close()
    assert numbers(client, "t", 20) == list(range(5, 25))


def test_other_columns_or_data_that_is_none_add_nothing(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    with client.batch_writer() as writer:
        writer.insert(numbered(0, 3), {"t": 1.0})
        with pytest.raises(errors.DataError, match=r"same columns: .*number: int64\[\]"):
            writer.insert({"number": np.zeros((2, 1), np.float32)}, {"t": 1.0})
        with pytest.raises(errors.PriorityError):
            writer.insert(numbered(0, 3), {"t": -1.0})
        with pytest.raises(errors.UnknownTableError):
            writer.insert(numbered(0, 3), {"nonesuch": 1.0})
        with pytest.raises(errors.DataError):
            writer.insert({"number": np.zeros(3)}, {"t": 1.0})
    assert size(client, "t") == 3
    with pytest.raises(errors.DataError, match="codec"):
        client.batch_writer(codec="nonesuch")


def test_a_refusal_is_raised_by_a_later_call(serve: Any, client_of: Any) -> None:
    port = free_port()
    first = serve(uniform("t"), port=port)
    client = client_of(f"127.0.0.1:{port}")
    writer = client.batch_writer()
    writer.insert(numbered(0, 3), {"t": 1.0})
    writer.flush()
    first.stop()
    serve(uniform("other"), port=port)
    writer.insert(numbered(3, 4), {"t": 1.0})
    with pytest.raises(errors.UnknownTableError, match="refused 4 items"):
        writer.flush()
    writer.close()


def test_bytes_in_and_bytes_stored_are_reported_by_column(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    with client.batch_writer() as writer:
        assert writer.report().columns == {}
        for _ in range(3):
            writer.insert({"x": np.zeros((5, 4, 1000)), "y": np.zeros((5, 4), np.int8)}, {"t": 1.0})
        report = writer.report()
    assert (report.steps, report.chunks, report.chunk_length) == (60, 15, 4)
    assert report.columns["x"].bytes_in == 60 * 8000
    assert report.columns["x"].ratio > 10
    assert (report.columns["y"].bytes_in, report.columns["y"].bytes_stored) == (60, 60)


def test_a_writer_that_is_dropped_sends_what_it_has(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.batch_writer().insert(numbered(0, 7), {"t": 1.0})
    until(lambda: size(client, "t") == 7)


def test_a_closed_client_closes_its_batch_writers(serve: Any, client_of: Any) -> None:
    server = serve(uniform("t"))
    client = client_of(server)
    writer = client.batch_writer()
    writer.insert(numbered(0, 7), {"t": 1.0})
    client.close()
    assert writer.closed
    with pytest.raises(errors.ClosedError):
        writer.insert(numbered(7, 1), {"t": 1.0})
    assert size(client_of(server), "t") == 7
