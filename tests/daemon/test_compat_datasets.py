"""Datasets over the tables of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb.replay_sample import SampleInfo
from replayd.compat.reverb.timestep_dataset import TimestepDataset
from replayd.compat.reverb.trajectory_dataset import TrajectoryDataset
from tests.daemon.compat import fifo
from tests.daemon.embedded import free_port

SIGNATURE = {"a": reverb.TensorSpec((None,), np.int64), "b": [reverb.TensorSpec((None, 2), np.float32)]}
SHOWN = {"dtypes": {"a": np.int64, "b": [np.float32]}, "shapes": {"a": (None,), "b": [(None, 2)]}}
STEPS = {"dtypes": SHOWN["dtypes"], "shapes": {"a": (), "b": [(2,)]}}


@pytest.fixture(scope="module")
def server() -> Iterator[reverb.Server]:
    made = reverb.Server([fifo("signed", signature=SIGNATURE), fifo("a table"), fifo("plain")])
    yield made
    made.stop()


@pytest.fixture
def client(server: reverb.Server) -> Iterator[reverb.Client]:
    made = server.localhost_client()
    yield made
    for table in ("signed", "plain"):
        made.reset(table)


def write(client: reverb.Client, table: str, items: int, rows: int = 3, priority: float = 1.0) -> None:
    with client.trajectory_writer(rows) as writer:
        for item in range(items):
            for row in range(rows):
                writer.append({"a": 10 * item + row, "b": [np.full(2, item, np.float32)]})
            history = writer.history
            writer.create_item(table, priority, {"a": history["a"][-rows:], "b": [history["b"][0][-rows:]]})


def dataset(kind: Any, client: reverb.Client, table: str = "signed", **settings: Any) -> Any:
    arguments = {**(SHOWN if kind is TrajectoryDataset else STEPS), "rate_limiter_timeout_ms": 50, **settings}
    return kind(
        server_address=client.server_address, table=table, **{"max_in_flight_samples_per_worker": 10, **arguments}
    )


def test_trajectories_come_in_order_until_the_table_has_none_for_a_while(client: reverb.Client) -> None:
    write(client, "signed", 5)
    samples = list(dataset(TrajectoryDataset, client))
    assert [sample.data["a"].tolist() for sample in samples] == [[10 * i, 10 * i + 1, 10 * i + 2] for i in range(5)]
    assert isinstance(samples[0].data["b"], tuple)
    assert samples[0].data["b"][0].shape == (3, 2)


def test_steps_come_row_by_row(client: reverb.Client) -> None:
    write(client, "signed", 2)
    samples = list(dataset(TimestepDataset, client))
    assert [int(sample.data["a"]) for sample in samples] == [0, 1, 2, 10, 11, 12]
    assert [int(sample.data["b"][0][0]) for sample in samples] == [0, 0, 0, 1, 1, 1]
    assert samples[0].info == samples[2].info != samples[3].info


def test_the_info_of_a_sample_has_the_dtypes_it_promises(client: reverb.Client) -> None:
    write(client, "signed", 1, priority=-2.5)
    info = next(iter(dataset(TrajectoryDataset, client))).info
    assert [value.dtype for value in info] == list(SampleInfo.tf_dtypes())
    assert info.priority == -2.5
    assert info.times_sampled == info.table_size == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_dataset_ends_after_as_many_samples_as_asked_for(client: reverb.Client, count: int) -> None:
    write(client, "signed", 4)
    found = list(dataset(TrajectoryDataset, client, max_samples=count, rate_limiter_timeout_ms=-1))
    assert len(found) == count
    assert client.server_info()["signed"].current_size == 4 - count


def test_a_dataset_may_be_iterated_again_and_in_part(client: reverb.Client) -> None:
    write(client, "signed", 4)
    samples = dataset(TrajectoryDataset, client, max_in_flight_samples_per_worker=1)
    assert [int(sample.data["a"][0]) for sample in samples.take(2)] == [0, 10]
    assert [int(sample.data["a"][0]) for sample in samples.take(-1)] == [20, 30]


def test_samples_are_batched(client: reverb.Client) -> None:
    write(client, "signed", 4)
    batch = next(iter(dataset(TrajectoryDataset, client).batch(4)))
    assert batch.data["b"][0].shape == (4, 3, 2)
    assert batch.info.key.shape == (4,)


@pytest.mark.parametrize(("kind", "shape"), [(TrajectoryDataset, (None, 2)), (TimestepDataset, (2,))])
def test_a_dataset_is_made_of_the_signature(client: reverb.Client, kind: Any, shape: Any) -> None:
    write(client, "signed", 1)
    made = kind.from_table_signature(client.server_address, "signed", 10, rate_limiter_timeout_ms=50)
    assert made.element_spec.data["b"][0] == reverb.TensorSpec(shape, np.float32)
    assert len(list(made)) == (1 if kind is TrajectoryDataset else 3)


@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
def test_the_signature_must_be_there(client: reverb.Client, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"does not contain any table named nowhere\. Found: a table, plain, signed\."):
        kind.from_table_signature(client.server_address, "nowhere", 10)
    with pytest.raises(ValueError, match="Table plain at .* does not have a signature"):
        kind.from_table_signature(client.server_address, "plain", 10)


def test_the_signature_is_waited_for_as_long_as_asked() -> None:
    with pytest.raises(reverb.DeadlineExceededError):
        TrajectoryDataset.from_table_signature(f"localhost:{free_port()}", "table", 10, get_signature_timeout_secs=1)


@pytest.mark.parametrize(
    "spec",
    [
        {"dtypes": np.int64, "shapes": (None,)},
        {"dtypes": {"a": np.int32, "b": [np.float32]}, "shapes": SHOWN["shapes"]},
        {"dtypes": SHOWN["dtypes"], "shapes": {"a": (), "b": [(None, 2)]}},
        {"dtypes": SHOWN["dtypes"], "shapes": {"a": (None,), "b": [(None, 3)]}},
    ],
)
def test_a_spec_that_the_signature_contradicts_is_refused_before_anything_is_drawn(
    client: reverb.Client, spec: Any
) -> None:
    write(client, "signed", 1)
    with pytest.raises(ValueError, match="signature"):
        next(iter(dataset(TrajectoryDataset, client, **spec)))
    assert client.server_info()["signed"].current_size == 1


@pytest.mark.parametrize(
    "spec", [{"dtypes": np.int64, "shapes": (None,)}, {"dtypes": SHOWN["dtypes"], "shapes": {"a": (2,), "b": [None]}}]
)
def test_a_sample_that_does_not_fit_the_spec_is_refused(client: reverb.Client, spec: Any) -> None:
    write(client, "plain", 1)
    with pytest.raises(ValueError, match="plain"):
        next(iter(dataset(TrajectoryDataset, client, "plain", **spec)))


def test_any_shape_may_be_asked_for(client: reverb.Client) -> None:
    write(client, "plain", 1)
    spec = {"dtypes": SHOWN["dtypes"], "shapes": {"a": None, "b": [None]}}
    assert next(iter(dataset(TrajectoryDataset, client, "plain", **spec))).data["a"].tolist() == [0, 1, 2]


def test_items_without_steps_have_no_timesteps(client: reverb.Client) -> None:
    with client.trajectory_writer(2) as writer:
        for step in range(2):
            writer.append({"a": step})
        writer.create_item("plain", 1.0, {"a": writer.history["a"][-1]})
    with pytest.raises(ValueError):
        next(iter(dataset(TimestepDataset, client, "plain", dtypes={"a": np.int64}, shapes={"a": ()})))


def test_strings_are_sampled_as_bytes(client: reverb.Client) -> None:
    client.insert(["one", 1], {"plain": 1.0})
    spec = {"dtypes": ["string", np.int64], "shapes": [(None,), (None,)]}
    sample = next(iter(dataset(TrajectoryDataset, client, "plain", **spec)))
    assert sample.data[0].tolist() == [b"one"]


def test_an_unknown_table_is_an_error_when_iteration_starts(client: reverb.Client) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        next(iter(dataset(TrajectoryDataset, client, "nowhere")))
