"""The vectorised writer: N environments in lock-step, one call a step for all of them, items declared once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_members, value_text
from replayd_client.chunk_length import checked_chunk_length
from replayd_client.codecs import WriterCodec
from replayd_client.columns import MAX_CHUNK_ROWS, Column, Schema, leaf_array, leaf_dtype
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.final_observations import final_values
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_integer
from replayd_client.sender import deadline_after
from replayd_client.signatures import TableDirectory
from replayd_client.structure import Path, Structure, flatten, path_text
from replayd_client.vector_buffer import AutoresetMode, autoreset_mode_of
from replayd_client.vector_items import VectorItem
from replayd_client.vector_log import VectorLog
from replayd_client.writer_core import WriterCore
from replayd_client.writer_life import WriterLife


class VectorWriter(WriterLife):
    """Writes the steps of `num_envs` environments that act at the same time. Made by `Client.vector_writer`.

    A step is a nest of arrays [N, *shape], copied; row i is environment i's. Its episodes are kept apart, and items are
    made by declarations (`VectorItem`), in large messages and in the background, as soon as enough steps have come or a
    moment has passed. Errors of the server are raised by the next call. One thread at a time uses a writer; a context
    manager, which flushes and closes.

    A row has what was observed before an action, the action, and what it brought. What an episode led to is observed in
    no such row. So an episode is closed by a row more, which has only the columns of `observations`; the others are 0
    there. It is the last row of the windows that show the episode's last step, and never the first of one. Where steps
    hold their next observation themselves, `observations` is empty, and there are no closing rows.
    """

    _made_by = "vector_writer"

    def __init__(
        self,
        pool: ConnectionPool,
        pacer: Pacer,
        directory: TableDirectory,
        num_envs: int,
        items: Sequence[VectorItem],
        observations: Sequence[str | Path],
        autoreset_mode: Any,
        chunk_length: int | Literal["auto"],
        codec: WriterCodec,
        timeout_ms: float | None,
    ) -> None:
        num_envs = checked_integer("num_envs", num_envs, 1)
        length = checked_chunk_length(chunk_length, MAX_CHUNK_ROWS)
        self._items = _checked_items(items)
        self._observations = _checked_observations(observations)
        self._log = VectorLog(num_envs, self._items, autoreset_mode_of(autoreset_mode), length, codec)
        self._directory = directory
        self._timeout_ms = timeout_ms
        self._structure: Structure | None = None
        self._observed: list[Column] = []
        self._core = WriterCore(pool, pacer, self._log, max_in_flight_items=None, timeout_ms=timeout_ms)

    @property
    def core(self) -> WriterCore:
        """For its client, which closes it at the end."""
        return self._core

    @property
    def num_envs(self) -> int:
        """Environments in lock-step: the length of every array's first axis."""
        return self._log.num_envs

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """How the environments begin an episode after the last: "next_step", "same_step" or "disabled"."""
        return self._log.mode

    def append(self, data: Any, ends: Any, *, final: Any = None) -> None:
        """Add a step of all environments; `ends`, bool[N], tells whose episode ended with it.

        What an episode led to depends on how the environments reset themselves:

        - "next_step": it is the observation of the environment's next step, whose action is ignored. That step becomes
          the closing row, or is left out if there are none.
        - "same_step" and "disabled": it is told here as `final`, a nest of arrays [N, *shape] of the observations, of
          which the rows of ended episodes are read; Gymnasium's `final_obs` will do. Its next step is a new episode's.

        Raises DataError that names the column, and nothing was added then; DeadlineExceededError when what is there
        cannot be sent in time (the message says who must act) and ConnectionLostError without a server, and the step
        was not added. The first call also raises SignatureError and UnknownTableError.
        """
        try:
            mask = np.asarray(ends)
        except ValueError as error:
            raise DataError(f"ends: expected bool[{self.num_envs}]: {error}") from None
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise DataError(f"ends: expected bool[{self.num_envs}], got {mask.dtype.name}{list(mask.shape)}")
        if self._structure is None:
            self._begin(data)
        assert self._structure is not None, "the first step has a structure"
        leaves = self._structure.leaves(data)
        values: list[NDArray[Any]] = []
        if final is not None:
            if self.autoreset_mode == "next_step":
                raise DataError("an episode's end is observed in the next step here, so there is no `final`")
            if self._observed and mask.any():
                values = final_values(final, self._observed, mask)
        self._core.call("append", self._log.append, leaves, mask, values, time.monotonic())

    def flush(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Send all items whose windows are complete, and wait until they are acknowledged. Deadline and errors as of
        `TrajectoryWriter.flush`.
        """
        self._core.flush(0, timeout_ms)

    def end_episodes(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Flush, and begin new episodes in all environments, as after a reset of all. Raises as `flush` does; the
        episodes have ended in any case."""
        self._core.end_episode("end_episodes", self._log.end_episodes, lambda: None, timeout_ms)

    def _begin(self, data: Any) -> None:
        pairs = flatten(data)
        columns = []
        for path, leaf in pairs:
            array = leaf_array(leaf, path)
            if array.shape[:1] != (self.num_envs,):
                raise DataError(
                    f"{path_text(path)}: a step needs an axis of {self.num_envs} environments, got {list(array.shape)}"
                )
            columns.append(Column(path, leaf_dtype(array), array.shape[1:]))
        schema = Schema(tuple(columns))
        observed = [any(path[: len(name)] == name for name in self._observations) for path in schema.paths]
        for name in self._observations:
            if not any(path[: len(name)] == name for path in schema.paths):
                raise DataError(f"{path_text(name)} is named as an observation, and the step has no such column")
        for item in self._items:
            self._directory.check(item.table, item.shown(schema)[1], deadline_after(self._timeout_ms))
        self._core.call("append", self._settle, schema, observed, Structure(data))

    def _settle(self, schema: Schema, observed: list[bool], structure: Structure) -> None:
        # Two threads may come with a first step at once. The second one's is compared with what the first has settled.
        if self._structure is None:
            self._log.begin(schema, observed)
            self._observed = [column for column, is_seen in zip(schema.columns, observed, strict=True) if is_seen]
            self._structure = structure


def _checked_items(items: Sequence[VectorItem]) -> list[VectorItem]:
    found = checked_members("items", items)
    if not found:
        raise DataError("a vectorised writer needs at least one declaration of items")
    for place, item in enumerate(found):
        if not isinstance(item, VectorItem):
            raise ArgumentTypeError(f"declaration {place} is no VectorItem but {type(item).__name__}")
    return found


def _checked_observations(observations: Sequence[str | Path]) -> list[Path]:
    """The paths. A str is not taken for the sequence of its letters."""
    paths: list[Path] = []
    for name in checked_members("observations", observations):
        if isinstance(name, str):
            paths.append((name,))
        elif isinstance(name, list | tuple) and name and all(type(part) in (str, int) for part in name):
            paths.append(tuple(name))
        else:
            raise ArgumentTypeError(
                f"observations are columns' names, or paths of keys and places, not {value_text(name)}"
            )
    return paths
