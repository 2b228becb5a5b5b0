"""Drawing samples: requests that wait at the server, with a word in the log while they do, and replies as data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from replayd_client.arguments import checked_table, checked_timeout
from replayd_client.array_messages import SampleReply
from replayd_client.array_wire import encode_sample
from replayd_client.connection import Connection
from replayd_client.errors import (
    ConnectionLostError,
    DataError,
    DeadlineExceededError,
    NeverGrantableError,
    ReplaydError,
)
from replayd_client.messages import Buffer, InfoReply
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_flag, checked_integer
from replayd_client.sender import deadline_after
from replayd_client.structure import Structure, path_text
from replayd_client.wire import encode_info

if TYPE_CHECKING:
    from replayd_client.batch_memory import BatchMemory
    from replayd_client.batches import SampleBatchInfo, SampledBatch
    from replayd_client.ragged import Ragged
    from replayd_client.signatures import TableDirectory

log = logging.getLogger("replayd_client")

ITEMS_OF_REQUEST = 16_384
"""Items of one sample request, unless the server's limit `samples` is less; more are asked for in several."""
ITEMS_PER_REQUEST = 256
"""Items that the generator asks for at once: enough to spread the cost of a request."""
GRACE_S = 2.0
"""Time for an answer that the server gives at the deadline to arrive."""
EXPLAIN_S = 2.0


class SampleInfo(NamedTuple):
    """What the server says of a drawn item."""

    key: int
    probability: float
    """Chance of the item at its draw."""
    table_size: int
    """Items in the table at the draw."""
    priority: float
    times_sampled: int
    """Draws of the item so far, this one included."""


class ReplaySample(NamedTuple):
    """A drawn item, or one step of one: info and data."""

    info: SampleInfo
    data: Any


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """B drawn items as one nest of arrays [B, T, …] ([B, …] where a column is squeezed), and B of each word of info.

    Items of different lengths come as asked: with ragged="list" each leaf is a list of B arrays [T_i, …]; with "pad" it
    is [B, T_max, …] with 0, b"" or "" behind shorter items, and `mask` tells rows from padding.
    """

    info: SampleBatchInfo
    data: Any
    mask: Any = None
    """With ragged="pad" a nest like the data's, so a dict by column where data is one (`batch.mask["obs"]`), of bool
    arrays [B, T_max], each with its own column's T_max ([B], all true, where a column is squeezed); else None."""

    def __len__(self) -> int:
        return len(self.info.key)


def samples(
    pool: ConnectionPool,
    directory: TableDirectory,
    table: str,
    count: int,
    emit_timesteps: bool,
    unpack: bool,
    timeout_ms: float | None,
) -> Iterator[Any]:
    """Draw `count` items, no more; `timeout_ms` is the longest wait for the next one. Raises DataError for arguments at
    once, before the first `next`."""
    checked_table(table)
    count, timeout_ms = checked_integer("num_samples", count, 1), checked_timeout(timeout_ms)
    emit_timesteps = checked_flag("emit_timesteps", emit_timesteps)
    unpack = checked_flag("unpack_as_table_signature", unpack)
    return _samples(pool, directory, table, count, emit_timesteps, unpack, timeout_ms)


def _samples(
    pool: ConnectionPool,
    directory: TableDirectory,
    table: str,
    left: int,
    emit_timesteps: bool,
    unpack: bool,
    timeout_ms: float | None,
) -> Iterator[Any]:
    unpack = unpack and directory.table(table, deadline_after(timeout_ms)).signature is not None
    while left:
        batch = draw(pool, table, min(left, ITEMS_PER_REQUEST), 1, timeout_ms)
        left -= len(batch)
        infos = _infos(batch)
        for info, (paths, arrays) in zip(infos, batch, strict=True):
            structure = Structure.from_paths(paths) if unpack else None
            if emit_timesteps:
                yield _timesteps(info, paths, arrays, structure)
            else:
                yield ReplaySample(info, arrays if structure is None else structure.rebuild(arrays))


