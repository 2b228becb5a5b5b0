"""The legacy writer against a running server."""

from __future__ import annotations

from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb.client import Client
from tests.daemon.compat import by_priority, data, fifo, items, size
from tests.daemon.embedded import free_port

pytest_plugins = ["tests.daemon.compat_fixtures"]

TABLES = [
    fifo("table"),
    fifo("other"),
    fifo("specified", signature={"a": reverb.TensorSpec((2,), np.float32)}),
    fifo("sequences", signature=reverb.TensorSpec((None, 2), np.float32)),
    by_priority("prioritized", reverb.selectors.Prioritized(1.0)),
]


def test_items_are_the_last_steps(client: reverb.Client) -> None:
    with client.writer(2) as writer:
        writer.append([0])
        writer.create_item("table", 1, 1.0)
        writer.append([1])
        writer.create_item("table", 2, 1.0)
        writer.append([2])
        writer.create_item("table", 1, 1.0)
        writer.append_sequence([np.array([3, 4])])
        writer.create_item("table", 2, 1.0)
    assert data(client, "table") == [[[0]], [[0, 1]], [[2]], [[3, 4]]]


def test_the_items_are_in_their_tables_when_the_writer_is_left(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        for step in range(30):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
    assert size(client, "table") == 30


def test_the_items_are_there_also_when_an_error_leaves_the_writer(client: reverb.Client) -> None:
    with pytest.raises(KeyError), client.writer(1) as writer:
        writer.append(1)
        writer.create_item("table", 1, 1.0)
        raise KeyError
    assert size(client, "table") == 1


@pytest.mark.parametrize("chunk_length", [1, 2, 3, 7, None])
@pytest.mark.parametrize("delta_encoded", [True, False])
def test_windows_are_right_whatever_the_chunks(
    client: reverb.Client, chunk_length: int | None, delta_encoded: bool
) -> None:
    with client.writer(7, delta_encoded=delta_encoded, chunk_length=chunk_length) as writer:
        for step in range(20):
            writer.append(np.full((2,), step, np.int32))
            if step >= 4:
                writer.create_item("table", 5, 1.0)
    found = [sample.data[0][:, 0].tolist() for sample in items(client, "table")]
    assert found == [list(range(step - 4, step + 1)) for step in range(4, 20)]


def test_one_step_is_shown_in_several_tables(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        writer.append({"a": 1})
        writer.create_item(table="table", num_timesteps=1, priority=1.0)
        writer.create_item(table="other", num_timesteps=1, priority=2.0)
    assert data(client, "table") == data(client, "other") == [[[1]]]


@pytest.mark.parametrize("count", [0, -1, 3, 4])
def test_an_item_has_steps_that_are_there(client: reverb.Client, count: int) -> None:
    with client.writer(2) as writer:
        for step in range(3):
            writer.append(step)
        with pytest.raises(ValueError):
            writer.create_item("table", count, 1.0)


def test_a_flush_in_the_middle_of_a_chunk_adds_no_steps(client: reverb.Client) -> None:
    with client.writer(4, chunk_length=4) as writer:
        writer.append(0)
        writer.create_item("table", 1, 1.0)
        writer.flush()
        assert size(client, "table") == 1
        writer.append(1)
        with pytest.raises(ValueError):
            writer.create_item("table", 3, 1.0)
        writer.create_item("table", 2, 1.0)
    assert data(client, "table") == [[[0]], [[0, 1]]]


def test_flush_before_any_item_is_no_matter(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        writer.append(1)
        writer.flush()
        writer.create_item("table", 1, 1.0)
        writer.flush()
        assert size(client, "table") == 1


@pytest.mark.parametrize(
    ("table", "priority"), [("table", float("nan")), ("nowhere", 1.0), ("prioritized", -1.0), ("table", float("inf"))]
)
def test_a_bad_priority_and_an_unknown_table_are_refused_at_once(
    client: reverb.Client, table: str, priority: float
) -> None:
    with client.writer(1) as writer:
        writer.append(1)
        with pytest.raises(ValueError):
            writer.create_item(table, 1, priority)
        writer.create_item("table", 1, -2.0)
    assert size(client, "table") == 1


@pytest.mark.parametrize("step", [{"a": 1}, [1, 2, 3], {"a": 1, "b": 2, "c": 3}])
def test_steps_have_the_same_number_of_leaves(client: reverb.Client, step: Any) -> None:
    with client.writer(2) as writer:
        writer.append({"a": 1, "b": 2})
        with pytest.raises(ValueError):
            writer.append(step)
        writer.append({"a": 3, "b": 4})
        writer.create_item("table", 2, 1.0)
    assert data(client, "table") == [[[1, 3], [2, 4]]]


def test_steps_keep_dtype_and_shape(client: reverb.Client) -> None:
    with client.writer(2) as writer:
        writer.append(np.zeros(2))
        for bad in (np.zeros(3), np.zeros(2, np.float32), 1.0):
            with pytest.raises(ValueError):
                writer.append(bad)


@pytest.mark.parametrize("sequence", [{}, [], {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.zeros(2), "b": 1}, 3])
def test_a_sequence_has_an_axis_of_steps_in_each_leaf(client: reverb.Client, sequence: Any) -> None:
    with client.writer(2) as writer, pytest.raises(ValueError):
        writer.append_sequence(sequence)


def test_a_sequence_is_as_many_steps(client: reverb.Client) -> None:
    with client.writer(3) as writer:
        writer.append_sequence({"a": np.arange(3), "s": np.array(["x", "yy", "z"])})
        writer.create_item("table", 3, 1.0)
    assert data(client, "table") == [[[0, 1, 2], [b"x", b"yy", b"z"]]]


def test_an_empty_sequence_is_no_step(client: reverb.Client) -> None:
    with client.writer(3) as writer:
        writer.append_sequence([np.zeros((0, 2))])
        with pytest.raises(ValueError, match="larger than number of buffered timesteps"):
            writer.create_item("table", 1, 1.0)


@pytest.mark.parametrize("count", [1, 2])
def test_steps_may_have_the_spec_of_a_step_or_of_a_sequence(client: reverb.Client, count: int) -> None:
    with client.writer(2) as writer:
        for _ in range(2):
            writer.append(np.zeros(2, np.float32))
        writer.create_item("specified", count, 1.0)
        writer.create_item("sequences", count, 1.0)
    assert size(client, "specified") == size(client, "sequences") == 1


@pytest.mark.parametrize("step", [np.zeros(3, np.float32), np.zeros(2), (np.zeros(2, np.float32),) * 2])
def test_steps_that_do_not_fit_the_signature_are_refused(client: reverb.Client, step: Any) -> None:
    with client.writer(1) as writer:
        writer.append(step)
        with pytest.raises(ValueError, match="specified"):
            writer.create_item("specified", 1, 1.0)
    assert size(client, "specified") == 0


def test_a_closed_writer_is_not_used_again(client: reverb.Client) -> None:
    writer = client.writer(1)
    writer.append(1)
    writer.close()
    with pytest.raises(ValueError):
        writer.close()
    with pytest.raises(ValueError), writer:
        pass
    for call in (
        lambda: writer.append(1),
        lambda: writer.append_sequence([1]),
        lambda: writer.create_item("table", 1, 1.0),
        writer.flush,
    ):
        with pytest.raises(RuntimeError):
            call()


def test_a_writer_may_be_closed_inside_its_block(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        writer.append(1)
        writer.create_item("table", 1, 1.0)
        writer.close()
    assert size(client, "table") == 1


def test_close_without_retries_sends_what_there_is_if_the_server_is_there(client: reverb.Client) -> None:
    writer = client.writer(2)
    writer.append([0])
    writer.create_item("table", 1, 1.0)
    writer.close(retry_on_unavailable=False)
    assert size(client, "table") == 1


def test_close_without_retries_does_not_wait_for_a_server_that_is_gone() -> None:
    server = reverb.Server([fifo("table")], port=free_port())
    client = server.localhost_client()
    writer = client.writer(1)
    writer.append(1)
    writer.create_item("table", 1, 1.0)
    writer.flush()
    server.stop()
    writer.append(2)
    writer.create_item("table", 1, 1.0)
    writer.close(retry_on_unavailable=False)


def test_the_items_in_flight_are_bounded(client: reverb.Client) -> None:
    with client.writer(1, chunk_length=1, max_in_flight_items=1) as writer:
        for step in range(10):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
            assert size(client, "table") >= step
    assert size(client, "table") == 10


def test_any_number_of_items_may_be_in_flight_if_asked_for(client: reverb.Client) -> None:
    with client.writer(1, max_in_flight_items=None) as writer:
        for step in range(100):
            writer.append(step)
            writer.create_item("table", 1, 1.0)
    assert size(client, "table") == 100


def test_each_writer_is_an_episode_of_its_own(client: reverb.Client) -> None:
    for _ in range(2):
        with client.writer(2) as writer:
            for step in range(3):
                writer.append(step)
                writer.create_item("table", 1, 1.0)
    assert client.server_info()["table"].num_episodes == 2


def test_many_threads_write_with_one_client(compat_server: reverb.Server) -> None:
    client = Client(f"localhost:{compat_server.port}")

    def write(step: int) -> None:
        with client.writer(1) as writer:
            writer.append([step])
            writer.flush()
            writer.create_item("table", 1, 1.0)
            writer.flush()

    with ThreadPool(32) as pool:
        pool.map(write, range(96))
    assert sorted(columns[0][0] for columns in data(client, "table")) == list(range(96))


def test_a_writer_that_is_left_to_itself_sends_what_there_is(client: reverb.Client) -> None:
    writer = client.writer(1)
    writer.append(1)
    writer.create_item("table", 1, 1.0)
    del writer
    assert [sample[0].data for sample in client.sample("table")] == [[1]]
