"""The trajectory writer: append steps, pick any cells of the history, make them items."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from replayd_client.connection import DEFAULT_TIMEOUT_MS
from replayd_client.errors import ClosedError, DataError, ReplaydError
from replayd_client.history import ColumnHistory, TrajectoryColumn, Windows
from replayd_client.item_handle import ItemHandle
from replayd_client.structure import Structure, path_text
from replayd_client.writer_core import CLOSE_TIMEOUT_MS, EXIT_TIMEOUT_MS, WriterCore


class TrajectoryWriter:
    """Writes steps and items that show arbitrary picks of them. Made by `Client.trajectory_writer`.

    A step is a nest of arrays and numbers; what is appended is copied. Items are sent in the background. Errors of the
    server are raised by the next call. One thread at a time uses a writer; a context manager, which flushes and closes.
    """

    def __init__(self, core: WriterCore) -> None:
        self._core = core
        self._windows = Windows(core.steps)
        self._history: Any = None
        self._history_of: Structure | None = None
        self._trajectory = Structure([])

    @property
    def episode_steps(self) -> int:
        """Completed steps of the episode."""
        return self._core.steps.episode_steps

    @property
    def history(self) -> Any:
        """A nest of `ColumnHistory`, of the shape of the steps. Raises RuntimeError before the first step."""
        steps = self._core.steps
        if steps.structure is None:
            raise RuntimeError("the history has no columns before the first step is appended")
        if steps.structure is not self._history_of:
            self._history_of = steps.structure
            self._history = steps.structure.rebuild(
                [ColumnHistory(steps, column, path) for column, path in enumerate(steps.structure.paths)]
            )
        return self._history

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step.

        The first value of a column fixes its dtype and shape; columns may come later, and may be missing (None) from a
        step. With `partial_step` the step stays open and the next append adds columns to it.

        Raises DataError that names the column, and changes nothing then; DeadlineExceededError when what is there
        cannot be sent in time (the message says who must act), and the step was not added.
        """
        self._core.append(data, partial_step)

    def create_item(self, table: str, priority: float, trajectory: Any) -> ItemHandle:
        """Make an item of a nest of `TrajectoryColumn`; its `key` is known once the server has acknowledged it.

        Raises TypeError for a leaf that is no TrajectoryColumn, DataError for an empty trajectory or expired cells,
        PriorityError, UnknownTableError, SignatureError, and DeadlineExceededError as `append` does.
        """
        try:
            columns = self._trajectory.leaves(trajectory)
        except DataError:
            # Most items of a run have one structure; another one takes its place.
            self._trajectory = Structure(trajectory)
            columns = self._trajectory.leaves(trajectory)
        paths = self._trajectory.paths
        for path, leaf in zip(paths, columns, strict=True):
            if not isinstance(leaf, TrajectoryColumn):
                raise TypeError(
                    f"{path_text(path)}: a trajectory is made of TrajectoryColumn (index the history), "
                    f"not {type(leaf).__name__}"
                )
        return self._core.create_item(table, priority, lambda: self._windows.of(paths, columns))

    def flush(self, block_until_num_items: int = 0, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> None:
        """Send what there is and wait until at most so many items are not acknowledged.

        Raises DeadlineExceededError with what the server says holds the items back; the work goes on.
        """
        self._core.flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> None:
        """Flush and begin a new episode. With `clear_buffers` the history is empty then; without it items may show
        steps of both. On an error nothing changes, and the call may be made again."""
        self._core.end_episode(clear_buffers, timeout_ms)

    def close(self, timeout_ms: float | None = CLOSE_TIMEOUT_MS) -> None:
        """Flush and close; what is not acknowledged in time is told in the log. May be called again."""
        self._core.close(timeout_ms)

    def __enter__(self) -> Self:
        if self._core.closed:
            raise ClosedError("the writer is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None and not self._core.closed:
            try:
                self.flush()
            finally:
                self.close(timeout_ms=0)
        else:
            # Who is on the way out with an error is not kept waiting.
            self.close(timeout_ms=0 if isinstance(error, ReplaydError) else EXIT_TIMEOUT_MS)

    def __del__(self) -> None:
        # An interpreter that failed in __init__ leaves no core.
        core = getattr(self, "_core", None)
        if core is not None:
            core.abandon()
