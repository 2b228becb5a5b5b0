"""The structured writer, and the matcher beneath it that applies configs' patterns as steps come."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from replayd.compat.reverb._cells import CellWriter, with_paths
from replayd.compat.reverb._conditions import Predicate, as_number
from replayd.compat.reverb._nests import Path, flatten_with_path
from replayd.compat.reverb._patterns import Rule, Window, reach_of
from replayd.compat.reverb.errors import ReverbError

log = logging.getLogger("replayd")

_AT_ONCE_MS = 0.001
"""A timeout of 0 for the cell writer, where 0 is none."""

DROP_TIMEOUT_MS = 1000
"""How long a writer that is dropped waits for its items to be acknowledged; the incumbent waits for ever. What a
limiter holds back enters later all the same."""

Columns = Sequence[Sequence[Any]]
"""References to values, a sequence for each node of a pattern."""


class StructuredWriter:
    """Appends steps; makes an item wherever the conditions of a config hold and its pattern is full.

    Made by `Client.structured_writer`. Configs are looked at in order after each append, and once more in
    `end_episode`; each makes at most one item a step. Leaves that no config shows are not stored. For one thread, which
    may drop it: what it has made is sent, and waited for a moment.
    """

    def __init__(self, cells: CellWriter, rules: Sequence[Rule]) -> None:
        self._cells = cells
        self._matcher = PatternMatcher(cells, rules, partial(_create_item, cells))
        self._thread = threading.get_ident()

    def __del__(self) -> None:
        # Collected on another thread, or at the end of the process, nobody counts on what it made being there.
        if getattr(self, "_thread", None) == threading.get_ident() and not sys.is_finalizing():
            try:
                self._cells.Flush(0, DROP_TIMEOUT_MS)
            except (ReverbError, RuntimeError, ValueError) as error:
                log.warning("a structured writer was dropped before its items were acknowledged: %s", error)
            self._cells.Close()

    @property
    def step_is_open(self) -> bool:
        """Whether the newest step waits for more parts."""
        return self._matcher.step_is_open

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step, or a part of one; leaves may be None. Then look at the configs.

        Raises ValueError for another number of leaves than before, for a dtype or shape other than that of a leaf's
        first value, and for a leaf that the open step has already; TypeError for what cannot be stored.
        """
        self._matcher.append(data, partial_step)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Send what there is and wait until at most so many items are not confirmed.

        Raises ValueError for a negative number, DeadlineExceededError at the timeout (None: none; 0: at once).
        """
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be >= 0, got {block_until_num_items}")
        self._cells.Flush(block_until_num_items, _AT_ONCE_MS if timeout_ms == 0 else timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Look at the configs for the last time, flush, and begin a new episode.

        Patterns may show steps of both unless `clear_buffers`. Raises DeadlineExceededError at the timeout (None:
        none); the episode goes on then.
        """
        self._matcher.finish_episode()
        self._cells.EndEpisode(clear_buffers, timeout_ms)
        self._matcher.begin_episode(clear_buffers)


class Cells(Protocol):
    """Where values go: references come back. See `CellWriter`."""

    def Append(self, data: Sequence[Any]) -> Sequence[Any]: ...  # noqa: N802

    def AppendPartial(self, data: Sequence[Any]) -> Sequence[Any]: ...  # noqa: N802


