"""The Python client at work: inserting, sampling, batches, priorities, tables, against a real server."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd_client import Client, errors, sampling
from tests.daemon.embedded import DEADLINE_S, fifo, size, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


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
    with pytest.raises(ValueError, match=r"host:port|localhost:7077|must be 1 to 65535"):
        Client(address)


def test_sampling_asks_for_no_more_than_is_left(serve: Any, client_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ITEMS_PER_REQUEST", 4)
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert_batch(np.arange(20)[:, None], {"t": 1.0})
    assert [int(s.data[0][0]) for s in client.sample("t", 10, emit_timesteps=False)] == list(range(10))
    assert size(client, "t") == 10


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
        ({"x": np.zeros((2, 1), "M8[s]")}, {"t": 1.0}),
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