def sample_batch(
    pool: ConnectionPool,
    table: str,
    n: int,
    min_n: int | None,
    timeout_ms: float | None,
    ragged: Ragged,
    memory: BatchMemory,
) -> SampleBatch:
    """Draw up to `n` items at once, at least `min_n` (None: `n`, or what the table can grant at once), into arrays of
    `memory`."""
    # Imported here, so that importing the package stays light.
    from replayd_client.ragged import check_ragged

    # Before anything is drawn.
    check_ragged(ragged)
    checked_table(table)
    n = checked_integer("n", n, 1)
    if min_n is not None:
        min_n = checked_integer("min_n", min_n, 1, n)
    deadline = deadline_after(timeout_ms)
    if min_n is None:
        try:
            parts = _draw_at_least(pool, table, n, n, deadline)
        except NeverGrantableError as error:
            largest = error.detail.get("largest")
            if not isinstance(largest, int) or not 1 <= largest < n:
                raise
            parts = _draw_at_least(pool, table, n, largest, deadline)
    else:
        parts = _draw_at_least(pool, table, n, min_n, deadline)
    return batch_of(parts, ragged, memory)


def batch_of(parts: Sequence[SampledBatch], ragged: Ragged, memory: BatchMemory) -> SampleBatch:
    """The items of one or several replies as one batch; of `memory` where it is large."""
    from replayd_client.ragged import joined

    return SampleBatch(*joined(parts, ragged, memory))


def batch_decoder(ragged: Ragged) -> Callable[[Sequence[SampledBatch], Sequence[int]], Iterator[SampleBatch]]:
    """What makes batches of replies for a dataset, in memory that it uses again."""
    # Imported here, so that importing the package stays light.
    from replayd_client.batch_memory import BatchMemory
    from replayd_client.ragged import check_ragged

    check_ragged(ragged)
    memory = BatchMemory()
    return lambda parts, sizes: _batches_of(parts, sizes, ragged, memory)


def _batches_of(
    parts: Sequence[SampledBatch], sizes: Sequence[int], ragged: Ragged, memory: BatchMemory
) -> Iterator[SampleBatch]:
    """The items of one or several replies, which are as many as all sizes together, as batches of these sizes."""
    from replayd_client.batches import split

    if len(sizes) > 1 and ragged == "error" and len(parts) == 1:
        # One decoding for all costs little more than that of one batch: 0.73 ms for 1024 items, 0.58 ms for 256.
        try:
            whole = batch_of(parts, ragged, memory)
        except DataError:
            pass  # Batches of which each is in order may differ from each other.
        else:
            yield from _cut(whole, sizes)
            return
    for group in split(parts, sizes):
        yield batch_of(group, ragged, memory)


def _cut(batch: SampleBatch, sizes: Sequence[int]) -> Iterator[SampleBatch]:
    """Batches whose arrays are parts of this one's."""
    structure = Structure(batch.data)
    leaves = structure.leaves(batch.data)
    words = [getattr(batch.info, field.name) for field in fields(batch.info)]
    end = 0
    for size in sizes:
        some = slice(end, end + size)
        end += size
        info = type(batch.info)(*(word[some] for word in words))
        yield SampleBatch(info, structure.rebuild([leaf[some] for leaf in leaves]))


def draw(pool: ConnectionPool, table: str, n: int, min_n: int, timeout_ms: float | None) -> SampledBatch:
    """One reply: up to `n` items. Raises DeadlineExceededError with the limiter's numbers and who must act."""
    return _draw(pool, table, n, min_n, deadline_after(timeout_ms))[0]


def _draw_at_least(pool: ConnectionPool, table: str, n: int, min_n: int, deadline: float | None) -> list[SampledBatch]:
    """A server answers at the end of its longest wait with what there is; then the rest is asked for. So it is of what
    one request may not ask for: until there are `min_n` each waits, and then the next takes what there is at once."""
    part, most = _draw(pool, table, n, min_n, deadline)
    parts, drawn = [part], len(part)
    while drawn < min_n or (drawn < n and len(parts[-1]) == most):
        try:
            if drawn < min_n:
                part, most = _draw(pool, table, n - drawn, min_n - drawn, deadline)
            else:
                part, most = _draw(pool, table, n - drawn, 1, time.monotonic())
        except DeadlineExceededError:
            break  # At the deadline there is what there is, as from the server.
        except ConnectionLostError:
            if drawn < min_n:
                raise
            break
        parts.append(part)
        drawn += len(part)
    return parts


