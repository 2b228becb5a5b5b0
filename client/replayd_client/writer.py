"""The writer of whole steps: an item is the last n of them, with all columns."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from replayd_client.errors import DataError
from replayd_client.item_core import ItemCore
from replayd_client.item_handle import ItemHandle
from replayd_client.scalars import checked_integer
from replayd_client.steps import Steps
from replayd_client.structure import Structure, path_text
from replayd_client.windows import Windows
from replayd_client.writer_life import WriterLife


class Writer(WriterLife):
    """Writes steps and items over the last of them. Made by `Client.writer`; a context manager, which returns when its
    items are in their tables. One thread at a time uses a writer."""

    _core: ItemCore
    _made_by = "writer"

    def __init__(self, core: ItemCore) -> None:
        self._core = core
        self._steps = Steps(core.log)
        self._windows = Windows(core.log)

    def append(self, data: Any) -> None:
        """Add a step: a nest of arrays and numbers, of the same columns each time; it is copied.

        Raises DataError that names the column; DeadlineExceededError when what is there cannot be sent in time (the
        message says who must act), ConnectionLostError without a server; ClosedError; and the server's error for items
        created earlier that it refused since. The step was not added then.
        """
        # Missing and new columns are for trajectory writers: here an item shows all columns of its steps.
        self._core.call("append", self._steps.append_like_before, data)

    def append_sequence(self, data: Any) -> None:
        """Add T steps, one after the other: every leaf has T as its first axis. Raises DataError for an empty sequence
        and, as `append`, DeadlineExceededError, after which the steps before the one that had to wait were added."""
        structure = Structure(data)
        leaves = [np.asarray(leaf) for leaf in structure.leaves(data)]
        for path, leaf in zip(structure.paths, leaves, strict=True):
            if leaf.ndim == 0:
                raise DataError(f"{path_text(path)}: a sequence needs an axis of steps")
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1 or 0 in lengths:
            raise DataError(f"the leaves of a sequence must have one length of at least 1, got {sorted(lengths)}")
        for step in range(lengths.pop()):
            self.append(structure.rebuild([leaf[step] for leaf in leaves]))

    def create_item(self, table: str, num_timesteps: int, priority: float | Literal["max"]) -> ItemHandle:
        """Make an item of the last `num_timesteps` steps; its `key` is known once it is acknowledged.

        Raises DataError if so many steps were not appended or are not kept, and as `TrajectoryWriter.create_item`.
        """
        steps = self._core.log
        kept = steps.rows - steps.oldest_row
        num_timesteps = checked_integer("num_timesteps", num_timesteps, 1)
        if num_timesteps > kept:
            raise DataError(
                f"num_timesteps must be between 1 and the {kept} steps that are kept, got {num_timesteps} "
                f"(max_sequence_length is {steps.keep_rows})"
            )
        return self._core.create_item(table, priority, self._windows.all_columns(num_timesteps))

    def flush(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Send what there is and wait until it is acknowledged, as long as the writer's own `timeout_ms` says unless
        another is given; so too for `end_episode`. Raises as `TrajectoryWriter.flush`."""
        self._core.flush(0, timeout_ms)

    def end_episode(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Flush and begin a new episode, of which no item shows earlier steps.

        Raises as `flush` does; on an error nothing changes, and the call may be made again.
        """
        self._core.begin_episode(True, timeout_ms)
