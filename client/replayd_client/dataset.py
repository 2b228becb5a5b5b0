"""Batches as an iterator: drawn ahead and decoded by a thread, so that a learner finds them ready."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, Self, TypeVar

from replayd_client.arguments import checked_table, checked_timeout
from replayd_client.interruptible import InterruptibleConnection
from replayd_client.large_batches import LargeBatchPrefetcher
from replayd_client.lookahead import PrefetchBatches
from replayd_client.pool import ConnectionPool, zmq_context
from replayd_client.prefetcher import DatasetEnd, Plan, Prefetcher
from replayd_client.sampling import ITEMS_OF_REQUEST
from replayd_client.scalars import checked_integer

if TYPE_CHECKING:
    from replayd_client.batches import SampledBatch

T = TypeVar("T")


class Dataset(Generic[T]):
    """An iterator of what a thread draws ahead: of SampleBatch, as `client.dataset` makes it.

    The thread starts with the first `next`, and has a connection of its own. What it drew ahead counts as sampled, and
    is lost when the dataset is closed before it was taken; a request that waits at the server is taken back then. Any
    number of threads may iterate: each batch goes to one of them. A server that goes and comes back is an interruption,
    not an end.

    Iteration ends, and `ended_by` tells why: when there were as many batches as asked for, when a consumer has waited
    for `timeout_ms`, and when it is closed. Errors are raised in every consumer, after the batches drawn before.

    Close it, use it as a context manager, or drop it: the thread ends then. In a forked child, one that was used raises
    ForkedClientError.
    """

    def __init__(
        self, pool: ConnectionPool, plan: Plan, decode: Callable[[list[SampledBatch], list[int]], Iterable[T]]
    ) -> None:
        def connect() -> InterruptibleConnection:
            with pool.connection():  # Raises ClosedError if the client was closed.
                return InterruptibleConnection(pool.address, zmq_context(), pool.keys)

        # A batch that one request cannot ask for takes several.
        kind: type[Prefetcher[T]] = LargeBatchPrefetcher if plan.batch_size > ITEMS_OF_REQUEST else Prefetcher
        self._prefetcher = kind(plan, connect, decode)
        # The thread knows the prefetcher only, so that this is collected while it runs.
        self._finalizer = weakref.finalize(self, self._prefetcher.stop)
        self._finalizer.atexit = False

    @property
    def ended_by(self) -> DatasetEnd | None:
        """Why iteration ended, or will when the batches that are ready are taken; None while it goes on."""
        return self._prefetcher.end

    def close(self) -> None:
        """End the thread, drop what nobody took, and end iteration wherever it waits. May be called again."""
        self._prefetcher.stop()
        self._finalizer.detach()
        self._prefetcher.join()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._prefetcher.take()
        except Exception:
            # The prefetcher keeps an error that ended it, and that the frames it was raised through, which know this
            # dataset. While something waits for its end to stop the prefetcher, it would never come.
            if self._prefetcher.end is not None:
                self._finalizer.detach()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a dataset has a thread and a connection and cannot be pickled: pickle its client instead")

    def __repr__(self) -> str:
        state = f"ended by {self.ended_by}" if self.ended_by is not None else "open"
        return f"<Dataset of table {self._prefetcher.plan.table!r}, {state}>"


def plan_of(
    table: str,
    batch_size: int,
    min_batch_size: int | None,
    prefetch_batches: PrefetchBatches,
    timeout_ms: float | None,
    max_batches: int | None,
) -> Plan:
    """What `client.dataset` was asked for. Raises DataError for what makes no sense."""
    checked_table(table)
    batch_size = checked_integer("batch_size", batch_size, 1)
    if min_batch_size is not None:
        min_batch_size = checked_integer("min_batch_size", min_batch_size, 1, batch_size)
    if not isinstance(prefetch_batches, str) or prefetch_batches != "auto":
        prefetch_batches = checked_integer("prefetch_batches", prefetch_batches, 0)
    if max_batches is not None:
        max_batches = checked_integer("max_batches", max_batches, 1)
    timeout_ms = checked_timeout(timeout_ms)
    timeout_s = None if timeout_ms is None else timeout_ms / 1000
    return Plan(table, batch_size, min_batch_size, prefetch_batches, timeout_s, max_batches)
