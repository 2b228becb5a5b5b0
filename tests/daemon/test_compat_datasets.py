"""Datasets over the tables of a running server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import replayd
import replayd_client
from replayd.compat import reverb
from replayd.compat.reverb.replay_sample import SampleInfo
from replayd.compat.reverb.timestep_dataset import TimestepDataset
from replayd.compat.reverb.trajectory_dataset import TrajectoryDataset
from tests.daemon.compat import fifo
from tests.daemon.embedded import free_port

pytest_plugins = ["tests.daemon.compat_fixtures"]

SIGNATURE = {"a": reverb.TensorSpec((None,), np.int64), "b": [reverb.TensorSpec((None, 2), np.float32)]}
STEP_SIGNATURE = {"a": reverb.TensorSpec((), np.int64), "b": [reverb.TensorSpec((2,), np.float32)]}
SHOWN = {"dtypes": {"a": np.int64, "b": [np.float32]}, "shapes": {"a": (None,), "b": [(None, 2)]}}
STEPS = {"dtypes": SHOWN["dtypes"], "shapes": {"a": (), "b": [(2,)]}}
TABLES = [
    fifo("signed", signature=SIGNATURE),
    fifo("stepped", signature=STEP_SIGNATURE),
    fifo("a table"),
    fifo("plain"),
]


def write_steps(client: reverb.Client, items: int, rows: int = 3) -> None:
    """As `write`, by the writer of whole steps, into the table whose signature is that of a step."""
    with client.writer(rows) as writer:
        for item in range(items):
            for row in range(rows):
                writer.append({"a": 10 * item + row, "b": [np.full(2, item, np.float32)]})
            writer.create_item("stepped", rows, 1.0)


def write(client: reverb.Client, table: str, items: int, rows: int = 3, priority: float = 1.0) -> None:
    with client.trajectory_writer(rows) as writer:
        for item in range(items):
            for row in range(rows):
                writer.append({"a": 10 * item + row, "b": [np.full(2, item, np.float32)]})
            history = writer.history
            writer.create_item(table, priority, {"a": history["a"][-rows:], "b": [history["b"][0][-rows:]]})


def dataset(kind: Any, client: reverb.Client, table: str | None = None, **settings: Any) -> Any:
    arguments = {**(SHOWN if kind is TrajectoryDataset else STEPS), "rate_limiter_timeout_ms": 50, **settings}
    table = table or ("signed" if kind is TrajectoryDataset else "stepped")
    return kind(
        server_address=client.server_address, table=table, **{"max_in_flight_samples_per_worker": 10, **arguments}
    )


def test_trajectories_come_in_order_until_the_table_has_none_for_a_while(client: reverb.Client) -> None:
    write(client, "signed", 5)
    samples = list(dataset(TrajectoryDataset, client))
    assert [sample.data["a"].tolist() for sample in samples] == [[10 * i, 10 * i + 1, 10 * i + 2] for i in range(5)]
    assert isinstance(samples[0].data["b"], tuple)
    assert samples[0].data["b"][0].shape == (3, 2)


@pytest.mark.parametrize("table", ["stepped", "plain"])
def test_steps_come_row_by_row(client: reverb.Client, table: str) -> None:
    if table == "stepped":
        write_steps(client, 2)
    else:
        write(client, table, 2)
    samples = list(dataset(TimestepDataset, client, table))
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


@pytest.mark.parametrize(
    ("kind", "table", "shape"), [(TrajectoryDataset, "signed", (None, 2)), (TimestepDataset, "stepped", (2,))]
)
def test_a_dataset_is_made_of_the_signature(client: reverb.Client, kind: Any, table: str, shape: Any) -> None:
    write(client, "signed", 1)
    write_steps(client, 1)
    made = kind.from_table_signature(client.server_address, table, 10, rate_limiter_timeout_ms=1000)
    assert made.element_spec.data["b"][0] == reverb.TensorSpec(shape, np.float32)
    found = list(made)
    assert len(found) == (1 if kind is TrajectoryDataset else 3)
    assert found[0].data["b"][0].ndim == len(shape)


@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
def test_the_signature_of_another_daemon_is_that_of_items(kind: Any) -> None:
    table = replayd.Table(
        "table",
        replayd.selectors.Fifo(),
        replayd.selectors.Fifo(),
        10,
        replayd.rate_limiters.MinSize(1),
        max_times_sampled=1,
        signature={"a": replayd_client.TensorSpec((None, 2), np.int64)},
    )
    with replayd.Server([table]) as server:
        with replayd_client.Client(server.address) as client, client.trajectory_writer(3) as writer:
            for step in range(3):
                writer.append({"a": np.full(2, step)})
            writer.create_item("table", 1.0, {"a": writer.history["a"][-3:]})
        made = kind.from_table_signature(server.address, "table", 1, rate_limiter_timeout_ms=50)
        found = [sample.data["a"].tolist() for sample in made]
    rows = [[0, 0], [1, 1], [2, 2]]
    assert found == ([rows] if kind is TrajectoryDataset else rows)


def test_an_address_and_a_table_may_be_given_as_tensors(client: reverb.Client) -> None:
    class Tensor:
        def __init__(self, text: str) -> None:
            self._text = text

        def numpy(self) -> bytes:
            return self._text.encode()

    write(client, "signed", 1)
    made = TrajectoryDataset(
        Tensor(client.server_address), Tensor("signed"), **SHOWN, max_in_flight_samples_per_worker=1
    )
    assert next(iter(made)).data["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
def test_the_signature_must_be_there(client: reverb.Client, kind: Any) -> None:
    with pytest.raises(
        ValueError, match=r"does not contain any table named nowhere\. Found: a table, plain, signed, stepped\."
    ):
        kind.from_table_signature(client.server_address, "nowhere", 10)
    with pytest.raises(ValueError, match="Table plain at .* does not have a signature"):
        kind.from_table_signature(client.server_address, "plain", 10)


def test_the_signature_is_waited_for_as_long_as_asked() -> None:
    with pytest.raises(reverb.DeadlineExceededError, match="did not complete within provided timeout of 1s"):
        TrajectoryDataset.from_table_signature(f"localhost:{free_port()}", "table", 10, get_signature_timeout_secs=1)


COUNT = r"table '{}'\.  Requested 1 tensors, but table signature shows 2 tensors"
REQUESTED = (
    r"Requested incompatible tensor at flattened index {} from table '{}'\.  Requested \(dtype, shape\): \({}\)\.  "
    r"Signature \(dtype, shape\): \({}\)"
)


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (TrajectoryDataset, {"dtypes": np.int64, "shapes": (None,)}, COUNT.format("signed")),
        (
            TrajectoryDataset,
            {"dtypes": {"a": np.int32, "b": [np.float32]}, "shapes": SHOWN["shapes"]},
            REQUESTED.format(0, "signed", r"int32, \[\?\]", r"int64, \[\?\]"),
        ),
        (
            TrajectoryDataset,
            {"dtypes": SHOWN["dtypes"], "shapes": {"a": (), "b": [(None, 2)]}},
            REQUESTED.format(0, "signed", r"int64, \[\]", r"int64, \[\?\]"),
        ),
        (
            TrajectoryDataset,
            {"dtypes": SHOWN["dtypes"], "shapes": {"a": (None,), "b": [(None, 3)]}},
            REQUESTED.format(1, "signed", r"float, \[\?,3\]", r"float, \[\?,2\]"),
        ),
        (TimestepDataset, {"dtypes": np.int64, "shapes": ()}, COUNT.format("stepped")),
        (
            TimestepDataset,
            {"dtypes": {"a": np.float64, "b": [np.float32]}, "shapes": STEPS["shapes"]},
            REQUESTED.format(0, "stepped", r"double, \[\]", r"int64, \[\]"),
        ),
        (TimestepDataset, SHOWN, REQUESTED.format(0, "stepped", r"int64, \[\?\]", r"int64, \[\]")),
    ],
)
def test_a_spec_that_the_signature_contradicts_is_refused_before_anything_is_drawn(
    client: reverb.Client, kind: Any, spec: Any, message: str
) -> None:
    write(client, "signed", 1)
    write_steps(client, 1)
    with pytest.raises(ValueError, match=message):
        next(iter(dataset(kind, client, **spec)))
    infos = client.server_info()
    assert infos["signed"].current_size == infos["stepped"].current_size == 1


RECEIVED = (
    r"Received incompatible tensor at flattened index {} from table 'plain'\.  Specification has \(dtype, shape\): "
    r"\({}\)\.  Tensor has \(dtype, shape\): \({}\)"
)


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (
            TrajectoryDataset,
            {"dtypes": np.int64, "shapes": (None,)},
            r"from table 'plain'\.  Specification has 1 tensors, but data coming from the table shows 2 tensors",
        ),
        (
            TrajectoryDataset,
            {"dtypes": SHOWN["dtypes"], "shapes": {"a": (2,), "b": [None]}},
            RECEIVED.format(0, r"int64, \[2\]", r"int64, \[3\]"),
        ),
        (
            TimestepDataset,
            {"dtypes": {"a": np.int64, "b": [np.float64]}, "shapes": STEPS["shapes"]},
            RECEIVED.format(1, r"double, \[2\]", r"float, \[2\]"),
        ),
        (
            TimestepDataset,
            {"dtypes": SHOWN["dtypes"], "shapes": {"a": (), "b": [()]}},
            RECEIVED.format(1, r"float, \[\]", r"float, \[2\]"),
        ),
        (TimestepDataset, SHOWN, RECEIVED.format(0, r"int64, \[\?\]", r"int64, \[\]")),
    ],
)
def test_a_sample_that_does_not_fit_the_spec_is_refused(
    client: reverb.Client, kind: Any, spec: Any, message: str
) -> None:
    write(client, "plain", 1)
    with pytest.raises(ValueError, match=message):
        next(iter(dataset(kind, client, "plain", **spec)))


def test_any_shape_may_be_asked_for(client: reverb.Client) -> None:
    write(client, "plain", 1)
    spec = {"dtypes": SHOWN["dtypes"], "shapes": {"a": None, "b": [None]}}
    assert next(iter(dataset(TrajectoryDataset, client, "plain", **spec))).data["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("shown", [(slice(-2, None), slice(-3, None)), (slice(-2, None), -1)])
def test_an_item_whose_columns_differ_in_length_has_no_timesteps(client: reverb.Client, shown: Any) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": step, "b": step})
        writer.create_item("plain", 1.0, {"a": writer.history["a"][shown[0]], "b": writer.history["b"][shown[1]]})
    spec = {"dtypes": {"a": np.int64, "b": np.int64}, "shapes": {"a": (), "b": ()}}
    with pytest.raises(ValueError, match="cannot be decomposed into timesteps"):
        next(iter(dataset(TimestepDataset, client, "plain", **spec)))


@pytest.mark.parametrize("last", [-1, slice(-1, None)])
def test_an_item_without_an_axis_of_steps_is_one_step(client: reverb.Client, last: Any) -> None:
    with client.trajectory_writer(1) as writer:
        for step in range(2):
            writer.append({"a": step, "b": np.full(3, step), "c": f"text {step}"})
            history = writer.history
            shown = {"a": history["a"][-1], "b": history["b"][-1], "c": history["c"][last]}
            writer.create_item("plain", 1.0, shown)
    spec = {"dtypes": {"a": np.int64, "b": np.int64, "c": "string"}, "shapes": {"a": (), "b": (3,), "c": ()}}
    found = [sample.data for sample in dataset(TimestepDataset, client, "plain", **spec)]
    assert [(each["a"], each["b"].tolist(), each["c"]) for each in found] == [
        (0, [0, 0, 0], b"text 0"),
        (1, [1, 1, 1], b"text 1"),
    ]


def test_scalars_of_elements_are_numpys_scalars(client: reverb.Client) -> None:
    client.insert({"a": 5, "c": "text"}, {"plain": 1.0})
    with client.trajectory_writer(1) as writer:
        writer.append({"a": 5, "c": "text"})
        writer.create_item("plain", 1.0, {"a": writer.history["a"][-1], "c": writer.history["c"][-1]})
    spec = {"dtypes": {"a": np.int64, "c": "string"}, "shapes": {"a": (), "c": ()}}
    steps = next(iter(dataset(TimestepDataset, client, "plain", **spec, max_samples=1)))
    whole = next(iter(dataset(TrajectoryDataset, client, "plain", **spec)))
    for data in (steps.data, whole.data):
        assert [(type(leaf), leaf) for leaf in data.values()] == [(np.int64, 5), (bytes, b"text")]


def test_strings_are_sampled_as_bytes(client: reverb.Client) -> None:
    client.insert(["one", 1], {"plain": 1.0})
    spec = {"dtypes": ["string", np.int64], "shapes": [(None,), (None,)]}
    sample = next(iter(dataset(TrajectoryDataset, client, "plain", **spec)))
    assert sample.data[0].tolist() == [b"one"]


def test_an_unknown_table_is_an_error_when_iteration_starts(client: reverb.Client) -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        next(iter(dataset(TrajectoryDataset, client, "nowhere")))
