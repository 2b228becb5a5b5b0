"""PyTorch: a table as an IterableDataset of whole batches of tensors. Importing this alone imports PyTorch.

    dataset = replayd_client.torch.ReplayDataset("localhost:7077", "replay", batch_size=256)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=None):
        loss = learn(batch.data["observation"], batch.info.probability)

The client draws ahead by itself: `num_workers=0`, the default, is right unless what is done to a batch is costly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from replayd_client.batch_memory import BatchMemory
from replayd_client.batches import SampledBatch, split
from replayd_client.client import Client
from replayd_client.dataset import plan_of
from replayd_client.lookahead import PrefetchBatches
from replayd_client.prefetcher import DatasetEnd
from replayd_client.ragged import Ragged, check_ragged, joined
from replayd_client.sampling import SampleInfo

if TYPE_CHECKING:
    torch: Any
    T = TypeVar("T", covariant=True)

    # What the type checker sees, whether or not PyTorch is installed.
    class IterableDataset(Generic[T]): ...

else:
    try:
        import torch
        from torch.utils.data import IterableDataset
    except ImportError as error:
        raise ImportError("replayd_client.torch needs PyTorch: pip install torch, or the extra [torch]") from error


class TensorInfo(NamedTuple):
    """What the server says of each item of a batch, tensors [B]; see SampleInfo."""

    key: Any
    """uint64, for `client.mutate_priorities(table, (key, priorities))`."""
    probability: Any
    """float64."""
    table_size: Any
    """int64."""
    priority: Any
    """float64."""
    times_sampled: Any
    """int64."""


class TensorBatch(NamedTuple):
    """B drawn items: info, a nest of tensors [B, T, …], and with ragged="pad" a nest of masks; see SampleBatch."""

    info: TensorInfo
    data: Any
    mask: Any = None


class ReplayDataset(IterableDataset[TensorBatch]):
    """An IterableDataset of TensorBatch: give it to `DataLoader(dataset, batch_size=None)`, or iterate it as it is.

    Arguments after `address` are those of `Client.dataset`; there it is said what they mean, how iteration ends, and
    what it raises. Each iteration opens a client and a thread of its own where it happens, so the dataset pickles, and
    workers may be forked or spawned. Every worker draws batches of its own; of `max_batches` each draws its share.

    Tensors are those of the decoded arrays, without a copy; bytes and str, for which there are none, stay numpy arrays
    of objects. `pin_memory` copies data and masks once more, into pinned memory, on the thread that draws ahead;
    without CUDA it does nothing. It is for `num_workers=0`: workers hand batches over in shared memory, so there it is
    left to the DataLoader's own `pin_memory`.
    """

    def __init__(
        self,
        address: str,
        table: str,
        batch_size: int,
        *,
        min_batch_size: int | None = None,
        prefetch_batches: PrefetchBatches = "auto",
        timeout_ms: float | None = None,
        max_batches: int | None = None,
        ragged: Ragged = "error",
        pin_memory: bool = False,
    ) -> None:
        check_ragged(ragged)
        plan_of(table, batch_size, min_batch_size, prefetch_batches, timeout_ms, max_batches)
        self._address = address
        self._table = table
        self._batch_size = batch_size
        self._min_batch_size = min_batch_size
        self._prefetch_batches = prefetch_batches
        self._timeout_ms = timeout_ms
        self._max_batches = max_batches
        self._ragged = ragged
        self._pin_memory = pin_memory
        self._ended_by: DatasetEnd | None = None

    @property
    def ended_by(self) -> DatasetEnd | None:
        """Why the iteration that ended last in this process did so; None while there was none."""
        return self._ended_by

    def __iter__(self) -> Iterator[TensorBatch]:
        worker = torch.utils.data.get_worker_info()
        max_batches = self._max_batches
        if worker is not None and max_batches is not None:
            max_batches = max_batches // worker.num_workers + (worker.id < max_batches % worker.num_workers)
            if not max_batches:
                return
        pin = self._pin_memory and worker is None and torch.cuda.is_available()
        plan = plan_of(
            self._table,
            self._batch_size,
            self._min_batch_size,
            self._prefetch_batches,
            self._timeout_ms,
            max_batches,
        )

        memory = BatchMemory()

        def decode(parts: list[SampledBatch], sizes: list[int]) -> Iterator[TensorBatch]:
            return (tensors(group, self._ragged, pin, memory) for group in split(parts, sizes))

        with Client(self._address) as client:
            dataset = client._dataset(plan, decode)
            try:
                yield from dataset
            finally:
                dataset.close()
                self._ended_by = dataset.ended_by


def tensors(parts: list[SampledBatch], ragged: Ragged, pin: bool, memory: BatchMemory) -> TensorBatch:
    """Replies as one batch of tensors."""
    info, data, mask = joined(parts, ragged, memory)
    words = {name: getattr(info, name) for name in SampleInfo._fields}
    # Copies, since these arrays lie in the reply and cannot be written to. PyTorch can do little with uint32.
    words["table_size"] = words["table_size"].astype(np.int64)
    words["times_sampled"] = words["times_sampled"].astype(np.int64)
    info_tensors = TensorInfo(**{name: torch.from_numpy(np.array(array)) for name, array in words.items()})

    def tensor(array: NDArray[Any]) -> Any:
        if array.dtype.kind == "O":
            return array
        made = torch.from_numpy(array)
        return made.pin_memory() if pin else made

    return TensorBatch(info_tensors, _mapped(data, tensor), None if mask is None else _mapped(mask, tensor))


def _mapped(nest: Any, function: Any) -> Any:
    """The nest with the function applied to each array; lists of arrays are gone into, however long."""
    if isinstance(nest, dict):
        return {key: _mapped(child, function) for key, child in nest.items()}
    if isinstance(nest, list):
        return [_mapped(child, function) for child in nest]
    return function(nest)
