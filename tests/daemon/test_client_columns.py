"""What a column can be, against a real server: cells of several columns, and values of bytes and str, come back from
every reader as every writer was given them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd_client import TensorSpec, TimestepDataset, TrajectoryColumn, TrajectoryDataset, errors, structured
from replayd_client.vector_items import VectorItem
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


# Bytes and str.

STEPS: list[dict[str, Any]] = [
    {"text": f"Schritt {n}: " + "ä" * (n % 3), "raw": bytes(range(n)), "pair": np.array(["a" * n, ""], object), "n": n}
    for n in range(12)
]


def by_insert(client: Any, codec: Any) -> None:
    for step in STEPS:
        client.insert(step, {"t": 1.0}, codec=codec)


def by_batch(client: Any, codec: Any) -> None:
    batch = {
        "text": np.array([[step["text"]] for step in STEPS]),
        "raw": np.array([[step["raw"]] for step in STEPS], object),
        "pair": np.array([[step["pair"].tolist()] for step in STEPS], np.dtypes.StringDType()),
        "n": np.arange(12)[:, None],
    }
    client.insert_batch(batch, {"t": 1.0}, codec=codec)


def by_writer(client: Any, codec: Any) -> None:
    with client.writer(3, codec=codec) as writer:
        for step in STEPS:
            writer.append(step)
            writer.create_item("t", 1, 1.0)


def by_trajectory_writer(client: Any, codec: Any) -> None:
    with client.trajectory_writer(3, chunk_length=2, codec=codec) as writer:
        for step in STEPS:
            writer.append({"text": step["text"], "raw": None, "pair": None, "n": None}, partial_step=True)
            writer.append({name: value for name, value in step.items() if name != "text"})
            writer.create_item("t", 1.0, {name: column[-1:] for name, column in writer.history.items()})


def by_structured_writer(client: Any, codec: Any) -> None:
    step = structured.create_reference_step(STEPS[0])
    pattern = {name: column[-1:] for name, column in step.items()}
    with client.structured_writer([structured.create_config(pattern, "t")], codec=codec) as writer:
        for values in STEPS:
            writer.append(values)


def by_vector_writer(client: Any, codec: Any) -> None:
    items = [VectorItem("t", 1)]
    with client.vector_writer(1, items, observations=[], autoreset_mode="disabled", codec=codec) as writer:
        for step in STEPS:
            of_all = {name: np.array([value], object if name == "raw" else None) for name, value in step.items()}
            writer.append({**of_all, "pair": step["pair"][None]}, np.array([False]))


WRITERS = [by_insert, by_batch, by_writer, by_trajectory_writer, by_structured_writer, by_vector_writer]
SIGNATURE = {
    "text": TensorSpec((1,), str),
    "raw": TensorSpec((None,), np.bytes_),
    "pair": TensorSpec((1, 2), "str"),
    "n": TensorSpec((1,), np.int64),
}


@pytest.mark.parametrize("codec", ["raw", "auto"])
@pytest.mark.parametrize("write", WRITERS)
def test_every_writer_stores_bytes_and_str(serve: Any, client_of: Any, write: Any, codec: Any) -> None:
    client = client_of(serve(fifo("t", signature=SIGNATURE, max_times_sampled=1)))
    write(client, codec)
    data = client.sample_batch("t", 12).data
    assert {name: array.dtype for name, array in data.items() if name != "n"} == dict.fromkeys(
        ("text", "raw", "pair"), np.dtype(object)
    )
    assert data["text"].tolist() == [[step["text"]] for step in STEPS]
    assert data["raw"].tolist() == [[step["raw"]] for step in STEPS]
    assert data["pair"].tolist() == [[step["pair"].tolist()] for step in STEPS]
    assert {type(value) for value in data["pair"].flat} == {str}


def test_every_reader_gives_bytes_and_str(serve: Any, client_of: Any) -> None:
    signature = {"text": TensorSpec((None,), str), "raw": TensorSpec((None,), bytes)}
    server = serve(*(fifo(name, signature=signature, max_times_sampled=1) for name in "abcdefg"))
    client = client_of(server)
    lengths = [2, 1, 3]
    items: list[dict[str, list[Any]]] = []
    with client.trajectory_writer(12) as writer:
        for length in lengths:
            for step in STEPS[:length]:
                writer.append({"text": step["text"], "raw": step["raw"]})
            items.append({name: [step[name] for step in STEPS[:length]] for name in ("text", "raw")})
            for table in "abcdefg":
                writer.create_item(table, 1.0, {name: column[-length:] for name, column in writer.history.items()})

    samples = list(client.sample("a", 3, emit_timesteps=False, unpack_as_table_signature=True))
    assert [{name: array.tolist() for name, array in sample.data.items()} for sample in samples] == items
    steps = [step.data for item in client.sample("b", 3, unpack_as_table_signature=True) for step in item]
    flat = [dict(zip(item, row, strict=True)) for item in items for row in zip(*item.values(), strict=True)]
    assert steps == flat
    assert client.sample_batch("c", 3, ragged="pad").data["text"].tolist() == [
        item["text"] + [""] * (3 - len(item["text"])) for item in items
    ]
    [batch] = client.dataset("d", 3, ragged="list", max_batches=1)
    assert [array.tolist() for array in batch.data["raw"]] == [item["raw"] for item in items]
    trajectories = TrajectoryDataset.from_table_signature(server.address, "e", 4, max_samples=3)
    assert [{name: array.tolist() for name, array in sample.data.items()} for sample in trajectories] == items
    timesteps = TimestepDataset(
        server.address, "f", {"text": str, "raw": bytes}, {"text": (), "raw": ()}, max_samples=3
    )
    assert [step.data for step in timesteps] == flat
    peeked = client.peek("g", oldest=3)
    assert [{name: array.tolist() for name, array in item.data.items()} for item in peeked] == items


def test_a_reader_that_expects_something_else_is_told(serve: Any, client_of: Any) -> None:
    server = serve(fifo("t"))
    client_of(server).insert({"x": "text"}, {"t": 1.0})
    for dtype, message in ((bytes, r"expected bytes\[1\], and the item has str\[1\]"), (np.int64, "expected int64")):
        with pytest.raises(errors.DataError, match=message):
            next(iter(TrajectoryDataset(server.address, "t", {"x": dtype}, {"x": (1,)})))


def test_signatures_tell_bytes_from_str(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", signature={"x": TensorSpec((1,), bytes)})))
    assert client.server_info()["t"].signature["x"].dtype == "bytes"
    for codec in ("raw", "auto"):
        with pytest.raises(errors.SignatureError, match=r"column x: expected bytes\[1\], got str\[1\]"):
            client.insert({"x": "text"}, {"t": 1.0}, codec=codec)
    # The server compares for itself, whoever did not.
    with client.trajectory_writer(1, validate_items=False) as writer:
        writer.append({"x": "text"})
        handle = writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        with pytest.raises(errors.SignatureError, match=r"expected bytes\[\?\]|expected bytes\[1\]"):
            handle.wait()
    step = structured.create_reference_step({"x": None})
    config = structured.create_config({"x": step["x"][-2:]}, "t")
    inferred = structured.infer_signature([config], {"x": np.array("a")})
    assert (inferred["x"].shape, np.dtype(inferred["x"].dtype).name) == ((2,), "str")


def test_joined_columns_may_be_of_str(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(3) as writer:
        for number in range(3):
            writer.append({"a": f"a{number}", "b": f"b{number}", "raw": b"x"})
        a, b, raw = (writer.history[name] for name in ("a", "b", "raw"))
        both = TrajectoryColumn([*a[:2], *b[1:], *a[-1:]])
        assert both.numpy().tolist() == ["a0", "a1", "b1", "b2", "a2"]
        with pytest.raises(errors.DataError, match=r"a: str\[\] and raw: bytes\[\]"):
            TrajectoryColumn([*a[:], *raw[:]])
        writer.create_item("t", 1.0, both)
    [sample] = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == ["a0", "a1", "b1", "b2", "a2"]


def test_values_of_megabytes_come_back(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    rng = np.random.default_rng(3)
    values = [rng.bytes(n << 20) for n in (5, 0, 9, 1)]
    with client.trajectory_writer(4) as writer:
        for value in values:
            writer.append({"x": value})
        writer.create_item("t", 1.0, {"x": writer.history["x"][:]})
        writer.flush()
        report = writer.report()
    assert report.bytes_in == sum(map(len, values))
    batch = np.empty((4, 1), object)
    batch[:, 0] = values
    client.insert_batch({"x": batch}, {"t": 1.0})
    data = [sample.data[0].tolist() for sample in client.sample("t", 5, emit_timesteps=False)]
    assert data == [values, *([value] for value in values)]
    with pytest.raises(errors.DataError, match="x: a value of"):
        client.insert({"x": bytes((1 << 26) + 1)}, {"t": 1.0})
    with pytest.raises(errors.DataError, match="of a trajectory take"):
        client.insert_batch({"x": np.array([[bytes(1 << 26)] * 2], object)}, {"t": 1.0})
