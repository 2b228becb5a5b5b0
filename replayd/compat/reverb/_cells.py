"""The writer of cells beneath all writers of this package: the part that the incumbent has in C++.

It takes flat steps, a value or None for each column, gives a reference for each value, and makes items of references.
Its methods are named as the binding's, since programs put their own in its place. Knows nests only by their paths.

A step is a row of replayd's. One that is still open when a flush needs what it has becomes two: see `Flush`.
"""

# ruff: noqa: N802

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._directory import Directory, TableFacts, UnknownTable
from replayd.compat.reverb._following import Follower
from replayd.compat.reverb._nests import Path
from replayd.compat.reverb._signatures import ShownColumn, check_steps, check_trajectory
from replayd.compat.reverb._trajectories import WirePath, rebuilt
from replayd.compat.reverb._values import as_array, shape_text, tf_name
from replayd.compat.reverb.errors import translated
from replayd_client import ItemHandle
from replayd_client import TrajectoryColumn as ReplaydColumn
from replayd_client import TrajectoryWriter as ReplaydWriter
from replayd_client.errors import ReplaydError
from replayd_client.history import CellReference

CLOSE_TIMEOUT_MS = 300
"""How long `Close` waits for what was created to be acknowledged. It is sent at once if there is a server, and items
that a limiter holds back enter later."""

ALONE_ITEMS = 48
"""Items in flight that travel in messages of their own where a limiter may hold them back: replayd confirms messages,
the incumbent items, and who flushes until n are left must not wait for a message of which the table took a part. Less
than the messages that a writer may have in flight, beyond which making an item would wait. A writer that was flushed,
and always to the last item, is not held to it: one message for many items is far cheaper."""


class ChunkerOptions:
    """How many values of a column are kept, and how many make a chunk."""

    num_keep_alive_refs: int


@dataclass(frozen=True, slots=True)
class ConstantChunkerOptions(ChunkerOptions):
    """Chunks of so many values."""

    max_chunk_length: int
    num_keep_alive_refs: int


@dataclass(frozen=True, slots=True)
class AutoTunedChunkerOptions(ChunkerOptions):
    """Chunks of the length that turns out well. What throughput is worth changes nothing: replayd weighs by itself."""

    num_keep_alive_refs: int
    throughput_weight: float


@dataclass(frozen=True, slots=True)
class WeakCellRef:
    """One value that was appended: of a column, from one step. It expires when its writer no longer keeps the step."""

    cell: CellReference
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def expired(self) -> bool:
        """Whether its writer no longer keeps the value."""
        return self.cell.row < self.cell.log.oldest_row

    def numpy(self) -> Any:
        """A copy of the value. Raises RuntimeError if it has expired."""
        if self.expired:
            raise RuntimeError("Cannot access data from expired WeakCellRef")
        return ReplaydColumn([self.cell], squeeze=True).numpy()


