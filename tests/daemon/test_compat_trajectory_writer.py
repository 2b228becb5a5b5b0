"""The trajectory writer against a running server: steps, picks, items, flushing, ending."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb.trajectory_writer import TrajectoryColumn
from tests.daemon.compat import by_priority, data, fifo, items, size

pytest_plugins = ["tests.daemon.compat_fixtures"]

SIGNATURE = {"a": reverb.TensorSpec((None,), np.int64), "b": reverb.TensorSpec((), np.float32)}
TABLES = [
    fifo("table"),
    fifo("signed", signature=SIGNATURE),
    by_priority("prioritized", reverb.selectors.Prioritized(1.0)),
]


PICKS: list[Any] = [
    slice(None), slice(-3, None), slice(2, 7), slice(None, None, 2), slice(None, None, -1), slice(-5, None, 2),
    [0, 2, 5], [9, 0, 4], [3, 3, 3], [8, 7, 6], [0, 1, 2, 9], -1, 4,
]  # fmt: skip


@pytest.mark.parametrize("chunk_length", [None, 1, 3, 10])
@pytest.mark.parametrize("pick", PICKS, ids=str)
def test_any_pick_is_stored_and_returned_exactly(client: reverb.Client, pick: Any, chunk_length: int | None) -> None:
    with client.trajectory_writer(10) as writer:
        writer.configure(("x",), num_keep_alive_refs=10, max_chunk_length=chunk_length)
        for step in range(10):
            writer.append({"x": step, "y": np.full((2,), step, np.float32)})
        writer.create_item("table", 1.0, {"x": writer.history["x"][pick], "y": writer.history["y"][pick]})
    steps = np.arange(10)[pick]
    (x, y) = items(client, "table")[0].data
    assert np.array_equal(x, steps)
    assert np.array_equal(y, np.stack([steps, steps], axis=-1).astype(np.float32))


def test_columns_of_one_item_may_differ_in_length(client: reverb.Client) -> None:
    with client.trajectory_writer(4) as writer:
        for step in range(4):
            writer.append({"o": step, "r": float(step)})
        history = writer.history
        writer.create_item("table", 1.0, {"many": history["o"][:], "few": history["r"][-2:], "one": history["o"][-1]})
    assert data(client, "table") == [[[2.0, 3.0], [0, 1, 2, 3], 3]]


def test_values_of_several_columns_make_one(client: reverb.Client) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": step, "b": 10 + step})
        a, b = writer.history["a"], writer.history["b"]
        joined = TrajectoryColumn([*a[:], *b[-1:], *a[:1]])
        writer.create_item("table", 1.0, {"joined": joined, "plain": a[-2:]})
        assert joined.numpy().tolist() == [0, 1, 2, 12, 0]
    assert data(client, "table") == [[[0, 1, 2, 12, 0], [1, 2]]]


def test_values_of_several_kinds_do_not(client: reverb.Client) -> None:
    with client.trajectory_writer(3) as writer:
        writer.append({"a": 1, "b": 1.0, "c": np.zeros(2, np.int64)})
        history = writer.history
        for other in ("b", "c"):
            with pytest.raises(ValueError):
                writer.create_item("table", 1.0, {"x": TrajectoryColumn([*history["a"][:], *history[other][:]])})


def test_references_of_append_make_columns(client: reverb.Client) -> None:
    with client.trajectory_writer(2) as writer:
        first, second = writer.append({"a": 1}), writer.append({"a": 2})
        writer.create_item("table", 1.0, [TrajectoryColumn([second["a"], first["a"]], path=("a",))])
    assert data(client, "table") == [[[2, 1]]]


@pytest.mark.parametrize("structure", [lambda c: c, lambda c: [c], lambda c: {"x": {"y": c}}, lambda c: (c, [c])])
def test_a_trajectory_has_any_structure(client: reverb.Client, structure: Any) -> None:
    with client.trajectory_writer(1) as writer:
        writer.append(7)
        writer.create_item("table", 1.0, structure(writer.history[:]))
    assert all(column == [7] for column in data(client, "table")[0])


def test_parts_of_a_step_are_one_step_of_an_item(client: reverb.Client) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"observation": step}, partial_step=True)
            writer.append({"action": -step}, partial_step=True)
            writer.append({"reward": float(step)})
        writer.create_item("table", 1.0, {name: column[:] for name, column in writer.history.items()})
    assert data(client, "table") == [[[0, -1, -2], [0, 1, 2], [0.0, 1.0, 2.0]]]


def test_an_item_may_show_the_open_step(client: reverb.Client) -> None:
    with client.trajectory_writer(2) as writer:
        writer.append({"a": 1, "b": 1})
        writer.append({"a": 2}, partial_step=True)
        writer.create_item("table", 1.0, {"a": writer.history["a"][-2:]})
        writer.append({"b": 2})
    assert data(client, "table") == [[[1, 2]]]


def test_a_field_may_come_late_and_be_absent(client: reverb.Client) -> None:
    with client.trajectory_writer(6) as writer:
        for step in range(6):
            writer.append({"a": step, **({"b": step} if step % 2 else {})})
        history = writer.history
        with pytest.raises(ValueError, match="cannot contain any None"):
            history["b"][:]
        writer.create_item("table", 1.0, {"a": history["a"][1:], "b": history["b"][[1, 3, 5]]})
    assert data(client, "table") == [[[1, 2, 3, 4, 5], [1, 3, 5]]]


def test_an_item_may_begin_before_its_latest_column(client: reverb.Client) -> None:
    with client.trajectory_writer(6) as writer:
        for step in range(6):
            writer.append({"a": step, **({"b": step} if step >= 4 else {})})
        writer.create_item("table", 1.0, {"a": writer.history["a"][:], "b": writer.history["b"][-2:]})
    assert data(client, "table") == [[[0, 1, 2, 3, 4, 5], [4, 5]]]


def test_text_of_any_length_is_stored(client: reverb.Client) -> None:
    texts = ["", "x", "y" * 100, "é", "z" * 3000]
    with client.trajectory_writer(5) as writer:
        for text in texts:
            writer.append({"text": text, "number": 1})
        column = writer.history["text"][:]
        assert column.numpy().tolist() == [text.encode() for text in texts]
        assert column.dtype == object
        writer.create_item("table", 1.0, {"text": column, "last": writer.history["text"][-1]})
    last, found = items(client, "table")[0].data
    assert last.item() == texts[-1].encode()
    assert found.tolist() == [text.encode() for text in texts]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2, "Got int64 but expected double"),
        ("text", "Got string but expected double"),
        (np.float32(1), "Got float but expected double"),
        (np.zeros(2), r"Got \[2\] which is incompatible with \[\]"),
        (np.zeros((1, 2)), r"Got \[1,2\] which is incompatible with \[\]"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_named(client: reverb.Client, value: Any, message: str) -> None:
    writer = client.trajectory_writer(2)
    writer.append({"a": 1, "b": {"c": 1.0}})
    with pytest.raises(ValueError, match=r"for column \('b', 'c'\)\. " + message):
        writer.append({"a": 1, "b": {"c": value}})
    writer.append({"a": 2, "b": {"c": 2.0}})
    assert writer.history["a"][:].numpy().tolist() == [1, 2]
    writer.close()


@pytest.mark.parametrize("value", [object(), np.longdouble(1), {1, 2}])
def test_a_value_that_cannot_be_stored_is_a_type_error(client: reverb.Client, value: Any) -> None:
    writer = client.trajectory_writer(2)
    with pytest.raises(TypeError):
        writer.append({"a": value})
    writer.close()


def test_a_buffer_may_be_used_again_after_append(client: reverb.Client) -> None:
    buffer = np.zeros(3, np.int32)
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            buffer[:] = step
            writer.append(buffer)
        writer.create_item("table", 1.0, writer.history[:])
    assert items(client, "table")[0].data[0][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value", [1, 1.5, True, 2j, np.ones((3, 2), np.float16), np.zeros((0,), np.uint8), "text", np.array(["a", "b"])]
)
def test_history_shows_data_shape_and_dtype(client: reverb.Client, value: Any) -> None:
    writer = client.trajectory_writer(3)
    for _ in range(2):
        writer.append({"v": value})
    one = np.asarray(value)
    column = writer.history["v"][:]
    assert column.shape == (2, *one.shape)
    assert column.dtype == (object if one.dtype.kind == "U" else one.dtype)
    assert column.numpy().shape == column.shape
    assert writer.history["v"][-1].shape == one.shape
    assert writer.history["v"][-1].numpy().dtype == column.dtype
    writer.close()


def test_data_stays_readable_while_it_is_kept(client: reverb.Client) -> None:
    writer = client.trajectory_writer(4)
    for step in range(20):
        writer.append(step)
        kept = range(max(0, step - 3), step + 1)
        assert writer.history[-len(kept) :].numpy().tolist() == list(kept)
    writer.close()


def test_what_has_expired_cannot_be_read_or_shown(client: reverb.Client) -> None:
    writer = client.trajectory_writer(2)
    writer.append(0)
    column = writer.history[:]
    for step in range(1, 3):
        writer.append(step)
    with pytest.raises(RuntimeError):
        column.numpy()
    with pytest.raises(ValueError, match="expired"):
        writer.create_item("table", 1.0, column)
    writer.close()


def test_an_empty_column_beside_others_is_refused(client: reverb.Client) -> None:
    writer = client.trajectory_writer(2)
    writer.append({"a": 1, "b": 2})
    history = writer.history
    with pytest.raises(ValueError):
        writer.create_item("table", 1.0, {"a": history["a"][:], "b": history["b"][1:]})
    writer.close()
    assert size(client, "table") == 0


@pytest.mark.parametrize("priority", [float("nan"), -1.0])
def test_a_priority_that_the_table_does_not_take_is_refused_at_once(client: reverb.Client, priority: float) -> None:
    with client.trajectory_writer(1) as writer:
        writer.append(1)
        with pytest.raises(ValueError):
            writer.create_item("prioritized", priority, writer.history[:])
        writer.create_item("prioritized", 2.0, writer.history[:])
    assert next(client.sample("prioritized"))[0].info.priority == 2.0


def trajectory(writer: Any, **kinds: Any) -> Any:
    return {name: pick(writer.history[name]) for name, pick in kinds.items()}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_trajectory_that_fits_the_signature_is_taken(client: reverb.Client, rows: int) -> None:
    with client.trajectory_writer(5) as writer:
        for step in range(5):
            writer.append({"a": step, "b": np.float32(step)})
        writer.create_item("signed", 1.0, {"a": writer.history["a"][-rows:], "b": writer.history["b"][-1]})
        # By position, whatever the names are.
        writer.create_item("signed", 1.0, [writer.history["a"][-rows:], writer.history["b"][-1]])
    assert size(client, "signed") == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda h: {"a": h["a"][:]},
        lambda h: {"a": h["a"][:], "b": h["b"][-1], "c": h["b"][-1]},
        lambda h: {"a": h["a"][-1], "b": h["b"][-1]},
        lambda h: {"a": h["a"][:], "b": h["b"][:]},
        lambda h: {"a": h["b"][:], "b": h["a"][-1]},
    ],
)
def test_a_trajectory_that_does_not_fit_is_refused_with_both_signatures(client: reverb.Client, make: Any) -> None:
    writer = client.trajectory_writer(2)
    for step in range(2):
        writer.append({"a": step, "b": np.float32(step)})
    with pytest.raises(ValueError, match=r"signed.*inconsistent with the table signature\. .*int64 \[\?\]"):
        writer.create_item("signed", 1.0, make(writer.history))
    writer.close()


def test_without_validation_anything_enters(client: reverb.Client) -> None:
    with client.trajectory_writer(1, validate_items=False) as writer:
        writer.append("not an integer")
        writer.create_item("signed", 1.0, writer.history[:])
    assert data(client, "signed") == [[[b"not an integer"]]]


def test_an_unknown_table_is_refused_at_once_or_by_the_next_flush(client: reverb.Client) -> None:
    writer = client.trajectory_writer(1)
    writer.append(1)
    with pytest.raises(ValueError, match="nowhere"):
        writer.create_item("nowhere", 1.0, writer.history[:])
    writer.close()
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append(1)
    writer.create_item("nowhere", 1.0, writer.history[:])
    with pytest.raises(RuntimeError, match="nowhere"):
        writer.flush()
    writer.close()


def test_a_column_may_ask_for_more_steps_than_the_writer(client: reverb.Client) -> None:
    with client.trajectory_writer(1) as writer:
        writer.configure(("long",), num_keep_alive_refs=5, max_chunk_length=None)
        for step in range(8):
            writer.append({"long": step, "short": step})
        writer.create_item("table", 1.0, {"x": writer.history["long"][-5:]})
    assert data(client, "table") == [[[3, 4, 5, 6, 7]]]


def test_a_column_is_not_configured_in_the_middle_of_its_chunk(client: reverb.Client) -> None:
    writer = client.trajectory_writer(4)
    writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=2)
    writer.append({"a": 1})
    with pytest.raises(RuntimeError):
        writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=3)
    writer.append({"a": 2})
    writer.configure(("a",), num_keep_alive_refs=4, max_chunk_length=3)
    writer.close()
