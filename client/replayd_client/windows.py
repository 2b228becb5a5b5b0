"""Windows of a writer's rows that items show: what a nest of picks comes to, found out once for all that are alike.

Pure; knows of the writer only its `ChunkLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.history import ColumnHistory, Pick, Rows, TrajectoryColumn, bounds, shifted
from replayd_client.structure import Path, Structure, path_text
from replayd_client.templates import OutputColumn, Part, Run, Template, runs_of

Shown = tuple[tuple[Path, str, tuple[int, ...]], ...]
"""Path, dtype and shape, rows first, of each column of a trajectory, as signatures have them."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Which rows an item shows, and how. Rows count from the row behind the newest one, so that what is equal at two
    steps is one window, which is found out once."""

    first: int
    last: int
    template: bytes
    shown: Shown
    paths: Sequence[Path]
    """Of the trajectory."""
    fits: dict[str, int] = field(default_factory=dict)
    """Tables that it is known to fit, and in which version of the directory."""


class Windows:
    """Makes windows of picks, and remembers them: a run has few that differ."""

    __slots__ = ("_dicts", "_known", "_log", "_structure", "_width")

    KNOWN = 1024

    def __init__(self, log: ChunkLog) -> None:
        self._log = log
        self._width = 0
        self._structure = Structure([])
        self._known: dict[Any, Window] = {}
        self._dicts: dict[Any, Window] = {}

    def of(self, trajectory: Any) -> Window:
        """The window of a nest of TrajectoryColumn, from its oldest to its newest cell, as of now.

        Raises ArgumentTypeError for another leaf, DataError if there is none, if cells have expired or are another
        writer's.
        """
        if type(trajectory) is dict:
            window = self._of_dict(trajectory)
            if window is not None:
                return window
        try:
            columns = self._structure.leaves(trajectory)
        except DataError:
            # Most items of a run have one structure; another one takes its place.
            self._structure = Structure(trajectory)
            columns = self._structure.leaves(trajectory)
        paths = self._structure.paths
        for path, column in zip(paths, columns, strict=True):
            _check_column(path, column)
        window = self.of_columns(paths, columns)
        if type(trajectory) is dict and len(trajectory) == len(columns):
            self._remember_dict(trajectory, window)
        return window

    def of_columns(self, paths: tuple[Path, ...], columns: Sequence[TrajectoryColumn]) -> Window:
        """The window of a trajectory taken apart. Raises DataError as `of` does."""
        log = self._log
        if not columns:
            raise DataError("a trajectory needs at least one column")
        end = log.rows
        # The paths are told by identity, for which their hash takes too long: a window keeps its own alive.
        key: Any = [id(paths)]
        for column in columns:
            if column._end != end or column._log is not log:
                return self.of_columns(paths, [self._moved(column) for column in columns])
            key.append(column._pick)
        key = tuple(key)
        known = self._known.get(key) if self._width == len(log.column_of) else None
        if known is None:
            known = self._remember(key, paths, [column._pick for column in columns])
        if end + known.first < log.oldest_row:
            for column in columns:
                column.check()
        return known

    def all_columns(self, rows: int) -> Window:
        """The window of the newest `rows` rows with every column. Raises DataError if one of them lacks one."""
        log = self._log
        if log.rows - rows < log.presence.dense_from:
            for path, column in log.column_of.items():
                TrajectoryColumn.of(log, column, range(log.rows - rows, log.rows), False, path)
        known = self._known.get(rows) if self._width == len(log.column_of) else None
        if known is None:
            picks: list[Pick] = [(column, False, range(-rows, 0)) for column in log.column_of.values()]
            known = self._remember(rows, list(log.column_of), picks)
        return known

    def _of_dict(self, trajectory: dict[str, Any]) -> Window | None:
        """The window of a dict of picks of this step, if there was one like it.

        A run has few kinds of items, and most of them are that: 2 µs for five columns, where to take the dict apart, to
        check its leaves and to look for their window takes 4.5.
        """
        log = self._log
        end = log.rows
        key: list[Any] = [*trajectory]
        try:
            for column in trajectory.values():
                if column._end != end or column._log is not log:
                    return None
                key.append(column._pick)
        except AttributeError:
            return None  # No pick.
        window = self._dicts.get(tuple(key))
        if window is None or self._width != len(log.column_of) or end + window.first < log.oldest_row:
            return None
        return window

    def _remember_dict(self, trajectory: dict[str, Any], window: Window) -> None:
        columns = trajectory.values()
        if all(type(column) is TrajectoryColumn and column._end == self._log.rows for column in columns):
            if len(self._dicts) >= self.KNOWN:
                self._dicts.clear()
            self._dicts[*trajectory, *[column._pick for column in columns]] = window

    def _moved(self, column: TrajectoryColumn) -> TrajectoryColumn:
        """The same cells, counted from the row behind the newest one of now."""
        log = self._log
        if column._log is not log:
            raise DataError("a trajectory holds cells of another writer")
        moved = TrajectoryColumn.__new__(TrajectoryColumn)
        number, squeeze, rows = column._pick
        moved._log, moved._end, moved.path = log, log.rows, column.path
        moved._pick = (number, squeeze, shifted(rows, column._end - log.rows))
        return moved

    def _remember(self, key: Any, paths: Sequence[Path], picks: Sequence[Pick]) -> Window:
        if len(self._known) >= self.KNOWN or self._width != len(self._log.column_of):
            # What is all columns, and so needs no template, is not so any more once there is another one.
            self._known.clear()
            self._dicts.clear()
            self._width = len(self._log.column_of)
        window = self._known[key] = self._described(paths, picks)
        return window

    def _described(self, paths: Sequence[Path], picks: Sequence[Pick]) -> Window:
        log = self._log
        assert log.schema is not None, "a cell has a column"
        limits = [bounds(rows) for _, _, rows in picks]
        first, last = min(low for low, _ in limits), max(high for _, high in limits)
        outputs, shown = [], []
        for path, pick in zip(paths, picks, strict=True):
            number, squeeze, rows = pick
            outputs.append((path, squeeze, _parts(pick, first, last)))
            column = log.schema.columns[number[0] if isinstance(number, tuple) else number]
            shown.append((path, column.dtype.name, column.shape if squeeze else (len(rows), *column.shape)))
        template = b""
        # Later columns are not in these rows' chunks yet, or nothing is there; then this is not all that they have.
        if outputs != [(path, False, ((number, ()),)) for path, number in log.column_of.items()]:
            template = Template(tuple(OutputColumn(*output) for output in outputs)).encode()
        return Window(first, last, template, tuple(shown), paths)


def _parts(pick: Pick, first: int, last: int) -> tuple[Part, ...]:
    """How a template says it, for a window of these rows."""
    columns, _, rows = pick
    if not isinstance(columns, tuple):
        return ((columns, _runs(rows, first, last)),)
    places = np.array(rows, np.int64) - first
    starts = [0, *(np.flatnonzero(np.diff(columns)) + 1).tolist(), len(rows)]
    return tuple((columns[low], tuple(runs_of(places[low:high]))) for low, high in pairwise(starts))


def _runs(rows: Rows, first: int, last: int) -> tuple[Run, ...]:
    """Runs of rows relative to the window; none for the whole window."""
    if isinstance(rows, range):
        if rows[0] == first and rows[-1] == last and (rows.step == 1 or first == last):
            return ()
        return ((rows[0] - first, len(rows), rows.step if len(rows) > 1 else 1),)
    runs = tuple(runs_of(np.array(rows, np.int64) - first))
    return () if runs == ((0, last - first + 1, 1),) else runs


def _check_column(path: Path, leaf: Any) -> None:
    """Raises ArgumentTypeError for a leaf that is no TrajectoryColumn."""
    if isinstance(leaf, TrajectoryColumn):
        return
    hint = ""
    if isinstance(leaf, ColumnHistory):
        hint = (
            "; if a list was appended, each of its values is a column of its own: "
            "wrap lists in numpy.array to have one column"
        )
    raise ArgumentTypeError(
        f"{path_text(path)}: a trajectory is made of TrajectoryColumn (index the history), "
        f"not {type(leaf).__name__}{hint}"
    )
