"""The structured writer: append steps, and configs that were given once make the items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from replayd_client.errors import ReplaydError
from replayd_client.item_core import ItemCore
from replayd_client.pattern_matcher import Match, PatternMatcher
from replayd_client.scalars import checked_flag
from replayd_client.signatures import checked_priority
from replayd_client.structured import Config
from replayd_client.writer_life import WriterLife


class StructuredWriter(WriterLife):
    """Writes steps, and items by its configs. Made by `Client.structured_writer`.

    Steps have one structure, that of the first; leaves may be None. What is appended is copied; columns that no pattern
    shows are not stored. Items are sent in the background; errors of the server are raised by the next call. One thread
    at a time uses a writer; a context manager, which flushes and closes.
    """

    _core: ItemCore
    _made_by = "structured_writer"

    def __init__(self, core: ItemCore, configs: Sequence[Config]) -> None:
        self._core = core
        self._matcher = PatternMatcher(configs, core.log)

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step was appended with `partial_step` and waits for more."""
        return self._matcher.step_is_open

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step, or with `partial_step` a part of one, and make the items of the configs that match now.

        The first value of a column fixes its dtype and shape. With `partial_step` the step stays open, and the next
        append adds columns to it.

        Raises DataError that names the column, and nothing was added then; DeadlineExceededError when what is there
        cannot be sent in time (the message says who must act) and ConnectionLostError without a server, and the step
        was not added. Raises SignatureError, UnknownTableError and PriorityError for an item: it is left out, and the
        step and the other items were added.
        """
        partial_step = checked_flag("partial_step", partial_step)
        self._core.call("append", self._append, data, partial_step)

    def flush(self, block_until_num_items: int = 0, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Send what there is and wait until at most so many items are not acknowledged (an integer from 0 on, default
        0). Deadline and errors as of `TrajectoryWriter.flush`.
        """
        self._core.flush(block_until_num_items, timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Make the items of configs that match at an episode's end, flush, and begin a new episode.

        With `clear_buffers` no pattern reaches back over this end. Raises as `flush`, and what `append` raises for an
        item. On an error the episode has not ended, and the call may be made again: no item is made twice.
        """
        self._core.begin_episode(clear_buffers, timeout_ms, self._finish_episode)
        self._matcher.begin_episode()

    def _append(self, data: Any, partial_step: bool) -> None:
        self._core.know_tables()
        self._create(self._matcher.append(data, partial_step))

    def _finish_episode(self) -> None:
        self._create(self._matcher.finish_episode())

    def _create(self, matches: list[Match]) -> None:
        fault: ReplaydError | None = None
        for match in matches:
            try:
                self._core.add_item(match.config.table, checked_priority(match.priority), match.window)
            except ReplaydError as error:
                fault = fault or error
        if fault is not None:
            raise fault
