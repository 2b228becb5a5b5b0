"""Writers without a server: what lands in chunks and items is what was appended and picked, however it is picked."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import replayd_client
from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.history import ColumnHistory, TrajectoryColumn
from replayd_client.item_handle import ItemHandle
from replayd_client.steps import Steps
from replayd_client.structure import Path, flatten
from replayd_client.windows import Windows
from tests.unit.message_store import Store


class Pen:
    """A trajectory writer that sends to a Store."""

    def __init__(self, keep: int, chunk_length: int | None = None) -> None:
        self.log = ChunkLog(keep, chunk_length)
        self.steps = Steps(self.log)
        self.windows = Windows(self.log)
        self.store = Store()
        self.handles: list[ItemHandle] = []
        self._histories: dict[Path, ColumnHistory] = {}

    @property
    def history(self) -> Any:
        structure = self.steps.structure
        assert structure is not None
        # The same ones all along, as a writer has them.
        histories = [self._histories.setdefault(path, ColumnHistory(self.log, path)) for path in structure.paths]
        return structure.rebuild(histories)

    def append(self, data: Any, partial_step: bool = False) -> None:
        self.steps.append(data, partial_step)

    def create(self, trajectory: Any) -> None:
        window = self.windows.of(trajectory)
        handle = ItemHandle("t")
        rows = self.log.rows
        self.log.add_item(handle, 1.0, rows + window.first, rows + window.last, window.template, 0.0)
        self.handles.append(handle)

    def ship(self) -> None:
        while (message := self.log.take_message()) is not None:
            self.store.take(message)

    def finish(self) -> None:
        self.log.cut()
        self.ship()
        assert self.log.items == 0
        assert len(self.store.items) == len(self.handles)


def step(number: int) -> dict[str, Any]:
    return {"a": np.int32(number), "b": np.full((2, 3), number, np.float32)}


def same(shown: Any, expected: Any) -> None:
    for (path, left), (other, right) in zip(flatten(shown), flatten(expected), strict=True):
        assert path == other
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


# Histories are lists.


INDICES = st.one_of(
    st.integers(-12, 12),
    st.slices(10),
    st.lists(st.integers(-9, 9), min_size=1, max_size=6),
    st.lists(st.integers(-9, 9), min_size=1, max_size=6).map(np.array),
)


def test_an_index_beyond_the_history_is_told_with_the_steps_that_are_kept() -> None:
    pen = Pen(keep=2)
    for number in range(3):
        pen.append({"a": number})
    for index in (3, -4, [0, 9]):
        with pytest.raises(IndexError, match=r"^a\[.*\]: the last 2 of 3 steps are kept, -2 to -1 \(.*refs is 2\)$"):
            pen.history["a"][index]
    pen.log.end_episode(True)
    with pytest.raises(IndexError, match=r"^a\[-1\]: there is no step yet"):
        pen.history["a"][-1]


@pytest.mark.parametrize("name", ["BatchWriter", "StructuredWriter", "TrajectoryWriter", "VectorWriter", "Writer"])
def test_a_writer_that_is_not_made_by_a_client_says_what_makes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)
    kind, client = getattr(replayd_client, name), replayd_client.Client("localhost:1")
    for arguments in ((), (client,), (client, 1), (None,)):
        with pytest.raises(ArgumentTypeError, match=rf"a {name} is made by client\.(\w+)\(") as caught:
            kind(*arguments)
        maker = str(caught.value).partition("client.")[2].partition("(")[0]
        assert callable(getattr(client, maker))
        assert maker.replace("_", "") == name.lower()
        del caught
    gc.collect()
    assert left == []
    client.close()


def check_index(pen: Pen, steps: int, keep: int, index: Any) -> None:
    numbers = list(range(steps))
    try:
        if isinstance(index, (list, np.ndarray)):
            expected: Any = [numbers[i] for i in index]
        else:
            expected = numbers[index]
    except IndexError:
        with pytest.raises(IndexError):
            pen.history["a"][index]
        return
    flat = expected if isinstance(expected, list) else [expected]
    if not flat or min(flat) < steps - keep:
        with pytest.raises(DataError):
            pen.history["a"][index]
        return
    column = pen.history["a"][index]
    assert column.numpy().tolist() == expected
    assert column.is_squeezed == isinstance(expected, int)
    assert pen.history["b"][index].numpy().shape == (*column.shape, 2, 3)


@given(st.integers(1, 9), st.integers(1, 12), INDICES)
def test_a_history_is_indexed_as_a_list_is(steps: int, keep: int, index: Any) -> None:
    pen = Pen(keep)
    for number in range(steps):
        pen.append(step(number))
    check_index(pen, steps, keep, index)


FROM_END = st.none() | st.integers(-4, -1)
SLICES_FROM_END = st.builds(slice, FROM_END, FROM_END, st.sampled_from([None, None, 2, -1, -2]))
ACTIONS = st.lists(st.sampled_from(["step", "step", "lacks", "episode"]), max_size=12)


@given(st.integers(1, 6), ACTIONS, SLICES_FROM_END | st.integers(-4, -1) | INDICES)
def test_an_index_is_as_good_at_every_step(keep: int, actions: list[str], index: Any) -> None:
    pen = Pen(keep)
    pen.append(step(0))
    steps, lacking = 1, -keep
    for action in actions:
        if action == "episode":
            pen.log.end_episode(clear=True)
            steps, lacking = 0, -keep
        else:
            lacking = steps if action == "lacks" else lacking
            pen.append({"a": np.int32(steps), "b": None} if action == "lacks" else step(steps))
            steps += 1
        if lacking < steps - keep:
            check_index(pen, steps, keep, index)
        else:
            # A step that is kept lacks "b": it may be picked where it is not among the rows.
            for name, rows in (("a", range(steps)), ("b", [row for row in range(steps) if row != lacking])):
                try:
                    column = pen.history[name][index]
                except (DataError, IndexError):
                    continue
                shown = column.numpy()
                wanted = np.arange(steps)[index]
                assert set(np.atleast_1d(wanted).tolist()) <= set(rows)
                np.testing.assert_array_equal(shown.reshape(*wanted.shape, -1)[..., 0], wanted)


@pytest.mark.parametrize("make", [np.array, np.int64], ids=["unhashable", "hashable"])
def test_a_bound_of_a_slice_may_be_any_integer(make: Any) -> None:
    pen = Pen(4)
    for number in range(6):
        pen.append(step(number))
        if number:
            assert pen.history["a"][make(-2) :].numpy().tolist() == [number - 1, number]


@pytest.mark.parametrize("index", ["0", 1.0, None, np.array([[0]]), np.array([0.5])])
def test_other_indices_are_type_errors(index: Any) -> None:
    pen = Pen(3)
    pen.append(step(0))
    with pytest.raises(TypeError):
        pen.history["a"][index]


def test_a_column_of_a_trajectory_is_indexed_and_joined_as_lists_are() -> None:
    pen = Pen(5)
    for number in range(5):
        pen.append(step(number))
    column = pen.history["a"][::-1]
    assert column[1:3].numpy().tolist() == [3, 2]
    assert column[-1].numpy() == 0
    assert column[[0, 0]].numpy().tolist() == [4, 4]
    joined = TrajectoryColumn([*column[:2], *pen.history["a"][:2]])
    assert joined.numpy().tolist() == [4, 3, 0, 1]
    assert (joined.shape, joined.dtype, len(joined)) == ((4,), np.dtype("int32"), 4)
    with pytest.raises(DataError):
        TrajectoryColumn([*column, *pen.history["b"][:]])
    with pytest.raises(DataError):
        TrajectoryColumn([])
    with pytest.raises(DataError):
        TrajectoryColumn(column, squeeze=True)


def test_what_is_picked_expires_like_the_history() -> None:
    pen = Pen(2)
    pen.append(step(0))
    column = pen.history["a"][-1]
    for number in (1, 2):
        pen.append(step(number))
    with pytest.raises(DataError, match="expired"):
        pen.create({"a": column})
    with pytest.raises(DataError, match="expired"):
        column.numpy()


# Items show what was picked.


PICKS = st.one_of(st.slices(8), st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 7))


@given(
    st.integers(1, 5),
    st.lists(
        st.one_of(
            st.just("append"),
            st.sampled_from(["cut", "ship", "episode", "clear"]),
            st.tuples(PICKS, PICKS, st.booleans()),
        ),
        max_size=40,
    ),
)
def test_items_show_exactly_the_cells_that_were_picked(chunk_length: int, actions: list[Any]) -> None:
    pen = Pen(8, chunk_length)
    number = 0
    steps: list[int] = []
    expected: list[Any] = []
    for action in actions:
        match action:
            case "append":
                pen.append(step(number))
                steps.append(number)
                number += 1
            case "cut":
                pen.log.cut()
            case "ship":
                pen.ship()
            case "episode":
                pen.log.end_episode(clear=False)
            case "clear":
                pen.log.end_episode(clear=True)
                steps = []
            case (first, second, renamed):
                kept = steps[-8:]
                if not kept:
                    continue
                name = "z" if renamed else "b"
                trajectory, wanted = {}, {}
                for key, pick in (("a", first), (name, second)):
                    source = "a" if key == "a" else "b"
                    if isinstance(pick, slice):
                        rows = list(range(len(kept)))[pick]
                    elif isinstance(pick, list):
                        rows = [i % len(kept) for i in pick]
                    else:
                        rows = [pick % len(kept)]
                    if not rows:
                        break
                    column = pen.history[source][[i + len(steps) - len(kept) for i in rows]]
                    stacked = np.stack([step(kept[i])[source] for i in rows])
                    if isinstance(pick, int):
                        column, stacked = column[0], stacked[0]
                    trajectory[key], wanted[key] = column, stacked
                else:
                    pen.create(trajectory)
                    expected.append(wanted)
    pen.finish()
    for index, wanted in enumerate(expected):
        same(pen.store.item(index), wanted)


@given(st.integers(1, 6), st.integers(1, 6), st.lists(st.integers(1, 6), max_size=30))
def test_whole_windows_need_no_template(chunk_length: int, keep: int, lengths: list[int]) -> None:
    pen = Pen(keep, min(chunk_length, keep))
    for number, length in enumerate(lengths):
        pen.append(step(number))
        n = min(length, keep, number + 1)
        pen.create({"a": pen.history["a"][-n:], "b": pen.history["b"][-n:]})
        if number % 3 == 0:
            pen.ship()
    pen.finish()
    assert {template for *_, template in pen.store.items} <= {b""}
    for index, length in enumerate(lengths):
        n = min(length, keep, index + 1)
        numbers = range(index - n + 1, index + 1)
        same(pen.store.item(index), {key: np.stack([step(i)[key] for i in numbers]) for key in ("a", "b")})


def test_equal_picks_share_one_template() -> None:
    pen = Pen(4, 2)
    for number in range(12):
        pen.append(step(number))
        if number >= 3:
            pen.create({"x": pen.history["a"][[-1, -4]], "y": pen.history["b"][-2]})
    pen.finish()
    assert len({template for *_, template in pen.store.items}) == 1


# Chunks.


@given(st.lists(st.lists(st.sampled_from(["pick", "again", "later"]), max_size=3), min_size=2, max_size=8))
def test_a_pick_shows_the_steps_it_was_made_of_in_whatever_company(actions: list[list[str]]) -> None:
    pen = Pen(20, chunk_length=3)
    picks: list[tuple[Any, int]] = []
    shown = []
    for number, some in enumerate(actions):
        pen.append(step(number))
        for action in some:
            if action == "later":
                picks.append((pen.history["a"][-1:], number))
            elif action == "again" and picks:
                # Equal but for the step that one of them was made at.
                old, row = picks[-1]
                pen.create({"a": old, "b": pen.history["b"][-1:]})
                shown.append((row, number))
            else:
                pen.create({"a": pen.history["a"][-1:], "b": pen.history["b"][-1:]})
                shown.append((number, number))
    pen.finish()
    found = [pen.store.item(place) for place in range(len(shown))]
    assert [(int(item["a"][0]), int(item["b"][0, 0, 0])) for item in found] == shown


def test_chunks_that_no_item_shows_are_not_sent() -> None:
    pen = Pen(2, 1)
    for number in range(10):
        pen.append(step(number))
        if number in (3, 8):
            pen.create({"a": pen.history["a"][-1:]})
            pen.ship()
    pen.finish()
    # Each item's own chunk, and the one before it that could still be shown.
    assert sorted(pen.store.chunks) == [2, 3, 7, 8]
    assert [pen.store.item(i)["a"].tolist() for i in range(2)] == [[3], [8]]


def test_the_server_is_told_to_keep_no_more_than_can_be_shown() -> None:
    pen = Pen(3, 1)
    for number in range(20):
        pen.append(step(number))
        pen.create({"a": pen.history["a"][-1:]})
        pen.ship()
        assert pen.store.keep_from == max(0, number - 2)


def test_chunks_do_not_span_episodes() -> None:
    pen = Pen(10, 4)
    for episode in range(3):
        for number in range(5):
            pen.append(step(10 * episode + number))
            pen.create({"a": pen.history["a"][-1:]})
        pen.log.end_episode(clear=False)
    pen.finish()
    assert [rows for rows, *_ in pen.store.chunks.values()] == [4, 1] * 3


def test_steps_are_copied() -> None:
    pen = Pen(4)
    frame = np.zeros(3)
    for number in range(3):
        frame[:] = number
        pen.append(frame)
    pen.create(pen.history[:])
    pen.finish()
    assert pen.store.item(0)[:, 0].tolist() == [0, 1, 2]


def test_a_large_window_leaves_in_several_messages_and_its_item_with_the_last() -> None:
    pen = Pen(64, 1)
    noise = np.random.default_rng(0)
    frames = noise.integers(0, 256, (40, 100_000), np.uint8)
    for frame in frames:
        pen.append(frame)
    pen.create(pen.history[-40:])
    pen.log.cut()
    messages = []
    while (message := pen.log.take_message()) is not None:
        messages.append(message)
        pen.store.take(message)
    assert len(messages) > 2
    assert [len(message.handles) for message in messages] == [0] * (len(messages) - 1) + [1]
    np.testing.assert_array_equal(pen.store.item(0), frames)


# Partial steps and columns that come later.


def test_a_step_in_parts_is_one_row() -> None:
    pen = Pen(4, 2)
    for number in range(4):
        pen.append({"a": number}, partial_step=True)
        assert pen.log.episode_steps == number
        pen.append({"b": -number}, partial_step=False)
        assert pen.log.episode_steps == number + 1
    pen.create({"a": pen.history["a"][:], "b": pen.history["b"][:]})
    pen.finish()
    same(pen.store.item(0), {"a": np.arange(4), "b": -np.arange(4)})


def test_a_step_may_lack_columns_and_items_may_not_show_what_is_missing() -> None:
    pen = Pen(6, 3)
    for number in range(6):
        pen.append({"a": number, "b": None if number % 2 else number})
    assert [cell is None for cell in pen.history["b"]] == [False, True] * 3
    with pytest.raises(DataError, match="step 1 lacks"):
        pen.history["b"][:]
    pen.create({"a": pen.history["a"][:], "b": pen.history["b"][::2]})
    pen.finish()
    same(pen.store.item(0), {"a": np.arange(6), "b": np.array([0, 2, 4])})


def test_a_column_may_come_later() -> None:
    pen = Pen(6, 3)
    for number in range(4):
        pen.append({"a": number})
    for number in range(4, 6):
        pen.append({"a": number, "b": 10 * number})
    pen.create({"a": pen.history["a"][:]})
    pen.create({"a": pen.history["a"][3:], "b": pen.history["b"][-2:]})
    pen.create({"a": pen.history["a"][:], "b": pen.history["b"][-2:]})
    with pytest.raises(DataError, match="lacks"):
        pen.history["b"][:]
    pen.finish()
    same(pen.store.item(0), {"a": np.arange(6)})
    same(pen.store.item(1), {"a": np.arange(3, 6), "b": np.array([40, 50])})
    same(pen.store.item(2), {"a": np.arange(6), "b": np.array([40, 50])})


def test_a_pick_of_all_columns_names_them_once_there_are_more() -> None:
    pen = Pen(6, 1)
    for number in range(2):
        pen.append({"a": number})
    pen.create({"a": pen.history["a"][-2:]})
    pen.append({"a": 2, "b": 20})
    pen.create({"a": pen.history["a"][-2:]})
    pen.finish()
    same(pen.store.item(0), {"a": np.arange(2)})
    same(pen.store.item(1), {"a": np.arange(1, 3)})


def test_a_column_may_come_in_the_middle_of_a_step() -> None:
    pen = Pen(4, 2)
    pen.append({"a": 1}, partial_step=True)
    pen.append({"b": 2}, partial_step=True)
    pen.append({"c": 3})
    pen.create({key: pen.history[key][-1] for key in "abc"})
    pen.finish()
    same(pen.store.item(0), {"a": np.array(1), "b": np.array(2), "c": np.array(3)})


def test_a_cut_leaves_an_open_step_in_the_buffer() -> None:
    pen = Pen(6, 4)
    pen.append({"a": 0, "b": 0})
    pen.create({"a": pen.history["a"][:]})
    pen.append({"a": 1}, partial_step=True)
    pen.log.cut()
    pen.ship()
    assert pen.store.item(0)["a"].tolist() == [0]
    pen.create({"a": pen.history["a"][:]})
    pen.log.cut()
    assert pen.log.holds_back(pen.handles[-1])
    assert not pen.log.holds_back(pen.handles[0])
    pen.append({"b": 1})
    pen.create({"b": pen.history["b"][:]})
    pen.finish()
    same(pen.store.item(1), {"a": np.arange(2)})
    same(pen.store.item(2), {"b": np.arange(2)})


@pytest.mark.parametrize(
    "bad",
    [
        {"a": 1.5, "b": 1},
        {"a": 1, "b": np.zeros(2)},
        {"a": 1, "b": 1, "c": {1, 2}},
        {"a": 1, "b": 1, "c": "\ud800"},
        {"a": 1, "b": "text"},
        {"a": [1, 2], "b": 1},
        {},
        {"a": None, "b": None},
    ],
)
def test_a_refused_step_changes_nothing(bad: Any) -> None:
    pen = Pen(4, 2)
    pen.append({"a": 0, "b": 0})
    with pytest.raises(DataError):
        pen.append(bad)
    pen.append({"a": 1, "b": 1})
    assert pen.log.schema is not None
    assert pen.log.schema.paths == (("a",), ("b",))
    pen.create({"a": pen.history["a"][:], "b": pen.history["b"][:]})
    pen.finish()
    same(pen.store.item(0), {"a": np.arange(2), "b": np.arange(2)})


def test_an_open_step_is_closed_by_nothing_more() -> None:
    pen = Pen(4)
    pen.append({"a": 0, "b": None}, partial_step=True)
    pen.append({})
    assert pen.log.episode_steps == 1
    assert [cell is None for cell in pen.history["a"]] == [False]


def test_a_value_cannot_be_set_twice_in_a_step() -> None:
    pen = Pen(4)
    pen.append({"a": 0, "b": 0}, partial_step=True)
    with pytest.raises(DataError, match="a"):
        pen.append({"a": 1}, partial_step=True)


def test_items_of_other_writers_are_refused() -> None:
    pen, other = Pen(4), Pen(4)
    pen.append(step(0))
    other.append(step(0))
    with pytest.raises(DataError, match="another writer"):
        pen.create({"a": other.history["a"][-1]})


def test_an_empty_trajectory_is_refused() -> None:
    pen = Pen(4)
    pen.append(step(0))
    with pytest.raises(DataError):
        pen.create({})
