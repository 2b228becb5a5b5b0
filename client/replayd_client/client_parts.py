"""What belongs to a client and ends with it: its connections, its background thread, its writers and its datasets.

Knows nothing of what is said to a server.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from replayd_client.batch_memory import BatchMemory
from replayd_client.bulk import BatchSenders
from replayd_client.codecs import WriterCodec
from replayd_client.dataset import Dataset
from replayd_client.errors import ReplaydError
from replayd_client.item_core import ItemCore
from replayd_client.keys import Keys
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.prefetcher import Plan
from replayd_client.signatures import TableDirectory
from replayd_client.writer_core import WriterCore, close_together

if TYPE_CHECKING:
    from replayd_client.batches import SampledBatch

T = TypeVar("T")


class ClientParts:
    """The parts of a client of one address. Those that its users hold are remembered here only as long as they live."""

    def __init__(self, address: str, keys: Keys | None) -> None:
        self.pool = ConnectionPool(address, keys)
        self.pacer = Pacer()
        self.directory = TableDirectory(self.pool)
        self.memory = BatchMemory()
        """Of the batches that are drawn by calls; each dataset has its own."""
        self.batches = BatchSenders(self.pool, self.pacer, self.directory)
        self.writers: weakref.WeakSet[WriterCore] = weakref.WeakSet()
        self._datasets: weakref.WeakSet[Dataset[Any]] = weakref.WeakSet()
        _ALL.add(self)

    def item_core(
        self,
        keep_rows: int,
        chunk_length: int | Literal["auto"],
        codec: WriterCodec,
        timeout_ms: float | None,
        max_in_flight_items: int | None = None,
        *,
        validate_items: bool = True,
    ) -> ItemCore:
        """The core of a writer whose items are windows over its last steps."""
        settings = (keep_rows, chunk_length, codec, timeout_ms, max_in_flight_items, validate_items)
        core = ItemCore(self.pool, self.pacer, self.directory, *settings)
        self.writers.add(core)
        return core

    def dataset(self, plan: Plan, decode: Callable[[list[SampledBatch], list[int]], Iterable[T]]) -> Dataset[T]:
        dataset = Dataset(self.pool, plan, decode)
        self._datasets.add(dataset)
        return dataset

    def close(self, deadline: float | None) -> list[ReplaydError]:
        """Close the datasets, the writers by one deadline, then the connections. Returns what the server refused."""
        for dataset in list(self._datasets):
            dataset.close()
        refusals = close_together(self.writers, deadline, explain=True)
        self.batches.close()
        self.pool.close()
        self.memory = BatchMemory()
        return refusals

    def forget(self) -> None:
        """In a forked child: all of it is the parent's. The pool and the writers forget by themselves."""
        self.pacer.forget()
        self.directory.forget()
        self.batches.forget()
        self.memory = BatchMemory()
        self.writers = weakref.WeakSet()
        self._datasets = weakref.WeakSet()


_ALL: weakref.WeakSet[ClientParts] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for parts in list(_ALL):
        parts.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
