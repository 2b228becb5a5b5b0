"""Servers that are not there, go, restart or are killed; threads and the end of the process."""

from __future__ import annotations

import gc
import http.server
import os
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.server import Daemon
from replayd_client import Client, errors
from tests.daemon.embedded import DEADLINE_S, fifo, free_port, size, uniform, until
from tests.daemon.harness import DaemonProcess, Peer
from tests.daemon.proxy import CuttingProxy

pytest_plugins = ["tests.daemon.embedded_fixtures"]


# Servers that are not there, or go.


def test_no_server_is_an_error_with_address_attempts_and_hint() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}") as client:
        with pytest.raises(errors.ConnectionLostError) as caught:
            client.server_info(timeout=0.3)
        assert isinstance(caught.value, ConnectionError)
        for word in (f"tcp://127.0.0.1:{port}", "attempt", "Is replayd running"):
            assert word in str(caught.value)
        with pytest.raises(errors.ConnectionLostError):
            client.insert(1, {"t": 1.0}, timeout_ms=50)
        with pytest.raises(errors.ConnectionLostError):
            list(client.sample("t", timeout_ms=50))


def test_an_insert_that_found_no_server_is_not_made_later(client_of: Any, serve: Any) -> None:
    port = free_port()
    client = client_of(f"127.0.0.1:{port}")
    first = serve(uniform("t"), port=port)
    client.insert(0, {"t": 1.0})
    first.stop()
    with pytest.raises(errors.ConnectionLostError) as caught:
        client.insert_batch(np.zeros(5, int)[:, None], {"t": 1.0}, timeout_ms=50)
    sent = caught.value.detail["trajectories_open"]
    assert (sent, caught.value.detail["trajectories_not_sent"]) in ((0, 5), (5, 0))
    serve(uniform("t"), port=port)
    client.insert(1, {"t": 1.0})
    until(lambda: size(client, "t") == 1 + sent)


def test_a_stream_lives_as_long_as_its_writer(client_of: Any, zmq_context: Any) -> None:
    daemon = Daemon([fifo("t")], "tcp://127.0.0.1:0", lease_s=1.0)
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    try:
        client = client_of(daemon.router_address)
        writer = client.trajectory_writer(4, chunk_length=1)
        writer.append(1)
        writer.create_item("t", 1.0, writer.history[:])
        writer.flush()
        peer = Peer(zmq_context, daemon.router_address)
        before = peer.ask("info")["counters"]["requests"]
        asked = 0

        def renewals() -> int:
            nonlocal asked
            asked += 1
            requests: int = peer.ask("info")["counters"]["requests"]
            return requests - before - asked

        # A lease is renewed three times in its length, so this many take longer than it lasts.
        until(lambda: renewals() >= 7)
        assert peer.ask("info")["streams"] == {"open": 1, "expired": 0}
        writer.append(2)
        writer.create_item("t", 1.0, writer.history[:])
        writer.close()
        until(lambda: peer.ask("info")["streams"] == {"open": 0, "expired": 0})
        peer.close()
    finally:
        daemon.stop()
        thread.join()


def test_something_else_at_the_address_is_named() -> None:
    web = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        client = Client(f"127.0.0.1:{web.server_port}")
        with client, pytest.raises(errors.ConnectionLostError, match="no replayd at"):
            client.server_info(timeout=0.5)
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


def test_a_server_that_accepts_and_says_nothing_is_an_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        client = Client(f"127.0.0.1:{silent.getsockname()[1]}")
        with client, pytest.raises(errors.ConnectionLostError, match="no answer to hello|does not speak"):
            client.server_info(timeout=0.3)


def test_a_client_outlives_its_server(serve: Any, client_of: Any) -> None:
    first = serve(uniform("t"))
    client = client_of(first)
    client.insert(1, {"t": 1.0})
    first.stop()
    with pytest.raises(errors.ConnectionLostError):
        client.server_info(timeout=0.2)
    serve(uniform("t"), port=first.port)
    client.insert(2, {"t": 1.0})
    assert size(client, "t") == 1
    assert len(client.sample_batch("t", 1)) == 1


