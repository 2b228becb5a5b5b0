"""What a trajectory writer remembers, as lists do: histories of columns, and picks from them that make a trajectory.

A pick is a column and the numbers of its rows; no data is touched. Pure; knows of the writer only its `ChunkLog`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import value_text
from replayd_client.chunk_log import ChunkLog
from replayd_client.columns import Column
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.scalars import checked_flag, checked_index
from replayd_client.structure import Path, path_text


@dataclass(slots=True)
class CellReference:
    """One cell: a column of one row of one writer."""

    log: ChunkLog
    column: int
    row: int


Rows = range | tuple[int, ...]
Pick = tuple[int | tuple[int, ...], bool, Rows]
"""Which cells: their column, or the column of each one; whether they are squeezed; and their rows, counted from the row
behind the newest one there was. The same pick of every step is equal so, and what follows from it is found out once."""


class TrajectoryColumn:
    """Cells in any order, with repeats and gaps: [T, *shape], or [*shape] if squeezed.

    Made by indexing a writer's history; `TrajectoryColumn([*a, *b])` joins the cells of several picks, also of several
    columns if those are of one dtype and shape. Raises DataError for no cells, cells of several writers or kinds, a
    missing or expired cell, and for more than one cell with `squeeze`; ArgumentTypeError for what is no cell.
    """

    __slots__ = ("_end", "_log", "_pick", "path")

    _end: int
    _log: ChunkLog
    _pick: Pick
    path: Path | None

    def __init__(
        self,
        data_references: Iterable[CellReference | None],
        *,
        squeeze: bool = False,
        path: Path | None = None,
    ) -> None:
        cells = _cells(data_references)
        if not cells:
            raise DataError("a column of a trajectory needs at least one cell")
        found = [cell for cell in cells if cell is not None]
        if len(found) != len(cells):
            raise DataError("a column of a trajectory may not contain None: a step lacks the column")
        squeeze = checked_flag("squeeze", squeeze)
        if squeeze and len(found) != 1:
            raise DataError(f"{len(found)} cells cannot be squeezed, only one")
        self._log = log = found[0].log
        if any(cell.log is not log for cell in found):
            raise DataError("the cells of a column of a trajectory must come from one writer")
        self._end = log.rows
        self.path = path
        columns = tuple(cell.column for cell in found)
        is_joined = columns.count(columns[0]) != len(columns)
        self._pick = (columns if is_joined else columns[0], squeeze, tuple(cell.row - log.rows for cell in found))
        if is_joined:
            _check_alike([self._spec_of(column) for column in dict.fromkeys(columns)])
        self.check()

    @classmethod
    def of(cls, log: ChunkLog, column: int, rows: Sequence[int], squeeze: bool, path: Path) -> TrajectoryColumn:
        """These rows of a column, of which each must be kept and present."""
        made = cls.__new__(cls)
        made._log = log
        made._end = log.rows
        made._pick = (column, squeeze, shifted(rows, -log.rows))
        made.path = path
        first = log.rows + bounds(made._pick[2])[0]
        if first < log.presence.dense_from or first < log.oldest_row:
            made.check()
        return made

    def check(self) -> None:
        """Raises DataError for a cell that has expired or that its step lacks."""
        log, (_, _, rows) = self._log, self._pick
        first = bounds(rows)[0]
        if self._end + first < log.oldest_row:
            path = self._spec_of(self._columns[rows.index(first)]).path
            step = self._end + first - log.history_start
            raise DataError(
                f"{path_text(path)}: step {step} has expired, only the last {log.rows - log.oldest_row} steps are kept "
                f"(num_keep_alive_refs is {log.keep_rows})",
                detail={"fault": "expired", "path": path, "step": step},
            )
        for column, row in zip(self._columns, rows, strict=True):
            if not log.presence.is_present(column, self._end + row):
                raise _lacking(log, self._spec_of(column).path, self._end + row)

    @property
    def is_squeezed(self) -> bool:
        """Whether it is a single cell without an axis of steps."""
        return self._pick[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, *shape of a cell), or the shape of a cell if squeezed."""
        shape = self._spec_of(self._columns[0]).shape
        return shape if self.is_squeezed else (len(self), *shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every cell: a column has one dtype in all its steps. That of bytes is numpy's "S" and that of str its "U";
        `numpy` gives arrays of objects then."""
        return self._spec_of(self._columns[0]).dtype

    def numpy(self) -> NDArray[Any]:
        """A copy of the data. Raises DataError if a cell has expired."""
        self.check()
        column, _, relative = self._pick
        rows = np.array(relative, np.int64) + self._end
        if not isinstance(column, tuple):
            return self._log.values(column, rows).reshape(self.shape)
        columns = np.array(column)
        out = np.empty(self.shape, self._spec_of(column[0]).array_dtype)
        for number in set(column):
            where = columns == number
            out[where] = self._log.values(number, rows[where])
        return out

    def __len__(self) -> int:
        return len(self._pick[2])

    def __iter__(self) -> Iterator[CellReference]:
        cells = zip(self._columns, self._pick[2], strict=True)
        return (CellReference(self._log, column, self._end + row) for column, row in cells)

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        cells = list(self)
        places, squeeze = picked(range(len(cells)), index)
        return TrajectoryColumn([cells[place] for place in places], squeeze=squeeze, path=self.path)

    def __repr__(self) -> str:
        names = [path_text(self._spec_of(column).path) for column in dict.fromkeys(self._columns)]
        return f"<TrajectoryColumn {', '.join(names)}: {self.dtype.name}{list(self.shape)}>"

    @property
    def _columns(self) -> tuple[int, ...]:
        """Of each cell."""
        column, _, rows = self._pick
        return column if isinstance(column, tuple) else (column,) * len(rows)

    def _spec_of(self, column: int) -> Column:
        assert self._log.schema is not None, "a cell has a column"
        return self._log.schema.columns[column]


class ColumnHistory:
    """One column over the steps of the episode, the open one included, indexed as a list is.

    An int gives a squeezed TrajectoryColumn, a slice or a list of ints one with an axis of steps. Only the last
    `num_keep_alive_refs` steps are kept; a pick of an older one raises DataError, which is a ValueError, as does one of
    no step. Raises IndexError for an int beyond the history, ArgumentTypeError, a TypeError too, for other indices;
    bools are none.
    """

    __slots__ = ("_known", "_log", "_tails", "path")

    KNOWN = 256

    def __init__(self, log: ChunkLog, path: Path) -> None:
        self._log = log
        self.path = path
        # Picks that count from the newest step, by index, and the first row of each; slices [start:] by their start.
        self._known: dict[Any, tuple[Pick, int]] = {}
        self._tails: dict[Any, tuple[Pick, int]] = {}

    def __len__(self) -> int:
        return self._log.rows - self._log.history_start

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        # A known pick is as good wherever its cells are kept and present. What only equals an index, as -1.0 does,
        # is none.
        kind, known = type(index), None
        if kind is int:
            known = self._known.get(index)
        elif kind is slice:
            start, stop, step = index.start, index.stop, index.step
            if stop is None and step is None:
                if type(start) is int:
                    known = self._tails.get(start)
            elif type(start) in _PART and type(stop) in _PART and type(step) in _PART:
                known = self._known.get((start, stop, step))
        if known is not None:
            log = self._log
            end = log.rows
            first = end + known[1]
            if first >= log.oldest_row and first >= log.presence.dense_from:
                made = _new(TrajectoryColumn)
                made._log = log
                made._end = end
                made._pick = known[0]
                made.path = self.path
                return made
        return self._picked(index)

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

    def _picked(self, index: Any) -> TrajectoryColumn:
        log = self._log
        try:
            rows, squeeze = picked(range(log.history_start, log.rows), index)
        except IndexError:
            kept = min(log.rows - log.oldest_row, len(self))
            there = f"the last {kept} of {len(self)} steps are kept, {-kept} to -1" if kept else "there is no step yet"
            raise IndexError(
                f"{path_text(self.path)}[{_index_text(index)}]: {there} (num_keep_alive_refs is {log.keep_rows})"
            ) from None
        if not rows:
            raise DataError(f"{path_text(self.path)}[{_index_text(index)}] picks no step of {len(self)}")
        column = log.column_of.get(self.path)
        if column is None:
            raise _lacking(log, self.path, rows[0])
        made = TrajectoryColumn.of(log, column, rows, squeeze, self.path)
        key = _key_from_end(index, len(self))
        if key is not None:
            known = self._known
            if type(index) is slice and key[1:] == (None, None):
                known, key = self._tails, index.start
            if len(known) >= self.KNOWN:
                known.clear()
            known[key] = made._pick, bounds(made._pick[2])[0]
        return made


_new = object.__new__
_PART = (int, NoneType)
"""Of a slice."""


def _cells(references: Any) -> list[CellReference | None]:
    """The references that a column is made of. Raises ArgumentTypeError for what is none."""
    if isinstance(references, str | bytes | Mapping) or not isinstance(references, Iterable):
        raise ArgumentTypeError(
            f"a column of a trajectory is made of references to cells, not {value_text(references)}"
        )
    cells = list(references)
    for cell in cells:
        if cell is not None and not isinstance(cell, CellReference):
            is_pick = isinstance(cell, TrajectoryColumn | ColumnHistory)
            hint = "; picks are joined by TrajectoryColumn([*one, *another])" if is_pick else ""
            raise ArgumentTypeError(
                f"a column of a trajectory is made of references to cells, not {type(cell).__name__}{hint}"
            )
    return cells


def _check_alike(columns: Sequence[Column]) -> None:
    """Raises DataError unless the cells of these columns may stand in one."""
    for column in columns:
        if not column.is_like(columns[0]):
            raise DataError(f"columns of several kinds cannot be joined: {columns[0]} and {column}")


def newest_cells(log: ChunkLog, columns: Sequence[ColumnHistory]) -> list[CellReference | None]:
    """The reference of each column's newest cell, None where the newest step has none."""
    row = log.rows - 1
    if len(columns) != len(log.column_of) or not log.presence.is_complete(row):
        return [column.cell(row) for column in columns]
    return [CellReference(log, log.column_of[column.path], row) for column in columns]


def newest_named(log: ChunkLog, columns: Iterable[tuple[str, int]]) -> dict[str, CellReference]:
    """The references of the newest step, which has all these columns, by name.

    Made without the constructor, and the dict with them: 2.5 µs for five columns where `newest_cells` and a nest of its
    list take 5.
    """
    row = log.rows - 1
    named = {}
    for name, column in columns:
        named[name] = cell = _new(CellReference)
        cell.log = log
        cell.column = column
        cell.row = row
    return named


def picked(rows: Sequence[int], index: Any) -> tuple[Sequence[int], bool]:
    """What `rows[index]` gives for an int, a slice or a list of ints, and whether a single one was asked for.

    Raises IndexError as lists do, ArgumentTypeError, which is a TypeError, for what is no index, and DataError for a
    slice with the step 0.
    """
    if isinstance(index, slice):
        parts = [None if part is None else checked_index(part, "a history") for part in _parts_of(index)]
        if parts[2] == 0:
            raise DataError("the step of a slice cannot be 0")
        return rows[slice(*parts)], False
    if isinstance(index, (list, tuple, np.ndarray)):
        if isinstance(index, np.ndarray) and index.ndim and (index.ndim != 1 or index.dtype.kind not in "iu"):
            raise ArgumentTypeError(
                f"an array index has one axis of integers, not {index.dtype.name}{list(index.shape)}"
            )
        if not isinstance(index, np.ndarray) or index.ndim:
            return [rows[checked_index(entry, "a history")] for entry in index], False
    return [rows[checked_index(index, "a history")]], True


def _parts_of(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step


def _key_from_end(index: Any, length: int) -> Any:
    """What tells an index from others that picks the same rows, counted from the end, of this history and of all that
    are longer; None for another one."""
    if type(index) is int:
        return index if index < 0 else None
    if type(index) is not slice or any(type(part) not in _PART for part in _parts_of(index)):
        return None
    key = _parts_of(index)
    # Going forward a slice begins, and going back it ends, with the oldest step unless it says another.
    oldest = index.start if index.step is None or index.step > 0 else index.stop
    is_from_end = oldest is not None and all(part is None or -length <= part < 0 for part in key[:2])
    return key if is_from_end else None


def shifted(rows: Sequence[int], by: int) -> Rows:
    """The rows, each with a number larger by this."""
    if isinstance(rows, range):
        return range(rows.start + by, rows.stop + by, rows.step)
    return tuple([row + by for row in rows])


def bounds(rows: Rows) -> tuple[int, int]:
    """The first and the last row, whatever their order."""
    if isinstance(rows, range):
        return (rows[0], rows[-1]) if rows.step > 0 else (rows[-1], rows[0])
    return min(rows), max(rows)


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
