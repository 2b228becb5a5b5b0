"""What the client's and the writers' arguments are called, and which of Python's and numpy's values they may be."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from tests.daemon.compat import data, fifo, size

pytest_plugins = ["tests.daemon.compat_fixtures"]

TABLES = [fifo("table"), reverb.Table.queue("queue", 1)]


def one_item(client: reverb.Client) -> int:
    client.insert(data=1, priorities={"table": 1.0, "queue": 1.0})
    key: int = next(client.sample(table="queue", num_samples=1))[0].info.key
    return key


def test_every_argument_goes_by_the_name_it_has_in_reverb(client: reverb.Client) -> None:
    writer = client.writer(max_sequence_length=2, delta_encoded=True, chunk_length=1, max_in_flight_items=25)
    writer.append(data=[1])
    writer.append_sequence(sequence=[np.arange(2)])
    writer.create_item(table="table", num_timesteps=2, priority=1.0)
    writer.close(retry_on_unavailable=True)
    trajectories = client.trajectory_writer(num_keep_alive_refs=2, validate_items=True)
    trajectories.configure(("a",), num_keep_alive_refs=2, max_chunk_length=1)
    trajectories.append(data={"a": 1}, partial_step=False)
    trajectories.create_item(table="table", priority=1.0, trajectory=trajectories.history["a"][:])
    trajectories.flush(block_until_num_items=0, timeout_ms=None)
    trajectories.end_episode(clear_buffers=True, timeout_ms=None)
    trajectories.close()
    assert client.server_info(timeout=60)["table"].current_size == 2
    client.mutate_priorities(table="table", updates={}, deletes=[])
    found = client.sample(table="table", num_samples=2, emit_timesteps=False, unpack_as_table_signature=False)
    assert [sample.data[0].tolist() for sample in found] == [[0, 1], [1]]


@pytest.mark.parametrize("timeout_ms", [None, 3000])
def test_a_trajectory_writer_takes_the_timeout_that_older_programs_give_it(
    client: reverb.Client, timeout_ms: int | None
) -> None:
    writer = client.trajectory_writer(1, get_signature_timeout_ms=timeout_ms)
    writer.append(1)
    if timeout_ms is None:
        writer.create_item("nowhere", 1.0, writer.history[:])
        with pytest.raises(RuntimeError, match="Priority table nowhere was not found"):
            writer.flush()
    else:
        with pytest.raises(ValueError, match="nowhere"):
            writer.create_item("nowhere", 1.0, writer.history[:])
    writer.close()


def test_lengths_may_be_numpys(client: reverb.Client) -> None:
    with client.writer(np.int64(2)) as writer:
        writer.append(1)
        writer.create_item("table", 1, 1.0)
    with client.trajectory_writer(np.int32(2)) as trajectories:
        trajectories.append(1)
        trajectories.create_item("table", 1.0, trajectories.history[:])
    assert data(client, "table") == [[[1]], [[1]]]
    for call in (lambda: client.writer(1.5), lambda: client.trajectory_writer(1.5)):
        with pytest.raises(TypeError):
            call()


PRIORITIES = [np.float32(1.5), np.float64(2), np.int64(3), np.uint8(4), True, np.array(5.0), np.array([6.0]), 7]


def test_a_priority_is_any_number(client: reverb.Client) -> None:
    key = one_item(client)
    with client.trajectory_writer(1) as writer, client.writer(1) as steps:
        writer.append(1)
        steps.append(1)
        for priority in PRIORITIES:
            writer.create_item("table", priority, writer.history[:])
            steps.create_item("table", 1, priority)
            client.insert(1, {"table": priority})
            client.mutate_priorities("table", {key: priority})
    assert size(client, "table") == 1 + 3 * len(PRIORITIES)
    found = sorted(
        info.priority for sample in client.sample("table", size(client, "table")) for info in [sample[0].info]
    )
    assert found == sorted([1.0, *3 * [float(np.asarray(priority).item()) for priority in PRIORITIES]])


@pytest.mark.parametrize("priority", ["1.0", b"1", None, [1.0], np.array([1.0, 2.0]), 1j])
def test_what_is_no_number_is_no_priority(client: reverb.Client, priority: Any) -> None:
    writer, steps = client.trajectory_writer(1), client.writer(1)
    writer.append(1)
    steps.append(1)
    for call in (
        lambda: writer.create_item("table", priority, writer.history[:]),
        lambda: steps.create_item("table", 1, priority),
        lambda: client.insert(1, {"table": priority}),
        lambda: client.mutate_priorities("table", {1: priority}),
    ):
        with pytest.raises(TypeError):
            call()
    writer.close()
    steps.close()
    assert size(client, "table") == 0


@pytest.mark.parametrize("kind", [int, np.uint64])
@pytest.mark.parametrize("container", [list, tuple, lambda keys: np.array(keys, np.uint64), iter])
def test_keys_are_integers_of_any_kind_in_any_sequence(client: reverb.Client, kind: Any, container: Any) -> None:
    client.insert(1, {"table": 1.0})
    with client.trajectory_writer(1) as writer:
        writer.append(1)
        writer.create_item("queue", 1.0, writer.history[:])
    key = next(client.sample("queue"))[0].info.key
    client.mutate_priorities("queue", updates={kind(key): 2.0, kind(5): 1.0}, deletes=container([kind(key)]))
    assert size(client, "table") == 1


@pytest.mark.parametrize("key", ["a", 1.0, 1.5, -1, 2**64, None, np.float64(3), (1,)])
def test_what_is_no_key_changes_nothing(client: reverb.Client, key: Any) -> None:
    client.insert(1, {"table": 1.0})
    for changes in ({"updates": {key: 2.0}}, {"deletes": [key]}):
        with pytest.raises(TypeError, match="keys of items are integers"):
            client.mutate_priorities("table", **changes)
    assert size(client, "table") == 1


def test_a_table_is_named_by_a_string(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    writer.append(1)
    with pytest.raises(TypeError):
        writer.create_item(7, 1.0, writer.history[:])  # type: ignore[arg-type]
    writer.close()


@pytest.mark.parametrize(
    "value", [1, 1.5, True, "text", b"bytes", np.float16(2), np.zeros((2, 0)), np.array("text"), 2j], ids=repr
)
def test_every_leaf_of_a_step_is_an_array(client: reverb.Client, value: Any) -> None:
    client.insert([value], {"table": 1.0})
    (leaf,) = next(client.sample("table"))[0].data
    assert isinstance(leaf, np.ndarray)
    assert leaf.shape == np.shape(value)
    assert leaf.flags.writeable


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda writer: writer.flush(timeout_ms=30),
            "^Flush call did not complete within provided timeout of 0:00:00.03",
        ),
        (
            lambda writer: writer.end_episode(timeout_ms=0),
            "^End episode call did not complete within provided timeout of",
        ),
    ],
)
def test_what_did_not_end_in_time_says_which_call_and_what_it_waited_for(
    client: reverb.Client, call: Any, message: str
) -> None:
    writer = client.trajectory_writer(1)
    writer.append(1)
    for _ in range(3):
        writer.create_item("queue", 1.0, writer.history[:])
    with pytest.raises(reverb.DeadlineExceededError, match=message + r".*items? not acknowledged"):
        call(writer)
    list(client.sample("queue", 3))
    writer.flush()
    writer.close()


def test_an_unknown_table_is_named_in_reverbs_words(client: reverb.Client) -> None:
    for call in (
        lambda: next(client.sample("nowhere")),
        lambda: client.reset("nowhere"),
        lambda: client.mutate_priorities("nowhere", {1: 1.0}),
    ):
        with pytest.raises(RuntimeError, match="^Priority table nowhere was not found"):
            call()
    with pytest.raises(ValueError, match='^Could not find table "nowhere"'):
        next(client.sample("nowhere", unpack_as_table_signature=True))


def trajectory(client: reverb.Client, *, validate_items: bool) -> Any:
    writer = client.trajectory_writer(1, validate_items=validate_items)
    writer.append([1])
    writer.create_item("nowhere", 1.0, [writer.history[0][:]])
    return writer


def structured(client: reverb.Client) -> Any:
    step = reverb.structured.create_reference_step([None])
    writer = client.structured_writer([reverb.structured.create_config([step[0][-1:]], "nowhere")])
    writer.append([1])
    return writer


def legacy(client: reverb.Client) -> None:
    writer = client.writer(1)
    writer.append(1)
    writer.create_item("nowhere", 1, 1.0)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda client: next(client.sample("nowhere")), RuntimeError, "Priority table nowhere was not found; "),
        (lambda client: client.reset("nowhere"), RuntimeError, "Priority table nowhere was not found; "),
        (lambda client: client.mutate_priorities("nowhere", {1: 1.0}), RuntimeError, "Priority table nowhere was not "),
        (lambda client: trajectory(client, validate_items=False).flush(), RuntimeError, "Priority table nowhere was "),
        (lambda client: structured(client).end_episode(), RuntimeError, "Priority table nowhere was not found; "),
        (
            lambda client: trajectory(client, validate_items=True),
            ValueError,
            "Unable to create item in table 'nowhere'",
        ),
        (legacy, ValueError, "Unable to find signatures for table 'nowhere' in signature cache.  Available tables: ['"),
        (
            lambda client: client.insert(1, {"table": 1.0, "nowhere": 1.0}),
            ValueError,
            "Unable to find signatures for table 'nowhere' in signature cache.  Available tables: ['queue', 'table'].",
        ),
        (lambda client: next(client.sample("nowhere", unpack_as_table_signature=True)), ValueError, "Could not find "),
        (
            lambda client: reverb.TrajectoryDataset.from_table_signature(client.server_address, "nowhere", 1),
            ValueError,
            "Server at localhost:",
        ),
        (
            lambda client: next(iter(reverb.TimestepDataset(client.server_address, "nowhere", np.int8, (), 1))),
            RuntimeError,
            "Priority table nowhere was not found; ",
        ),
    ],
)
def test_who_names_an_unknown_table_is_told_those_there_are_and_none_of_the_servers_own(
    client: reverb.Client, call: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        call(client)
    said = str(caught.value)
    assert said.startswith(text)
    assert "queue, table" in said.replace("'", "")
    assert "~" not in said
    assert size(client, "table") == 0
    # As from a worker process.
    assert str(pickle.loads(pickle.dumps(caught.value))) == said  # noqa: S301 - our own bytes


@pytest.mark.parametrize("make", [lambda client: trajectory(client, validate_items=False), structured])
def test_a_writer_that_named_an_unknown_table_says_so_at_every_call_and_may_be_closed(
    client: reverb.Client, make: Any
) -> None:
    writer = make(client)
    calls = [lambda: writer.flush(), lambda: writer.append([2]), lambda: writer.end_episode()]
    if isinstance(writer, reverb.TrajectoryWriter):
        calls.append(lambda: writer.create_item("table", 1.0, [writer.history[0][-1:]]))
    for call in (*calls, *calls):
        with pytest.raises(RuntimeError, match="^Priority table nowhere was not found"):
            call()
    if isinstance(writer, reverb.TrajectoryWriter):
        writer.close()
    assert size(client, "table") == 0
    # Another writer is another one.
    with client.trajectory_writer(1, validate_items=False) as other:
        other.append([1])
        other.create_item("table", 1.0, [other.history[0][:]])
    assert size(client, "table") == 1
