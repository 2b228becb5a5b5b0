"""Histories, columns and steps of a trajectory writer over cells that are kept as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from replayd.compat.reverb.errors import DeadlineExceededError
from replayd.compat.reverb.pybind import AutoTunedChunkerOptions, ConstantChunkerOptions
from replayd.compat.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter


class Value:
    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value)
        self.shape, self.dtype, self.expired = self.value.shape, self.value.dtype, False

    def numpy(self) -> Any:
        return self.value


class Cells:
    """Stands in for the cell writer, as programs' own do: it has the binding's methods."""

    def __init__(self, keep: int) -> None:
        self.max_num_keep_alive_refs = keep
        self.rows: list[tuple[list[Any], bool]] = []
        self.calls: list[Any] = []
        self.episode_steps = 0

    def Append(self, row: Sequence[Any]) -> list[Value | None]:  # noqa: N802
        return self._append(row, False)

    def AppendPartial(self, row: Sequence[Any]) -> list[Value | None]:  # noqa: N802
        return self._append(row, True)

    def _append(self, row: Sequence[Any], partial: bool) -> list[Value | None]:
        self.rows.append((list(row), partial))
        return [None if value is None else Value(value) for value in row]

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


def writer(keep: int = 10) -> tuple[TrajectoryWriter, Cells]:
    cells = Cells(keep)
    return TrajectoryWriter(cells), cells


def written(steps: int, keep: int) -> Any:
    made, _ = writer(keep)
    for step in range(steps):
        made.append(step)
    return made.history


def values(column: Any) -> list[Any]:
    return [None if ref is None else ref.numpy().tolist() for ref in column]


def test_there_is_no_history_before_the_first_step() -> None:
    with pytest.raises(RuntimeError):
        writer()[0].history  # noqa: B018


@pytest.mark.parametrize("data", [1, {"a": 1, "b": {"c": 2}}, [1, (2, 3)], {"a": np.zeros(2), "b": [1.0]}])
def test_the_history_has_the_shape_of_the_steps(data: Any) -> None:
    made, _ = writer()
    refs = made.append(data)
    assert isinstance(data, int) or type(made.history) is type(refs) is type(data)
    made.append(data)


@pytest.mark.parametrize("partial", [True, False])
def test_append_gives_references_in_the_shape_of_the_data(partial: bool) -> None:
    made, _ = writer()
    refs = made.append({"x": 1, "y": [2, None]}, partial_step=partial)
    assert refs["x"].numpy() == 1
    assert refs["y"][0].numpy() == 2
    assert refs["y"][1] is None
    assert set(made.append({"z": 3}, partial_step=partial)) == {"z"}


def test_a_new_field_is_the_next_column_and_absent_ones_are_none() -> None:
    made, cells = writer()
    made.append({"x": 1, "z": 2})
    made.append({"y": 3, "z": 4})
    assert [row for row, _ in cells.rows] == [[1, 2], [None, 4, 3]]
    assert {name: values(column) for name, column in made.history.items()} == {
        "x": [1, None],
        "y": [None, 3],
        "z": [2, 4],
    }


def test_parts_of_a_step_fill_one_step() -> None:
    made, cells = writer()
    made.append({"x": 1}, partial_step=True)
    made.append({"y": 2}, partial_step=True)
    made.append({"z": 3})
    made.append({"x": 4, "y": 5, "z": 6})
    assert [partial for _, partial in cells.rows] == [True, True, False, False]
    assert {name: values(column) for name, column in made.history.items()} == {
        "x": [1, 4],
        "y": [2, 5],
        "z": [3, 6],
    }


def test_a_field_of_the_open_step_must_not_come_again() -> None:
    made, _ = writer()
    made.append({"x": 1, "y": {"z": 2}}, partial_step=True)
    with pytest.raises(ValueError) as error:
        made.append({"x": None, "y": {"z": 5}})
    assert str(error.value) == (
        "Field ('y', 'z') has already been set in the active step by previous (partial) append call and thus must be "
        "omitted or set to None but got: 5"
    )
    made.append({"x": None, "y": {"z": None}})


def test_none_and_absence_leave_a_field_of_the_open_step_as_it_is() -> None:
    made, _ = writer()
    made.append({"x": 1}, partial_step=True)
    made.append({"x": None, "y": 2}, partial_step=True)
    made.append({})
    made.append({"x": 7})
    assert values(made.history["x"]) == [1, 7]
    assert values(made.history["y"]) == [2, None]


def test_a_container_of_another_kind_is_refused() -> None:
    made, cells = writer()
    made.append({"x": [1]})
    with pytest.raises(ValueError):
        made.append({"x": {"y": 1}})
    assert len(cells.rows) == 1


@pytest.mark.parametrize("index", [-1, -6, 7, 2, True])
def test_an_int_gives_a_squeezed_column(index: int) -> None:
    history = written(8, 6) if index is not True else written(8, 10)
    column = history[index]
    assert column.is_squeezed
    assert column.shape == ()
    assert column.numpy() == range(8)[index]


@pytest.mark.parametrize("index", [0, 1, -7, -8])
def test_a_step_that_is_no_longer_kept_is_a_value_error(index: int) -> None:
    with pytest.raises(ValueError, match="cannot contain any None"):
        written(8, 6)[index]


@pytest.mark.parametrize("index", [8, 9, [8], [0, 100]])
def test_a_step_that_is_yet_to_come_is_an_index_error(index: Any) -> None:
    with pytest.raises(IndexError, match="out of range"):
        written(8, 10)[index]


@pytest.mark.parametrize("index", [-9, [-1, -9], slice(-9, None), slice(-20, -1), slice(-9, None, 2)], ids=str)
def test_before_the_first_step_there_is_none(index: Any) -> None:
    with pytest.raises(ValueError, match="cannot contain any None"):
        written(8, 10)[index]


@pytest.mark.parametrize("index", [-1, [-1], slice(-1, None)], ids=str)
def test_a_cleared_history_has_no_newest_step(index: Any) -> None:
    made, _ = writer()
    made.append(1)
    made.end_episode()
    assert values(made.history[:]) == values(made.history[:-1]) == []
    with pytest.raises(ValueError, match="cannot contain any None"):
        made.history[index]


SLICES = [
    slice(None), slice(None, None, 2), slice(2, 5), slice(2, 8), slice(2, 100), slice(5, None), slice(7, None),
    slice(None, 3), slice(None, -1), slice(-3, None), slice(-5, -2), slice(-6, None, 2), slice(None, None, -1),
    slice(-1, -4, -1), slice(3, 3), slice(8, None), slice(9, 12), slice(None, 100),
]  # fmt: skip


@pytest.mark.parametrize("index", SLICES, ids=str)
def test_a_slice_is_that_of_a_list_of_all_steps(index: slice) -> None:
    column = written(8, 10)[index]
    assert not column.is_squeezed
    assert values(column) == list(range(8))[index]


@pytest.mark.parametrize(
    "index", [slice(None), slice(None, None, 2), slice(1, 4), slice(-7, None), slice(-8, -1)], ids=str
)
def test_a_slice_that_reaches_what_is_no_longer_kept_is_a_value_error(index: slice) -> None:
    with pytest.raises(ValueError, match="cannot contain any None"):
        written(8, 6)[index]


@pytest.mark.parametrize(
    ("index", "kept"), [(slice(None, 3), [2]), (slice(None, -1), [2, 3, 4, 5, 6]), (slice(None, 2), [])]
)
def test_a_slice_from_the_beginning_shows_what_is_kept_of_it(index: slice, kept: list[int]) -> None:
    assert values(written(8, 6)[index]) == kept


@pytest.mark.parametrize(
    ("index", "picked"), [([0, -1], [0, 7]), ([3, 3, 1], [3, 3, 1]), ([-1, -2, -3], [7, 6, 5]), ([5], [5])]
)
def test_a_list_picks_steps_in_any_order(index: list[int], picked: list[int]) -> None:
    assert values(written(8, 10)[index]) == picked


def test_a_list_with_a_step_that_is_gone_is_refused() -> None:
    with pytest.raises(ValueError):
        written(8, 6)[[0, -1]]
    with pytest.raises(IndexError):
        written(8, 6)[[8]]


@pytest.mark.parametrize("index", [np.int64(1), "a", 1.0, None, (1,)])
def test_other_indices_are_a_type_error(index: Any) -> None:
    with pytest.raises(TypeError):
        written(8, 6)[index]
    with pytest.raises(TypeError):
        TrajectoryColumn([Value(1)])[index]


@pytest.mark.parametrize("steps", [1, 3, 6, 7, 11, 12, 13, 40])
def test_a_history_is_as_long_as_its_episode_and_keeps_the_last_steps(steps: int) -> None:
    history = written(steps, 6)
    assert len(history) == steps
    gone = max(steps - 6, 0)
    assert values(history) == [None] * gone + list(range(gone, steps))


@pytest.mark.parametrize("clear", [True, False])
def test_the_end_of_an_episode_clears_the_history_if_asked_to(clear: bool) -> None:
    made, cells = writer()
    made.append({"x": 1})
    made.end_episode(clear_buffers=clear)
    made.append({"x": 2, "y": 3})
    assert values(made.history["x"]) == ([2] if clear else [1, 2])
    assert values(made.history["y"]) == ([3] if clear else [None, 3])
    assert cells.calls == [("EndEpisode", clear, None)]


def test_the_end_of_an_episode_closes_the_open_step() -> None:
    made, _ = writer()
    made.append({"x": 1}, partial_step=True)
    made.end_episode(clear_buffers=False)
    made.append({"x": 2})
    assert values(made.history["x"]) == [1, 2]


def test_the_refused_step_leaves_the_history_alone() -> None:
    class Refusing(Cells):
        def Append(self, row: Sequence[Any]) -> list[Value | None]:  # noqa: N802
            if row[-1] == "bad":
                raise ValueError("Tensor of wrong dtype provided for column 1. Got string but expected int64.")
            return super().Append(row)

    made = TrajectoryWriter(Refusing(4))
    made.append({"a": 1, "b": {"c": 2}})
    with pytest.raises(ValueError) as error:
        made.append({"a": 1, "b": {"c": "bad"}})
    assert str(error.value) == "Tensor of wrong dtype provided for column ('b', 'c'). Got string but expected int64."
    assert values(made.history["a"]) == [1]


def test_items_are_made_of_columns_only() -> None:
    made, cells = writer()
    first, second = made.append({"a": 1, "b": 2}), made.append({"a": 3, "b": 4})
    made.create_item("table", 1.0, {"a": made.history["a"][:]})
    made.create_item("table", 1.0, {"a": TrajectoryColumn([first["a"], second["a"]])})
    for bad in (first["b"], made.history["b"], np.zeros(1), None):
        with pytest.raises(TypeError, match="'b'"):
            made.create_item("table", 1.0, {"a": made.history["a"][:], "b": bad})
    assert len(cells.calls) == 2


@pytest.mark.parametrize("trajectory", [{}, [], {"a": {}}])
def test_an_empty_trajectory_is_refused(trajectory: Any) -> None:
    made, _ = writer()
    made.append(1)
    with pytest.raises(ValueError):
        made.create_item("table", 1.0, trajectory)


def test_a_priority_of_nan_is_refused() -> None:
    made, _ = writer()
    made.append(1)
    with pytest.raises(ValueError, match="nan"):
        made.create_item("table", float("nan"), made.history[:])


def test_flush_takes_no_negative_number() -> None:
    made, cells = writer()
    made.flush(0)
    made.flush(1, timeout_ms=5)
    with pytest.raises(ValueError):
        made.flush(-1)
    assert cells.calls == [("Flush", 0, -1), ("Flush", 1, 5)]


@pytest.mark.parametrize(
    ("keep", "chunk", "is_valid"),
    [
        (1, None, True), (0, None, False), (-1, None, False), (1, 1, True), (1, 0, False), (1, -1, False),
        (5, 5, True), (4, 5, False), (5, 2, True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_seen", [True, False])
def test_the_configuration_of_a_column_is_checked(keep: int, chunk: int | None, is_valid: bool, is_seen: bool) -> None:
    made, _ = writer()
    if is_seen:
        made.append({"a": 1})
    if is_valid:
        made.configure(("a",), num_keep_alive_refs=keep, max_chunk_length=chunk)
    else:
        with pytest.raises(ValueError):
            made.configure(("a",), num_keep_alive_refs=keep, max_chunk_length=chunk)


def test_the_configuration_of_an_unseen_column_waits_for_it() -> None:
    made, cells = writer()
    made.append({"x": 1})
    made.configure(("y",), num_keep_alive_refs=3, max_chunk_length=2)
    made.append({"x": 2})
    assert not cells.calls
    made.append({"y": 2})
    assert cells.calls == [("ConfigureChunker", 1, ConstantChunkerOptions(max_chunk_length=2, num_keep_alive_refs=3))]
    made.append({"y": 3})
    assert len(cells.calls) == 1


def test_a_column_without_a_chunk_length_gets_the_one_that_turns_out_well() -> None:
    made, cells = writer()
    made.append({"x": [1, 2]})
    made.configure(("x", 1), num_keep_alive_refs=3, max_chunk_length=None)
    assert cells.calls == [
        ("ConfigureChunker", 1, AutoTunedChunkerOptions(num_keep_alive_refs=3, throughput_weight=1.0))
    ]


def test_a_writer_of_the_programs_own_gets_what_the_binding_takes() -> None:
    made, cells = writer()
    for step in range(3):
        made.append({"a": step, "b": {"c": -step}})
    history = made.history
    made.create_item("table", 2.0, [history["a"][-2:], {"z": history["b"]["c"][0]}])
    ((name, table, priority, columns, squeezed),) = cells.calls
    assert (name, table, priority, squeezed) == ("CreateItem", "table", 2.0, [False, True])
    assert [values(column) for column in columns] == [[1, 2], [0]]
    assert all(isinstance(column, list) for column in columns)


def test_the_history_has_its_keys_in_the_order_in_which_they_came() -> None:
    made, _ = writer()
    made.append({"z": 1, "a": 2})
    made.append({"m": 3})
    assert list(made.history) == ["z", "a", "m"]
    assert list(made.append({"m": 1, "a": 2})) == ["m", "a"]


def test_leaving_the_writer_flushes_unless_an_error_of_the_service_is_on_its_way() -> None:
    made, cells = writer()
    with made:
        pass
    with pytest.raises(KeyError), made:
        raise KeyError
    assert [call[0] for call in cells.calls] == ["Flush", "Flush"]
    with pytest.raises(DeadlineExceededError), made:
        raise DeadlineExceededError
    assert len(cells.calls) == 2


@pytest.mark.parametrize("count", [0, 2, 3])
def test_only_one_value_is_squeezed(count: int) -> None:
    with pytest.raises(ValueError):
        TrajectoryColumn([Value(1)] * count, squeeze=True)
    assert TrajectoryColumn([Value(1)], squeeze=True).is_squeezed


@pytest.mark.parametrize(
    ("references", "squeeze"), [([None], False), ([None], True), ([Value(1), None], False), ([None, None], False)]
)
def test_a_column_holds_no_none(references: list[Any], squeeze: bool) -> None:
    with pytest.raises(ValueError, match="cannot contain any None"):
        TrajectoryColumn(references, squeeze=squeeze)


@pytest.mark.parametrize("value", [1, 1.5, True, np.zeros((2, 3), np.float32), np.uint8(4)])
def test_a_column_tells_shape_dtype_and_data(value: Any) -> None:
    column = TrajectoryColumn([Value(value)] * 3)
    one = np.asarray(value)
    assert (len(column), column.shape, column.dtype) == (3, (3, *one.shape), one.dtype)
    assert np.array_equal(column.numpy(), np.stack([one] * 3))
    squeezed = TrajectoryColumn([Value(value)], squeeze=True)
    assert squeezed.shape == one.shape
    assert np.array_equal(squeezed.numpy(), one)


def test_a_column_is_indexed_as_a_list_is() -> None:
    column = TrajectoryColumn([Value(step) for step in range(5)])
    assert values(column[1:4]) == [1, 2, 3]
    assert values(column[[4, 0]]) == [4, 0]
    assert column[-1].is_squeezed
    assert column[-1].numpy() == 4
    with pytest.raises(IndexError):
        column[5]


def test_columns_are_joined_by_their_references() -> None:
    history = written(6, 6)
    assert values(TrajectoryColumn([*history[:2], *history[-1:]])) == [0, 1, 5]


def test_expired_data_is_a_runtime_error() -> None:
    value = Value(1)
    value.expired = True
    with pytest.raises(RuntimeError):
        TrajectoryColumn([value]).numpy()
