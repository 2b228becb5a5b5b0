"""The trajectory writer's waits and ends: flushing, ending episodes, leaving, closing, dropping."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replayd.compat import reverb
from tests.daemon.compat import data, fifo, size

pytest_plugins = ["tests.daemon.compat_fixtures"]

TABLES = [fifo("table")]


@pytest.fixture
def queue() -> Iterator[reverb.Client]:
    """A client of a server of its own, whose queue has room for one item: what is held back there concerns no other."""
    server = reverb.Server([reverb.Table.queue("queue", 1)])
    yield server.localhost_client()
    server.stop()


def test_flush_waits_until_items_are_there(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    for step in range(10):
        writer.append(step)
        writer.create_item("table", 1.0, writer.history[:] if step == 0 else writer.history[-1:])
        writer.flush()
        assert size(client, "table") == step + 1
    writer.close()


def test_flush_waits_until_so_many_are_left(queue: reverb.Client) -> None:
    writer = queue.trajectory_writer(1)
    for _ in range(3):
        writer.append(1)
        writer.create_item("queue", 1.0, writer.history[-1:])
    writer.flush(2)
    assert size(queue, "queue") == 1
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(1, timeout_ms=20)
    next(queue.sample("queue"))
    writer.flush(1)
    writer.close()


def test_a_flush_that_a_full_queue_holds_back_times_out(queue: reverb.Client) -> None:
    writer = queue.trajectory_writer(num_keep_alive_refs=1)
    writer.append([1])
    with pytest.raises(reverb.DeadlineExceededError):
        for _ in range(4):
            writer.create_item("queue", 1.0, writer.history[0][:])
            writer.flush(timeout_ms=1)
    writer.close()


def test_the_work_goes_on_after_a_timeout(queue: reverb.Client) -> None:
    writer = queue.trajectory_writer(1)
    for step in range(3):
        writer.append(step)
        writer.create_item("queue", 1.0, writer.history[-1:])
    with pytest.raises(reverb.DeadlineExceededError):
        writer.flush(timeout_ms=1)
    assert [int(sample[0].data[0]) for sample in queue.sample("queue", 3)] == [0, 1, 2]
    writer.flush()
    writer.close()


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_an_end_of_episode_that_is_held_back_times_out(queue: reverb.Client, clear: bool, timeout_ms: int) -> None:
    writer = queue.trajectory_writer(1)
    for step in range(3):
        writer.append(step)
        writer.create_item("queue", 1.0, writer.history[-1:])
    with pytest.raises(reverb.DeadlineExceededError):
        writer.end_episode(clear_buffers=clear, timeout_ms=timeout_ms)
    assert writer.episode_steps == 3, "nothing has changed"
    list(queue.sample("queue", 3))
    writer.end_episode(clear_buffers=clear)
    assert writer.episode_steps == 0
    assert len(writer.history) == (0 if clear else 3)
    writer.close()


def test_each_episode_starts_at_step_zero(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    for _ in range(3):
        assert writer.episode_steps == 0
        for step in range(1, 6):
            writer.append({"x": 1}, partial_step=True)
            assert writer.episode_steps == step - 1
            writer.append({"y": 1})
            assert writer.episode_steps == step
        writer.end_episode()
    writer.close()


def test_an_item_may_cross_the_end_of_an_episode_if_the_buffers_are_kept(client: reverb.Client) -> None:
    with client.trajectory_writer(4) as writer:
        for step in range(2):
            writer.append(step)
        writer.end_episode(clear_buffers=False)
        for step in range(2, 4):
            writer.append(step)
        writer.create_item("table", 1.0, writer.history[:])
    assert data(client, "table") == [[[0, 1, 2, 3]]]
    info = client.server_info()["table"]
    assert info.num_deleted_episodes == 2


def test_items_of_one_writer_share_an_episode(client: reverb.Client) -> None:
    with client.trajectory_writer(2) as writer:
        for step in range(4):
            writer.append(step)
            writer.create_item("table", 1.0, writer.history[-1:])
    assert client.server_info()["table"].num_episodes == 1


def test_leaving_the_writer_flushes_and_does_not_close(client: reverb.Client) -> None:
    with client.trajectory_writer(1) as writer:
        writer.append(1)
        writer.create_item("table", 1.0, writer.history[:])
    assert size(client, "table") == 1
    writer.append(2)
    writer.create_item("table", 1.0, writer.history[-1:])
    writer.flush()
    assert size(client, "table") == 2


def test_close_sends_what_there_is_and_ends(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item("table", 1.0, writer.history[:])
    writer.close()
    writer.close()
    assert size(client, "table") == 1
    for call in (lambda: writer.append(1), writer.flush, writer.end_episode):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises((RuntimeError, ValueError)):
        writer.create_item("table", 1.0, writer.history[-1:])


def test_a_writer_that_is_dropped_sends_what_there_is(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    writer.append(1)
    writer.create_item("table", 1.0, writer.history[:])
    del writer
    assert [int(sample[0].data[0]) for sample in client.sample("table")] == [1]
