"""Trajectory and timestep datasets with the arguments of the field, against a real server."""

from __future__ import annotations

import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters
from replayd_client import Client, ReplaySample, TensorSpec, TimestepDataset, TrajectoryDataset, errors, prefetcher
from replayd_client.pattern_dataset import pattern_dataset_with_info
from replayd_client.structured import create_config, create_reference_step
from tests.daemon.embedded import fifo, free_port, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]

SIGNATURE = {"x": TensorSpec((None, 2), np.float32), "y": [TensorSpec((None,), np.int64)]}
DTYPES = {"x": np.float32, "y": ["int64"]}
SHAPES = {"x": (None, 2), "y": [(None,)]}


def write(client: Client, table: str, lengths: list[int]) -> None:
    """Items of these lengths: in the first y counts from 0, in the second from 100."""
    with client.trajectory_writer(max(lengths)) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append({"x": np.full(2, number, np.float32), "y": [100 * number + step]})
            part = {"x": writer.history["x"][-length:], "y": [writer.history["y"][0][-length:]]}
            writer.create_item(table, 1.0 + number, part)
            writer.end_episode()


def dataset_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("replayd-dataset")]


def drawn(client: Client) -> int:
    samples: int = client.info()["tables"][0]["limiter"]["samples"]
    return samples


@pytest.mark.parametrize("spec", [{}, {"dtypes": DTYPES, "shapes": SHAPES}])
def test_trajectories_come_whole_with_their_info(serve: Any, client_of: Any, spec: dict[str, Any]) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1, signature=SIGNATURE)))
    write(client, "t", [3, 1, 2])
    dataset = TrajectoryDataset(client.server_address, "t", **spec, rate_limiter_timeout_ms=50)
    samples = list(dataset)
    assert [type(sample) for sample in samples] == [ReplaySample] * 3
    assert [sample.data["y"][0].tolist() for sample in samples] == [[0, 1, 2], [100], [200, 201]]
    assert [sample.data["x"].shape for sample in samples] == [(3, 2), (1, 2), (2, 2)]
    assert [float(sample.info.priority) for sample in samples] == [1.0, 2.0, 3.0]
    assert [value.dtype.name for value in samples[0].info] == ["uint64", "float64", "int64", "float64", "int32"]
    assert dataset.ended_by is not None
    assert dataset.ended_by.reason == "deadline"
    assert list(dataset) == [], "each iteration draws anew"


@pytest.mark.parametrize("spec", [{}, {"dtypes": DTYPES, "shapes": {"x": (2,), "y": [()]}}])
def test_timesteps_come_one_by_one_with_the_info_of_their_item(
    serve: Any, client_of: Any, spec: dict[str, Any]
) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1, signature=SIGNATURE)))
    write(client, "t", [3, 1, 2])
    samples = list(TimestepDataset(client.server_address, "t", **spec, max_samples=3))
    assert [int(sample.data["y"][0]) for sample in samples] == [0, 1, 2, 100, 200, 201]
    assert {sample.data["x"].shape for sample in samples} == {(2,)}
    assert [float(sample.info.priority) for sample in samples] == [1, 1, 1, 2, 3, 3]