@dataclass(slots=True)
class _Column:
    """What the first value of a column settled, and the number of the column in which replayd stores its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    place: int

    def check(self, number: int, array: NDArray[Any]) -> None:
        """Raises ValueError for a value of another kind."""
        if array.dtype != self.dtype:
            raise ValueError(
                f"Tensor of wrong dtype provided for column {number}. Got {tf_name(array.dtype)} but expected "
                f"{tf_name(self.dtype)}."
            )
        if array.shape != self.shape:
            raise ValueError(
                f"Tensor of incompatible shape provided for column {number}. Got {shape_text(array.shape)} which is "
                f"incompatible with {shape_text(self.shape)}."
            )


class CellWriter:
    """Writes cells and items of them; one for each writer of a user."""

    def __init__(
        self,
        writer: ReplaydWriter,
        directory: Directory,
        num_keep_alive_refs: int,
        validate_items: bool,
        most_open: int | None,
    ) -> None:
        self.max_num_keep_alive_refs = num_keep_alive_refs
        """Steps that are kept of the column that keeps most."""
        self._writer = writer
        self._directory = directory
        self._follower = Follower(writer, directory)
        self._validate_items = validate_items
        self._most_open = most_open
        """Items that may be created and not confirmed; beyond them `CreateItem` waits."""
        self._open: deque[ItemHandle] = deque()
        self._unknown: UnknownTable | None = None
        """What an item met that was sent; nothing more is."""
        self._is_gated = False
        self._counts_items = most_open is not None
        self._is_flushed = False
        self._message_items = writer._core.log.message_items
        self._columns: dict[int, _Column] = {}
        self._stored = 0
        self._chunk_length: dict[int, int] = {}
        self._cells_in_chunk: dict[int, int] = {}
        self._episode_steps = 0
        self._steps = 0
        self._splits: deque[int] = deque()
        """Steps, of those that are kept, that are a row more than one; once for each such row."""

    @property
    def episode_steps(self) -> int:
        """Steps of the episode; an open one does not count."""
        return self._episode_steps

    def Append(self, data: Sequence[Any]) -> list[WeakCellRef | None]:
        """A step, or the last part of the open one: a value or None for each column. Raises ValueError, TypeError."""
        return self._append(data, partial_step=False)

    def AppendPartial(self, data: Sequence[Any]) -> list[WeakCellRef | None]:
        """As `Append`; the step stays open."""
        return self._append(data, partial_step=True)

    def CreateItem(
        self,
        table: str,
        priority: float,
        columns: Sequence[Sequence[WeakCellRef]],
        squeezed: Sequence[bool],
        paths: Sequence[WirePath] | None = None,
        names: Sequence[Path] | None = None,
        whole_steps: bool = False,
    ) -> None:
        """An item of columns of cells.

        `paths` are those that replayd is told, `names` those of errors; both are numbers unless given. `whole_steps`
        compares with signatures as the legacy writer does. Raises ValueError, and TypeError for a table or a priority
        that is none.
        """
        if not isinstance(table, str):
            raise TypeError(f"the name of a table is a str, not {type(table).__name__}")
        outputs = paths or [(number,) for number in range(len(columns))]
        shown = [
            _shown(name, refs, is_squeezed)
            for name, refs, is_squeezed in zip(names or outputs, columns, squeezed, strict=True)
        ]
        facts = self._facts(table, whole_steps)
        value = _priorities.number(priority)
        if facts is not None:
            facts.stored_one(value)
        if self._validate_items and facts is not None and facts.signature is not None:
            (check_steps if whole_steps else check_trajectory)(table, facts.signature, shown)
        cells = ([ref.cell for ref in refs] for refs in columns)
        shows = [ReplaydColumn(some, squeeze=flag) for some, flag in zip(cells, squeezed, strict=True)]
        nest = rebuilt(outputs, shows)
        self._is_gated = self._is_gated or (facts is not None and facts.is_gated)
        self._bound_messages()
        with self._sending():
            handle = self._follower.create_item(self._writer, table, value, nest)
            if self._most_open is not None:
                self._open.append(handle)
                while self._open and self._open[0].done:
                    self._open.popleft()
                if len(self._open) > self._most_open:
                    self._writer.flush(self._most_open, timeout_ms=None)

    def Flush(self, block_until_num_items: int = 0, timeout_ms: float | None = None) -> None:
        """Wait until so many items are left; raises DeadlineExceededError. No timeout: None, and 0 or less.

        Items may show the step that is still open. A row that is not finished does not leave, so it is finished here,
        and what the step gets later is a row of its own.
        """
        timeout = timeout_ms if timeout_ms is not None and timeout_ms > 0 else None
        self._counts_items = self._counts_items or block_until_num_items > 0
        self._bound_messages()
        self._is_flushed = True
        self._split_open_step(block_until_num_items)
        with self._sending(f"Flush call did not complete within provided timeout of {_duration(timeout)}"):
            self._writer.flush(block_until_num_items, timeout_ms=timeout)
        self._cells_in_chunk.clear()

    def EndEpisode(self, clear_buffers: bool, timeout_ms: float | None = None) -> None:
        """Flush and begin a new episode. No timeout: None, and below 0. On an error nothing changes."""
        timeout = timeout_ms if timeout_ms is not None and timeout_ms >= 0 else None
        self._bound_messages()
        with self._sending(f"End episode call did not complete within provided timeout of {_duration(timeout)}"):
            self._writer.end_episode(clear_buffers, timeout_ms=timeout)
        self._cells_in_chunk.clear()
        self._episode_steps = 0

    def ConfigureChunker(self, column: int, options: ChunkerOptions) -> None:
        """What one column needs. Raises RuntimeError in the middle of a chunk of the length asked for before."""
        if self._cells_in_chunk.get(column, 0):
            raise RuntimeError(f"column {column} has values in its buffer: flush before it is configured")
        max_chunk_length = options.max_chunk_length if isinstance(options, ConstantChunkerOptions) else None
        self._chunk_length[column] = max_chunk_length or 1
        self.max_num_keep_alive_refs = max(self.max_num_keep_alive_refs, options.num_keep_alive_refs)
        self._keep(max_chunk_length)

    def Close(self) -> None:
        """Send what there is and end. What the server still refuses is in the log, as nobody is left to be told."""
        with contextlib.suppress(ReplaydError):
            self._writer._core.close_quietly(CLOSE_TIMEOUT_MS)

    def _append(self, data: Sequence[Any], *, partial_step: bool) -> list[WeakCellRef | None]:
        arrays = {number: as_array(value) for number, value in enumerate(data) if value is not None}
        columns: dict[int, _Column] = {}
        stored = self._stored
        for number, array in arrays.items():
            known = self._columns.get(number)
            if known is None:
                columns[number] = _Column(array.dtype, array.shape, stored)
                stored += 1
            else:
                known.check(number, array)
                columns[number] = known
        row: list[Any] = [None] * stored
        for number, column in columns.items():
            row[column.place] = arrays[number]
        cells: Sequence[Any] = ()
        # A step without any value is no row; nor is its end, if what it has is in rows already.
        if columns or self._writer.step_is_open:
            with self._sending():
                cells = self._writer.append(row, partial_step=partial_step)
        # Nothing below fails.
        self._stored = stored
        self._columns.update(columns)
        if not partial_step:
            self._episode_steps += 1
            self._steps += 1
        for number in columns.keys() & self._chunk_length.keys():
            self._cells_in_chunk[number] = (self._cells_in_chunk.get(number, 0) + 1) % self._chunk_length[number]
        refs: list[WeakCellRef | None] = [None] * len(data)
        for number, column in columns.items():
            refs[number] = WeakCellRef(cells[column.place], column.dtype, column.shape)
        return refs

    def _split_open_step(self, most: int) -> None:
        """Finish the row of the open step, if more items than that would wait for it."""
        if not self._writer.step_is_open:
            return
        core = self._writer._core
        with core._lock:
            core.log.cut()
            if core.log.waiting_items <= most:
                return
            core.log.close_step()
        self._splits.append(self._steps)
        self._keep(None)

    def _keep(self, max_chunk_length: int | None) -> None:
        """Have replayd keep as many rows as the steps are that are kept."""
        while self._splits and self._splits[0] <= self._steps - self.max_num_keep_alive_refs:
            self._splits.popleft()
        rows = self.max_num_keep_alive_refs + len(self._splits)
        with self._sending():
            self._writer.configure((), num_keep_alive_refs=rows, max_chunk_length=max_chunk_length)

    def _bound_messages(self) -> None:
        core = self._writer._core
        counts = self._counts_items or not self._is_flushed
        alone = self._is_gated and counts and core.open_items < ALONE_ITEMS
        core.log.message_items = 1 if alone else self._message_items

    def _facts(self, table: str, whole_steps: bool) -> TableFacts | None:
        try:
            return self._directory.newest().facts.get(table) or self._directory.asked_for(table)
        except UnknownTable as error:
            if self._validate_items and whole_steps:
                raise unknown_to_writers(error) from None
            if self._validate_items:
                raise ValueError(
                    f"Unable to create item in table '{table}' since the table could not be found: {error}"
                ) from None
            # Without validation the server says so, to all calls that come later.
            return None

    @contextlib.contextmanager
    def _sending(self, overdue: str = "") -> Iterator[None]:
        """As `translated`; once an item was of an unknown table, everything says so, as the incumbent's writers do."""
        self._check_tables()
        try:
            with translated(overdue):
                yield
        except UnknownTable as error:
            self._unknown = error
            raise

    def _check_tables(self) -> None:
        if self._unknown is not None:
            raise RuntimeError(str(self._unknown))


