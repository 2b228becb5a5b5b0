"""Columns that come and go, without a server: structure that evolves, steps in parts, references, configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client.errors import DataError
from replayd_client.history import TrajectoryColumn, newest_cells
from replayd_client.structure import flatten
from tests.unit.test_writer import Pen

NAMES = "abc"
STEPS = st.lists(
    st.one_of(
        st.lists(st.dictionaries(st.sampled_from(NAMES), st.none(), max_size=3), min_size=1, max_size=3),
        st.sampled_from(["cut", "ship", "keep", "clear"]),
        st.lists(st.tuples(st.sampled_from(NAMES), st.lists(st.integers(-6, -1), min_size=1, max_size=4)), max_size=2),
    ),
    max_size=30,
)


@given(st.integers(1, 4), STEPS)
def test_items_show_what_was_there_however_columns_come_and_go(chunk_length: int, actions: list[Any]) -> None:
    """A step is a list of parts, each the columns that it has; an item is some columns and cells counted from the end.
    A plain list of dicts says which of the cells are there."""
    pen = Pen(6, chunk_length)
    steps: list[dict[str, int]] = []
    known: set[str] = set()
    expected: list[dict[str, list[int]]] = []
    number = 0
    for action in actions:
        if action == "cut":
            pen.log.cut()
        elif action == "ship":
            pen.ship()
        elif action in ("keep", "clear"):
            pen.log.end_episode(clear=action == "clear")
            steps = steps if action == "keep" else []
        elif action and isinstance(action[0], dict):
            number += 1
            step: dict[str, int] = {}
            for place, part in enumerate(action):
                cells = {name: 10 * number + NAMES.index(name) for name in part if name not in step}
                if not cells and not step:
                    continue
                pen.append(cells, partial_step=place < len(action) - 1)
                step.update(cells)
            pen.log.close_step()
            if step:
                steps.append(step)
                known |= step.keys()
        elif action and steps:
            trajectory: dict[str, Any] = {}
            wanted: dict[str, list[int]] = {}
            for name, places in action:
                kept = steps[-6:]
                is_there = all(-place <= len(kept) and name in kept[place] for place in places)
                if name not in known:
                    continue
                if not is_there:
                    with pytest.raises((DataError, IndexError)):
                        pen.history[name][places]
                    continue
                trajectory[name] = pen.history[name][places]
                wanted[name] = [kept[place][name] for place in places]
                assert trajectory[name].numpy().tolist() == wanted[name]
            if trajectory:
                pen.create(trajectory)
                expected.append(wanted)
    pen.finish()
    for place, wanted in enumerate(expected):
        assert {name: array.tolist() for name, array in pen.store.item(place).items()} == wanted


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_window_may_begin_before_a_column_did(is_sent: bool) -> None:
    pen = Pen(8, 2)
    for number in range(5):
        pen.append({"a": number})
        pen.create({"a": pen.history["a"][-1:]})
    if is_sent:
        pen.ship()
    for number in range(5, 8):
        pen.append({"a": number, "b": -number})
    pen.create({"a": pen.history["a"][:], "b": pen.history["b"][-2:]})
    pen.create({"a": pen.history["a"][2:4]})
    pen.finish()
    shown = [{name: array.tolist() for name, array in pen.store.item(n).items()} for n in range(7)]
    assert shown[:5] == [{"a": [number]} for number in range(5)]
    assert shown[5] == {"a": list(range(8)), "b": [-6, -7]}
    assert shown[6] == {"a": [2, 3]}
    # Chunks leave again only once, when the column has come.
    assert len(pen.store.chunks) == (6 if is_sent else 4)


def test_fields_seen_as_none_have_a_history_of_nothing() -> None:
    pen = Pen(4)
    pen.append([1, None, {"x": None}])
    assert [cell is None for cell in pen.history[1]] == [True]
    assert len(pen.history[2]["x"]) == 1
    with pytest.raises(DataError, match="lacks"):
        pen.history[1][-1]
    pen.append([None, 2, {"x": 3}])
    assert pen.history[1][-1].numpy() == 2
    assert pen.history[2]["x"][-1:].numpy().tolist() == [3]


def test_a_leaf_may_not_become_a_nest() -> None:
    pen = Pen(4)
    pen.append({"a": 1})
    for wrong in ({"a": {"b": 1}}, {"a": [1]}, [1], 1):
        with pytest.raises(DataError):
            pen.append(wrong)
    pen.append({"a": 2})
    assert pen.history["a"][:].numpy().tolist() == [1, 2]


def test_references_of_several_steps_make_a_column() -> None:
    pen = Pen(8, 2)
    cells: list[Any] = []
    for number in range(5):
        pen.append({"a": number, "b": None if number == 2 else -number})
        references = newest_cells(pen.log, [pen.history["a"], pen.history["b"]])
        assert [cell is None for cell in references] == [False, number == 2]
        cells.append(references)
    a = TrajectoryColumn([cells[4][0], cells[0][0], cells[0][0]])
    b = TrajectoryColumn([cells[3][1]], squeeze=True)
    assert (a.shape, b.shape, a.numpy().tolist()) == ((3,), (), [4, 0, 0])
    with pytest.raises(DataError, match="None"):
        TrajectoryColumn([cells[2][1]])
    pen.create({"a": a, "b": b})
    pen.finish()
    shown = pen.store.item(0)
    assert (shown["a"].tolist(), shown["b"].tolist()) == ([4, 0, 0], -3)


@pytest.mark.parametrize(
    ("step", "facts"),
    [
        ({"a": np.int32(1), "b": np.zeros(2)}, {"fault": "dtype", "path": ("a",), "expected_dtype": "int64"}),
        ({"a": 1, "b": np.zeros(3)}, {"fault": "shape", "path": ("b",), "expected_shape": (2,), "got_shape": (3,)}),
        ({"a": 1.5, "b": np.zeros(2)}, {"fault": "dtype", "path": ("a",)}),
        ({"a": 1 << 70, "b": np.zeros(2)}, {"path": ("a",)}),
        ({"a": "x", "b": np.zeros(2)}, {"fault": "value", "path": ("a",)}),
    ],
)
def test_an_error_carries_what_was_expected_and_what_came(step: Any, facts: dict[str, Any]) -> None:
    pen = Pen(4)
    pen.append({"a": 1, "b": np.zeros(2)})
    with pytest.raises(DataError) as refused:
        pen.append(step)
    assert facts.items() <= refused.value.detail.items()
    pen.append({"a": 2}, partial_step=True)
    with pytest.raises(DataError) as refused:
        pen.append({"a": 3})
    assert {"fault": "already_set", "path": ("a",), "column": 0}.items() <= refused.value.detail.items()


def test_values_of_usual_types_are_compared_as_carefully_as_others() -> None:
    pen = Pen(20)
    step = {"f": np.zeros(2, np.float32), "i": np.int8(1), "n": np.uint8(2)}
    pen.append(step)
    pen.append({**step, "n": 3})
    pen.append({**step, "n": 255})
    for wrong in ({"n": 256}, {"n": -1}, {"f": np.zeros(2)}, {"f": np.zeros(3, np.float32)}, {"i": np.int16(1)}):
        with pytest.raises(DataError):
            pen.append({**step, "n": 4, **wrong})
    assert pen.history["n"][:].numpy().tolist() == [2, 3, 255]


# Configuration and report.


def test_more_steps_are_kept_and_chunks_are_shorter_when_a_column_asks_for_it() -> None:
    pen = Pen(2, 2)
    for number in range(4):
        pen.append(number)
    pen.log.configure(5, 1)
    for number in range(4, 10):
        pen.append(number)
    pen.log.configure(3, None)
    pen.create(pen.history[-5:])
    with pytest.raises(DataError, match="expired"):
        pen.history[-6:]
    pen.finish()
    assert pen.store.item(0).tolist() == [5, 6, 7, 8, 9]
    assert [rows for rows, *_ in pen.store.chunks.values()] == [1] * 5


def test_a_report_tells_what_each_column_cost() -> None:
    pen = Pen(8, 4)
    noise = np.random.default_rng(1)
    for number in range(8):
        step = {"flat": np.zeros(5000, np.uint8), "noise": noise.integers(0, 256, 5000, np.uint8)}
        pen.append(step if number else {**step, "flat": None})
    report = pen.log.report()
    assert (report.steps, report.chunks, report.chunk_length) == (8, 2, 4)
    assert report.columns["noise"].bytes_in == 8 * 5000
    assert report.columns["noise"].ratio == 1
    assert report.columns["flat"].bytes_in == 7 * 5000
    assert report.columns["flat"].ratio > 10
    assert report.bytes_in == 75_000
    assert report.bytes_stored == sum(column.bytes_stored for column in report.columns.values())


# What is handed in is copied.


@pytest.mark.parametrize("kind", ["array", "row of an array", "0-d array", "big-endian", "Fortran order"])
def test_what_was_appended_does_not_change_with_the_callers_array(kind: str) -> None:
    pen = Pen(8, 3)
    whole = np.zeros((4, 3))
    make = {
        "array": lambda: whole,
        "row of an array": lambda: whole[1],
        "0-d array": lambda: whole[1, 1:2].reshape(()),
        "big-endian": lambda: whole.astype(">f8"),
        "Fortran order": lambda: np.asfortranarray(whole),
    }[kind]
    kept = make()
    for number in range(5):
        kept[...] = number
        pen.append({"x": kept, "n": number}, partial_step=True)
        kept[...] = -1
        pen.append({"y": kept})
        kept[...] = -2
    pen.create({"x": pen.history["x"][:], "y": pen.history["y"][:]})
    kept[...] = -3
    pen.finish()
    shown = pen.store.item(0)
    assert [set(np.ravel(row)) for row in shown["x"]] == [{float(number)} for number in range(5)]
    assert set(np.ravel(shown["y"])) == {-1.0}
    assert all(leaf.dtype == np.float64 for _, leaf in flatten(shown))
