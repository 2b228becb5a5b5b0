"""The client: everything that can be done with a server, in the field's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from replayd_client import inspection
from replayd_client.arguments import checked_timeout
from replayd_client.batch_rows import priorities_of, rows_of_batch, rows_of_step
from replayd_client.client_parts import ClientParts
from replayd_client.codecs import WriterCodec
from replayd_client.connection import DEFAULT_TIMEOUT_MS
from replayd_client.dataset import Dataset, plan_of
from replayd_client.errors import ReplaydError
from replayd_client.inspection import Checkpointed, SetResult, Why
from replayd_client.keys import read_keys
from replayd_client.lookahead import PrefetchBatches
from replayd_client.pool import endpoint_of
from replayd_client.prefetcher import Plan
from replayd_client.sampling import SampleBatch, batch_decoder, sample_batch, samples
from replayd_client.scalars import checked_flag, checked_integer, python_value
from replayd_client.sender import deadline_after
from replayd_client.server_info import TableInfo, table_infos
from replayd_client.trajectory_writer import TrajectoryWriter
from replayd_client.updates import MutateResult, mutate
from replayd_client.writer import Writer
from replayd_client.writer_core import CLOSE_TIMEOUT_MS

if TYPE_CHECKING:
    from replayd_client.batch_writer import BatchWriter
    from replayd_client.batches import SampledBatch
    from replayd_client.peeking import Peeked
    from replayd_client.ragged import Ragged
    from replayd_client.structure import Path
    from replayd_client.structured import Config
    from replayd_client.structured_writer import StructuredWriter
    from replayd_client.vector_items import VectorItem
    from replayd_client.vector_writer import VectorWriter

T = TypeVar("T")


class Client:
    """A client of the server at `server_address`: "localhost:7077", "tcp://host:port" or "ipc://path".

    Connects at the first use and again whenever the server comes back. Safe for threads, and after a fork, in the child
    too; writers are for one thread and one process. Every call ends: with a result, or at its deadline (`timeout_ms`,
    default 60 s, None for ever) with DeadlineExceededError, which says who must act, or ConnectionLostError. Without a
    server calls have 1 s at least, to connect, whatever their deadline; not so a writer's `flush` and `close`. Pickles
    to its address and key file (which has the keys that a server may want, see `replayd keys`; by default
    REPLAYD_KEY_FILE). Raises DataError for what is no address, or no such file. A context manager. Every call that
    asks a server raises AccessDeniedError for what the keys do not allow, and ClosedError after `close`.
    """

    def __init__(self, server_address: str, key_file: str | None = None) -> None:
        self._address = server_address
        self._key_file = key_file
        self._parts = parts = ClientParts(endpoint_of(server_address), read_keys(key_file))
        self._pool, self._pacer, self._directory = parts.pool, parts.pacer, parts.directory

    @property
    def server_address(self) -> str:
        """The address as it was given, "host:port", "tcp://host:port" or "ipc://path"."""
        return self._address

    # Writing.

    def insert(
        self,
        data: Any,
        priorities: Mapping[str, float | Literal["max"]],
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        *,
        codec: WriterCodec = "auto",
    ) -> None:
        """Insert one step as an item of each table, and return when it is there.

        Items are trajectories of one step. The priority "max" is the largest in the table when the item enters, 1.0 if
        that is empty; so too for `insert_batch` and for the writers' `create_item`. `codec` as for `writer`.

        Raises DataError, PriorityError, UnknownTableError, SignatureError. DeadlineExceededError (a limiter holds it
        back, say) and ConnectionLostError tell what became of it, and in their detail how many trajectories are
        `trajectories_acknowledged`, `trajectories_refused`, `trajectories_open` and `trajectories_not_sent`. What is
        open was sent and may or may not have been applied; this client goes on delivering it exactly once while it is
        open itself, so it must not be inserted again. What was not sent never will be.
        """
        self._parts.batches.insert(rows_of_step(data), priorities_of(priorities, 1), codec, deadline_after(timeout_ms))

    def insert_batch(
        self,
        data: Any,
        priorities: Mapping[str, Any],
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        *,
        codec: WriterCodec = "auto",
    ) -> NDArray[np.uint64] | dict[str, NDArray[np.uint64]]:
        """Insert B trajectories of T steps, a nest of arrays [B, T, …], as B items of each table; return their keys.

        `priorities` gives each table a number, an array [B] or "max". Keys are u64[B], in a dict by table if there are
        several tables. Large batches travel as several messages. `codec` as for `writer`. Raises as `insert` does.
        """
        rows = rows_of_batch(data)
        keys = self._parts.batches.insert(
            rows, priorities_of(priorities, rows.count), codec, deadline_after(timeout_ms)
        )
        return next(iter(keys.values())) if len(keys) == 1 else keys

    def batch_writer(
        self, *, timeout_ms: float | None = DEFAULT_TIMEOUT_MS, codec: WriterCodec = "auto"
    ) -> BatchWriter:
        """A writer of batches such as `insert_batch` takes, which does not wait for each. Arguments as for `writer`."""
        from replayd_client.batch_writer import BatchWriter

        writer = BatchWriter(self._pool, self._pacer, self._directory, codec, timeout_ms)
        self._parts.writers.add(writer.core)
        return writer

    def writer(
        self,
        max_sequence_length: int,
        chunk_length: int | Literal["auto"] = "auto",
        max_in_flight_items: int | None = 25,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        *,
        codec: WriterCodec = "auto",
    ) -> Writer:
        """A writer of items over the last steps, at most `max_sequence_length` of them.

        `chunk_length`: steps of a chunk, at most `max_sequence_length`; "auto" learns it (see `ChunkLength`).
        `max_in_flight_items`: items sent and not acknowledged (None: no limit but the window). `timeout_ms`: deadline
        of a call that must wait for room. `codec`: "auto" compresses each column where that pays, as its first chunks
        show; "raw" never does, which saves the trial with data that does not compress. Raises DataError.
        """
        max_sequence_length = checked_integer("max_sequence_length", max_sequence_length, 1)
        if max_in_flight_items is not None:
            max_in_flight_items = checked_integer("max_in_flight_items", max_in_flight_items, 1)
        core = self._parts.item_core(max_sequence_length, chunk_length, codec, timeout_ms, max_in_flight_items)
        return Writer(core)

    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        *,
        chunk_length: int | Literal["auto"] = "auto",
        validate_items: bool = True,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        codec: WriterCodec = "auto",
    ) -> TrajectoryWriter:
        """A writer of items that show any of the last `num_keep_alive_refs` steps.

        `chunk_length`, `timeout_ms`, `codec` as for `writer`. `validate_items`: compare items with signatures when they
        are created; without it the server alone does, and a later call raises its refusal. Raises DataError.
        """
        keep = checked_integer("num_keep_alive_refs", num_keep_alive_refs, 1)
        validate_items = checked_flag("validate_items", validate_items)
        core = self._parts.item_core(keep, chunk_length, codec, timeout_ms, validate_items=validate_items)
        return TrajectoryWriter(core)

    def structured_writer(
        self,
        configs: Sequence[Config],
        *,
        chunk_length: int | Literal["auto"] = "auto",
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        codec: WriterCodec = "auto",
    ) -> StructuredWriter:
        """A writer that makes items by itself, as the configs say (see `replayd_client.structured`).

        It keeps as many steps as the longest pattern reaches back; `chunk_length`, `timeout_ms`, `codec` as for
        `writer`. Raises DataError for no configs, ArgumentTypeError for something else among them.
        """
        from replayd_client.structured import checked_configs
        from replayd_client.structured_writer import StructuredWriter

        configs = checked_configs(configs)
        reach = max(config.reach for config in configs)
        return StructuredWriter(self._parts.item_core(reach, chunk_length, codec, timeout_ms), configs)

    def vector_writer(
        self,
        num_envs: int,
        items: Sequence[VectorItem],
        *,
        observations: Sequence[str | Path],
        autoreset_mode: Any = "next_step",
        chunk_length: int | Literal["auto"] = "auto",
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        codec: WriterCodec = "auto",
    ) -> VectorWriter:
        """A writer of the steps of `num_envs` environments in lock-step, one call a step for all of them.

        `items`: what is made of each episode. `observations`: the columns (a key of the step, or a path) that are known
        before an action is taken, and so in the row that closes an episode; () if steps have their next observation.
        `autoreset_mode`: "next_step", "same_step" or "disabled", as `envs.metadata["autoreset_mode"]` of Gymnasium.
        `chunk_length`: steps of a chunk, about. `timeout_ms` and `codec` as for `writer`. Raises DataError.
        """
        from replayd_client.vector_writer import VectorWriter

        settings = (observations, autoreset_mode, chunk_length, codec, timeout_ms)
        writer = VectorWriter(self._pool, self._pacer, self._directory, num_envs, items, *settings)
        self._parts.writers.add(writer.core)
        return writer

    # Reading.

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
    ) -> Iterator[Any]:
        """Draw `num_samples` items, exactly; nothing is asked for before the first `next`.

        With `emit_timesteps` yields for each item a list of ReplaySample, one a step, else one ReplaySample of the
        whole columns. Data is a flat list of arrays in the order of the columns, or with `unpack_as_table_signature` a
        nest if the table has a signature: tuples of it are lists there, since the server knows them by their paths.
        `timeout_ms` is the longest wait for the next item.

        Raises DataError for arguments. While iterating: DeadlineExceededError, which says who must act, if the limiter
        did not grant the next item in time, UnknownTableError, ConnectionLostError without a server; with
        `emit_timesteps` DataError for an item whose columns differ in length, TypeError for one with squeezed columns.
        """
        flags = (emit_timesteps, unpack_as_table_signature)
        return samples(self._pool, self._directory, table, num_samples, *flags, timeout_ms)

    def sample_batch(
        self,
        table: str,
        n: int,
        min_n: int | None = None,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
        *,
        ragged: Ragged = "error",
    ) -> SampleBatch:
        """Draw up to `n` items at once as stacked arrays.

        Waits until `min_n` are there (default: `n`, or what the table can grant at once if that is less); at the
        deadline returns what there is, and raises DeadlineExceededError if that is nothing. Raises NeverGrantableError
        if the table can never grant `min_n` at once. More items than the server's limit `samples` (16384) are drawn
        with several requests, one behind the other; "at once" is said of each of them then.

        `ragged`: items of different lengths raise DataError ("error"), or come as lists of arrays ("list") or padded
        with blanks beside a mask ("pad"), see SampleBatch. Items that show different columns raise DataError always.
        Items that are refused so are drawn already: they count as sampled, here and in `dataset`.

        The arrays are the caller's alone. Memory of large ones is used again for later batches when nothing refers to
        it any more.

        Raises DataError for arguments, before anything is drawn; UnknownTableError, ConnectionLostError.
        """
        return sample_batch(self._pool, table, n, min_n, timeout_ms, ragged, self._parts.memory)

    def dataset(
        self,
        table: str,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        prefetch_batches: PrefetchBatches = "auto",
        timeout_ms: float | None = None,
        max_batches: int | None = None,
        ragged: Ragged = "error",
    ) -> Dataset[SampleBatch]:
        """An iterator of batches, as `sample_batch` returns them, which a thread draws ahead and decodes.

        `batch_size`, `min_batch_size` and `ragged` are `n`, `min_n` and `ragged` of `sample_batch`. At most
        `prefetch_batches` batches are drawn and not yet taken: they count as sampled, they are lost if the dataset is
        closed, and they are as old as the learner takes to come to them: a batch does not know of the priorities and
        items of the last `prefetch_batches` steps. A number is obeyed exactly; 0 draws only while somebody waits.

        "auto" draws 2 ahead, and more only for a learner that waits for batches which the server would grant: up to 32,
        or 16 MiB of them, several with one request, which halves to thirds what a small item costs both sides. Where
        the limiter holds a learner back, or its steps take longer than a request, it stays at 2.

        Arrays of several batches may be parts of one, which lives as long as any of them; large ones lie in memory of
        earlier batches to which nothing refers any more, no array, view, tensor or buffer.

        Iteration ends after `max_batches`, or when a consumer has waited `timeout_ms` (None: for ever, with a word in
        the log) for a batch that the limiter did not grant; `ended_by` tells which, with the limiter's numbers and who
        must act. Nothing is drawn before the first `next`.

        Raises DataError for arguments; in the consumers what `sample_batch` raises, and ConnectionLostError after
        `timeout_ms` without a server.
        """
        plan = plan_of(table, batch_size, min_batch_size, prefetch_batches, timeout_ms, max_batches)
        return self._dataset(plan, batch_decoder(ragged))

    # Managing.

    def mutate_priorities(
        self,
        table: str,
        updates: Mapping[int, float] | tuple[Any, Any] | None = None,
        deletes: Sequence[int] | NDArray[Any] | None = None,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
    ) -> MutateResult:
        """Delete items, then set priorities; `updates` is a dict or a pair of arrays (keys [n], priorities [n]).

        A key that is both deleted and updated is deleted; of one named twice the last priority stands. Up to 131072
        keys are one step, all or nothing; more go in several. Raises DataError, and PriorityError for a priority that
        is not between 0 and 1e90, before anything is sent; UnknownTableError, ConnectionLostError and, if it may have
        been done, DeadlineExceededError.
        """
        return mutate(self._pool, table, updates, deletes, deadline_after(timeout_ms))

    def reset(self, table: str, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> int:
        """Remove all items of a table and set its counters to 0; return how many items there were.

        Raises UnknownTableError, ConnectionLostError and, if it may have been done, DeadlineExceededError.
        """
        return inspection.reset(self._pool, table, deadline_after(timeout_ms))

    def why(self, table: str, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> Why:
        """Who waits at a table for what, since when, and a verdict; `print` it.

        Raises UnknownTableError, and what `info` raises.
        """
        return inspection.why(self._pool, table, deadline_after(timeout_ms))

    def peek(
        self,
        table: str,
        *,
        keys: Any = None,
        newest: int | None = None,
        oldest: int | None = None,
        highest: int | None = None,
        lowest: int | None = None,
        timeout_ms: float | None = DEFAULT_TIMEOUT_MS,
    ) -> Peeked:
        """Look at items without drawing them: no count and no limiter changes, and nothing waits.

        Exactly one of: `keys` [n], or a number (up to 1024) of the newest, the oldest, or those of highest or lowest
        priority, fewer if they are too large for one reply (64 MiB). Raises DataError for other arguments or data that
        cannot be decoded, UnknownTableError, LimitExceededError, and what `info` raises.
        """
        from replayd_client.peeking import peek

        orders = {"newest": newest, "oldest": oldest, "highest": highest, "lowest": lowest}
        return peek(self._pool, table, keys, orders, deadline_after(timeout_ms))

    def set(self, table: str, *, timeout_ms: float | None = DEFAULT_TIMEOUT_MS, **settings: Any) -> SetResult:
        """Change settings of a live table, all or none; return the settings before and after.

        `max_size`, `max_times_sampled`, `max_bytes`, `when_full` ("evict", "block" or "reject"), `samples_per_insert`,
        `min_size_to_sample`, `min_diff` and `max_diff` (None: unlimited, as of `max_bytes`), `priority_exponent`,
        `paused_inserts`, `paused_samples` (protocol.md §6.9); without any it only tells. Raises DataError for a setting
        the table does not have or a value without sense, UnknownTableError, ConnectionLostError and, if it may have
        been done, DeadlineExceededError.
        """
        settings = {name: python_value(value) for name, value in settings.items()}
        return inspection.change(self._pool, table, settings, deadline_after(timeout_ms))

    def pause(self, table: str, *sides: str, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> SetResult:
        """Hold back inserts ("insert"), samples ("sample") or both (no side named), whatever the limiter says.

        The other side stays as it is, whoever else is at it. Requests wait until `resume`, samples at most until their
        deadlines. Returns the settings before and after. Raises DataError for other sides, and what `set` raises.
        """
        return inspection.pause(self._pool, table, sides, deadline_after(timeout_ms))

    def resume(self, table: str, *sides: str, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> SetResult:
        """Let the sides (none named: both) go on after `pause`. Returns and raises as `pause` does."""
        return inspection.resume(self._pool, table, sides, deadline_after(timeout_ms))

    def server_info(self, timeout: float | None = DEFAULT_TIMEOUT_MS / 1000) -> dict[str, TableInfo]:
        """State of all tables by name. `timeout` is in seconds, None for ever. Raises as `info` does."""
        timeout = checked_timeout(timeout, "timeout", "seconds")
        deadline = None if timeout is None else time.monotonic() + timeout
        return table_infos(inspection.info(self._pool, deadline), self._directory.hello(deadline, refresh=True))

    def info(self, timeout_ms: float | None = DEFAULT_TIMEOUT_MS) -> Mapping[str, Any]:
        """All that the server says of itself: tables, chunks, streams, peers and counters, as in protocol.md §11.

        Raises ConnectionLostError if there is no server at the deadline, DeadlineExceededError if it does not answer.
        """
        return inspection.info(self._pool, deadline_after(timeout_ms))

    def checkpoint(self, timeout_ms: float | None = inspection.CHECKPOINT_TIMEOUT_MS) -> Checkpointed:
        """Have the server write all that was acknowledged to its disk while it goes on; return when it is there.

        Raises NoStoreError, CheckpointFailedError, and what `info` raises."""
        return inspection.checkpoint(self._pool, deadline_after(timeout_ms))

    # Life.

    def close(self, timeout_ms: float | None = CLOSE_TIMEOUT_MS) -> None:
        """Close the datasets, flush and close the writers, then close the connections. May be called again.

        The deadline (10 s by default, as at the end of a `with` block; None is for ever) is that of all writers
        together: they send what they have at once, and none waits for another. What was not acknowledged then may or
        may not arrive, which the log tells, with what held it back. Raises, when all is closed, what the server refused
        of items created earlier: the first refusal; DataError for no such timeout, and nothing is closed then.
        """
        refusals = self._parts.close(deadline_after(timeout_ms))
        if refusals:
            raise refusals[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, traceback: TracebackType | None) -> None:
        try:
            self.close()
        except ReplaydError:
            # The block's own error is kept; the log has told this one.
            if error is None:
                raise

    def __reduce__(self) -> tuple[type[Client], tuple[str, str | None]]:
        return Client, (self._address, self._key_file)

    def __repr__(self) -> str:
        return f"Client({self._address!r})"

    # For other modules.

    def _dataset(self, plan: Plan, decode: Callable[[list[SampledBatch], list[int]], Iterable[T]]) -> Dataset[T]:
        """A dataset that is closed with this client."""
        return self._parts.dataset(plan, decode)