def unknown_to_writers(error: UnknownTable) -> ValueError:
    """What the incumbent's legacy writers, and its inserts, say of a table that is not there."""
    return ValueError(
        f"Unable to find signatures for table '{error.name}' in signature cache.  Available tables: {error.tables}."
    )


def with_paths(error: ValueError, paths: Sequence[Path]) -> ValueError:
    """The error with the path behind each number of a column."""

    def named(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"{match[0]} (path={paths[number]})" if number < len(paths) else match[0]

    return ValueError(re.sub(r"for column (\d+)", named, str(error)))


def _duration(timeout_ms: float | None) -> timedelta:
    """As it is written in a text; no timeout is never passed."""
    return timedelta(milliseconds=timeout_ms or 0)


def _shown(name: Path, refs: Sequence[WeakCellRef], is_squeezed: bool) -> ShownColumn:
    if not refs:
        raise ValueError(f"the column at {name} is empty; a trajectory shows at least one value in each column")
    if is_squeezed and len(refs) != 1:
        raise ValueError(f"the column at {name} has {len(refs)} values, of which only one could be squeezed")
    first = refs[0]
    for ref in refs:
        if ref.expired:
            raise ValueError(
                f"the column at {name} refers to data that has expired; keep more with num_keep_alive_refs"
            )
        if ref.dtype != first.dtype or ref.shape != first.shape:
            raise ValueError(
                f"the column at {name} has values of several kinds: {tf_name(first.dtype)}{shape_text(first.shape)} "
                f"and {tf_name(ref.dtype)}{shape_text(ref.shape)}"
            )
    return ShownColumn(name, first.dtype, first.shape if is_squeezed else (len(refs), *first.shape))
