"""Servers and their tables, live, in one process and seen from another."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
import replayd_client
from replayd.compat import reverb
from replayd.compat.reverb._directory import REGISTRY
from replayd.compat.reverb._signatures import packed
from replayd.compat.reverb.server import Server, Table
from tests.daemon.compat import fifo
from tests.daemon.embedded import free_port, until

Serve = Callable[..., reverb.Client]

pytest_plugins = ["tests.daemon.compat_fixtures"]

ROOT = Path(__file__).resolve().parents[2]


def limited(limiter: reverb.rate_limiters.RateLimiter, **settings: Any) -> Table:
    return Table("table", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 100, limiter, **settings)


def insert(client: reverb.Client, count: int, table: str = "table") -> None:
    for step in range(count):
        client.insert(step, {table: 1.0})


def test_a_table_shows_its_state_live(serve_compat: Serve) -> None:
    table = limited(reverb.rate_limiters.MinSize(2))
    client = serve_compat(table)
    assert table.info.current_size == 0
    insert(client, 3)
    next(client.sample("table"))
    info = table.info
    assert (info.current_size, info.num_episodes, info.num_unique_samples) == (3, 3, 1)
    assert info.rate_limiter_info.insert_stats.completed == 3
    assert info == replace(client.server_info()["table"], table_worker_time=info.table_worker_time)
    client.reset("table")
    assert table.info.current_size == 0


def test_a_table_tells_whether_samples_would_pass(serve_compat: Serve) -> None:
    table = limited(reverb.rate_limiters.MinSize(2), max_times_sampled=1)
    client = serve_compat(table)
    assert not table.can_sample(1)
    insert(client, 1)
    assert not table.can_sample(1)
    insert(client, 1)
    assert table.can_sample(2)
    assert table.can_sample(3), "the limiter knows nothing of max_times_sampled"


def test_a_table_tells_whether_inserts_would_pass(serve_compat: Serve) -> None:
    table = limited(reverb.rate_limiters.SampleToInsertRatio(1.0, 2, (-100.0, 3.0)))
    client = serve_compat(table)
    assert table.can_insert(3)
    insert(client, 2)
    assert table.can_insert(1)
    assert not table.can_insert(2)
    insert(client, 1)
    assert not table.can_insert(1)
    list(client.sample("table", 2))
    assert table.can_insert(2)


def test_a_replacement_of_a_served_table_is_empty_and_may_be_served(serve_compat: Serve) -> None:
    table = limited(reverb.rate_limiters.MinSize(1), max_times_sampled=3)
    insert(serve_compat(table), 2)
    other = table.replace(max_size=5)
    assert (other.info.current_size, other.info.max_size, other.info.max_times_sampled) == (0, 5, 3)
    client = serve_compat(other)
    insert(client, 9)
    assert other.info.current_size == 5
    assert table.info.current_size == 2


def test_a_table_serves_one_server(serve_compat: Serve) -> None:
    table = limited(reverb.rate_limiters.MinSize(1))
    serve_compat(table)
    with pytest.raises(ValueError, match=r"table.*replace\(\)"):
        Server([table])
    # Its own server goes on.
    insert(serve_compat(table.replace()), 1)
    assert table.can_insert(1)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_table_whose_server_ended_is_served_again_empty_and_with_its_settings(is_dropped: bool) -> None:
    signature = reverb.TensorSpec((None,), np.int64)
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 50.0)
    table = reverb.Table(
        "table", reverb.selectors.Prioritized(0.5), reverb.selectors.Lifo(), 7, limiter, 4, signature=signature
    )
    before = table.info
    for _ in range(3):
        server = Server([table])
        client = server.localhost_client()
        assert table.info == before
        assert client.server_info()["table"].current_size == 0
        insert(client, 5)
        assert len(list(client.sample("table", 3))) == 3
        if is_dropped:
            del server
            gc.collect()
        else:
            server.stop()
        # What it shows stays until it is served again.
        assert table.info.current_size == 5
        with pytest.raises(ValueError):
            Server([table, table])
        assert table.info.current_size == 5


def test_a_table_whose_server_could_not_begin_is_served_by_the_next(serve_compat: Serve) -> None:
    first, table = (limited(reverb.rate_limiters.MinSize(1)) for _ in range(2))
    client = serve_compat(first)
    port = int(client.server_address.rpartition(":")[2])
    with pytest.raises(ValueError, match=str(port)):
        Server([table], port)
    insert(serve_compat(table), 2)
    assert (table.info.current_size, first.info.current_size) == (2, 0)


def test_a_server_picks_a_free_port_and_knows_it(serve_compat: Serve) -> None:
    server = Server([fifo("table")])
    try:
        assert 0 < server.port < 65_536
        assert server.localhost_client().server_address == f"localhost:{server.port}"
        assert str(server.port) in repr(server)
        assert "name=table" in repr(server)
    finally:
        server.stop()


def test_a_server_takes_the_port_it_is_given() -> None:
    port = free_port()
    server = Server(tables=[fifo("table")], port=port)
    try:
        assert server.port == port
        with pytest.raises(ValueError):
            Server([fifo("table")], port=port)
    finally:
        server.stop()


def test_a_server_that_stopped_leaves_its_port() -> None:
    port = free_port()
    for _ in range(2):
        server = Server([fifo("table")], port=port)
        server.localhost_client().insert(1, {"table": 1.0})
        server.stop()


def test_a_server_that_cannot_publish_its_signatures_leaves_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with monkeypatch.context() as patched:
        patched.setattr("replayd.compat.reverb.server.packed", lambda signatures: 1 / 0)
        with pytest.raises(ZeroDivisionError) as caught:
            Server([fifo("table")], port=port)
    Server([fifo("table")], port=port).stop()
    assert caught.value.__traceback__ is not None, "what failed is still referred to"


def test_stop_may_be_called_again_and_wait_returns() -> None:
    server = Server([fifo("table")])
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    server.stop()
    server.stop()
    waiting.join(60)
    assert not waiting.is_alive()
    server.wait()


def test_a_server_that_nobody_refers_to_stops() -> None:
    server = Server([fifo("table")])
    port = server.port
    del server
    again = Server([fifo("table")], port=port)
    again.stop()


def test_an_interrupt_ends_the_wait_and_the_server() -> None:
    program = (
        "import os, signal, sys, threading\n"
        # A shell's background job ignores interrupts, and so does what it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from replayd.compat import reverb\n"
        "server = reverb.Server([reverb.Table.queue('queue', 1)])\n"
        "main = threading.get_ident()\n"
        "def interrupt():\n"
        "    while sys._current_frames()[main].f_code.co_name not in ('join', '_wait_for_tstate_lock'): pass\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try: server.wait()\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        "server.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_a_queue_gives_each_item_once_in_order(serve_compat: Serve) -> None:
    client = serve_compat(Table.queue("queue", 5))
    insert(client, 5, "queue")
    assert [int(sample[0].data[0]) for sample in client.sample("queue", 5)] == [0, 1, 2, 3, 4]
    assert client.server_info()["queue"].current_size == 0


def test_a_stack_gives_the_newest_first(serve_compat: Serve) -> None:
    client = serve_compat(Table.stack("stack", 5))
    insert(client, 3, "stack")
    assert [int(sample[0].data[0]) for sample in client.sample("stack", 3)] == [2, 1, 0]


def test_a_full_queue_holds_the_next_insert_back_until_a_sample(serve_compat: Serve) -> None:
    client = serve_compat(table := Table.queue("queue", 2))
    thread = threading.Thread(target=insert, args=(client, 3, "queue"))
    thread.start()
    until(lambda: not table.can_insert(1))
    next(client.sample("queue"))
    thread.join(60)
    assert [int(sample[0].data[0]) for sample in client.sample("queue", 2)] == [1, 2]


def test_heaps_choose_by_priority_also_below_zero(serve_compat: Serve) -> None:
    client = serve_compat(
        Table("max", reverb.selectors.MaxHeap(), reverb.selectors.MinHeap(), 3, reverb.rate_limiters.MinSize(1)),
        Table("min", reverb.selectors.MinHeap(), reverb.selectors.MaxHeap(), 3, reverb.rate_limiters.MinSize(1)),
    )
    for priority in (-5.0, 3.0, -1.0, 0.0, -2.5):
        client.insert(priority, {"max": priority, "min": priority})
    for table, best, kept in (("max", 3.0, {3.0, 0.0, -1.0}), ("min", -5.0, {-5.0, -2.5, -1.0})):
        sample = next(client.sample(table))[0]
        assert (sample.info.priority, float(sample.data[0])) == (best, best)
        found = set()
        for _ in range(3):
            info = next(client.sample(table))[0].info
            found.add(info.priority)
            client.mutate_priorities(table, deletes=[info.key])
        assert found == kept


def test_heaps_go_by_priorities_as_they_are_updated(serve_compat: Serve) -> None:
    client = serve_compat(
        Table("max", reverb.selectors.MaxHeap(), reverb.selectors.Fifo(), 3, reverb.rate_limiters.MinSize(1))
    )
    for value in (1.0, 2.0):
        client.insert(value, {"max": value})
    top = next(client.sample("max"))[0].info.key
    client.mutate_priorities("max", updates={top: -2.0})
    assert next(client.sample("max"))[0].info.priority == 1.0


def test_an_item_that_a_lifo_remover_takes_at_once_is_still_counted(serve_compat: Serve) -> None:
    table = Table("table", reverb.selectors.Fifo(), reverb.selectors.Lifo(), 2, reverb.rate_limiters.MinSize(1))
    client = serve_compat(table)
    insert(client, 4)
    assert table.info.current_size == 2
    assert table.info.rate_limiter_info.insert_stats.completed == 4
    assert int(next(client.sample("table"))[0].data[0]) == 0


def test_signatures_that_are_on_their_way_are_waited_for() -> None:
    """As another process sees a server that has just begun."""
    fifo, minimum = replayd.selectors.Fifo, replayd.rate_limiters.MinSize
    registry = replayd.Table(REGISTRY, fifo(), fifo(), 1, minimum(1))
    spec = reverb.TensorSpec((None,), np.int64)
    found: list[Any] = []
    with replayd.Server([replayd.Table("table", fifo(), fifo(), 1, minimum(1)), registry]) as server:
        client = reverb.Client(f"localhost:{server.port}")
        thread = threading.Thread(target=lambda: found.append(client.server_info()["table"].signature))
        thread.start()
        until(lambda: bool(registry.pending_samples))
        with replayd_client.Client(server.address) as other:
            other.insert(np.frombuffer(packed({"table": spec}), np.uint8), {REGISTRY: 1.0})
        thread.join(60)
    assert found == [spec]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}


def test_another_process_sees_signatures_strings_and_priorities_as_they_are(serve_compat: Serve) -> None:
    signature = {
        "s": reverb.TensorSpec((None,), "string", "s"),
        "x": (reverb.TensorSpec((2, None), np.float32), [reverb.TensorSpec(None, np.uint8)]),
    }
    client = serve_compat(fifo("signed", signature=signature), fifo("plain"))
    program = (
        "import sys, numpy as np\n"
        "from replayd.compat import reverb\n"
        "client = reverb.Client(sys.argv[1])\n"
        "info = client.server_info()\n"
        "assert set(info) == {'signed', 'plain'}\n"
        "print(info['signed'].signature, info['plain'].signature)\n"
        "client.insert('text', {'plain': -3.5})\n"
        "try: client.insert(1, {'signed': 1.0})\n"
        "except ValueError: print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, client.server_address],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "{'s': TensorSpec(shape=(None,), dtype=string, name='s/s'), "
        "'x': (TensorSpec(shape=(2, None), dtype=float32, name='x/0'), "
        "[TensorSpec(shape=None, dtype=uint8, name='x/1/0')])} None\nrefused\n"
    )
    sample = next(client.sample("plain"))[0]
    assert sample.data == [b"text"]
    assert sample.info.priority == -3.5
