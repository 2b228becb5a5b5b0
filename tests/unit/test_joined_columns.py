"""Columns of a trajectory that join cells of several columns: any picks come out as they went in, through writer, codec
and service; and what cannot be joined is told by a typed error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd import selectors
from replayd.messages import Result
from replayd.rate_limiters import MinSize
from replayd.service import Service
from replayd.table import Table
from replayd.wire import decode, encode
from replayd_client.array_messages import PeekReply
from replayd_client.array_wire import encode_insert, encode_peek
from replayd_client.errors import DataError
from replayd_client.history import TrajectoryColumn
from replayd_client.item_windows import ItemWindows
from replayd_client.outbox import Message
from replayd_client.structure import Structure
from replayd_client.wire import decode_reply
from tests.unit.test_writer import Pen

NAMES = ("a", "b", "c")


class Daemon:
    """A service behind both halves of the codec, in the place of a test's store."""

    def __init__(self) -> None:
        table = Table("t", selectors.Fifo(), selectors.Fifo(), 1000, MinSize(1))
        self.service = Service([table], server_id=bytes(16), version="1", seed=0, started_at=0.0)
        self.seq = 0
        self.items: list[None] = []

    def take(self, message: Message) -> None:
        frames = encode_insert(self.seq + 1, bytes(16), self.seq, message.keep_from, message.chunks, message.items)
        self.seq += 1
        [(_, reply)] = self._ask(frames)
        assert isinstance(reply, Result), reply
        self.items += [None] * (0 if message.items is None else len(message.items))

    def shown(self) -> list[Any]:
        """What each item shows, oldest first."""
        [(_, reply)] = self._ask(encode_peek(1, "t", "oldest", 1000, np.zeros(0, np.uint64)))
        told = decode_reply([bytes(frame) for frame in encode(reply)])
        assert isinstance(told, PeekReply)
        return [Structure.from_paths(paths).rebuild(arrays) for paths, arrays in ItemWindows(told.shown)]

    def _ask(self, frames: list[Any]) -> Any:
        op, request = decode([bytes(frame) for frame in frames])
        assert self.service.handle("peer", op, request, now=0.0) is None
        self.service.validate()
        return self.service.drain()


class DaemonPen(Pen):
    def __init__(self, keep: int, chunk_length: int) -> None:
        super().__init__(keep, chunk_length)
        self.daemon = Daemon()
        self.store = self.daemon  # type: ignore[assignment]


CELLS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-6, -1)), min_size=1, max_size=8)
ACTIONS = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(NAMES), st.none(), min_size=1),
        st.just(dict.fromkeys(NAMES)),
        st.sampled_from(["cut", "ship", "episode"]),
        st.dictionaries(st.sampled_from(["x", "y"]), st.tuples(CELLS, st.booleans()), min_size=1),
    ),
    max_size=30,
)


def value(number: int, name: str) -> Any:
    return np.array([number, NAMES.index(name)], np.int32)


@given(st.integers(1, 4), ACTIONS)
def test_any_cells_of_several_columns_come_out_as_they_were_picked(chunk_length: int, actions: list[Any]) -> None:
    pen = DaemonPen(6, chunk_length)
    steps: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for action in actions:
        if action == "cut":
            pen.log.cut()
        elif action == "ship":
            pen.ship()
        elif action == "episode":
            pen.log.end_episode(clear=False)
        elif action.keys() <= set(NAMES):
            steps.append({name: value(len(steps), name) for name in action})
            pen.append(steps[-1])
        elif steps:
            kept = steps[-6:]
            trajectory, wanted = {}, {}
            for path, (cells, squeeze) in action.items():
                picked = [(name, place) for name, place in cells if -place <= len(kept) and name in kept[place]]
                if picked:
                    references = [pen.history[name].cell(pen.log.rows + place) for name, place in picked]
                    squeeze = squeeze and len(picked) == 1
                    trajectory[path] = TrajectoryColumn(references, squeeze=squeeze)
                    rows = np.stack([kept[place][name] for name, place in picked])
                    wanted[path] = rows[0] if squeeze else rows
                    assert trajectory[path].shape == wanted[path].shape
                    np.testing.assert_array_equal(trajectory[path].numpy(), wanted[path])
                    again = trajectory[path][::-1] if not squeeze else trajectory[path][0]
                    np.testing.assert_array_equal(again.numpy(), rows[::-1] if not squeeze else rows[0])
            if trajectory:
                pen.create(trajectory)
                expected.append(wanted)
    pen.finish()
    shown = pen.daemon.shown() if expected else []
    assert len(shown) == len(expected)
    for item, wanted in zip(shown, expected, strict=True):
        assert item.keys() == wanted.keys()
        for path, rows in wanted.items():
            assert item[path].dtype == rows.dtype
            np.testing.assert_array_equal(item[path], rows)


