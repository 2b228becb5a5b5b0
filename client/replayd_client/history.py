"""What a trajectory writer remembers, as lists do: histories of columns, and picks from them that make a trajectory.

A pick is a column and the numbers of its rows; no data is touched. `Windows` turns picks into the window and the
template of an item. Pure; knows of the writer only its `ChunkLog`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from replayd_client.chunk_log import ChunkLog
from replayd_client.columns import Column
from replayd_client.errors import DataError
from replayd_client.structure import Path, path_text
from replayd_client.templates import OutputColumn, Part, Run, Template, runs_of


@dataclass(slots=True)
class CellReference:
    """One cell: a column of one row of one writer."""

    log: ChunkLog
    column: int
    row: int


class TrajectoryColumn:
    """Cells in any order, with repeats and gaps: [T, *shape], or [*shape] if squeezed.

    Made by indexing a writer's history; `TrajectoryColumn([*a, *b])` joins the cells of several picks, also of several
    columns if those are of one dtype and shape. Raises DataError for no cells, cells of several writers or kinds, a
    missing or expired cell, and for more than one cell with `squeeze`.
    """

    __slots__ = ("_column", "_columns", "_first", "_last", "_log", "_rows", "is_squeezed", "path")

    def __init__(
        self,
        data_references: Iterable[CellReference | None],
        *,
        squeeze: bool = False,
        path: Path | None = None,
    ) -> None:
        cells = list(data_references)
        if not cells:
            raise DataError("a column of a trajectory needs at least one cell")
        found = [cell for cell in cells if cell is not None]
        if len(found) != len(cells):
            raise DataError("a column of a trajectory may not contain None: a step lacks the column")
        if squeeze and len(found) != 1:
            raise DataError(f"{len(found)} cells cannot be squeezed, only one")
        self._log = found[0].log
        if any(cell.log is not self._log for cell in found):
            raise DataError("the cells of a column of a trajectory must come from one writer")
        self._column = found[0].column
        columns = [cell.column for cell in found]
        self._columns = None if columns.count(self._column) == len(columns) else columns
        self._rows: Sequence[int] = [cell.row for cell in found]
        self._first, self._last = min(self._rows), max(self._rows)
        self.is_squeezed = squeeze
        self.path = path
        if self._columns is not None:
            _check_alike([self._spec_of(column) for column in dict.fromkeys(columns)])
        self.check()

    @classmethod
    def of(cls, log: ChunkLog, column: int, rows: Sequence[int], squeeze: bool, path: Path) -> TrajectoryColumn:
        """These rows of a column, of which each must be kept and present."""
        made = cls.__new__(cls)
        made._log = log
        made._column = column
        made._columns = None
        made._rows = rows
        made.is_squeezed = squeeze
        made.path = path
        if type(rows) is range:
            made._first, made._last = (rows[0], rows[-1]) if rows.step > 0 else (rows[-1], rows[0])
        else:
            made._first, made._last = min(rows), max(rows)
        if made._first < log.presence.dense_from or made._first < log.oldest_row:
            made.check()
        return made

    def check(self) -> None:
        """Raises DataError for a cell that has expired or that its step lacks."""
        log = self._log
        if self._first < log.oldest_row:
            path = self._spec_of(self._columns[self._rows.index(self._first)] if self._columns else self._column).path
            step = self._first - log.history_start
            raise DataError(
                f"{path_text(path)}: step {step} has expired, only the last {log.rows - log.oldest_row} steps are kept "
                f"(num_keep_alive_refs is {log.keep_rows})",
                detail={"fault": "expired", "path": path, "step": step},
            )
        for column, row in zip(self._columns or repeat(self._column), self._rows, strict=False):
            if not log.presence.is_present(column, row):
                raise _lacking(log, self._spec_of(column).path, row)

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, *shape of a cell), or the shape of a cell if squeezed."""
        shape = self._spec_of(self._column).shape
        return shape if self.is_squeezed else (len(self._rows), *shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every cell: a column has one dtype in all its steps."""
        return self._spec_of(self._column).dtype

    def numpy(self) -> NDArray[Any]:
        """A copy of the data. Raises DataError if a cell has expired."""
        self.check()
        rows = np.array(self._rows, np.int64)
        if self._columns is None:
            return self._log.values(self._column, rows).reshape(self.shape)
        columns = np.array(self._columns)
        out = np.empty(self.shape, self.dtype)
        for column in set(self._columns):
            where = columns == column
            out[where] = self._log.values(column, rows[where])
        return out

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CellReference]:
        columns = self._columns or repeat(self._column)
        return (CellReference(self._log, column, row) for column, row in zip(columns, self._rows, strict=False))

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        if self._columns is not None:
            cells = list(self)
            places, squeeze = picked(range(len(cells)), index)
            return TrajectoryColumn([cells[place] for place in places], squeeze=squeeze, path=self.path)
        rows, squeeze = picked(self._rows, index)
        if not rows:
            raise DataError("a column of a trajectory needs at least one cell")
        return TrajectoryColumn.of(self._log, self._column, rows, squeeze, self.path or ())

    def __repr__(self) -> str:
        names = [path_text(self._spec_of(column).path) for column in dict.fromkeys(self._columns or [self._column])]
        return f"<TrajectoryColumn {', '.join(names)}: {self.dtype.name}{list(self.shape)}>"

    def _spec_of(self, column: int) -> Column:
        assert self._log.schema is not None, "a cell has a column"
        return self._log.schema.columns[column]

    def _parts(self, first: int, last: int) -> tuple[Part, ...]:
        """How a template says it, for a window of these rows."""
        if self._columns is None:
            return ((self._column, _runs(self._rows, first, last)),)
        rows = np.array(self._rows, np.int64) - first
        starts = [0, *(np.flatnonzero(np.diff(self._columns)) + 1).tolist(), len(rows)]
        return tuple((self._columns[low], tuple(runs_of(rows[low:high]))) for low, high in pairwise(starts))


class ColumnHistory:
    """One column over the steps of the episode, the open one included, indexed as a list is.

    An int gives a squeezed TrajectoryColumn, a slice or a list of ints one with an axis of steps. Only the last
    `num_keep_alive_refs` steps are kept; a pick of an older one raises DataError, which is a ValueError.
    """

    __slots__ = ("_log", "path")

    def __init__(self, log: ChunkLog, path: Path) -> None:
        self._log = log
        self.path = path

    def __len__(self) -> int:
        return self._log.rows - self._log.history_start

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        log = self._log
        rows: Sequence[int] = range(log.history_start, log.rows)
        if type(index) is slice:
            rows, squeeze = rows[index], False
        else:
            rows, squeeze = picked(rows, index)
        if not rows:
            raise DataError(f"{path_text(self.path)}[{_index_text(index)}] picks no step of {len(self)}")
        column = log.column_of.get(self.path)
        if column is None:
            raise _lacking(log, self.path, rows[0])
        return TrajectoryColumn.of(log, column, rows, squeeze, self.path)

    def __iter__(self) -> Iterator[CellReference | None]:
        return (self.cell(row) for row in range(self._log.history_start, self._log.rows))

    def cell(self, row: int) -> CellReference | None:
        """The reference of a row, by its number in the writer; None if it has expired or lacks the column."""
        log = self._log
        column = log.column_of.get(self.path)
        if column is None or row < log.oldest_row or not log.presence.is_present(column, row):
            return None
        return CellReference(log, column, row)

    def __repr__(self) -> str:
        return (
            f"<ColumnHistory {path_text(self.path)}: {len(self)} steps, {self._log.rows - self._log.oldest_row} kept>"
        )


def _check_alike(columns: Sequence[Column]) -> None:
    """Raises DataError unless the cells of these columns may stand in one."""
    for column in columns:
        if not column.is_like(columns[0]):
            raise DataError(f"columns of several kinds cannot be joined: {columns[0]} and {column}")


def newest_cells(log: ChunkLog, columns: Sequence[ColumnHistory]) -> list[CellReference | None]:
    """The reference of each column's newest cell, None where the newest step has none."""
    row = log.rows - 1
    numbers = log.column_of
    if len(columns) == len(numbers) and log.presence.is_complete(row):
        return [CellReference(log, numbers[column.path], row) for column in columns]
    return [column.cell(row) for column in columns]


def picked(rows: Sequence[int], index: Any) -> tuple[Sequence[int], bool]:
    """What `rows[index]` gives for an int, a slice or a list of ints, and whether a single one was asked for.

    Raises IndexError and TypeError as lists do.
    """
    if isinstance(index, slice):
        return rows[index], False
    if isinstance(index, (list, tuple, np.ndarray)):
        if isinstance(index, np.ndarray) and (index.ndim != 1 or index.dtype.kind not in "iu"):
            raise TypeError(f"an array index has one axis of integers, not {index.dtype.name}{list(index.shape)}")
        return [rows[_integer(entry)] for entry in index], False
    return [rows[_integer(index)]], True


def _integer(index: SupportsIndex) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(
            f"a history is indexed by an int, a slice or a list of ints, not {type(index).__name__}"
        ) from None


def _index_text(index: Any) -> str:
    if isinstance(index, slice):
        parts = ("" if part is None else str(part) for part in (index.start, index.stop))
        return ":".join(parts) + ("" if index.step is None else f":{index.step}")
    return str(index)


def _lacking(log: ChunkLog, path: Path, row: int) -> DataError:
    step = row - log.history_start
    return DataError(
        f"{path_text(path)}: step {step} lacks this column", detail={"fault": "lacking", "path": path, "step": step}
    )


Shown = tuple[tuple[Path, str, tuple[int, ...]], ...]
"""Path, dtype and shape, rows first, of each column of a trajectory, as signatures have them."""


@dataclass(slots=True)
class Window:
    """Where an item lies in its writer's rows, and how it shows them."""

    first_row: int
    last_row: int
    template: bytes
    shown: Shown


class Windows:
    """Makes windows of picks; remembers those it has made, of which a run has few that differ but in their place."""

    __slots__ = ("_known", "_log")

    KNOWN = 1024

    def __init__(self, log: ChunkLog) -> None:
        self._log = log
        self._known: dict[Any, tuple[bytes, Shown]] = {}

    def of(self, paths: tuple[Path, ...], columns: Sequence[TrajectoryColumn]) -> Window:
        """The window of a trajectory: from its oldest to its newest cell. Raises DataError if cells have expired or are
        another writer's."""
        log = self._log
        if not columns:
            raise DataError("a trajectory needs at least one column")
        first, last = log.rows, -1
        for column in columns:
            if column._log is not log:
                raise DataError("a trajectory holds cells of another writer")
            if column._first < first:
                first = column._first
            if column._last > last:
                last = column._last
        if first < log.oldest_row:
            for column in columns:
                column.check()
        key = (paths, len(log.column_of), *[_place(column, first) for column in columns])
        known = self._known.get(key)
        if known is None:
            known = self._described(paths, columns, first, last)
            if len(self._known) >= self.KNOWN:
                self._known.clear()
            self._known[key] = known
        return Window(first, last, *known)

    def all_columns(self, first: int, last: int) -> Window:
        """The window of rows `first` to `last` with every column. Raises DataError if one of them lacks one."""
        log = self._log
        rows = range(first, last + 1)
        if first < log.presence.dense_from:
            for path, column in log.column_of.items():
                TrajectoryColumn.of(log, column, rows, False, path)
        key = (len(rows), len(log.column_of))
        known = self._known.get(key)
        if known is None:
            columns = [TrajectoryColumn.of(log, column, rows, False, path) for path, column in log.column_of.items()]
            known = self._known[key] = self._described(list(log.column_of), columns, first, last)
        return Window(first, last, *known)

    def _described(
        self, paths: Sequence[Path], columns: Sequence[TrajectoryColumn], first: int, last: int
    ) -> tuple[bytes, Shown]:
        log = self._log
        outputs = tuple(
            (path, column.is_squeezed, column._parts(first, last)) for path, column in zip(paths, columns, strict=True)
        )
        shown = tuple(
            (path, log.dtype_names[column._column], column.shape) for path, column in zip(paths, columns, strict=True)
        )
        # Later columns are not in these rows' chunks yet, or nothing is there; then this is not all that they have.
        if outputs == tuple((path, False, ((number, ()),)) for path, number in log.column_of.items()):
            return b"", shown
        return Template(tuple(OutputColumn(*output) for output in outputs)).encode(), shown


def _place(column: TrajectoryColumn, first: int) -> tuple[Any, ...]:
    """What tells a pick from others, wherever its window lies."""
    rows = column._rows
    if isinstance(rows, range):
        return column._column, column.is_squeezed, rows.start - first, len(rows), rows.step
    columns = column._column if column._columns is None else tuple(column._columns)
    return columns, column.is_squeezed, tuple([row - first for row in rows])


def _runs(rows: Sequence[int], first: int, last: int) -> tuple[Run, ...]:
    """Runs of rows relative to the window; none for the whole window."""
    if isinstance(rows, range):
        if rows[0] == first and rows[-1] == last and (rows.step == 1 or first == last):
            return ()
        return ((rows[0] - first, len(rows), rows.step if len(rows) > 1 else 1),)
    runs = tuple(runs_of(np.array(rows, np.int64) - first))
    return () if runs == ((0, last - first + 1, 1),) else runs
