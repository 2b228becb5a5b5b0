"""The legacy writer: an item is the last steps with all their columns."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Any, Self

import numpy as np

from replayd.compat.reverb._cells import CellWriter, with_paths
from replayd.compat.reverb._nests import Path, flatten_with_path, unflatten_as
from replayd.compat.reverb._trajectories import WirePath, wire_paths
from replayd.compat.reverb._values import as_array
from replayd.compat.reverb.errors import DeadlineExceededError

log = logging.getLogger("replayd")

_CLOSE_STEP_MS = 250.0
"""How often a closing writer looks whether there is still a server to wait for."""


class Writer:
    """Appends steps and makes items of the last of them; one episode. Made by `Client.writer`.

    A context manager: leaving it waits until its items are in their tables, also when an error is on its way. After
    `close` it raises RuntimeError. For one thread.
    """

    def __init__(self, cells: CellWriter, max_sequence_length: int) -> None:
        self._cells = cells
        self._max_sequence_length = max_sequence_length
        self._steps: deque[list[Any]] = deque(maxlen=max_sequence_length)
        self._paths: list[Path] = []
        self._wire_paths: tuple[WirePath, ...] = ()
        self._is_closed = False

    def __enter__(self) -> Self:
        if self._is_closed:
            raise ValueError("Cannot reuse already closed Writer")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_closed:
            try:
                self.flush()
            finally:
                self.close()

    def append(self, data: Any) -> None:
        """Add a step. Raises ValueError for another number of leaves, another dtype or shape than in the steps before,
        TypeError for what cannot be stored."""
        self._check_open()
        pairs = flatten_with_path(data)
        if not pairs:
            raise ValueError("a step needs at least one value")
        if self._paths and len(pairs) != len(self._paths):
            raise ValueError(
                f"Number of tensors per timestep was inconsistent. Previously it was {len(self._paths)}, but is now "
                f"{len(pairs)}."
            )
        paths = [path for path, _ in pairs]
        for path, value in pairs:
            if value is None:
                raise TypeError(f"None at {path} cannot be made a tensor")
        try:
            refs = self._cells.Append([value for _, value in pairs])
        except ValueError as error:
            raise with_paths(error, paths) from error
        if not self._paths:
            self._paths, self._wire_paths = paths, wire_paths(data)
        self._steps.append(refs)

    def append_sequence(self, data: Any) -> None:
        """Add T steps: every leaf has them along its first axis. Raises ValueError if there is no leaf or no step, for
        a scalar leaf, and for leaves of several lengths."""
        self._check_open()
        arrays = [as_array(leaf) for _, leaf in flatten_with_path(data)]
        if not arrays:
            raise ValueError("a sequence needs at least one leaf")
        if any(array.ndim == 0 for array in arrays):
            raise ValueError("every leaf of a sequence needs an axis of steps, a scalar has none")
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"the leaves of a sequence must have one length of at least 1, got {sorted(lengths)}")
        for step in range(lengths.pop()):
            self.append(unflatten_as(data, [array[step] for array in arrays]))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Make an item of the last steps. Raises ValueError for a number of steps that is below 1 or more than were
        appended or are kept, a priority that is NaN or that the table does not take, an unknown table, and steps that
        do not fit its signature."""
        self._check_open()
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps ({num_timesteps}) must be a positive integer")
        if num_timesteps > len(self._steps):
            raise ValueError(
                f"cannot create an item of {num_timesteps} steps: {len(self._steps)} are buffered and at most "
                f"{self._max_sequence_length} (max_sequence_length) are kept"
            )
        if np.isnan(priority):
            raise ValueError("`priority` must not be nan.")
        steps = list(self._steps)[-num_timesteps:]
        columns = [list(column) for column in zip(*steps, strict=True)]
        squeezed = [False] * len(columns)
        self._cells.CreateItem(table, priority, columns, squeezed, self._wire_paths, self._paths, whole_steps=True)

    def flush(self) -> None:
        """Send what there is and return when all items are in their tables."""
        self._check_open()
        self._cells.Flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """As `flush`, then end. Without `retry_on_unavailable` a server that is not there is not waited for.

        Raises ValueError when closed already.
        """
        if self._is_closed:
            raise ValueError("close() has already been called on Writer.")
        self._is_closed = True
        try:
            if retry_on_unavailable:
                self._cells.Flush()
            else:
                self._flush_while_connected()
        except (RuntimeError, ValueError) as error:
            log.warning("a writer was closed with items that the server refused: %s", error)
        self._cells.Close()

    def __repr__(self) -> str:
        return f"Writer(max_sequence_length={self._max_sequence_length})"

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("Writer has been closed and cannot be used any more.")

    def _flush_while_connected(self) -> None:
        while True:
            try:
                self._cells.Flush(timeout_ms=_CLOSE_STEP_MS)
            except DeadlineExceededError as error:
                if isinstance(error.__cause__, ConnectionError):
                    log.warning("a writer was closed without a server: %s", error)
                    return
            else:
                return
