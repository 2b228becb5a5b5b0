"""The trajectory writer: append steps, pick any cells of the history, make them items."""

from __future__ import annotations

from typing import Any, Literal

from replayd_client.history import ColumnHistory, newest_cells, newest_named
from replayd_client.item_core import ItemCore
from replayd_client.item_handle import ItemHandle
from replayd_client.scalars import checked_flag, checked_integer
from replayd_client.steps import Steps
from replayd_client.structure import Path, Structure, path_text
from replayd_client.windows import Windows
from replayd_client.writer_life import WriterLife


class TrajectoryWriter(WriterLife):
    """Writes steps and items that show arbitrary picks of them. Made by `Client.trajectory_writer`.

    A step is a nest of arrays, numbers, bytes and str; what is appended is copied. Items are sent in the background.
    Errors of the server are raised by the next call. One thread at a time uses a writer; a context manager, which
    flushes and closes.
    """

    _core: ItemCore
    _made_by = "trajectory_writer"

    def __init__(self, core: ItemCore) -> None:
        self._core = core
        self._steps = Steps(core.log)
        self._windows = Windows(core.log)
        self._columns: list[ColumnHistory] = []
        self._history: Any = None
        self._history_of: Structure | None = None
        self._names: list[tuple[str, int]] | None = None
        """Names and numbers of all columns, if steps are dicts of nothing else."""

    @property
    def episode_steps(self) -> int:
        """Completed steps of the episode."""
        return self._core.log.episode_steps

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step was appended with `partial_step` and waits for more."""
        return self._core.log.step_is_open

    @property
    def history(self) -> Any:
        """A nest of `ColumnHistory`, of the shape of the steps. Raises RuntimeError before the first step."""
        if self._history is None or self._steps.structure is not self._history_of:
            self._known_structure()
        return self._history

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Add a step; return a nest of references to its cells, of the shape of the steps, None where it has none.

        The first value of a column fixes its dtype and shape; columns may come later, and may be missing (None) from a
        step. With `partial_step` the step stays open and the next append adds columns to it. References of several
        appends make a column of a trajectory: `TrajectoryColumn([first["obs"], second["obs"]])`.

        Raises DataError that names the column, and changes nothing then; DeadlineExceededError when what is there
        cannot be sent in time (the message says who must act) and ConnectionLostError without a server, and the step
        was not added.
        """
        if partial_step is not False:
            partial_step = checked_flag("partial_step", partial_step)
        self._core.call("append", self._steps.append, data, partial_step)
        log = self._core.log
        is_known = self._steps.structure is self._history_of
        if is_known and self._names is not None and log.presence.dense_from < log.rows:
            return newest_named(log, self._names)
        structure = self._known_structure()
        return structure.rebuild(newest_cells(log, self._columns))

    def create_item(self, table: str, priority: float | Literal["max"], trajectory: Any) -> ItemHandle:
        """Make an item of a nest of `TrajectoryColumn`; its `key` is known once the server has acknowledged it.

        The priority "max" is the largest in the table when the item enters, 1.0 if that is empty.

        Raises ArgumentTypeError for a leaf that is no TrajectoryColumn, DataError for an empty trajectory or expired
        cells, PriorityError, UnknownTableError, SignatureError; DeadlineExceededError and ConnectionLostError as
        `append`. The item was not made then.
        """
        return self._core.create_item(table, priority, self._windows.of(trajectory))

    def flush(self, block_until_num_items: int = 0, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Send what there is and wait until at most so many items are not acknowledged.

        The deadline is the writer's own `timeout_ms` unless another is given (milliseconds, None for ever); so too for
        `end_episode`.

        Raises DataError for arguments; what the server refused since; DeadlineExceededError with what the server says
        holds the items back, and ConnectionLostError: both say how many are not acknowledged, and the work goes on.
        """
        self._core.flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Flush and begin a new episode. With `clear_buffers` the history is empty then; without it items may show
        steps of both. Raises as `flush` does; on an error nothing changes, and the call may be made again."""
        self._core.begin_episode(clear_buffers, timeout_ms)

    def configure(self, path: Path, *, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
        """Ask for one column's needs, before or after it is there: cells to keep, and most cells of a chunk.

        Here a chunk has all columns. So the writer keeps as many steps as the column that asks for most, and its chunks
        are as short as those of the column that asks for the shortest; None asks for nothing. What has been asked for
        is never taken back. Raises DataError unless 1 ≤ max_chunk_length ≤ num_keep_alive_refs.
        """
        keep = checked_integer("num_keep_alive_refs", num_keep_alive_refs, 1)
        if max_chunk_length is not None:
            # Not so many cells are kept as the chunk would have.
            max_chunk_length = checked_integer(f"{path_text(path)}: max_chunk_length", max_chunk_length, 1, keep)
        self._core.configure(keep, max_chunk_length)

    def _known_structure(self) -> Structure:
        """The structure of all fields seen; their histories are made anew when there are more."""
        structure = self._steps.structure
        if structure is None:
            raise RuntimeError("the history has no columns before the first step is appended")
        if structure is not self._history_of:
            self._history_of = structure
            self._columns = [ColumnHistory(self._core.log, path) for path in structure.paths]
            self._history = structure.rebuild(self._columns)
            self._names = None
        if self._names is None and type(self._history) is dict:
            numbers = self._core.log.column_of
            if len(numbers) == len(self._history) and numbers.keys() == {(name,) for name in self._history}:
                self._names = [(name, numbers[(name,)]) for name in self._history]
        return structure
