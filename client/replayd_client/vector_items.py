"""Items of a vectorised writer, declared once: windows that end in new rows, found for all environments at a time.

Pure, and arrays only: knows nothing of columns, chunks and messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_table
from replayd_client.columns import MAX_CHUNK_ROWS, Schema
from replayd_client.errors import DataError
from replayd_client.patterns import nodes_of
from replayd_client.scalars import checked_flag, checked_integer
from replayd_client.signatures import checked_priority
from replayd_client.structure import Path, path_text
from replayd_client.templates import OutputColumn, Template
from replayd_client.windows import Shown

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


_MOST_PERIOD = (1 << 62) - 1
"""What int64 holds when half of it is added; no episode has so many steps."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorItem:
    """Items of `table`: in each episode of each environment, the `window` rows from row 0, `period`, 2 · `period`, ….

    An item shows all columns over its window, [window, *shape]; or what `pattern` makes of it, a nest of `PatternNode`
    (see `replayd_client.structured`) relative to the window's last row, which may not reach back further. Windows never
    span episodes. Those that an episode's end would cut short are left out, or made shorter if `shorten` is set, as
    n-step returns and recurrent networks need it; a `pattern`'s cannot. `priority` is that of every item, a number or
    "max", the largest in the table when it enters. `window` is at most 2^20.

    Raises DataError, ArgumentTypeError for arguments of other types, PriorityError.
    """

    table: str
    window: int
    period: int = 1
    priority: float | Literal["max"] = 1.0
    shorten: bool = False
    pattern: Any = None

    def __post_init__(self) -> None:
        where = f"table {checked_table(self.table)!r}"
        object.__setattr__(self, "window", checked_integer(f"{where}: window", self.window, 1, MAX_CHUNK_ROWS))
        object.__setattr__(self, "period", checked_integer(f"{where}: period", self.period, 1, _MOST_PERIOD))
        checked_flag(f"{where}: shorten", self.shorten)
        checked_priority(self.priority)
        if self.pattern is not None:
            reach = max(node.reach for _, node in nodes_of(self.pattern))
            if reach > self.window:
                raise DataError(
                    f"table {self.table!r}: the pattern reaches back {reach} rows, the window {self.window}"
                )
            if self.shorten:
                raise DataError(f"table {self.table!r}: the windows of a pattern cannot be shorter")

    def shown(self, schema: Schema) -> tuple[bytes, Shown]:
        """The template and what it shows: path, dtype and shape, rows first. Raises DataError for an unknown column."""
        if self.pattern is None:
            return b"", tuple((c.path, c.dtype.name, (self.window, *c.shape)) for c in schema.columns)
        numbers: dict[Path, int] = {column.path: number for number, column in enumerate(schema.columns)}
        outputs, shown = [], []
        for path, node in nodes_of(self.pattern):
            if node.path not in numbers:
                raise DataError(f"table {self.table!r}: the steps have no column {path_text(node.path)}")
            column = schema.columns[numbers[node.path]]
            cells = len(node.offsets)
            run = (self.window + node.start, cells, node.step if cells > 1 else 1)
            outputs.append(OutputColumn(path, node.squeeze, ((numbers[node.path], (run,)),)))
            shown.append((path, column.dtype.name, column.shape if node.squeeze else (cells, *column.shape)))
        return Template(tuple(outputs)).encode(), tuple(shown)

    def needed_from(self, position: Ints) -> Ints:
        """For episodes that have so many rows: the first row of the first window that is not complete."""
        return -(-np.maximum(position - self.window + 1, 0) // self.period) * self.period

    def windows(self, rows: EpisodeRows) -> tuple[Ints, Ints]:
        """First and last row, as indices, of the windows that are complete with the new rows."""
        last = rows.is_new & (rows.position >= self.window - 1)
        if self.period > 1:
            last &= (rows.position - (self.window - 1)) % self.period == 0
        if self.window == 1:
            last &= ~rows.is_closing
        ends: Ints = np.flatnonzero(last)
        starts = ends - (self.window - 1)
        if self.shorten and rows.is_last.any():
            short, short_ends = self._short_windows(rows)
            starts, ends = np.concatenate([starts, short]), np.concatenate([ends, short_ends])
        return starts, ends

    def _short_windows(self, rows: EpisodeRows) -> tuple[Ints, Ints]:
        ends = np.flatnonzero(rows.is_last)
        # The first of these at or behind each row; it is of the row's episode if no other one begins between.
        place = np.searchsorted(ends, np.arange(len(rows.position)))
        end = np.append(ends, len(rows.position) - 1)[place]
        is_ended = (place < len(ends)) & (rows.episode[end] == rows.episode)
        is_short = is_ended & (rows.position + self.window > rows.position[end] + 1) & ~rows.is_closing
        starts: Ints = np.flatnonzero(is_short & (rows.position % self.period == 0))
        return starts, end[starts]


@dataclass(slots=True, eq=False)
class EpisodeRows:
    """Rows of many episodes, one episode behind the other and each in the order of time: arrays [R]."""

    source: Ints
    """Where the row's values lie."""
    position: Ints
    """Number of the row in its episode."""
    episode: Ints
    is_new: Bools
    """Not seen in an earlier batch of rows."""
    is_closing: Bools
    """It shows what the episode led to, and no action was taken in it."""
    is_last: Bools
    """The episode ended with it."""
