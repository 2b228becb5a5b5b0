"""Columns whose cells hold nothing, such as those of shape (0,), against a real server: every writer takes them and
every reader gives them back, beside columns that hold something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from replayd_client import TimestepDataset, TrajectoryDataset, structured
from replayd_client.vector_items import VectorItem
from tests.daemon.embedded import fifo, size

pytest_plugins = ["tests.daemon.embedded_fixtures"]

T = 4
EMPTY = {
    "flat": ("f4", (0,)),
    "first": ("i8", (0, 3)),
    "last": ("?", (3, 0)),
    "middle": ("c8", (2, 0, 5)),
    "bytes": ("S3", (0,)),
    "str": ("U3", (2, 0)),
}
NUMBERS = {name: EMPTY[name] for name in ("flat", "first", "last", "middle")}
SETS = {
    **{name: {name: EMPTY[name]} for name in ("middle", "str")},
    "numbers": {"a": ("f4", ()), **NUMBERS, "z": ("u2", (5,))},
    "large": {"a": ("f4", (10_000,)), **NUMBERS},
    "all": {"a": ("f4", ()), **EMPTY, "z": ("u2", (5,))},
}
"""Columns by name, each of a dtype and a shape."""

Kinds = dict[str, tuple[str, tuple[int, ...]]]


def rows(kinds: Kinds, *lead: int) -> dict[str, Any]:
    return {name: np.ones((*lead, *shape), dtype) for name, (dtype, shape) in kinds.items()}


def by_insert_batch(client: Any, kinds: Kinds, codec: Any) -> None:
    client.insert_batch(rows(kinds, 3, T), {"t": 1.0}, codec=codec)


def by_batch_writer(client: Any, kinds: Kinds, codec: Any) -> None:
    with client.batch_writer(codec=codec) as writer:
        writer.insert(rows(kinds, 2, T), {"t": 1.0})
        writer.insert(rows(kinds, 1, T), {"t": 1.0})
        writer.flush()
        assert writer.report().bytes_in == 3 * T * step_bytes(kinds)


def by_writer(client: Any, kinds: Kinds, codec: Any) -> None:
    with client.writer(T, codec=codec) as writer:
        for step in range(T + 2):
            writer.append(rows(kinds))
            if step >= T - 1:
                writer.create_item("t", T, 1.0)


def by_trajectory_writer(client: Any, kinds: Kinds, codec: Any) -> None:
    with client.trajectory_writer(T, chunk_length=3, codec=codec) as writer:
        for _ in range(T):
            writer.append(rows(kinds))
        for index in (slice(None), slice(-T, None), [3, 0, 0, 1]):
            shown = {name: writer.history[name][index] for name in kinds}
            assert all(column.numpy().shape == (T, *kinds[name][1]) for name, column in shown.items())
            writer.create_item("t", 1.0, shown)


def by_structured_writer(client: Any, kinds: Kinds, codec: Any) -> None:
    step = structured.create_reference_step(rows(kinds))
    config = structured.create_config({name: step[name][-T:] for name in kinds}, "t")
    with client.structured_writer([config], codec=codec) as writer:
        for _ in range(T + 2):
            writer.append(rows(kinds))


def by_vector_writer(client: Any, kinds: Kinds, codec: Any) -> None:
    write_in_lockstep(client, kinds, codec, T, observations=())


def by_vector_writer_that_observes_ends(client: Any, kinds: Kinds, codec: Any) -> None:
    # The episode's last row is what its end led to.
    write_in_lockstep(client, kinds, codec, T - 1, observations=list(kinds))


def write_in_lockstep(client: Any, kinds: Kinds, codec: Any, steps: int, observations: Any) -> None:
    """An episode of T rows in each of three environments."""
    settings = {"observations": observations, "autoreset_mode": "same_step", "codec": codec}
    with client.vector_writer(3, [VectorItem("t", T, T)], **settings) as writer:
        for step in range(steps):
            is_last = step == steps - 1
            final = rows(kinds, 3) if is_last and observations else None
            writer.append(rows(kinds, 3), np.full(3, is_last), final=final)
        writer.flush()
        assert writer.report().bytes_in == 3 * T * step_bytes(kinds)


def step_bytes(kinds: Kinds) -> int:
    return sum(array.nbytes for array in rows(kinds).values())


WRITERS = [
    by_insert_batch,
    by_batch_writer,
    by_writer,
    by_trajectory_writer,
    by_structured_writer,
    by_vector_writer,
    by_vector_writer_that_observes_ends,
]


def check(data: dict[str, Any], kinds: Kinds, *lead: int) -> None:
    assert set(data) == set(kinds)
    for name, expected in rows(kinds, *lead).items():
        wanted = np.dtype(object) if expected.dtype.kind in "SU" else expected.dtype
        assert (data[name].dtype, data[name].shape) == (wanted, expected.shape), name
        np.testing.assert_array_equal(data[name], expected.astype(wanted))


@pytest.mark.parametrize("codec", ["raw", "auto"])
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kinds", SETS.values(), ids=SETS)
def test_every_reader_gives_back_empty_cells_of_every_writer(
    serve: Any, client_of: Any, kinds: Kinds, write: Callable[[Any, Kinds, Any], None], codec: Any
) -> None:
    server = serve(fifo("t"))
    client = client_of(server)
    write(client, kinds, codec)
    assert size(client, "t") == 3
    names = sorted(kinds)
    for sample in client.sample("t", 3, emit_timesteps=False):
        check(dict(zip(names, sample.data, strict=True)), kinds, T)
    for steps in client.sample("t", 1):
        assert len(steps) == T
        for step in steps:
            check(dict(zip(names, step.data, strict=True)), kinds)
    for ragged in ("error", "pad"):
        check(client.sample_batch("t", 3, ragged=ragged).data, kinds, 3, T)
        for batch in client.dataset("t", 3, max_batches=2, ragged=ragged):
            check(batch.data, kinds, 3, T)
    listed = client.sample_batch("t", 3, ragged="list").data
    for number in range(3):
        check({name: arrays[number] for name, arrays in listed.items()}, kinds, T)
    for item in client.peek("t", oldest=3):
        check(item.data, kinds, T)
    dtypes = {name: {"S": bytes, "U": str}.get(np.dtype(dtype).kind, dtype) for name, (dtype, _) in kinds.items()}
    shapes = {name: shape for name, (_, shape) in kinds.items()}
    trajectories = TrajectoryDataset(server.address, "t", dtypes, {n: (T, *s) for n, s in shapes.items()}, 4)
    check(next(iter(trajectories)).data, kinds, T)
    check(next(iter(TimestepDataset(server.address, "t", dtypes, shapes, 4))).data, kinds)


def test_a_step_of_nothing_but_empty_cells_is_inserted(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    client.insert(rows(EMPTY), {"t": 1.0})
    [sample] = client.sample("t", 1, emit_timesteps=False)
    check(dict(zip(sorted(EMPTY), sample.data, strict=True)), EMPTY, 1)