def pen_of(*steps: Any) -> Pen:
    pen = Pen(8)
    for step in steps:
        pen.append(step)
    return pen


def test_slices_of_two_columns_are_joined_and_taken_apart_again() -> None:
    pen = pen_of(*({"a": number, "b": 10 + number} for number in range(5)))
    a, b = pen.history["a"], pen.history["b"]
    column = TrajectoryColumn([*a[:2], *b[3:]])
    assert (column.shape, column.dtype, len(column)) == ((4,), np.dtype("int64"), 4)
    assert column.numpy().tolist() == [0, 1, 13, 14]
    assert column[1:3].numpy().tolist() == [1, 13]
    assert column[-1].numpy() == 14
    assert column[-1].shape == ()
    assert TrajectoryColumn([*column, *a[-1:]]).numpy().tolist() == [0, 1, 13, 14, 4]
    assert repr(column) == "<TrajectoryColumn a, b: int64[4]>"


def test_picks_that_differ_only_in_their_columns_are_different_templates() -> None:
    pen = pen_of(*({"a": number, "b": 10 + number} for number in range(3)))
    a, b = pen.history["a"], pen.history["b"]
    for order in ([*a[-2:], *b[-2:]], [*b[-2:], *a[-2:]], [a.cell(1), b.cell(1), a.cell(2), b.cell(2)]):
        pen.create(TrajectoryColumn(order))
    pen.finish()
    assert [pen.store.item(n).tolist() for n in range(3)] == [[1, 2, 11, 12], [11, 12, 1, 2], [1, 11, 2, 12]]


@pytest.mark.parametrize("other", [np.int32(1), np.zeros(1, np.int64), 1.0], ids=["dtype", "shape", "kind"])
def test_columns_of_several_kinds_are_not_joined(other: Any) -> None:
    pen = pen_of({"a": 1, "b": other})
    with pytest.raises(DataError, match=r"several kinds cannot be joined: a: int64\[\] and b: "):
        TrajectoryColumn([*pen.history["a"][:], *pen.history["b"][:]])


def test_cells_that_cannot_be_shown_cannot_be_joined() -> None:
    pen = pen_of({"a": 1, "b": 1}, {"a": 2, "b": None})
    a, b = pen.history["a"], pen.history["b"]
    with pytest.raises(DataError, match="None"):
        TrajectoryColumn([*a, *b])
    with pytest.raises(DataError, match="squeezed"):
        TrajectoryColumn([*a[:1], *b[:1]], squeeze=True)
    with pytest.raises(DataError, match="one writer"):
        TrajectoryColumn([*a[:1], *pen_of({"b": 1}).history["b"][:]])
    column = TrajectoryColumn([*a[1:], *b[:1]])
    for number in range(7):
        pen.append({"a": number, "b": number})
    for use in (column.numpy, lambda: pen.create(column)):
        with pytest.raises(DataError, match="b: step 0 has expired"):
            use()
    with pytest.raises(DataError, match="at least one cell"):
        a[-2:][2:]
