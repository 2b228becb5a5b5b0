"""The Python client against a real server: what people do with it, and what happens to it when things go wrong."""

from __future__ import annotations

import gc
import http.server
import logging
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd.server import Daemon
from replayd_client import Client, connection, errors, sampling, sender
from tests.daemon.harness import DaemonProcess, Peer

DEADLINE_S = 60.0
"""Bound on waiting for what must come; no expectation."""


def uniform(name: str, max_size: int = 1000, **settings: Any) -> replayd.Table:
    limiter = settings.pop("rate_limiter", None) or rate_limiters.MinSize(1)
    return replayd.Table(name, selectors.Uniform(), selectors.Fifo(), max_size, limiter, **settings)


def fifo(name: str, max_size: int = 1000, **settings: Any) -> replayd.Table:
    return replayd.Table(name, selectors.Fifo(), selectors.Fifo(), max_size, rate_limiters.MinSize(1), **settings)


@pytest.fixture
def serve() -> Iterator[Callable[..., replayd.Server]]:
    """`serve(table, …, port=None)`: a server in this process, stopped at the end."""
    servers: list[replayd.Server] = []

    def start(*tables: replayd.Table, port: int | None = None) -> replayd.Server:
        servers.append(replayd.Server(tables=tables, port=port))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def client_of() -> Iterator[Callable[[Any], Client]]:
    clients: list[Client] = []

    def make(server: Any) -> Client:
        address = server if isinstance(server, str) else server.address
        clients.append(Client(address))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        pause.wait(0.005)


def size(client: Client, table: str) -> int:
    return client.server_info()[table].current_size


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# What everybody does first.


def test_the_quick_start_runs_as_it_stands_in_the_field(serve: Any) -> None:
    server = serve(uniform("my_table"), uniform("my_table_b"))
    client = replayd.Client(f"localhost:{server.port}")
    client.insert([0, 1], priorities={"my_table": 1.0})
    drawn = list(client.sample("my_table", num_samples=2))
    assert len(drawn) == 2
    assert [[int(x) for x in step.data] for item in drawn for step in item] == [[0, 1]] * 2
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        for number in (2, 3, 4):
            writer.append({"a": number, "b": np.ones((2, 3), np.float32)})
        writer.create_item(
            table="my_table_b",
            priority=1.0,
            trajectory={"a": writer.history["a"][:], "b": writer.history["b"][-1]},
        )
    (sample,) = client.sample("my_table_b", emit_timesteps=False)
    assert sample.data[0].tolist() == [2, 3, 4]
    assert sample.data[1].shape == (2, 3)
    client.close()


def test_the_writer_of_the_field_serves_two_tables(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("a"), fifo("b")))
    with client.writer(max_sequence_length=3) as writer:
        for number in range(4):
            writer.append((np.int32(number), np.float32(-number)))
            if number >= 2:
                writer.create_item(table="a", num_timesteps=2, priority=1.5)
                writer.create_item(table="b", num_timesteps=3, priority=2.5)
    assert (size(client, "a"), size(client, "b")) == (2, 2), "the context ends when the items are in their tables"
    (timesteps,) = client.sample("b", 1)
    assert [int(step.data[0]) for step in timesteps] == [0, 1, 2]
    assert {step.info.priority for step in timesteps} == {2.5}
    batch = client.sample_batch("a", 1)
    assert batch.data[0].tolist() == [[1, 2]]


