"""The legacy writer: an item is the last steps with all their columns.

Steps of one chunk have one form, the dtypes and shapes of their leaves. The next chunk may have another, so programs
write episodes of any length as single steps. To replayd the leaves of each form are columns of their own.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._cells import CellWriter, WeakCellRef, with_paths
from replayd.compat.reverb._nests import Path, flatten_with_path, unflatten_as
from replayd.compat.reverb._trajectories import WirePath, wire_paths
from replayd.compat.reverb._values import as_array
from replayd.compat.reverb.errors import DeadlineExceededError

log = logging.getLogger("replayd")

_CLOSE_STEP_MS = 250.0
"""How often a closing writer looks whether there is still a server to wait for."""

MOST_COLUMNS = 32
"""Columns of all forms together; one more form, and what is beneath begins anew. replayd takes several hundred, but
each row says of each column whether it has it."""
MOST_FORM_BYTES = 64 << 20
"""Bytes of a chunk of each form together, for which buffers are kept; beyond, as above."""

Form = list[tuple[np.dtype[Any], tuple[int, ...]]]
"""Dtype and shape of each leaf."""


@dataclass(slots=True, eq=False)
class _Steps:
    """What steps of one form have in common."""

    form: Form
    paths: list[Path]
    wire_paths: tuple[WirePath, ...]
    first_column: int


class Writer:
    """Appends steps and makes items of the last of them; one episode. Made by `Client.writer`.

    A context manager: leaving it waits until its items are in their tables, also when an error is on its way. After
    `close` it raises RuntimeError. For one thread.
    """

    def __init__(self, make_cells: Callable[[], CellWriter], max_sequence_length: int, chunk_length: int) -> None:
        self._make_cells = make_cells
        self._cells = make_cells()
        self._max_sequence_length = max_sequence_length
        self._chunk_length = chunk_length
        self._in_chunk = 0
        """Steps since the last chunk was full or flushed."""
        self._kept: deque[tuple[_Steps, list[WeakCellRef]]] = deque(maxlen=max_sequence_length)
        self._forms: list[_Steps] = []
        """The one of the newest step is the last."""
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
        """Add a step. Raises ValueError for another number of leaves, another dtype or shape than in the steps before
        it in its chunk, TypeError for what cannot be stored.

        Where steps have ever new forms, now and then one of them waits until all items are in their tables.
        """
        self._check_open()
        pairs = flatten_with_path(data)
        if not pairs:
            raise ValueError("a step needs at least one value")
        arrays = []
        for path, value in pairs:
            if value is None:
                raise TypeError(f"None at {path} cannot be made a tensor")
            arrays.append(as_array(value))
        form = [(array.dtype, array.shape) for array in arrays]
        if not self._forms or (self._forms[-1].form != form and not self._in_chunk):
            self._change_form(form, [path for path, _ in pairs], data)
        steps = self._forms[-1]
        if len(form) != len(steps.form):
            raise ValueError(
                f"Number of tensors per timestep was inconsistent. Previously it was {len(steps.form)}, but is now "
                f"{len(form)}."
            )
        before = [None] * steps.first_column
        try:
            refs = self._cells.Append([*before, *arrays])
        except ValueError as error:
            raise with_paths(error, [*((),) * steps.first_column, *steps.paths]) from error
        self._kept.append((steps, [ref for ref in refs if ref is not None]))
        self._in_chunk = (self._in_chunk + 1) % self._chunk_length

    def append_sequence(self, sequence: Any) -> None:
        """Add T steps: every leaf has them along its first axis; there may be none. Raises ValueError if there is no
        leaf, for a scalar leaf, and for leaves of several lengths."""
        self._check_open()
        arrays = [as_array(leaf) for _, leaf in flatten_with_path(sequence)]
        if not arrays:
            raise ValueError("a sequence needs at least one leaf")
        if any(array.ndim == 0 for array in arrays):
            raise ValueError("every leaf of a sequence needs an axis of steps, a scalar has none")
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1:
            raise ValueError(f"the leaves of a sequence must have one length, got {sorted(lengths)}")
        for step in range(lengths.pop()):
            self.append(unflatten_as(sequence, [array[step] for array in arrays]))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Make an item of the last steps. Raises ValueError for a number of steps that is below 1 or more than were
        appended or are kept, a priority that is NaN or that the table does not take, an unknown table, and steps that
        do not fit its signature."""
        self._check_open()
        if num_timesteps < 1:
            raise ValueError(f"num_timesteps ({num_timesteps}) must be a positive integer")
        if num_timesteps > len(self._kept):
            raise ValueError(
                f"Argument `num_timesteps` is larger than number of buffered timesteps: {num_timesteps} are asked for, "
                f"{len(self._kept)} are buffered and at most {self._max_sequence_length} (max_sequence_length) are kept"
            )
        if math.isnan(_priorities.number(priority)):
            raise ValueError("`priority` must not be nan.")
        kept = list(self._kept)[-num_timesteps:]
        steps = kept[-1][0]
        if any(other is not steps for other, _ in kept):
            raise ValueError(f"the last {num_timesteps} steps differ in their leaves' dtypes or shapes")
        columns = [list(column) for column in zip(*(refs for _, refs in kept), strict=True)]
        squeezed = [False] * len(columns)
        self._cells.CreateItem(table, priority, columns, squeezed, steps.wire_paths, steps.paths, whole_steps=True)

    def flush(self) -> None:
        """Send what there is and return when all items are in their tables."""
        self._check_open()
        self._cells.Flush()
        self._in_chunk = 0

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
        return f"Writer(max_sequence_length={self._max_sequence_length}), closed: {self._is_closed}"

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("Writer has been closed and cannot be used any more.")

    def _change_form(self, form: Form, paths: list[Path], data: Any) -> None:
        """Let the next step be of this form."""
        for steps in self._forms:
            if steps.form == form:
                self._forms.remove(steps)
                self._forms.append(steps)
                return
        columns = sum(len(steps.form) for steps in self._forms)
        size = sum(_row_bytes(each) for each in (form, *(steps.form for steps in self._forms)))
        if columns + len(form) > MOST_COLUMNS or size * self._chunk_length > MOST_FORM_BYTES:
            self._begin_anew()
            columns = 0
        self._forms.append(_Steps(form, paths, wire_paths(data), columns))

    def _begin_anew(self) -> None:
        """Forget all forms: no step of them can be in an item with the one that comes."""
        if self._forms:
            self._cells.Flush()
            self._cells.Close()
            self._cells = self._make_cells()
            self._forms.clear()
            self._kept.clear()

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


def _row_bytes(form: Form) -> int:
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in form)
