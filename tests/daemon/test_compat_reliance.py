"""What programs written for Reverb rely on without a word about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from replayd.compat import reverb
from tests.daemon.compat import by_priority, fifo, size
from tests.daemon.embedded import until

Serve = Callable[..., reverb.Client]

pytest_plugins = ["tests.daemon.compat_fixtures"]


def begun(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def inserts(client: reverb.Client, table: str) -> int:
    return int(client.server_info()[table].rate_limiter_info.insert_stats.completed)


@pytest.mark.parametrize("chunk_length", [1, 3])
def test_a_writer_that_is_left_has_its_items_in_a_table_that_is_full(serve_compat: Serve, chunk_length: int) -> None:
    limiter = reverb.rate_limiters.MinSize(1)
    client = serve_compat(reverb.Table("table", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 5, limiter))
    for episode in range(1, 4):
        with client.writer(3, chunk_length=chunk_length) as writer:
            for step in range(20):
                writer.append(100 * episode + step)
                writer.create_item("table", 1, 1.0)
        assert (size(client, "table"), inserts(client, "table")) == (5, 20 * episode)
        [[oldest]] = client.sample("table")
        assert oldest.data == [100 * episode + 15]


def test_inserts_that_wait_enter_after_a_reset(serve_compat: Serve) -> None:
    client = serve_compat(table := reverb.Table.queue("queue", 2))
    with client.writer(1, max_in_flight_items=None) as writer:
        for step in range(5):
            writer.append(step)
            writer.create_item("queue", 1, 1.0)
        flushing = begun(writer.flush)
        for entered in (2, 2):
            until(lambda entered=entered: inserts(client, "queue") == entered and not table.can_insert(1))  # type: ignore[misc]
            client.reset("queue")
        flushing.join(60)
    assert [int(sample[0].data[0]) for sample in client.sample("queue", 1)] == [4]


def test_a_sample_that_waits_is_served_after_a_reset_by_what_comes_then(serve_compat: Serve) -> None:
    limiter = reverb.rate_limiters.MinSize(2)
    table = reverb.Table("table", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 5, limiter)
    client = serve_compat(table)
    client.insert(1, {"table": 1.0})
    drawn: list[Any] = []
    drawing = begun(lambda: drawn.extend(client.sample("table")))
    until(lambda: bool(table.internal_table.pending_samples))
    client.reset("table")
    client.insert(2, {"table": 1.0})
    assert table.internal_table.pending_samples
    client.insert(3, {"table": 1.0})
    drawing.join(60)
    assert [sample[0].data for sample in drawn] == [[2]]


def test_no_key_comes_back_after_a_reset(serve_compat: Serve) -> None:
    client = serve_compat(by_priority("table", reverb.selectors.Uniform()))
    keys = set()
    for _ in range(5):
        client.insert(1, {"table": 1.0})
        keys.add(next(client.sample("table"))[0].info.key)
        client.reset("table")
    assert len(keys) == 5


def test_what_a_server_that_stops_has_not_taken_is_not_confirmed() -> None:
    server = reverb.Server([table := reverb.Table.queue("queue", 1)])
    client = server.localhost_client()
    client.insert(0, {"queue": 1.0})
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item("queue", 1.0, writer.history[-1:])
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(timeout_ms=1)
    until(lambda: bool(table.internal_table.pending_inserts))
    server.stop()
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(timeout_ms=1)
    writer.close()


def test_options_of_selectors_answer_as_protocol_buffers_do_from_a_server(serve_compat: Serve) -> None:
    client = serve_compat(fifo("table"), by_priority("other", reverb.selectors.MaxHeap()))
    info = client.server_info()
    assert info["other"].sampler_options.HasField("heap")
    assert not info["other"].sampler_options.heap.min_heap
    assert not info["other"].sampler_options.HasField("fifo")
    assert info["table"].remover_options.is_deterministic