def test_sample_info_holds_plain_numbers(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.insert(1.5, {"t": 2.0})
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert [type(value) for value in sample.info] == [int, float, int, float, int]
    assert sample.info[1:] == (1.0, 1, 2.0, 1)


def test_samples_come_in_the_structure_of_the_signature_if_asked(serve: Any, client_of: Any) -> None:
    signature = {"x": replayd.TensorSpec((None, 2), np.float32), "y": [replayd.TensorSpec((None,), np.int64)]}
    client = client_of(serve(uniform("t", signature=signature)))
    client.insert({"x": np.ones(2, np.float32), "y": [7]}, {"t": 1.0})
    (item,) = client.sample("t", 1, unpack_as_table_signature=True)
    assert item[0].data["y"] == [7]
    (sample,) = client.sample("t", 1, unpack_as_table_signature=True, emit_timesteps=False)
    assert sample.data["x"].shape == (1, 2)
    assert client.server_info()["t"].signature["x"].shape == (None, 2)


def test_no_more_is_drawn_than_asked_for(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert_batch({"x": np.arange(10)[:, None]}, {"t": 1.0})
    drawn = client.sample("t", 3, emit_timesteps=False)
    assert size(client, "t") == 10, "nothing is drawn before the first next"
    assert [int(sample.data[0][0]) for sample in drawn] == [0, 1, 2]
    assert size(client, "t") == 7


def test_timesteps_of_unequal_columns_are_refused(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(3) as writer:
        for number in range(3):
            writer.append({"a": number, "b": number})
        writer.create_item("t", 1.0, {"a": writer.history["a"][:], "b": writer.history["b"][-2:]})
    with pytest.raises(ValueError, match="emit_timesteps=False"):
        list(client.sample("t", 1))


def test_priorities_are_changed_and_items_deleted(serve: Any, client_of: Any) -> None:
    table = replayd.Table("t", selectors.MaxHeap(), selectors.Fifo(), 100, rate_limiters.MinSize(1))
    client = client_of(serve(table))
    keys = client.insert_batch(np.arange(4)[:, None], {"t": np.arange(4.0)})
    assert client.mutate_priorities("t", {int(keys[0]): 9.0}, deletes=[int(keys[3])])[:2] == (1, 1)
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.info.key == keys[0]
    result = client.mutate_priorities("t", (keys, np.ones(4)), keys[1:2])
    assert (result.updated, result.deleted, result.missing.tolist()) == (2, 1, [keys[3]])
    assert client.reset("t") == 2
    assert size(client, "t") == 0


def test_a_client_pickles_to_its_address(serve: Any, client_of: Any) -> None:
    server = serve(uniform("t"))
    client = client_of(server)
    client.insert(1, {"t": 1.0})
    copy = pickle.loads(pickle.dumps(client))  # noqa: S301
    assert repr(copy) == repr(client) == f"Client({server.address!r})"
    assert size(copy, "t") == 1
    copy.close()
    with pytest.raises(errors.ClosedError):
        copy.server_info()


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", "localhost:x", "udp://a:1", "tcp://a:99999", ":1"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|localhost:7077"):
        Client(address)


# Batches.


def test_a_batch_goes_in_and_comes_out_as_arrays(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", 10_000), fifo("u", 10_000)))
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((700, 3, 5)).astype(np.float32), "n": np.arange(2100).reshape(700, 3)}
    keys = client.insert_batch(data, {"t": np.arange(700.0), "u": 2.0})
    assert keys.keys() == {"t", "u"}
    batch = client.sample_batch("t", 700)
    drawn = [batch]
    while sum(map(len, drawn)) < 700:
        drawn.append(client.sample_batch("t", 700 - sum(map(len, drawn))))
    assert batch.data["x"].shape[1:] == (3, 5)
    order = np.argsort(keys["t"])
    assert np.array_equal(np.sort(keys["t"]), keys["t"])
    found = {int(k): i for i, k in enumerate(keys["t"][order])}
    for part in drawn:
        rows = [found[int(key)] for key in part.info.key]
        np.testing.assert_array_equal(part.data["x"], data["x"][rows])
        np.testing.assert_array_equal(part.data["n"], data["n"][rows])
        np.testing.assert_array_equal(part.info.priority, np.arange(700.0)[rows])


@pytest.mark.parametrize("step_bytes", [1, 30_000, 3_000_000])
def test_batches_of_any_size_of_step_arrive_whole(serve: Any, client_of: Any, step_bytes: int) -> None:
    table = replayd.Table("t", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1), max_times_sampled=1)
    client = client_of(serve(table))
    noise = np.random.default_rng(1).integers(0, 256, (6, 1, step_bytes), np.uint8)
    even = np.zeros((6, 1, step_bytes), np.uint8)
    for data in (noise, even):
        keys = client.insert_batch(data, {"t": 1.0})
        assert len(keys) == 6
        for row in range(6):
            np.testing.assert_array_equal(client.sample_batch("t", 1).data[0], data[row])


@pytest.mark.parametrize(
    ("data", "priorities"),
    [
        ({"x": np.zeros(3)}, {"t": 1.0}),
        ({"x": np.zeros((2, 1)), "y": np.zeros((3, 1))}, {"t": 1.0}),
        ({"x": np.zeros((2, 0))}, {"t": 1.0}),
        ({}, {"t": 1.0}),
        ({"x": np.zeros((2, 1))}, {}),
        ({"x": np.zeros((2, 1))}, {"t": [1.0, 2.0, 3.0]}),
        ({"x": np.zeros((2, 1))}, {"t": [1.0, np.nan]}),
        ({"x": np.zeros((2, 1))}, {"t": -1.0}),
        ({"x": np.zeros((2, 1), "U3")}, {"t": 1.0}),
    ],
)
def test_a_batch_that_is_none_is_refused_before_it_is_sent(
    serve: Any, client_of: Any, data: Any, priorities: Any
) -> None:
    client = client_of(serve(uniform("t")))
    with pytest.raises(ValueError):
        client.insert_batch(data, priorities)
    assert size(client, "t") == 0


def test_a_batch_is_what_a_table_can_grant_at_once_unless_told(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 4)))
    client.insert_batch(np.arange(4)[:, None], {"q": 1.0})
    assert len(client.sample_batch("q", 100)) == 4
    with pytest.raises(errors.NeverGrantableError):
        client.sample_batch("q", 100, min_n=100)


