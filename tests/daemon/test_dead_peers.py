"""Peers that are gone without a word, as when a machine loses its power: heartbeats find out, and only they pay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import zmq

from replayd import selectors, sockets
from replayd.limits import WINDOW_BYTES
from replayd.rate_limiters import MinSize, Queue
from replayd.server import Daemon
from replayd.table import Table
from replayd_client import Client, connection
from tests.daemon.conftest import ConnectPeer
from tests.daemon.embedded import DEADLINE_S, until
from tests.daemon.harness import DaemonProcess, Peer
from tests.daemon.proxy import CuttingProxy
from tests.daemon.transcripts import (
    Stream,
    error,
    insert,
    nothing_has_come,
    rows,
    sample,
    send_insert,
    table_info,
    u32,
    wait_until,
)

TABLES = {"narrow": 'preset = "queue"\nmax_size = 1', "wide": ""}
BEAT_MS, SILENCE_MS = 200, 4000
"""In place of the daemon's 5 and 45 s, and of the client's 5 and 15; a machine that stalls for a second is not dead."""
LEASE_S = 1.0
SAMPLES = 8
ITEM_BYTES = 4 << 20
"""More than a connection holds in its buffers on the way, a few of them."""
CHUNK_BYTES = 8 << 20


@pytest.fixture
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    router = {**sockets._OPTIONS[zmq.ROUTER], zmq.HEARTBEAT_IVL: BEAT_MS, zmq.HEARTBEAT_TIMEOUT: SILENCE_MS}
    monkeypatch.setattr(sockets, "_OPTIONS", {**sockets._OPTIONS, zmq.ROUTER: router})
    monkeypatch.setattr(connection, "HEARTBEAT_MS", BEAT_MS)
    monkeypatch.setattr(connection, "HEARTBEAT_TIMEOUT_MS", SILENCE_MS)


@contextmanager
def served(*tables: Table) -> Iterator[str]:
    """The address of a daemon on a thread of the test, which reads the patched heartbeats."""
    daemon = Daemon(tables, "tcp://127.0.0.1:0", lease_s=LEASE_S)
    daemon.bind()
    thread = threading.Thread(target=daemon.run, args=(False,))
    thread.start()
    try:
        yield daemon.router_address
    finally:
        daemon.stop()
        thread.join()


def fifo(name: str, limiter: Any, max_times_sampled: int = 0) -> Table:
    return Table(name, selectors.Fifo(), selectors.Fifo(), 1000, limiter, max_times_sampled=max_times_sampled)


@pytest.mark.usefixtures("_quick_beats")
def test_a_peer_that_is_gone_without_a_word_costs_its_quota_and_all_of_it_ends(
    zmq_context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    tables = (fifo("replies", MinSize(1)), fifo("never", MinSize(1)), fifo("full", Queue(1), 1))
    with ExitStack() as ends:
        address = ends.enter_context(served(*tables))
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        proxy = CuttingProxy((host, int(port)), iter([]))
        ends.callback(proxy.close)
        dead, watcher = Peer(zmq_context, f"tcp://{proxy.address}"), Peer(zmq_context, address)
        ends.callback(dead.close)
        ends.callback(watcher.close)
        # What it has open: a lease on a chunk that no item shows, an insert and samples that wait.
        stream = Stream()
        insert(dead, stream.message(rows(1)))
        insert(dead, stream.one("full", 2))
        send_insert(dead, stream.message(rows(3), tables=["full"]))
        for _ in range(SAMPLES):
            dead.send("sample", table="replies", n=1, timeout_ms=60_000)
        dead.send("sample", table="never", n=1, timeout_ms=1000)
        wait_until(watcher, lambda info: info["peers"]["parked_samples"] == SAMPLES + 1)
        assert watcher.ask("info")["streams"]["open"] == 1
        proxy.freeze()
        # What is made for it stays, as it is not read; others come and go.
        large, others = Stream(), Stream()
        insert(watcher, large.message(bytes(ITEM_BYTES), tables=["replies"], keep_from=1, length=u32(1)))
        assert watcher.ask("info")["peers"]["unread_bytes"] > 0
        for number in range(20):
            insert(watcher, others.one("never", number))
            assert watcher.ask("sample", table="never", n=1)["op"] == "sample"
        until(lambda: watcher.ask("info")["peers"]["connected"] == 1)
        until(lambda: watcher.ask("info")["peers"]["unread_bytes"] == 0)
        until(lambda: watcher.ask("info")["streams"]["expired"] > 0)
        after = watcher.ask("info")
        assert (after["peers"]["parked_samples"], after["peers"]["held_samples"]) == (0, 0)
        assert after["chunks"]["orphan_bytes"] == 0
        # What was accepted before is done: the insert that waited enters when there is room.
        assert watcher.ask("sample", table="full", n=1)["op"] == "sample"
        assert table_info(watcher, "full")["limiter"]["inserts"] == 2


@pytest.mark.usefixtures("_quick_beats")
def test_a_client_whose_server_is_gone_without_a_word_notices_and_comes_back_elsewhere() -> None:
    with served(fifo("t", MinSize(1)), fifo("later", MinSize(1))) as address, ExitStack() as ends:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        proxy = CuttingProxy((host, int(port)), iter([]))
        ends.callback(proxy.close)
        with Client(proxy.address) as client, ThreadPoolExecutor() as pool:
            writer = client.trajectory_writer(1)

            def write(numbers: Sequence[int]) -> None:
                for number in numbers:
                    writer.append(number)
                    writer.create_item("t", 1.0, writer.history[-1:])
                writer.flush()

            write(range(10))
            waits = pool.submit(client.sample_batch, "later", 1)
            with Client(address) as watcher:
                until(lambda: watcher.info()["peers"]["parked_samples"] == 1)
                proxy.freeze()
                # Each is on a connection of its own, which nobody answers any more, and which has no end.
                write(range(10, 20))
                client.insert(1, {"later": 1.0})
                assert waits.result(DEADLINE_S).data.tolist() == [[1]]
                assert [int(item.data[0]) for item in watcher.peek("t", oldest=100)] == list(range(20))


def test_who_leaves_more_bytes_unacknowledged_than_the_window_is_refused_and_loses_nothing(
    server: DaemonProcess, connect: ConnectPeer
) -> None:
    peer, other = connect(server), connect(server)
    stream = Stream()
    insert(peer, stream.one("narrow", 0.0))
    # One message is always allowed, but then there is no room for any other.
    chunks = [bytes(CHUNK_BYTES)] * (WINDOW_BYTES.value // CHUNK_BYTES + 1)
    waits = send_insert(peer, stream.message(*chunks, tables=["narrow"], keep_from=stream.number + len(chunks)))
    wait_until(other, lambda info: bool(info["tables"][0]["waiting"]))
    small = stream.one("narrow", 2.0)
    code, detail = error(insert(peer, small))
    assert (code, detail["limit"], detail["value"]) == ("limit_exceeded", "window_bytes", WINDOW_BYTES.value)
    assert detail["got"] > WINDOW_BYTES.value
    # Others insert as ever; who was refused sends the same again once there is an acknowledgement.
    assert insert(other, Stream().one("wide", 1.0))["items"] == 1
    assert nothing_has_come(peer, by=other)
    drawn = [sample(other, table="narrow", n=1)[1]]
    assert peer.receive()[0]["id"] == waits
    accepted = send_insert(peer, small)
    drawn += [sample(other, table="narrow", n=1)[1]]
    assert peer.receive()[0]["id"] == accepted
    drawn += [sample(other, table="narrow", n=1)[1]]
    assert [b"".join(body) for body in drawn] == [rows(0.0), chunks[0], rows(2.0)]
