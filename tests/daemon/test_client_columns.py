"""What one column of a trajectory can be, against a real server: cells of several columns come back as they were picked
from every reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd_client import TensorSpec, TrajectoryColumn, TrajectoryDataset, errors
from tests.daemon.embedded import fifo

pytest_plugins = ["tests.daemon.embedded_fixtures"]


# Joined columns.


SIDES = ("left", "right")


def picks(count: int, same_length: bool) -> list[list[tuple[str, int]]]:
    """Cells, by column and step: some in runs of one column, others with the columns in turn."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(count):
        length = 6 if same_length else int(rng.integers(1, 9))
        columns = rng.choice(SIDES, length)
        if rng.integers(2):
            columns = np.sort(columns)
        made.append([(str(name), int(step)) for name, step in zip(columns, rng.integers(0, 20, length), strict=True)])
    return made


def written(client: Any, made: list[list[tuple[str, int]]], codec: Any = "auto") -> list[np.ndarray[Any, Any]]:
    """Makes items of these picks; what each should show."""
    steps = [{name: np.full((8, 16), 2 * n + side, np.float32) for side, name in enumerate(SIDES)} for n in range(20)]
    with client.trajectory_writer(20, chunk_length=3, codec=codec) as writer:
        for step in steps:
            writer.append(step)
        for cells in made:
            both = TrajectoryColumn([writer.history[name].cell(step) for name, step in cells])
            writer.create_item("t", 1.0, {"both": both, "last": both[-1]})
    return [np.stack([steps[step][name] for name, step in cells]) for cells in made]


@pytest.mark.parametrize("codec", ["raw", "auto"])
@pytest.mark.parametrize("reader", ["sample", "list", "pad"])
def test_joined_columns_of_any_lengths_are_read(serve: Any, client_of: Any, reader: str, codec: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    expected = written(client, picks(30, same_length=False), codec)
    if reader == "sample":
        both = [sample.data[0] for sample in client.sample("t", 30, emit_timesteps=False)]
    else:
        batch = client.sample_batch("t", 30, ragged=reader)
        both = batch.data["both"]
        np.testing.assert_array_equal(np.stack(batch.data["last"]), [shown[-1] for shown in expected])
    longest = max(map(len, expected))
    for number, shown in enumerate(expected):
        if reader == "pad":
            np.testing.assert_array_equal(both[number, : len(shown)], shown)
            assert not both[number, len(shown) :].any()
            assert batch.mask["both"][number].tolist() == [row < len(shown) for row in range(longest)]
        else:
            np.testing.assert_array_equal(both[number], shown)


def test_joined_columns_are_stacked_and_come_in_datasets(serve: Any, client_of: Any) -> None:
    signature = {"both": TensorSpec((None, 8, 16), np.float32), "last": TensorSpec((8, 16), np.float32)}
    server = serve(fifo("t", max_times_sampled=1, signature=signature))
    client = client_of(server)
    cells = picks(1, same_length=True)[0]
    expected = written(client, [cells] * 12 + picks(12, same_length=True))
    np.testing.assert_array_equal(client.sample_batch("t", 12).data["both"], np.stack(expected[:12]))
    [batch] = client.dataset("t", 8, max_batches=1)
    np.testing.assert_array_equal(batch.data["both"], np.stack(expected[12:20]))
    items = TrajectoryDataset.from_table_signature(server.address, "t", 4, max_samples=4)
    for shown, sample in zip(expected[20:], items, strict=True):
        np.testing.assert_array_equal(sample.data["both"], shown)
        np.testing.assert_array_equal(sample.data["last"], shown[-1])


def test_a_joined_column_is_compared_with_the_signature(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", signature={"x": TensorSpec((3,), np.int64)})))
    with client.trajectory_writer(5, validate_items=True) as writer:
        for number in range(2):
            writer.append({"a": number, "b": -number})
        a, b = writer.history["a"], writer.history["b"]
        with pytest.raises(errors.SignatureError, match=r"expected int64\[3\], got int64\[4\]"):
            writer.create_item("t", 1.0, {"x": TrajectoryColumn([*a[:], *b[:]])})
        writer.create_item("t", 1.0, {"x": TrajectoryColumn([*a[:], *b[-1:]])})
    [sample] = client.sample("t", 1, emit_timesteps=False, unpack_as_table_signature=True)
    assert sample.data["x"].tolist() == [0, 1, -1]