def test_data_has_the_structure_that_was_asked_for(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    write(client, "t", [2])
    dataset = TrajectoryDataset(client.server_address, "t", (np.float32, np.int64), ([2, 2], [None]), max_samples=1)
    (sample,) = dataset
    assert isinstance(sample.data, tuple)
    assert sample.data[1].tolist() == [0, 1]
    assert dataset.element_spec.data[0].shape == (2, 2)
    assert dataset.element_spec.info.key.dtype == np.uint64
    assert dataset.ended_by is not None
    assert dataset.ended_by.reason == "complete"


def test_items_of_different_columns_come_each_as_it_was_written(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert({"a": 1}, {"t": 1.0})
    client.insert({"b": [2.0, 3.0]}, {"t": 1.0})
    first, second = TrajectoryDataset(client.server_address, "t", max_samples=2)
    assert first.data["a"].tolist() == [1]
    assert [array.tolist() for array in second.data["b"]] == [[2.0], [3.0]]


@pytest.mark.parametrize("in_flight", [1, 2, 7, 10])
def test_no_more_is_drawn_than_may_be_in_flight(serve: Any, client_of: Any, in_flight: int) -> None:
    client = client_of(serve(uniform("t")))
    client.insert_batch(np.zeros((50, 1)), {"t": 1.0})
    samples = iter(TrajectoryDataset(client.server_address, "t", max_in_flight_samples_per_worker=in_flight))
    for taken in range(1, 30):
        next(samples)
        assert drawn(client) - taken < max(in_flight, 1)
    samples.close()  # type: ignore[attr-defined]


def test_no_more_is_drawn_than_all_samples(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.insert_batch(np.zeros((50, 1)), {"t": 1.0})
    dataset = TrajectoryDataset(client.server_address, "t", max_in_flight_samples_per_worker=8, max_samples=11)
    assert len(list(dataset)) == 11
    assert drawn(client) == 11


def test_iteration_waits_for_items_and_for_a_server_that_comes_back(serve: Any, client_of: Any) -> None:
    first = serve(replayd.Table.queue("q", 10))
    client = client_of(first)
    client.insert(0, {"q": 1.0})
    samples = iter(TrajectoryDataset(client.server_address, "q"))
    assert next(samples).data.tolist() == [0]
    first.stop()
    serve(replayd.Table.queue("q", 10), port=first.port)
    client.insert(1, {"q": 1.0})
    assert next(samples).data.tolist() == [1]


@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
def test_a_dataset_from_a_signature_has_its_spec(serve: Any, client_of: Any, kind: Any) -> None:
    client = client_of(serve(fifo("t", signature=SIGNATURE), fifo("none"), fifo("other")))
    write(client, "t", [2])
    dataset = kind.from_table_signature(client.server_address, "t", 10, get_signature_timeout_secs=30, max_samples=1)
    shapes = [(None, 2), (None,)] if kind is TrajectoryDataset else [(2,), ()]
    assert [dataset.element_spec.data["x"].shape, dataset.element_spec.data["y"][0].shape] == shapes
    samples = list(dataset)
    assert len(samples) == (1 if kind is TrajectoryDataset else 2)
    with pytest.raises(ValueError, match=r"does not contain any table named nowhere\. Found: none, other, t\."):
        kind.from_table_signature(client.server_address, "nowhere", 10)
    with pytest.raises(ValueError, match="Table none at .* does not have a signature"):
        kind.from_table_signature(client.server_address, "none", 10)
    with pytest.raises(errors.ConnectionLostError):
        kind.from_table_signature(f"localhost:{free_port()}", "t", 10, get_signature_timeout_secs=0.1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_in_flight_samples_per_worker": 0}, "max_in_flight_samples_per_worker .* must be a positive integer"),
        ({"num_workers_per_iterator": 0}, "num_workers_per_iterator .* must be a positive integer or -1"),
        ({"num_workers_per_iterator": -2}, "num_workers_per_iterator .* must be a positive integer or -1"),
        ({"max_samples_per_stream": 0}, "max_samples_per_stream .* must be a positive integer or -1"),
        ({"max_samples": 0}, "max_samples .* must be a positive integer or -1"),
        ({"rate_limiter_timeout_ms": -2}, "must be an integer >= -1"),
        ({"rate_limiter_timeout_ms": 1.5}, "must be an integer >= -1"),
        ({"dtypes": {"a": int}, "shapes": {"b": ()}}, "must have the same structure"),
        ({"dtypes": {"a": int}, "shapes": ()}, "must have the same structure"),
        ({"dtypes": (int, int), "shapes": ((),)}, "must have the same structure"),
        ({"dtypes": {"a": [int]}, "shapes": {"a": [(2, -1)]}}, "must have the same structure, and differ at a/0"),
        ({"dtypes": int}, "must have the same structure"),
        ({"dtypes": "object", "shapes": ()}, "cannot be stored"),
    ],
)
@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
def test_arguments_that_make_no_sense_are_refused(kind: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kind("localhost:1", "t", **arguments)


def test_items_that_do_not_fit_the_spec_are_named(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t"), fifo("signed", signature=SIGNATURE)))
    write(client, "t", [2])
    for dtypes, shapes, text in (
        ((np.float32,), ((None, 2),), "of 1 columns, and the item has 2: x, y/0"),
        (
            (np.float32, np.int32),
            ((None, 2), (None,)),
            r"column 'y/0': expected int32\[\?\], and the item has int64\[2\]",
        ),
        (
            (np.float32, np.int64),
            ((3, 2), (None,)),
            r"column 'x': expected float32\[3, 2\], and the item has float32\[2, 2\]",
        ),
    ):
        with pytest.raises(ValueError, match=text):
            next(iter(TrajectoryDataset(client.server_address, "t", dtypes, shapes)))
    # The signature says so before there is any item.
    with pytest.raises(ValueError, match="column 'x': expected float64.*the signature of table 'signed' has float32"):
        next(iter(TrajectoryDataset(client.server_address, "signed", {**DTYPES, "x": np.float64}, SHAPES)))


def test_items_without_steps_are_refused_by_a_timestep_dataset(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": step, "b": step})
        history = writer.history
        writer.create_item("t", 1.0, {"a": history["a"][:], "b": history["b"][1:]})
        writer.create_item("t", 1.0, {"a": history["a"][-1]})
    with pytest.raises(ValueError, match=r"\[2, 3\] rows, so there are no steps"):
        list(TimestepDataset(client.server_address, "t", max_samples=1))
    with pytest.raises(ValueError, match="column 'a' is squeezed and has no steps"):
        list(TimestepDataset(client.server_address, "t", max_samples=1))
    squeezed = {"a": TensorSpec((), np.int64)}
    table = replayd.Table.queue("q", 3, signature=squeezed)
    with pytest.raises(ValueError, match="column 'a' has no axis of time"):
        TimestepDataset.from_table_signature(serve(table).address, "q", 1)


def test_errors_of_the_server_are_raised(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve(uniform("t", rate_limiter=rate_limiters.MinSize(5))).address
    with pytest.raises(ValueError, match="nowhere"):
        list(TrajectoryDataset(address, "nowhere", DTYPES, SHAPES))
    monkeypatch.setattr(prefetcher, "GRACE_S", 0.05)
    monkeypatch.setattr("replayd_client.item_dataset.SIGNATURE_TIMEOUT_S", 0.05)
    gone = TrajectoryDataset(f"localhost:{free_port()}", "t", DTYPES, SHAPES, rate_limiter_timeout_ms=0)
    with pytest.raises(errors.ConnectionLostError):
        list(gone)
    assert gone.ended_by is not None
    assert gone.ended_by.reason == "error"
    assert "is not compared with the signature" in caplog.text


def test_an_iterator_that_is_dropped_leaves_nothing_behind(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.insert_batch(np.zeros((5, 1)), {"t": 1.0})
    samples = iter(TrajectoryDataset(client.server_address, "t"))
    next(samples)
    assert dataset_threads()
    del samples
    gc.collect()
    until(lambda: not dataset_threads())


def test_a_dataset_pickles_to_its_arguments(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    write(client, "t", [1, 1])
    dataset = TrajectoryDataset(client.server_address, "t", DTYPES, SHAPES, max_samples=1)
    assert len(list(dataset)) == 1
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert [sample.data["y"][0].tolist() for sample in copy] == [[100]]


def test_steps_of_a_dataset_become_trajectories_of_patterns(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    write(client, "t", [3, 2])
    steps = TimestepDataset(client.server_address, "t", max_samples=2)
    step = create_reference_step({"x": None, "y": [None]})
    config = create_config({"pair": step["y"][0][-2:], "x": step["x"][-1]}, "nowhere")
    ends = {2, 101}
    dataset = pattern_dataset_with_info(steps, [config], True, lambda data: int(data["y"][0]) in ends)
    samples = list(dataset)
    assert [sample.data["pair"].tolist() for sample in samples] == [[0, 1], [1, 2], [100, 101]]
    assert samples[0].data["x"].tolist() == [0.0, 0.0]
    assert samples[0].info.key == 0