def test_a_sample_that_waits_when_the_server_goes_is_served_by_the_next_one(serve: Any, client_of: Any) -> None:
    first = serve(replayd.Table.queue("q", 5))
    client = client_of(first)
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.sample_batch, "q", 1)
        until(lambda: bool(client.server_info()["q"].waiting))
        first.stop()
        serve(replayd.Table.queue("q", 5), port=first.port)
        client.insert(7, {"q": 1.0})
        assert drawn.result(DEADLINE_S).data.tolist() == [[7]]


def test_a_writer_carries_on_at_a_new_server_with_the_steps_it_still_shows(serve: Any, client_of: Any) -> None:
    first = serve(fifo("t"))
    client = client_of(first)
    writer = client.trajectory_writer(4, chunk_length=1)
    for number in range(3):
        writer.append(number)
        writer.create_item("t", 1.0, writer.history[-1:])
    writer.flush()
    first.stop()
    writer.append(3)
    held = writer.create_item("t", 1.0, writer.history[:])
    serve(fifo("t"), port=first.port)
    writer.flush()
    assert held.key is not None
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == [0, 1, 2, 3]


def test_a_killed_daemon_costs_only_what_it_had_acknowledged(start_daemon: Any, client_of: Any) -> None:
    daemon: DaemonProcess = start_daemon("--table", "t,max_size=100000")
    port = daemon.address.rpartition(":")[2]
    client = client_of(daemon.address)
    writer = client.trajectory_writer(2, chunk_length=2)
    handles = []
    for number in range(200):
        writer.append(number)
        handles.append(writer.create_item("t", 1.0, writer.history[-1:]))
        if number == 100:
            daemon.kill()
            acknowledged = sum(handle.done for handle in handles)
            start_daemon("--port", port, "--table", "t,max_size=100000")
    writer.close()
    assert all(handle.key is not None for handle in handles)
    assert 200 - acknowledged <= size(client, "t") <= 200


def test_answers_that_are_lost_neither_lose_nor_repeat_items(serve: Any, client_of: Any) -> None:
    server = serve(fifo("t", 10_000, max_times_sampled=1))
    # hello takes about 1.2 kB of the server's bytes and an acknowledgement 70: both are lost, each at any place.
    proxy = CuttingProxy(("127.0.0.1", server.port), iter([50, 300, 900, *range(1300, 2000, 23)]))
    try:
        client = client_of(proxy.address)
        writer = client.trajectory_writer(2, chunk_length=2, validate_items=False)
        handles = []
        for number in range(600):
            writer.append(number)
            handles.append(writer.create_item("t", 1.0, writer.history[-1:]))
            if number % 5 == 4:
                writer.flush()
        writer.close()
    finally:
        proxy.close()
    assert proxy.cuts >= 10
    assert len({handle.key for handle in handles}) == 600
    direct = client_of(server)
    assert size(direct, "t") == 600
    drawn = [int(s.data[0][0]) for s in direct.sample("t", 600, emit_timesteps=False)]
    assert drawn == list(range(600))


def test_a_lost_connection_costs_no_sockets() -> None:
    port = free_port()
    with Client(f"127.0.0.1:{port}") as client:
        counts = set()
        for _ in range(6):
            server = replayd.Server([uniform("t")], port)
            client.insert(1, {"t": 1.0})
            server.stop()
            with pytest.raises(errors.ConnectionLostError):
                client.server_info(timeout=0.05)
            gc.collect()
            counts.add(len(os.listdir("/proc/self/fd")))
        assert max(counts) - min(counts) <= 4, "each restart costs file descriptors"


def test_a_process_ends_although_its_server_is_gone(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import logging
        logging.basicConfig()
        from replayd_client import Client
        client = Client("127.0.0.1:{free_port()}")
        writer = client.trajectory_writer(2, validate_items=False)
        writer.append(1)
        writer.create_item("t", 1.0, writer.history[:])
        print("made", flush=True)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "made" in ended.stdout
    assert "closed with 1 items not acknowledged" in ended.stderr


# Threads.


def test_a_client_serves_many_threads(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t", 10_000)))

    def work(number: int) -> int:
        for turn in range(5):
            client.insert({"x": np.full(3, number)}, {"t": 1.0})
            (sample,) = client.sample("t", 1, emit_timesteps=False)
            client.mutate_priorities("t", {sample.info.key: float(turn)})
        return number

    with ThreadPoolExecutor(64) as pool:
        assert sorted(pool.map(work, range(64))) == list(range(64))
    assert size(client, "t") == 320
