"""Steps of N environments in lock-step, waiting to become chunks: arrays in the order of time, and whose rows they are.

Owns the autoreset modes: which rows belong to which episode, and which are no rows at all. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from replayd_client.columns import Column, Schema, array_text, leaf_array, leaf_dtype, variable_bytes
from replayd_client.errors import DataError
from replayd_client.row_buffer import check_step_cells
from replayd_client.structure import path_text
from replayd_client.vector_items import Bools, EpisodeRows, Ints

AutoresetMode = Literal["next_step", "same_step", "disabled"]
MODES: Final[dict[str, AutoresetMode]] = {
    "nextstep": "next_step",
    "samestep": "same_step",
    "disabled": "disabled",
}


def autoreset_mode_of(mode: Any) -> AutoresetMode:
    """The mode by its name, in Gymnasium's spelling too, or of Gymnasium's enum. Raises DataError for others."""
    name = str(getattr(mode, "value", mode)).lower().replace("_", "")
    if name not in MODES:
        raise DataError(f"autoreset_mode is one of {', '.join(MODES.values())}, not {mode!r}")
    return MODES[name]


BLOCK_BYTES = 64 << 20
"""Bytes of rows that wait, where steps are large."""


class VectorBuffer:
    """`slots` times N rows. Those of one time lie in one slot; not every environment has a row in every slot.

    The first `carried` slots are for rows that were taken before and are still needed, the newest in the last of them.
    """

    __slots__ = (
        *("_arrays", "_begin_position", "_checks", "_episode", "_episodes", "_fresh", "_has_fresh", "_has_observed"),
        *("_is_closing", "_is_first", "_is_last", "_mode", "_observed", "_position", "_resetting", "_valid"),
        *("_was_ended", "carried", "cell_bytes", "num_envs", "schema", "slot", "slots", "steps"),
    )

    def __init__(
        self, schema: Schema, num_envs: int, slots: int, carried: int, mode: AutoresetMode, observed: Sequence[bool]
    ) -> None:
        assert slots >= carried + 2, "a step and what closes an episode must fit"
        self.schema = schema
        self.num_envs = num_envs
        self.slots = slots
        self.carried = carried
        self.slot = carried
        """The next slot to fill."""
        self.steps = 0
        """Rows that have been appended in all."""
        self._mode = mode
        self._observed = list(observed)
        self._has_observed = any(observed)
        self._checks = [(column.dtype, (num_envs, *column.shape)) for column in schema.columns]
        self._arrays = [_blanks(column, (slots, num_envs, *column.shape)) for column in schema.columns]
        self.cell_bytes = 0
        """Bytes of values of bytes and str that were appended since the last `carry`."""
        # Rows without a mark are the rule, so that a step in which no episode ends marks nothing.
        self._valid = np.ones((slots, num_envs), np.bool_)
        self._valid[:carried] = False
        self._is_first = np.zeros((slots, num_envs), np.bool_)
        self._is_last = np.zeros((slots, num_envs), np.bool_)
        self._is_closing = np.zeros((slots, num_envs), np.bool_)
        # Of each environment: whether its next row is an episode's first; and, as of the last `take`, its episode, how
        # many rows that had, and the position of the first row that is here.
        self._fresh = np.ones(num_envs, np.bool_)
        self._has_fresh = True
        self._episode = np.zeros(num_envs, np.int64)
        self._position = np.zeros(num_envs, np.int64)
        self._begin_position = np.zeros(num_envs, np.int64)
        self._episodes = 0
        self._resetting: Bools | None = None
        self._was_ended = False

    @property
    def is_full(self) -> bool:
        return self.slot + 2 > self.slots or self.cell_bytes >= BLOCK_BYTES

    @property
    def new_slots(self) -> int:
        return self.slot - self.carried

    @property
    def has_news(self) -> bool:
        """Whether there may be windows that the last `take` did not have."""
        return self.slot > self.carried or self._was_ended

    def append(self, leaves: Sequence[Any], ends: Bools, final: Sequence[NDArray[Any]]) -> None:
        """Add a step of all environments: for each column [N, *shape]; `ends` is bool[N].

        `final` is what the k episodes that end here led to: for each observed column [k, *shape], or nothing in a mode
        or for columns where that is no row. Raises DataError and changes nothing if something does not fit.
        """
        values = self._checked(leaves)
        closing = self._resetting
        if closing is not None:
            ends = ends & ~closing
        is_ending = np.count_nonzero(ends) > 0
        if is_ending and self._mode != "next_step" and self._has_observed and not final:
            raise DataError("episodes ended, and `final` does not tell what they led to")
        if self.schema.is_variable:
            self.cell_bytes += self._measured(values, final)
        slot = self._begin_slot()
        for array, value in zip(self._arrays, values):  # noqa: B905 - the lengths were compared, and this is hot
            array[slot] = value
        self.steps += self.num_envs
        if self._has_fresh:
            self._is_first[slot] = self._fresh
            self._fresh[:] = self._has_fresh = False
        if closing is not None:
            self._reset(slot, closing)
        if is_ending:
            self._end(slot, ends, final)

    def end_episodes(self) -> None:
        """All episodes end with the rows that they have."""
        self._resetting = None
        valid = self._valid[: self.slot]
        env = np.flatnonzero(valid.any(axis=0))
        if len(env):
            self._is_last[self.slot - 1 - np.argmax(valid[::-1, env], axis=0), env] = True
        self._fresh[:] = self._has_fresh = self._was_ended = True

    def take(self) -> EpisodeRows:
        """All rows, environment by environment, and in each in the order of time. Then comes `carry`."""
        env, slot = np.nonzero(self._valid[: self.slot].T)
        source: Ints = slot * self.num_envs + env
        begins = self._is_first.reshape(-1)[source]
        is_new_env = np.ones(len(env), np.bool_)
        is_new_env[1:] = env[1:] != env[:-1]
        start: Ints = np.flatnonzero(begins | is_new_env)
        begins, start_env = begins[start], env[start]
        numbers = self._episodes + np.cumsum(begins) - 1
        self._episodes += int(begins.sum())
        lengths = np.diff(np.append(start, len(env)))
        episode = np.where(begins, numbers, self._episode[start_env])
        offset = np.where(begins, 0, self._begin_position[start_env]) - start
        rows = EpisodeRows(
            source,
            np.arange(len(env)) + np.repeat(offset, lengths),
            np.repeat(episode, lengths),
            slot >= self.carried,
            self._is_closing.reshape(-1)[source],
            self._is_last.reshape(-1)[source],
        )
        last = np.flatnonzero(np.append(is_new_env[1:], True)[: len(env)])
        self._episode[env[last]] = rows.episode[last]
        self._position[env[last]] = rows.position[last] + 1
        self._position[self._fresh] = 0
        return rows

    @property
    def position(self) -> Ints:
        """As of the last `take`: rows of each environment's episode, [N]."""
        return self._position

    def column(self, number: int) -> NDArray[Any]:
        """A column's rows by `EpisodeRows.source`, [slots · N, *shape]: a view."""
        array = self._arrays[number]
        # Not -1, which numpy cannot find out where a row holds nothing.
        return array.reshape(self.slots * self.num_envs, *array.shape[2:])

    def row_cell_bytes(self, source: Ints) -> Ints:
        """Bytes that the bytes and str of these rows take in chunks."""
        return variable_bytes(self.schema.columns, [self.column(number)[source] for number in range(len(self._arrays))])

    def carry(self, rows: EpisodeRows, needed_from: Ints) -> None:
        """Begin anew with those rows of the episodes that go on, by environment, from these positions on."""
        env = rows.source % self.num_envs
        is_kept = (rows.episode == self._episode[env]) & (rows.position >= needed_from[env]) & ~self._fresh[env]
        kept = np.flatnonzero(is_kept)
        env, source, position = env[kept], rows.source[kept], rows.position[kept]
        slot = self.carried - (self._position[env] - position)
        assert not len(slot) or slot.min() >= 0, "more rows are needed than can be carried"
        for number, array in enumerate(self._arrays):
            array[slot, env] = self.column(number)[source]
        used = slice(0, self.slot)
        self._valid[used] = True
        self._valid[: self.carried] = False
        self._valid[slot, env] = True
        self._is_first[used] = self._is_last[used] = self._is_closing[used] = False
        self._begin_position = np.minimum(needed_from, self._position)
        self.slot = self.carried
        self.cell_bytes = 0
        self._was_ended = False

    # Helpers, in the order of their callers.

    def _checked(self, leaves: Sequence[Any]) -> Sequence[Any]:
        if len(leaves) != len(self._checks):
            raise DataError(f"the schema has {len(self._checks)} columns, got {len(leaves)} leaves")
        values = leaves
        for number, (leaf, (dtype, shape)) in enumerate(zip(leaves, self._checks)):  # noqa: B905 - compared above
            if type(leaf) is np.ndarray and leaf.dtype is dtype and leaf.shape == shape:
                continue
            if values is leaves:
                values = list(leaves)
            values[number] = self._fitting(self.schema.columns[number], leaf)  # type: ignore[index]
        return values

    def _fitting(self, column: Column, leaf: Any) -> NDArray[Any]:
        array = leaf_array(leaf, column.path)
        wanted = (self.num_envs, *column.shape)
        dtype = column.dtype if column.is_variable and not array.size else leaf_dtype(array)
        if array.shape != wanted or dtype.name != column.dtype.name:
            expected, got = array_text(column.dtype, wanted), array_text(dtype, array.shape)
            raise DataError(
                f"column {path_text(column.path)!r}: expected {expected}, got {got}",
                detail={"path": column.path, "expected": expected, "got": got},
            )
        return array

    def _measured(self, values: Sequence[NDArray[Any]], final: Sequence[NDArray[Any]]) -> int:
        """Bytes of a step's values of bytes and str. Raises DataError if they are more than a chunk can take."""
        sizes = variable_bytes(self.schema.columns, values)
        check_step_cells(int(sizes.max()))
        if len(final):
            observed = [c for c, is_observed in zip(self.schema.columns, self._observed, strict=True) if is_observed]
            check_step_cells(int(variable_bytes(observed, final).max(initial=0)))
        return int(sizes.sum())

    def _begin_slot(self) -> int:
        assert self.slot < self.slots, "a writer must take the rows when the buffer is full"
        self.slot += 1
        return self.slot - 1

    def _reset(self, slot: int, closing: Bools) -> None:
        """In these environments the step was a reset: the row closes the old episode, or is none."""
        self._resetting = None
        if self._has_observed:
            self._blank(slot, closing)
            self._is_closing[slot] = closing
            self._is_last[slot] = closing
        else:
            self._valid[slot, closing] = False
            self._is_first[slot, closing] = False
            self.steps -= int(np.count_nonzero(closing))
        self._renew(closing)

    def _end(self, slot: int, ended: Bools, final: Sequence[NDArray[Any]]) -> None:
        """In these environments the step was their episode's last one."""
        if self._mode == "next_step":
            # Their next row shows what the episode led to, or nothing that anybody wants: its action is ignored.
            self._resetting = ended.copy()
            if self._has_observed:
                return
            self._is_last[slot] |= ended
        elif self._has_observed:
            self._close(self._begin_slot(), ended, final)
        else:
            self._is_last[slot] = ended
        self._renew(ended)

    def _close(self, slot: int, ended: Bools, values: Sequence[NDArray[Any]]) -> None:
        """A row more for the episodes that end: what they led to."""
        self._valid[slot] = ended
        self._blank(slot, ended)
        observed = (array for array, is_observed in zip(self._arrays, self._observed, strict=True) if is_observed)
        for array, value in zip(observed, values, strict=True):
            array[slot, ended] = value
        self._is_closing[slot] = ended
        self._is_last[slot] = ended
        self.steps += int(np.count_nonzero(ended))

    def _blank(self, slot: int, envs: Bools) -> None:
        for column, array, is_observed in zip(self.schema.columns, self._arrays, self._observed, strict=True):
            if not is_observed:
                array[slot, envs] = column.blank

    def _renew(self, envs: Bools) -> None:
        """The next rows of these environments begin episodes."""
        self._fresh |= envs
        self._has_fresh = True


def _blanks(column: Column, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.full(shape, column.blank, object) if column.is_variable else np.zeros(shape, column.dtype)