def _draw(pool: ConnectionPool, table: str, n: int, min_n: int, deadline: float | None) -> tuple[SampledBatch, int]:
    """What one request gives, and the most that it may ask for."""
    started = time.monotonic()
    with pool.connection() as connection:
        max_wait_ms = connection.open_session(deadline).max_wait_ms
        while True:
            slice_end = time.monotonic() + max_wait_ms / 1000
            if deadline is not None:
                slice_end = min(slice_end, deadline)
            try:
                reply = _ask(pool, connection, table, n, min_n, slice_end, started)
            except DeadlineExceededError as error:
                now = time.monotonic()
                if error.detail.get("blocked_by") is None or (deadline is not None and now >= slice_end == deadline):
                    raise with_wait(error, table, now - started) from None
                continue
            return sampled_batch(reply), most_items(connection)


def _ask(
    pool: ConnectionPool, connection: Connection, table: str, n: int, min_n: int, slice_end: float, started: float
) -> SampleReply:
    def encode(request_id: int) -> list[Any]:
        wait_ms = max(int((slice_end - time.monotonic()) * 1000), 0)
        return encode_draw(connection, request_id, table, n, min_n, wait_ms)

    def tell(_: float) -> None:
        waited_s = time.monotonic() - started
        log.warning("waiting for a sample of table %r for %.0f s: %s", table, waited_s, _why(pool, table))

    what = f"sample of table {table!r}"
    reply = connection.call(what, encode, slice_end, grace_s=GRACE_S, on_wait=tell)
    assert isinstance(reply, SampleReply), "sample is answered by sample"
    return reply


def most_items(connection: Connection) -> int:
    """Items that one request may ask for."""
    return connection.most("samples", ITEMS_OF_REQUEST)


def encode_draw(
    connection: Connection, request_id: int, table: str, n: int, min_n: int, timeout_ms: int
) -> list[Buffer]:
    """A sample request, for less where it may not ask for so much; a call is encoded when the server is known."""
    most = most_items(connection)
    return encode_sample(request_id, table, min(n, most), min(min_n, most), timeout_ms)


def _why(pool: ConnectionPool, table: str) -> str:
    """What the server says that samples of the table wait for."""
    try:
        with pool.connection() as connection:
            reply = connection.call("info", encode_info, time.monotonic() + EXPLAIN_S)
    except ReplaydError as error:
        return f"the server does not say why ({error})"
    assert isinstance(reply, InfoReply), "info is answered by info"
    for entry in reply.fields.get("tables", ()):
        if entry.get("name") == table:
            for waiting in entry.get("waiting", ()):
                if waiting.get("side") == "sample":
                    return str(waiting.get("why"))
    return "the server is about to answer"


def with_wait(error: DeadlineExceededError, table: str, waited_s: float) -> DeadlineExceededError:
    """The server's answer at a deadline with the whole time that was waited, and who must act."""
    if error.detail.get("blocked_by") is None:
        return error
    return DeadlineExceededError(
        f"{error} (waited {waited_s:.1f} s; who must act: {error.detail.get('who_must_act')})",
        detail={**error.detail, "waited_s": round(waited_s, 3)},
    )


def sampled_batch(reply: SampleReply) -> SampledBatch:
    """The items of a reply, undecoded."""
    from replayd_client.batches import SampledBatch

    return SampledBatch(reply.shown, reply.probabilities, reply.table_sizes)


def _infos(batch: SampledBatch) -> Iterator[SampleInfo]:
    info = batch.info
    columns = (info.key, info.probability, info.table_size, info.priority, info.times_sampled)
    return map(SampleInfo._make, zip(*(column.tolist() for column in columns), strict=True))


def _timesteps(
    info: SampleInfo, paths: tuple[Any, ...], arrays: list[NDArray[Any]], structure: Structure | None
) -> list[ReplaySample]:
    for path, array in zip(paths, arrays, strict=True):
        if array.ndim == 0:
            raise TypeError(f"column {path_text(path)!r} is squeezed and has no steps: use emit_timesteps=False")
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise DataError(f"the columns have {sorted(lengths)} rows, so there are no steps: use emit_timesteps=False")
    rows = ([array[step] for array in arrays] for step in range(lengths.pop()))
    return [ReplaySample(info, row if structure is None else structure.rebuild(row)) for row in rows]