class PatternMatcher:
    """Keeps references to the last values of each leaf; calls `make` for each rule that applies."""

    def __init__(self, cells: Cells, rules: Sequence[Rule], make: Callable[[Rule, Columns], None]) -> None:
        self._cells = cells
        self._make = make
        self._applied = [_Applied(rule) for rule in rules]
        reach = reach_of(rules)
        used = sorted({window.column for rule in rules for window in rule.windows})
        self._buffers: dict[int, deque[Any]] = {number: deque(maxlen=reach) for number in used}
        tested = (each.column for rule in rules for each in rule.predicates if each.left == "flat_source_index")
        self._looked_at = sorted({*used, *tested})
        """Leaves of which one must have a value in the newest step for anything to be made."""
        self._newest: list[Any] = []
        """Values of the newest step by leaf."""
        self._leaves: int | None = None
        self._step_index = -1
        self.step_is_open = False
        self._cell_is_open = False

    def append(self, data: Any, partial_step: bool) -> None:
        """Take a step, or a part of one, and apply what applies. Raises as `StructuredWriter.append` does."""
        pairs = flatten_with_path(data)
        if self._leaves is not None and len(pairs) != self._leaves:
            raise ValueError(f"Flattened data has an unexpected length, got {len(pairs)} but wanted {self._leaves}.")
        if self.step_is_open:
            for (path, value), there in zip(pairs, self._newest, strict=True):
                if value is not None and there is not None:
                    raise ValueError(f"Field {path} has already been set in the active step, got: {value}")
        refs = self._store(pairs, partial_step)
        # Nothing below fails before the step is in.
        self._leaves = len(pairs)
        values = [value for _, value in pairs]
        if self.step_is_open:
            values = [there if value is None else value for value, there in zip(values, self._newest, strict=True)]
        else:
            self._step_index += 1
        for number, buffer in self._buffers.items():
            ref = refs[number] if number < len(refs) else None
            if not self.step_is_open:
                buffer.append(ref)
            elif ref is not None:
                buffer[-1] = ref
        self._newest = values
        self.step_is_open = partial_step
        self._apply(is_end_episode=False)

    def finish_episode(self) -> None:
        """Look at the configs as at the end of an episode."""
        self._apply(is_end_episode=True)

    def begin_episode(self, clear_buffers: bool) -> None:
        """Count steps from 0 again; with `clear_buffers` no pattern shows any from before."""
        self.step_is_open = self._cell_is_open = False
        self._step_index = -1
        for applied in self._applied:
            applied.counted = applied.at = None
        if clear_buffers:
            for buffer in self._buffers.values():
                buffer.clear()

    def _store(self, pairs: Sequence[tuple[Path, Any]], partial_step: bool) -> Sequence[Any]:
        """References to the values that a config shows."""
        row = [value if number in self._buffers else None for number, (_, value) in enumerate(pairs)]
        if not self._cell_is_open and all(value is None for value in row):
            return []
        try:
            refs = self._cells.AppendPartial(row) if partial_step else self._cells.Append(row)
        except ValueError as error:
            raise with_paths(error, [path for path, _ in pairs]) from error
        self._cell_is_open = partial_step
        return refs

    def _apply(self, *, is_end_episode: bool) -> None:
        if self._step_index < 0 or all(self._value(number) is None for number in self._looked_at):
            return
        for applied in self._applied:
            if applied.at == self._step_index:
                continue
            if applied.counted != self._step_index:
                applied.counted = self._step_index
                applied.steps_since += 1
            rule = applied.rule
            if not all(each.holds(self._number(each, applied, is_end_episode)) for each in rule.predicates):
                continue
            columns = [self._picked(window) for window in rule.windows]
            if any(column is None for column in columns):
                continue
            self._make(rule, [column for column in columns if column is not None])
            applied.at = self._step_index
            applied.steps_since = 0

    def _number(self, predicate: Predicate, applied: _Applied, is_end_episode: bool) -> int | None:
        if predicate.left == "step_index":
            return self._step_index
        if predicate.left == "steps_since_applied":
            return applied.steps_since
        if predicate.left == "is_end_episode":
            return int(is_end_episode)
        if predicate.left == "buffer_length":
            return max(map(len, self._buffers.values()))
        return as_number(self._value(predicate.column))

    def _value(self, column: int) -> Any:
        """Of the newest step."""
        return self._newest[column] if column < len(self._newest) else None

    def _picked(self, window: Window) -> list[Any] | None:
        """The references that a window shows, None if one of them is not there."""
        buffer = self._buffers[window.column]
        if -window.places.start > len(buffer):
            return None
        refs = [buffer[place] for place in window.places]
        return None if any(ref is None for ref in refs) else refs


def _create_item(cells: CellWriter, rule: Rule, columns: Columns) -> None:
    cells.CreateItem(rule.table, rule.priority(columns), columns, rule.squeezed, rule.wire_paths, rule.paths)


class _Applied:
    """A rule and when it was applied."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.at: int | None = None
        """The step of this episode at which it was last applied."""
        self.counted: int | None = None
        self.steps_since = 0
