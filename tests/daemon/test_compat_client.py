"""The client against a running server: inserting, sampling, mutating, asking."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb.client import Client
from tests.daemon.embedded import free_port

TABLE, QUEUE, NESTED = "table", "queue", "nested"
SIGNATURE = {"a": reverb.TensorSpec((3,), np.int64), "b": reverb.TensorSpec((3, 2, 2), np.float32)}


@pytest.fixture(scope="module")
def server() -> Iterator[reverb.Server]:
    made = reverb.Server(
        [
            reverb.Table(
                TABLE,
                sampler=reverb.selectors.Prioritized(1),
                remover=reverb.selectors.Fifo(),
                max_size=1000,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=reverb.TensorSpec((), np.int64),
            ),
            reverb.Table.queue(NESTED, 10, signature=SIGNATURE),
            reverb.Table.queue(QUEUE, 10),
        ],
        port=None,
    )
    yield made
    made.stop()


@pytest.fixture
def client(server: reverb.Server) -> Iterator[reverb.Client]:
    made = Client(f"localhost:{server.port}")
    yield made
    for table in (TABLE, NESTED, QUEUE):
        made.reset(table)


def keys(client: reverb.Client, count: int = 200) -> Counter[int]:
    return Counter(sample[0].info.key for sample in client.sample(TABLE, count))


def test_a_sample_tells_the_size_of_the_table(client: reverb.Client) -> None:
    for count in range(1, 6):
        client.insert(count, {TABLE: 1.0})
        assert next(client.sample(TABLE, 1))[0].info.table_size == count


def test_a_sample_tells_its_probability(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    client.insert(2, {TABLE: 3.0})
    found = {sample[0].info.priority: sample[0].info.probability for sample in client.sample(TABLE, 60)}
    assert found == {1.0: 0.25, 3.0: 0.75}


def test_a_sample_counts_how_often_its_item_was_drawn(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    assert [sample[0].info.times_sampled for sample in client.sample(TABLE, 4)] == [1, 2, 3, 4]


def test_an_item_of_priority_zero_is_never_drawn(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 0.0})
    client.insert(2, {TABLE: 1.0})
    assert {int(sample[0].data[0]) for sample in client.sample(TABLE, 50)} == {2}


def test_items_are_drawn_in_proportion_to_their_priorities(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    client.insert(2, {TABLE: 0.1})
    drawn = Counter(int(sample[0].data[0]) for sample in client.sample(TABLE, 4000))
    assert drawn[1] / 4000 == pytest.approx(1 / 1.1, abs=0.04)


def test_the_numbers_of_a_sample_are_pythons(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    info = next(client.sample(TABLE, emit_timesteps=False)).info
    assert [type(value) for value in info] == [int, float, int, float, int]


def test_one_step_may_enter_several_tables(client: reverb.Client) -> None:
    client.insert(5, {TABLE: 2.0, QUEUE: -1.0})
    assert next(client.sample(TABLE))[0].data[0] == 5
    info = next(client.sample(QUEUE))[0].info
    assert info.priority == -1.0


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_a_priority_that_a_prioritized_table_does_not_take_is_refused(client: reverb.Client, priority: float) -> None:
    with pytest.raises(ValueError):
        client.insert(1, {TABLE: priority})
    client.insert(1, {TABLE: 1.0})
    assert len(list(client.sample(TABLE, 3))) == 3


def test_inserting_into_an_unknown_table_is_a_value_error(client: reverb.Client) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        client.insert(1, {"nowhere": 1.0})


def test_inserting_what_cannot_be_stored_is_a_type_error(client: reverb.Client) -> None:
    with pytest.raises(TypeError):
        client.insert(object(), {TABLE: 1.0})
    with pytest.raises(TypeError):
        client.insert({"a": None}, {QUEUE: 1.0})


def test_a_step_may_have_the_spec_of_a_step_or_of_a_trajectory_of_one(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    for bad in (1.0, np.zeros(3, np.int64), [1, 2]):
        with pytest.raises(ValueError, match=TABLE):
            client.insert(bad, {TABLE: 1.0})


def test_signatures_are_compared_by_position(client: reverb.Client) -> None:
    client.insert({"x": np.int64(3)}, {TABLE: 1.0})
    client.insert([np.int64(3)], {TABLE: 1.0})
    assert client.server_info()[TABLE].current_size == 2


def test_steps_of_any_shape_and_dtype_enter_a_table_without_a_signature(client: reverb.Client) -> None:
    steps = [
        np.ones((), np.int64),
        np.ones((2, 2), np.float32),
        np.ones(3, np.int32),
        np.bool_(True),
        1j,
        np.float16(2),
    ]
    for step in steps:
        client.insert(step, {QUEUE: 1.0})
    for step, sample in zip(steps, client.sample(QUEUE, len(steps)), strict=True):
        assert np.array_equal(sample[0].data[0], step)
        assert np.asarray(sample[0].data[0]).dtype == np.asarray(step).dtype


def test_text_and_bytes_come_back_as_bytes(client: reverb.Client) -> None:
    client.insert({"text": "é", "bytes": b"\x00\x01", "many": np.array([["a", "bcd"]])}, {QUEUE: 1.0})
    binary, many, text = next(client.sample(QUEUE, emit_timesteps=False)).data
    assert binary.tolist() == [b"\x00\x01"]
    assert many.tolist() == [[[b"a", b"bcd"]]]
    assert text.tolist() == ["é".encode()]


def test_a_nest_is_sampled_as_a_flat_list_in_the_order_of_its_keys(client: reverb.Client) -> None:
    client.insert({"c": 3, "a": 1, "b": [2, (5,)]}, {QUEUE: 1.0})
    assert [int(leaf) for leaf in next(client.sample(QUEUE))[0].data] == [1, 2, 5, 3]


@pytest.mark.parametrize(
    "step", [{2: 20, 10: 100, 1: 10}, {"": 1, "x": 2}, {"a/b": 1, "a": 2}, {"~string": 1}, [[], [1]], {"k" * 300: 1}]
)
def test_keys_that_the_protocol_does_not_know_are_no_matter(client: reverb.Client, step: Any) -> None:
    client.insert(step, {QUEUE: 1.0})
    found = [int(leaf) for leaf in next(client.sample(QUEUE))[0].data]
    assert found == [step[key] for key in sorted(step)] if isinstance(step, dict) else found == [1]


def test_an_inserted_step_is_a_trajectory_of_one_row(client: reverb.Client) -> None:
    client.insert(np.ones((3, 3), np.int32), {QUEUE: 1.0})
    sample = next(client.sample(QUEUE, emit_timesteps=False))
    assert [column.shape for column in sample.data] == [(1, 3, 3)]


def write_nested(client: reverb.Client) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": np.int64(step), "b": np.full((2, 2), step, np.float32)})
        writer.create_item(NESTED, 1.0, {name: column[:] for name, column in writer.history.items()})


def test_a_trajectory_is_unpacked_as_the_signature(client: reverb.Client) -> None:
    write_nested(client)
    sample = next(client.sample(NESTED, emit_timesteps=False, unpack_as_table_signature=True))
    assert sample.data["a"].tolist() == [0, 1, 2]
    assert sample.data["b"].shape == (3, 2, 2)


def test_steps_are_unpacked_as_the_signature(client: reverb.Client) -> None:
    write_nested(client)
    steps = next(client.sample(NESTED, unpack_as_table_signature=True))
    assert [int(step.data["a"]) for step in steps] == [0, 1, 2]
    assert len({step.info for step in steps}) == 1


def test_a_trajectory_stays_flat_unless_unpacked(client: reverb.Client) -> None:
    write_nested(client)
    sample = next(client.sample(NESTED, emit_timesteps=False))
    assert [column.shape for column in sample.data] == [(3,), (3, 2, 2)]


def test_a_table_without_a_signature_stays_flat(client: reverb.Client) -> None:
    client.insert({"a": 1}, {QUEUE: 1.0})
    assert next(client.sample(QUEUE, emit_timesteps=False, unpack_as_table_signature=True)).data[0].tolist() == [1]


def test_sampling_an_unknown_table_is_an_error(client: reverb.Client) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        next(client.sample("nowhere"))
    with pytest.raises(ValueError, match="nowhere"):
        next(client.sample("nowhere", emit_timesteps=False, unpack_as_table_signature=True))


def test_columns_of_several_lengths_have_no_steps(client: reverb.Client) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": step, "b": step})
        writer.create_item(QUEUE, 1.0, {"a": writer.history["a"][:], "b": writer.history["b"][-2:]})
        writer.create_item(QUEUE, 1.0, {"a": writer.history["a"][-1]})
    with pytest.raises(ValueError):
        next(client.sample(QUEUE))
    with pytest.raises(TypeError):
        next(client.sample(QUEUE))


def test_nothing_is_drawn_before_the_first_sample_is_asked_for(client: reverb.Client) -> None:
    for step in range(5):
        client.insert(step, {QUEUE: 1.0})
    samples = client.sample(QUEUE, 5)
    assert client.server_info()[QUEUE].current_size == 5
    next(samples)
    assert client.server_info()[QUEUE].current_size == 4


def test_one_sample_draws_exactly_one(client: reverb.Client) -> None:
    for step in range(3):
        client.insert(step, {QUEUE: 1.0})
    assert len(list(client.sample(QUEUE))) == 1
    assert client.server_info()[QUEUE].rate_limiter_info.sample_stats.completed == 1


@pytest.mark.parametrize("taken", [1, 2, 5, 9])
def test_who_stops_early_has_drawn_at_most_half_as_much_again(client: reverb.Client, taken: int) -> None:
    client.insert(1, {TABLE: 1.0})
    samples = client.sample(TABLE, 1000)
    for _ in range(taken):
        next(samples)
    drawn = client.server_info()[TABLE].rate_limiter_info.sample_stats.completed
    assert taken <= drawn <= taken + taken // 2


@pytest.mark.parametrize("count", [1, 2, 3, 64, 333])
def test_as_many_samples_come_as_were_asked_for(client: reverb.Client, count: int) -> None:
    client.insert(1, {TABLE: 1.0})
    assert len(list(client.sample(TABLE, count))) == count
    assert client.server_info()[TABLE].rate_limiter_info.sample_stats.completed == count


def test_a_sample_waits_for_an_insert(client: reverb.Client) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(client.sample(QUEUE, 2)))
    thread.start()
    for step in range(2):
        client.insert(step, {QUEUE: 1.0})
    thread.join(60)
    assert [int(sample[0].data[0]) for sample in found] == [0, 1]


def test_priorities_are_updated(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    client.insert(2, {TABLE: 1.0})
    by_value = {int(sample[0].data[0]): sample[0].info.key for sample in client.sample(TABLE, 50)}
    client.mutate_priorities(TABLE, updates={by_value[1]: 0.0, by_value[2]: 7.0})
    found = {(int(sample[0].data[0]), sample[0].info.priority) for sample in client.sample(TABLE, 20)}
    assert found == {(2, 7.0)}


def test_items_are_deleted(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    client.insert(2, {TABLE: 1.0})
    first = next(client.sample(TABLE))[0].info.key
    client.mutate_priorities(TABLE, deletes=[first])
    assert client.server_info()[TABLE].current_size == 1
    assert first not in keys(client)


def test_unknown_keys_are_ignored(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    client.mutate_priorities(TABLE, updates={2**64 - 1: 2.0}, deletes=[0, 123456789])
    client.mutate_priorities(TABLE)
    client.mutate_priorities(TABLE, updates=None, deletes=None)
    client.mutate_priorities(TABLE, updates={}, deletes=[])
    assert client.server_info()[TABLE].current_size == 1


def test_a_key_that_is_updated_and_deleted_is_deleted(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    key = next(client.sample(TABLE))[0].info.key
    client.mutate_priorities(TABLE, updates={key: 3.0}, deletes=[key])
    assert client.server_info()[TABLE].current_size == 0


@pytest.mark.parametrize("priority", [-1.0, float("nan")])
def test_a_bad_update_is_a_value_error_and_changes_nothing(client: reverb.Client, priority: float) -> None:
    client.insert(1, {TABLE: 2.0})
    key = next(client.sample(TABLE))[0].info.key
    with pytest.raises(ValueError):
        client.mutate_priorities(TABLE, updates={key: priority}, deletes=[key])
    assert next(client.sample(TABLE))[0].info.priority == 2.0


def test_mutating_and_resetting_an_unknown_table_is_a_runtime_error(client: reverb.Client) -> None:
    with pytest.raises(RuntimeError):
        client.mutate_priorities("nowhere", {1: 1.0})
    with pytest.raises(RuntimeError):
        client.reset("nowhere")


def test_a_reset_empties_the_table_and_its_counters(client: reverb.Client) -> None:
    client.insert(1, {TABLE: 1.0})
    before = keys(client, 5)
    client.reset(TABLE)
    info = client.server_info()[TABLE]
    assert info.current_size == info.num_episodes == info.num_unique_samples == 0
    assert info.rate_limiter_info.insert_stats.completed == info.rate_limiter_info.sample_stats.completed == 0
    client.insert(1, {TABLE: 1.0})
    assert not before & keys(client, 5), "keys are not used again"


def test_the_server_tells_of_its_tables(client: reverb.Client) -> None:
    for step in range(3):
        client.insert(step, {TABLE: 1.0})
    list(client.sample(TABLE, 1))
    tables = client.server_info()
    assert set(tables) == {TABLE, QUEUE, NESTED}
    info = tables[TABLE]
    assert info.name == TABLE
    assert info.current_size == info.num_episodes == 3
    assert info.num_unique_samples == 1
    assert info.max_size == 1000
    assert info.max_times_sampled == 0
    assert info.sampler_options.prioritized.priority_exponent == 1
    assert info.remover_options.fifo
    assert info.rate_limiter_info.insert_stats.completed == 3
    assert info.rate_limiter_info.sample_stats.completed == 1
    assert info.signature == reverb.TensorSpec((), np.int64)
    assert tables[NESTED].signature == SIGNATURE
    assert tables[QUEUE].signature is None
    assert info.table_worker_time.running_ms >= 0


def test_episodes_are_counted_and_those_that_ended(client: reverb.Client) -> None:
    client.insert(1, {QUEUE: 1.0})
    client.insert(2, {QUEUE: 1.0})
    assert client.server_info()[QUEUE].num_episodes == 2
    next(client.sample(QUEUE))
    info = client.server_info()[QUEUE]
    assert (info.num_episodes, info.num_deleted_episodes) == (1, 1)


def test_a_server_that_is_not_there_is_waited_for_as_long_as_asked() -> None:
    with pytest.raises(reverb.DeadlineExceededError):
        Client(f"localhost:{free_port()}").server_info(timeout=1)


def test_a_pickled_client_finds_its_server(client: reverb.Client) -> None:
    other = pickle.loads(pickle.dumps(client))  # noqa: S301 - our own bytes
    other.insert(1, {TABLE: 1.0})
    assert client.server_info()[TABLE].current_size == 1


def test_the_client_for_tensors_works_on_arrays(client: reverb.Client) -> None:
    tensors = reverb.TFClient(client.server_address, "shared", name="name")
    tensors.insert([np.int64(3), np.array(["text"])], np.array([QUEUE, QUEUE + "2"])[:1], np.array([2.0]))
    sample = tensors.sample(QUEUE, [np.int64, "string"])
    assert sample.data[0] == 3
    assert sample.data[1].tolist() == [b"text"]
    assert sample.info.priority.dtype == np.float64
    client.insert(1, {TABLE: 1.0})
    keys = np.array([tensors.sample(TABLE, [np.int64]).info.key, 77], np.uint64)
    tensors.update_priorities(TABLE, keys, np.array([5.0, 1.0]))
    assert next(client.sample(TABLE))[0].info.priority == 5.0


def test_the_client_for_tensors_gives_data_in_the_shape_of_the_dtypes(client: reverb.Client) -> None:
    tensors = reverb.TFClient(client.server_address)
    assert tensors.server_address == client.server_address
    client.insert({"a": np.float32(1), "b": [2, "x"]}, {QUEUE: 1.0})
    data = tensors.sample(np.array(QUEUE), {"a": np.float32, "b": [np.int64, "string"]}).data
    assert data == {"a": 1.0, "b": [2, b"x"]}
    tensors.update_priorities(np.array(QUEUE.encode()), np.array([1], np.uint64), np.array([1.0]))
    with pytest.raises(ValueError):
        tensors.sample(np.array([QUEUE]), [np.float32])


@pytest.mark.parametrize(
    ("tables", "priorities"),
    [([QUEUE], [1]), ([QUEUE], [1.0, 2.0]), (QUEUE, 1.0), ([1], [1.0]), ([[QUEUE]], [[1.0]])],
)
def test_the_client_for_tensors_checks_what_it_inserts(client: reverb.Client, tables: Any, priorities: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        reverb.TFClient(client.server_address).insert([1], tables, np.array(priorities))


def test_the_client_for_tensors_checks_what_it_updates_and_samples(client: reverb.Client) -> None:
    tensors = reverb.TFClient(client.server_address)
    with pytest.raises(ValueError):
        tensors.update_priorities(TABLE, [1, 2], [1.0])
    client.insert(1, {TABLE: 1.0})
    with pytest.raises(ValueError, match="dtypes"):
        tensors.sample(TABLE, [np.float32])


def test_a_client_may_be_used_by_many_threads(client: reverb.Client) -> None:
    def work(step: int) -> int:
        client.insert(step, {TABLE: 1.0})
        return int(next(client.sample(TABLE))[0].data[0])

    with ThreadPool(16) as pool:
        drawn = pool.map(work, range(64))
    assert set(drawn) <= set(range(64))
    assert client.server_info()[TABLE].current_size == 64
