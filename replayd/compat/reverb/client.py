"""The client, with the incumbent's methods, defaults and waits: none of them ends without an answer unless told to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._cells import CellWriter, unknown_to_writers
from replayd.compat.reverb._directory import ANSWER_S, Directory, Tables, UnknownTable
from replayd.compat.reverb._nests import flatten, flatten_with_path, unflatten_as
from replayd.compat.reverb._pattern_writer import StructuredWriter
from replayd.compat.reverb._patterns import Config, reach_of, rules_of
from replayd.compat.reverb._signatures import ShownColumn, check_steps
from replayd.compat.reverb._trajectories import columns_of, step_nest
from replayd.compat.reverb._writer import Writer
from replayd.compat.reverb.errors import DeadlineExceededError, translated
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo
from replayd.compat.reverb.reverb_types import TableInfo
from replayd.compat.reverb.trajectory_writer import TrajectoryWriter
from replayd_client import Client as ReplaydClient
from replayd_client import errors as replayd_errors
from replayd_client.batch_rows import priorities_of, rows_of_step
from replayd_client.sampling import draw

__all__ = ["Client", "Writer"]

MOST_AHEAD = 64
"""Samples that `sample` asks for at once, at most."""
REACH_S = 2.0
"""A server that is asked for a checkpoint must be there within it."""


class Client:
    """A client of the server at `server_address`, "host:port". Safe for threads; pickles to its address."""

    def __init__(self, server_address: str) -> None:
        self._server_address = server_address
        self._client = ReplaydClient(server_address)
        self._directory = Directory(self._client)

    @property
    def server_address(self) -> str:
        """The address as it was given."""
        return self._server_address

    def insert(self, data: Any, priorities: dict[str, float]) -> None:
        """Insert one step as an item of each table, and return when it is there.

        Raises ValueError without any table, for one that is unknown or whose signature the step does not fit, and for
        a priority that it does not take; TypeError for a leaf that cannot be stored.
        """
        if not priorities:
            raise ValueError("priorities must contain at least one item")
        nest, arrays = step_nest(data)
        paths = [path for path, _ in flatten_with_path(data)]
        shown = [ShownColumn(path, array.dtype, (1, *array.shape)) for path, array in zip(paths, arrays, strict=True)]
        try:
            tables = self._directory.tables_with(priorities)
        except UnknownTable as error:
            raise unknown_to_writers(error) from None
        stored = {}
        for table, priority in priorities.items():
            facts = tables.facts[table]
            if facts.signature is not None:
                check_steps(table, facts.signature, shown)
            stored[table] = facts.stored_one(priority)
        with translated():
            self._insert(nest, stored, tables)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """A writer of items over the last steps, at most `max_sequence_length` of them.

        `chunk_length` (default: 10, or less if fewer steps are kept): steps that are compressed together.
        `max_in_flight_items`: items sent and not confirmed; None for any number. `delta_encoded` changes nothing:
        replayd finds out by itself how to compress a column. Raises ValueError.
        """
        max_sequence_length = index(max_sequence_length)
        if max_sequence_length < 1:
            raise ValueError(f"max_sequence_length ({max_sequence_length}) must be a positive integer")
        if chunk_length is None:
            chunk_length = min(10, max_sequence_length)
        if not 1 <= chunk_length <= max_sequence_length:
            raise ValueError(
                f"chunk_length ({chunk_length}) must be a positive integer le to max_sequence_length "
                f"({max_sequence_length})"
            )
        if max_in_flight_items is not None and max_in_flight_items < 1:
            raise ValueError(f"max_in_flight_items ({max_in_flight_items}) must be a positive integer")
        most_open = None if max_in_flight_items is None else max_in_flight_items + chunk_length - 1
        make_cells = partial(
            self._cell_writer, max_sequence_length, validate_items=True, chunk_length=chunk_length, most_open=most_open
        )
        return Writer(make_cells, max_sequence_length, chunk_length)

    def trajectory_writer(
        self, num_keep_alive_refs: int, *, validate_items: bool = True, get_signature_timeout_ms: int | None = 3000
    ) -> TrajectoryWriter:
        """A writer of items that show any of the last `num_keep_alive_refs` steps.

        With `validate_items` waits for a server, and items are compared with the tables' signatures.
        `get_signature_timeout_ms` is how programs older than that said it: None for False. Raises ValueError.
        """
        validate_items = validate_items and get_signature_timeout_ms is not None
        num_keep_alive_refs = index(num_keep_alive_refs)
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs ({num_keep_alive_refs}) must be a positive integer")
        if validate_items:
            self._directory.tables()
        return TrajectoryWriter(self._cell_writer(num_keep_alive_refs, validate_items=validate_items))

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """A writer that makes items by itself, as the configs say. Raises ValueError without any, and for a bad one."""
        rules = rules_of(configs)
        return StructuredWriter(self._cell_writer(reach_of(rules), validate_items=False), rules)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Draw `num_samples` items, waiting for each as long as it takes.

        With `emit_timesteps` yields for each item a list of ReplaySample, one a step, else one ReplaySample of its
        whole columns. Data is a flat list, or with `unpack_as_table_signature` in the shape of the signature, if there
        is one. The first item is drawn alone; whoever goes on is given ever more at once, up to MOST_AHEAD, but never
        more than were taken. Raises ValueError for a number below 1, and where an item has no steps.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples ({num_samples}) must be a positive integer")
        return self._sample(table, num_samples, emit_timesteps, unpack_as_table_signature)

    def mutate_priorities(
        self, table: str, updates: dict[int, float] | None = None, deletes: list[int] | None = None
    ) -> None:
        """Delete items, then set priorities; unknown keys are ignored.

        Raises ValueError for a priority that the table does not take, TypeError for a key that is no integer from 0 to
        2**64 - 1 and for a priority that is no number.
        """
        updates = {} if updates is None else updates
        keys, priorities = _keys(updates), [_priorities.number(priority) for priority in updates.values()]
        gone = _keys(() if deletes is None else deletes)
        stored = self._directory.table(table).stored(priorities)
        with translated():
            self._client.mutate_priorities(table, updates=(keys, stored), deletes=gone, timeout_ms=None)

    def reset(self, table: str) -> None:
        """Remove all items of the table and set its counters to 0."""
        with translated():
            self._client.reset(table, timeout_ms=None)

    def server_info(self, timeout: int | None = None) -> dict[str, TableInfo]:
        """State of all tables by name. Raises DeadlineExceededError after `timeout` seconds (None or 0: never)."""
        try:
            with translated():
                return self._directory.refresh(timeout or None)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(
                f"ServerInfo call did not complete within provided timeout of {timeout}s"
            ) from error

    def checkpoint(self) -> str:
        """Have the server write all that it holds to its disk while it goes on serving; the directory that has it.

        The path is the server's. A later checkpoint takes the place of this one, mostly in the same directory. Raises
        RuntimeError if no server is there or the checkpoint cannot be written, ValueError if it has no checkpointer.
        """
        try:
            # Whoever is not there is not waited for, as others are: nothing of the caller's is lost.
            with suppress(replayd_errors.DeadlineExceededError):
                self._client.server_info(timeout=REACH_S)
            return self._client.checkpoint().path
        except replayd_errors.NoStoreError as error:
            raise ValueError(f"no Checkpointer configured for the replay service: {error}") from error
        except replayd_errors.ReplaydError as error:
            raise RuntimeError(str(error)) from error

    def __reduce__(self) -> tuple[type[Client], tuple[str]]:
        return type(self), (self._server_address,)

    def __repr__(self) -> str:
        return f"Client, server_address={self._server_address}"

    def _cell_writer(
        self,
        keep: int,
        *,
        validate_items: bool,
        chunk_length: int | Literal["auto"] = "auto",
        most_open: int | None = None,
    ) -> CellWriter:
        writer = self._client.trajectory_writer(keep, chunk_length=chunk_length, validate_items=False, timeout_ms=None)
        return CellWriter(writer, self._directory, keep, validate_items, most_open)

    def _insert(self, nest: Any, stored: dict[str, float], tables: Tables) -> None:
        """Insert a step with priorities as the server of these tables stores them."""
        rows = rows_of_step(nest)
        found = self._client._parts.batches.insert(rows, priorities_of(stored, rows.count), "auto", None)
        there = self._directory.tables(ANSWER_S)
        if there.server_id == tables.server_id:
            return
        # It waited for a limiter until another server came.
        for table, priority in stored.items():
            restored = there.restored(table, [priority], tables)
            if restored[0] != priority:
                self._client.mutate_priorities(table, updates=(found[table], restored), timeout_ms=None)

    def _sample(self, table: str, count: int, emit_timesteps: bool, unpack: bool) -> Iterator[Any]:
        try:
            facts = self._directory.table(table)
        except UnknownTable as error:
            if unpack:
                raise ValueError(f'Could not find table "{table}". {error}') from None
            raise
        taken = 0
        while taken < count:
            # Half as many as were taken, so that who stops early has wasted little.
            n = min(max(taken // 2, 1), count - taken, MOST_AHEAD)
            with translated():
                batch = draw(self._client._pool, table, n, 1, None)
                # Where it waited until another server came, the items are that one's.
                facts = self._directory.table(table, ANSWER_S)
            info = batch.info
            fields = (info.key, info.probability, info.table_size, facts.shown(info.priority), info.times_sampled)
            structure = facts.signature if unpack else None
            rows = zip(*(field.tolist() for field in fields), strict=True)
            for row, (_, arrays) in zip(rows, batch, strict=True):
                taken += 1
                columns = columns_of(arrays)
                if emit_timesteps:
                    yield _timesteps(SampleInfo(*row), columns, structure)
                else:
                    yield ReplaySample(SampleInfo(*row), _packed(columns, structure))


def _timesteps(info: SampleInfo, columns: list[NDArray[Any]], structure: Any) -> list[ReplaySample]:
    if any(column.ndim == 0 for column in columns):
        raise TypeError("a column of this item is a scalar and has no steps: sample it with emit_timesteps=False")
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(
            f"Can't split non timestep trajectory into timesteps: its columns have {sorted(lengths)} rows; sample it "
            "with emit_timesteps=False"
        )
    # Indexed so that a scalar is an array, too.
    steps = ([column[step, ...] for column in columns] for step in range(lengths.pop()))
    return [ReplaySample(info, _packed(step, structure)) for step in steps]


def _packed(leaves: list[Any], structure: Any) -> Any:
    """The leaves in the shape of the signature, by position."""
    if structure is None:
        return leaves
    if len(flatten(structure)) != len(leaves):
        raise ValueError(f"an item of {len(leaves)} columns cannot be unpacked as a signature of another number")
    return unflatten_as(structure, leaves)


def _keys(keys: Iterable[Any]) -> NDArray[np.uint64]:
    try:
        found = [index(key) for key in keys]
        return np.array(found, np.uint64)
    except (TypeError, OverflowError):
        raise TypeError(f"keys of items are integers from 0 to 2**64 - 1, got {list(keys)}") from None
