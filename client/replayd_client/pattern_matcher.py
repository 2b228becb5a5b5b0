"""Applies configs to steps as they come: which patterns make a trajectory now, of which rows, with which priority.

Pure: a `ChunkLog` takes the steps, and what is found is told; a structured writer makes items of it, a dataset arrays.
Columns that no pattern shows are not stored.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import DataError
from replayd_client.history import TrajectoryColumn
from replayd_client.structure import Path, Structure, flatten, path_text
from replayd_client.structured import Config, TdErrorPriority
from replayd_client.windows import Window, Windows

log = logging.getLogger("replayd_client")


@dataclass(slots=True, eq=False)
class Match:
    """A config that is to be applied at the newest step. Its cells are there until the next step is appended."""

    config: Config
    window: Window
    priority: Any
    """A number, or "max"."""
    _log: ChunkLog
    _end_row: int

    @property
    def columns(self) -> list[TrajectoryColumn]:
        """In the order of `config.structure.paths`."""
        return _columns(self.config, self._log, self._end_row)

    def trajectory(self) -> Any:
        """The trajectory's data: a nest of arrays, copied."""
        return self.config.structure.rebuild([column.numpy() for column in self.columns])


class PatternMatcher:
    """The configs of one writer and what they have seen.

    After each append, partial or not, and once at the end of an episode, each config is looked at in order. It matches
    if it has not matched at this step already, all its conditions hold, and every cell of its pattern is there.
    """

    def __init__(self, configs: Sequence[Config], log: ChunkLog) -> None:
        self._log = log
        self._windows = Windows(log)
        self._states = [_State(config) for config in configs]
        # In order of appearance, so that equal configs give equal schemas.
        self._shown = list(dict.fromkeys(node.path for config in configs for node in config.nodes))
        self._asked = {
            condition.quantity.path
            for config in configs
            for condition in config.conditions
            if condition.quantity.path is not None
        }
        self._structure: Structure | None = None
        self._places: dict[Path, int] = {}
        self._order: list[int] | None = None
        """Places of the stored columns in a step's leaves, once all of them are there."""
        self._values: dict[Path, int | None] = {}
        self._told: set[Path] = set()
        self._steps = 0
        self._episode_steps = 0
        self._has_value = False
        self.step_is_open = False

    def append(self, data: Any, partial_step: bool) -> list[Match]:
        """Add a step, or to the open step. Every step has the structure of the first one; leaves may be None.

        Raises DataError, and changes nothing, for a step of another structure, one that lacks a column which a config
        needs, and a value that does not fit its column.
        """
        structure = self._structure or self._checked(data)
        try:
            leaves = structure.leaves(data)
        except DataError as error:
            error.detail.update(fault="structure", expected=len(structure), got=len(flatten(data)))
            raise
        self._store(leaves, partial_step)
        self._structure = structure
        if not self.step_is_open:
            self._steps += 1
            self._episode_steps += 1
            self._values.clear()
            self._has_value = False
        self.step_is_open = partial_step
        if not self._has_value:
            self._has_value = any(leaves[self._places[path]] is not None for path in self._shown)
        for path in self._asked:
            leaf = leaves[self._places[path]]
            if leaf is not None:
                self._values[path] = self._integer(path, leaf)
        return self._matches(is_end=False)

    def finish_episode(self) -> list[Match]:
        """What matches at the end of the episode. May be called again, until `begin_episode`."""
        self.step_is_open = False
        self._log.close_step()
        return self._matches(is_end=True)

    def begin_episode(self) -> None:
        """A new episode begins. What `steps_since_applied` counts goes on."""
        self._episode_steps = 0
        self._has_value = False
        self._values.clear()

    # Helpers, in the order of their callers.

    def _checked(self, data: Any) -> Structure:
        structure = Structure(data)
        places = {path: place for place, path in enumerate(structure.paths)}
        for path in (*self._shown, *sorted(self._asked, key=path_text)):
            if path not in places:
                there = ", ".join(map(path_text, structure.paths)) or "none"
                raise DataError(
                    f"a config needs the column {path_text(path)}, and the step has: {there}",
                    detail={"fault": "structure", "path": path},
                )
        self._places = places
        return structure

    def _store(self, leaves: list[Any], partial_step: bool) -> None:
        own, column_of = self._log, self._log.column_of
        if len(column_of) == len(self._shown):
            if self._order is None:
                self._order = [self._places[path] for path in column_of]
            cells = [leaves[place] for place in self._order]
            if own.step_is_open or any(cell is not None for cell in cells):
                own.append(cells, partial_step)
            else:
                own.append_empty(partial_step)
            return
        named = {path: leaves[self._places[path]] for path in self._shown if leaves[self._places[path]] is not None}
        if named or own.step_is_open:
            own.append_named(named, partial_step)
        elif column_of:
            own.append_empty(partial_step)
        # A step before the first value has no row: no pattern can show a cell of it.

    def _integer(self, path: Path, leaf: Any) -> int | None:
        if isinstance(leaf, (np.ndarray, np.generic)) and leaf.size == 1 and leaf.dtype.kind in "biu":
            return int(leaf.item())
        try:
            return operator.index(leaf)
        except TypeError:
            if path not in self._told:
                self._told.add(path)
                log.warning("a condition on %s does not hold: its value is not one integer or bool", path_text(path))
            return None

    def _matches(self, *, is_end: bool) -> list[Match]:
        if not self._episode_steps:
            return []
        matches = []
        for state in self._states:
            if state.applied_at == self._steps:
                continue
            if state.counted_at != self._steps:
                state.counted_at = self._steps
                state.steps_since_applied += 1
            if self._has_value and self._holds(state, is_end):
                match = self._match(state)
                if match is not None:
                    state.applied_at = self._steps
                    state.steps_since_applied = 0
                    matches.append(match)
        return matches

    def _holds(self, state: _State, is_end: bool) -> bool:
        value: int | None
        for condition in state.config.conditions:
            match condition.quantity.kind:
                case "step_index":
                    value = self._episode_steps - 1
                case "steps_since_applied":
                    value = state.steps_since_applied
                case "is_end_episode":
                    value = int(is_end)
                case "data":
                    assert condition.quantity.path is not None, "a column's value has a path"
                    value = self._values.get(condition.quantity.path)
            if not condition.holds(value):
                return False
        return True

    def _match(self, state: _State) -> Match | None:
        """The match, or None if a cell is not there: not yet, not any more, or because its step lacks the column."""
        own, config = self._log, state.config
        end = own.rows
        first = end - state.reach
        if first < own.oldest_row or not self._all_present(config, first, end):
            return None
        if state.width != len(own.column_of):
            state.window = self._windows.of_columns(config.structure.paths, _columns(config, own, end))
            state.width = len(own.column_of)
        window = state.window
        assert window is not None, "it is known for as many columns as there are"
        if isinstance(config.priority, TdErrorPriority):
            place = next(place for place, node in enumerate(config.nodes) if node.path == config.priority.path)
            errors = _columns(config, own, end)[place].numpy()
            return Match(config, window, config.priority.of(errors), own, end)
        return Match(config, window, config.priority.value, own, end)

    def _all_present(self, config: Config, first: int, end: int) -> bool:
        presence, column_of = self._log.presence, self._log.column_of
        if first >= presence.dense_from and len(column_of) == len(self._shown):
            return True
        for node in config.nodes:
            column = column_of.get(node.path)
            if column is None or not all(presence.is_present(column, end + offset) for offset in node.offsets):
                return False
        return True


def _columns(config: Config, log: ChunkLog, end: int) -> list[TrajectoryColumn]:
    """The cells of the config's nodes, counted back from the row `end`."""
    return [
        TrajectoryColumn.of(
            log,
            log.column_of[node.path],
            range(end + node.start, end + node.stop, node.step),
            node.squeeze,
            node.path,
        )
        for node in config.nodes
    ]


class _State:
    """A config, when it was last looked at and applied, and what its windows have in common.

    Steps are counted from 1 over all episodes. Its window is known for a number of columns.
    """

    __slots__ = ("applied_at", "config", "counted_at", "reach", "steps_since_applied", "width", "window")

    def __init__(self, config: Config) -> None:
        self.config = config
        self.reach = config.reach
        self.steps_since_applied = 0
        self.counted_at = 0
        self.applied_at = 0
        self.width = 0
        self.window: Window | None = None
