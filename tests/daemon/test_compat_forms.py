"""The legacy writer's steps that change their form: leaves, dtypes and shapes are those of a chunk, not of a writer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import _writer
from tests.daemon.compat import fifo, items, size

pytest_plugins = ["tests.daemon.compat_fixtures"]

TABLES = [fifo("table")]


STEPS: list[Any] = [
    [np.arange(2)], [np.arange(3)], [np.arange(2)], {"text": "x", "number": 1.5}, [np.arange(4.0)], [1, 2, 3],
    [np.arange(3)], {"text": "a longer text" * 9, "number": 2.5},
]  # fmt: skip


def test_episodes_of_any_length_are_written_as_single_steps(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        for step in STEPS:
            writer.append(step)
            writer.create_item("table", 1, 1.0)
    for step, sample in zip(STEPS, items(client, "table"), strict=True):
        leaves = [step[key] for key in sorted(step)] if isinstance(step, dict) else step
        for leaf, column in zip(leaves, sample.data, strict=True):
            assert np.array_equal(column, [leaf.encode() if isinstance(leaf, str) else leaf])


def test_all_steps_of_a_chunk_have_one_form(client: reverb.Client) -> None:
    with client.writer(4, chunk_length=2) as writer:
        writer.append([np.zeros(2)])
        for bad, message in (
            ([np.zeros(3)], r"Got \[3\] which is incompatible with \[2\]"),
            ([np.zeros(2, np.float32)], "Got float but expected double"),
            ([np.zeros(2), 1], "Previously it was 1, but is now 2"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.append(bad)
        writer.append([np.ones(2)])
        writer.append([np.zeros(3)])
        with pytest.raises(ValueError, match=r"column 1 \(path=\(0,\)\)\. Got \[2\] which is incompatible with \[3\]"):
            writer.append([np.zeros(2)])
        writer.create_item("table", 1, 1.0)
        with pytest.raises(ValueError, match="differ"):
            writer.create_item("table", 2, 1.0)
    assert size(client, "table") == 1


def test_a_flush_ends_the_chunk(client: reverb.Client) -> None:
    with client.writer(4) as writer:
        writer.append(1)
        writer.create_item("table", 1, 1.0)
        writer.flush()
        writer.append(1.5)
        writer.create_item("table", 1, 1.0)
    assert [sample.data[0].tolist() for sample in items(client, "table")] == [[1], [1.5]]


def test_a_form_that_comes_back_takes_no_more_room(client: reverb.Client) -> None:
    with client.writer(1) as writer:
        for step in range(300):
            writer.append([np.full(1 + step % 3, step)])
            writer.create_item("table", 1, 1.0)
        assert len(writer._cells._columns) == 3
    assert [sample.data[0][0, 0] for sample in items(client, "table")] == list(range(300))


@pytest.mark.parametrize("limit", ["columns", "bytes"])
def test_there_may_be_more_forms_than_are_kept(
    client: reverb.Client, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit == "bytes":
        monkeypatch.setattr(_writer, "MOST_FORM_BYTES", 4096)
    count = 2 * _writer.MOST_COLUMNS
    with client.writer(1) as writer:
        for length in range(1, count):
            writer.append([np.full(length, length), length])
            writer.create_item("table", 1, 1.0)
            assert len(writer._cells._columns) <= _writer.MOST_COLUMNS
    found = [sample.data[0][0] for sample in items(client, "table")]
    assert [column.tolist() for column in found] == [[length] * length for length in range(1, count)]