def test_a_batch_waits_for_as_many_as_it_needs(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 100)))
    client.insert_batch(np.arange(3)[:, None], {"q": 1.0})
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.sample_batch, "q", 50, 8)
        until(lambda: bool(client.server_info()["q"].waiting))
        client.insert_batch(np.arange(3, 10)[:, None], {"q": 1.0})
        assert drawn.result(DEADLINE_S).data[:, 0].tolist() == list(range(10))


def test_at_the_deadline_a_batch_is_what_there_is(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 100)))
    client.insert_batch(np.arange(3)[:, None], {"q": 1.0})
    assert len(client.sample_batch("q", 50, min_n=10, timeout_ms=50)) == 3


# Writers.


def test_items_leave_by_themselves(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(5, chunk_length=1)
    writer.append(1)
    handle = writer.create_item("t", 1.0, writer.history[-1:])
    until(lambda: handle.done)
    assert handle.key is not None
    assert size(client, "t") == 1


def test_an_item_does_not_wait_for_its_chunk_to_fill(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(100)
    writer.append(1)
    handle = writer.create_item("t", 1.0, writer.history[-1:])
    until(lambda: handle.done)
    writer.append(2)
    writer.create_item("t", 1.0, writer.history[-2:])
    writer.close()
    assert [s.data[0].tolist() for s in client.sample("t", 1, emit_timesteps=False)] == [[1]]


def test_a_writer_that_is_dropped_still_delivers(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(100)
    writer.append(1)
    writer.create_item("t", 1.0, writer.history[-1:])
    del writer
    gc.collect()
    until(lambda: size(client, "t") == 1)


def test_every_kind_of_pick_comes_back_as_it_was(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    numbers = list(range(20))
    picks: list[Any] = [slice(None), slice(-5, None), slice(None, None, 3), slice(None, None, -1), [0, -1, 7, 7, 3], -2]
    with client.trajectory_writer(20, chunk_length=3) as writer:
        for number in numbers:
            writer.append({"n": number, "img": np.full((4, 4), number, np.uint8)})
        for pick in picks:
            writer.create_item("t", 1.0, {"n": writer.history["n"][pick], "img": writer.history["img"][pick]})
    for pick in picks:
        (sample,) = client.sample("t", 1, emit_timesteps=False)
        expected = np.array([numbers[i] for i in pick] if isinstance(pick, list) else numbers[pick])
        np.testing.assert_array_equal(sample.data[1], expected)
        assert np.array_equal(sample.data[0][..., 0, 0], expected)


def test_items_may_reach_over_episodes_if_buffers_are_kept(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(4) as writer:
        writer.append(1)
        writer.end_episode(clear_buffers=False)
        writer.append(2)
        assert writer.episode_steps == 1
        writer.create_item("t", 1.0, writer.history[:])
        writer.end_episode()
        assert len(writer.history) == 0
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == [1, 2]


def test_what_does_not_fit_a_table_is_refused_when_the_item_is_made(serve: Any, client_of: Any) -> None:
    signature = {"x": replayd.TensorSpec((2,), np.float32)}
    client = client_of(serve(uniform("t", signature=signature), uniform("free")))
    with client.trajectory_writer(4) as writer:
        for _ in range(3):
            writer.append({"x": np.float32(0), "y": 1})
        x, y = writer.history["x"], writer.history["y"]
        for wrong in ({"x": x[:]}, {"x": y[-2:]}, {"z": x[-2:]}, {"x": x[-2:], "y": y[-2:]}, {"x": x[-1]}):
            with pytest.raises(errors.SignatureError, match="table 't', column"):
                writer.create_item("t", 1.0, wrong)
        with pytest.raises(errors.UnknownTableError, match="'free', 't'"):
            writer.create_item("none", 1.0, {"x": x[:]})
        for priority in (float("nan"), float("inf"), -1.0):
            with pytest.raises(errors.PriorityError):
                writer.create_item("t", priority, {"x": x[-2:]})
        with pytest.raises(TypeError):
            writer.create_item("t", 1.0, {"x": 3})
        writer.create_item("t", 1.0, {"x": x[-2:]})
    assert size(client, "t") == 1


def test_what_the_server_refuses_is_told_by_the_next_call_and_the_writer_goes_on(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    writer = client.trajectory_writer(4, chunk_length=2, validate_items=False)
    for number in range(4):
        writer.append(number)
    lost = writer.create_item("nowhere", 1.0, writer.history[:])
    with pytest.raises(errors.UnknownTableError, match="refused 1 item"):
        writer.flush()
    assert isinstance(lost.error, errors.UnknownTableError)
    writer.create_item("t", 1.0, writer.history[:])
    writer.append(4)
    writer.create_item("t", 1.0, writer.history[-3:])
    writer.close()
    assert size(client, "t") == 2


def test_a_closed_writer_says_so(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    writer = client.trajectory_writer(2)
    writer.close()
    writer.close()
    for call in (lambda: writer.append(1), writer.flush, writer.end_episode, writer.__enter__):
        with pytest.raises(errors.ClosedError):
            call()


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.writer(0),
        lambda client: client.writer(2, chunk_length=3),
        lambda client: client.writer(2, chunk_length=0),
        lambda client: client.writer(2, max_in_flight_items=0),
        lambda client: client.trajectory_writer(0),
        lambda client: client.sample("t", 0),
        lambda client: client.sample_batch("t", 0),
        lambda client: client.sample_batch("t", 2, min_n=3),
    ],
)
def test_numbers_that_make_no_sense_are_refused(serve: Any, client_of: Any, make: Any) -> None:
    client = client_of(serve(uniform("t")))
    with pytest.raises(ValueError):
        make(client)


# Waiting.


def test_a_sample_that_waits_too_long_says_who_must_act(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t", rate_limiter=rate_limiters.MinSize(1000))))
    client.insert(1, {"t": 1.0})
    for call in (lambda: list(client.sample("t", timeout_ms=60)), lambda: client.sample_batch("t", 1, timeout_ms=0)):
        with pytest.raises(errors.DeadlineExceededError, match=r"'t'.*1 of min_size_to_sample 1000.*writers") as caught:
            call()
        assert caught.value.detail["who_must_act"] == "writers"
        assert isinstance(caught.value, TimeoutError)


def test_an_insert_that_is_held_back_says_who_must_act_and_enters_later(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2), uniform("free")))
    client.insert(0, {"q": 1.0})
    client.insert(1, {"q": 1.0})
    for number in (2, 3):
        with pytest.raises(errors.DeadlineExceededError, match=r"table 'q'.*learners must sample"):
            client.insert(number, {"q": 1.0}, timeout_ms=50)
    client.insert(0, {"free": 1.0})
    assert size(client, "free") == 1
    assert [int(s.data[0][0]) for s in client.sample("q", 4, emit_timesteps=False)] == [0, 1, 2, 3]


def test_a_writer_waits_when_its_window_is_full_and_loses_nothing(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    writer = client.writer(max_sequence_length=1, max_in_flight_items=3, timeout_ms=50)
    created = 0

    def create_for_ever() -> None:
        nonlocal created
        while created < 1000:
            writer.append(created)
            writer.create_item("q", 1, 1.0)
            created += 1

    with pytest.raises(errors.DeadlineExceededError, match="learners must sample"):
        create_for_ever()
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(lambda: [int(s.data[0][0]) for s in client.sample("q", created, emit_timesteps=False)])
        writer.flush()
        assert drawn.result(DEADLINE_S) == list(range(created))


def test_waiting_is_told_in_the_log(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WARN_AFTER_S", 0.05)
    monkeypatch.setattr(sender, "WARN_AFTER_S", 0.05)
    client = client_of(serve(replayd.Table.queue("q", 1)))
    with caplog.at_level(logging.WARNING, "replayd_client"), ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.sample_batch, "q", 1, timeout_ms=None)
        until(lambda: "waiting for a sample of table 'q'" in caplog.text and "writers must insert" in caplog.text)
        client.insert(1, {"q": 1.0})
        assert len(drawn.result(DEADLINE_S)) == 1
        client.insert(2, {"q": 1.0})
        inserted = pool.submit(client.insert, 3, {"q": 1.0}, timeout_ms=None)
        until(lambda: "learners must sample" in caplog.text)
        assert len(client.sample_batch("q", 1)) == 1
        inserted.result(DEADLINE_S)


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
    assert (caught.value.detail["trajectories_sent"], caught.value.detail["trajectories_not_sent"]) in ((0, 5), (5, 0))
    sent = caught.value.detail["trajectories_sent"]
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


# Threads and processes.


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


def test_a_forked_child_uses_the_client_and_not_the_writer(daemon: DaemonProcess) -> None:
    client = Client(daemon.address)
    table = next(iter(client.server_info()))
    writer = client.trajectory_writer(2, chunk_length=1)
    writer.append(1)
    writer.create_item(table, 1.0, writer.history[:])
    client.insert(0, {table: 1.0})
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                client.insert(2, {table: 1.0})
                try:
                    writer.append(3)
                except errors.ForkedClientError:
                    mine = client.trajectory_writer(1)
                    mine.append(4)
                    mine.create_item(table, 1.0, mine.history[:])
                    mine.close()
                    del writer
                    client.close()
                    code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    writer.append(2)
    writer.create_item(table, 1.0, writer.history[:])
    writer.close()
    assert size(client, table) == 1 + 2 + 4 * 2
    client.close()


def test_sampling_asks_for_no_more_than_is_left(serve: Any, client_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ITEMS_PER_REQUEST", 4)
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert_batch(np.arange(20)[:, None], {"t": 1.0})
    assert [int(s.data[0][0]) for s in client.sample("t", 10, emit_timesteps=False)] == list(range(10))
    assert size(client, "t") == 10
