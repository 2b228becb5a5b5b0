"""Writers that are told how to store what they write: what travels, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import Client, errors, structured
from replayd_client.batches import SampledBatch
from replayd_client.codecs import BLOSC2, RAW
from replayd_client.pool import ConnectionPool, endpoint_of
from replayd_client.sampling import draw
from replayd_client.vector_items import VectorItem
from tests.daemon.embedded import fifo

pytest_plugins = ["tests.daemon.embedded_fixtures"]

FRAMES = np.arange(4 * 64 * 64).reshape(4, 64, 64).astype(np.uint8)
"""Steps that compress to next to nothing."""


def insert(client: Client, codec: Any) -> None:
    client.insert({"x": FRAMES[0]}, {"t": 1.0}, codec=codec)


def insert_batch(client: Client, codec: Any) -> None:
    client.insert_batch({"x": FRAMES[:1, None]}, {"t": 1.0}, codec=codec)


def write(client: Client, codec: Any) -> None:
    with client.writer(1, codec=codec) as writer:
        writer.append({"x": FRAMES[0]})
        writer.create_item("t", 1, 1.0)


def write_trajectories(client: Client, codec: Any) -> None:
    with client.trajectory_writer(1, codec=codec) as writer:
        writer.append({"x": FRAMES[0]})
        writer.create_item("t", 1.0, {"x": writer.history["x"][:]})


def write_by_configs(client: Client, codec: Any) -> None:
    step = structured.create_reference_step({"x": None})
    with client.structured_writer([structured.create_config({"x": step["x"][-1:]}, "t")], codec=codec) as writer:
        writer.append({"x": FRAMES[0]})


def write_vectors(client: Client, codec: Any) -> None:
    with client.vector_writer(1, [VectorItem("t", 1)], observations=(), codec=codec) as writer:
        writer.append({"x": FRAMES[:1]}, np.zeros(1, bool))


WAYS = [insert, insert_batch, write, write_trajectories, write_by_configs, write_vectors]


def drawn(server: Any, count: int) -> SampledBatch:
    """Items of table t as the server sends them."""
    pool = ConnectionPool(endpoint_of(server.address))
    try:
        return draw(pool, "t", count, count, 60_000)
    finally:
        pool.close()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_raw_travels_raw_and_comes_back_the_same(
    serve: Any, client_of: Any, way: Callable[[Client, Any], None]
) -> None:
    server = serve(fifo("t"))
    client = client_of(server)
    for codec, number, most_bytes in (("raw", RAW, FRAMES[0].nbytes), ("auto", BLOSC2, FRAMES[0].nbytes // 10)):
        client.reset("t")
        way(client, codec)
        shown = drawn(server, 1).shown
        assert shown.records["codec"].tolist() == [number]
        assert shown.records["flags"].any() <= (codec == "auto")
        assert shown.records["stored_bytes"].sum() <= most_bytes
        assert (b"".join(shown.body) == FRAMES[0].tobytes()) == (codec == "raw")
        batch = client.sample_batch("t", 1)
        assert np.array_equal(batch.data["x"], FRAMES[:1, None])


def test_batches_of_one_schema_are_stored_each_as_it_is_told(serve: Any, client_of: Any) -> None:
    server = serve(replayd.Table.queue("t", 100))
    client = client_of(server)
    codecs = ["auto", "raw", "raw", "auto", "raw"]
    for codec in codecs:
        client.insert_batch({"x": FRAMES[:, None]}, {"t": 1.0}, codec=codec)
    batch = drawn(server, 20)
    expected = [RAW if codec == "raw" else BLOSC2 for codec in codecs for _ in range(4)]
    assert batch.shown.records["codec"].tolist() == expected
    assert np.array_equal(batch.stack()["x"][:, 0], np.tile(FRAMES, (5, 1, 1)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("codec", ["lz4", "blosc2", "RAW", "", None, 0])
def test_an_unknown_codec_is_refused_before_anything_is_written(
    serve: Any, client_of: Any, way: Callable[[Client, Any], None], codec: Any
) -> None:
    client = client_of(serve(fifo("t")))
    with pytest.raises(errors.DataError, match=r"codec must be one of 'auto', 'raw', got "):
        way(client, codec)
    assert client.server_info()["t"].current_size == 0
