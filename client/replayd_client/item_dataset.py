"""Drawn items one by one, with the arguments that the field knows: what trajectory and timestep datasets share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_table
from replayd_client.client import Client
from replayd_client.data_spec import DataSpec
from replayd_client.errors import (
    ArgumentTypeError,
    ConnectionLostError,
    DataError,
    DeadlineExceededError,
    UnknownTableError,
)
from replayd_client.pool import endpoint_of
from replayd_client.prefetcher import DatasetEnd, Plan
from replayd_client.sampling import ReplaySample, SampleInfo
from replayd_client.scalars import integer_of
from replayd_client.specs import TensorSpec
from replayd_client.structure import Path

if TYPE_CHECKING:
    from replayd_client.batches import SampledBatch

log = logging.getLogger("replayd_client")

SIGNATURE_TIMEOUT_S = 30.0
"""Longest wait for the table's signature when iteration starts, against which the spec is compared."""
ITEMS_PER_REQUEST = 1024
"""Items asked for at once, at most: enough to spread the cost of a request, and a reply that is soon there."""

INFO_DTYPES = tuple(map(np.dtype, ("uint64", "float64", "int64", "float64", "int32")))
"""Of the words of SampleInfo, as the field has them."""


class ItemDataset(ABC):
    """An iterable of ReplaySample(info, data): numpy scalars, and a nest of numpy arrays.

    Each iteration has a client and a thread of its own, which draws ahead: at most `max_in_flight_samples_per_worker`
    items are drawn and not yet yielded. They count as sampled; with 1, an item is drawn when it is asked for.

    Iteration ends after `max_samples` items, or when the next item took longer than `rate_limiter_timeout_ms`;
    `ended_by` tells which. -1 is without limit for both. All other errors are raised. Arrays may be views of one array
    for each column of a reply.

    `dtypes` and `shapes` are nests: data has their structure, its columns in their order. Without them it is the nest
    that was written. `num_workers_per_iterator` and `max_samples_per_stream` are accepted for the field's sake: there
    is one thread whatever they say, so that items come in the order in which they were drawn.

    Pickles to its arguments, also while it is iterated. Raises DataError for arguments that make no sense, and while
    iterating what `Client.sample` raises.
    """

    def __init__(
        self,
        server_address: str,
        table: str,
        dtypes: Any = None,
        shapes: Any = None,
        max_in_flight_samples_per_worker: int = 100,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        endpoint_of(server_address)
        checked_table(table)
        in_flight = _integer("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, "positive")
        _integer("num_workers_per_iterator", num_workers_per_iterator, "positive or -1")
        _integer("max_samples_per_stream", max_samples_per_stream, "positive or -1")
        most = _integer("max_samples", max_samples, "positive or -1")
        timeout_ms = _integer("rate_limiter_timeout_ms", rate_limiter_timeout_ms, ">= -1")
        self._arguments = (
            server_address,
            table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )
        self._address = server_address
        self._table = table
        self._spec = None if dtypes is None and shapes is None else DataSpec.of(dtypes, shapes)
        self._plan = _plan(table, in_flight, timeout_ms, most)
        self._ended_by: DatasetEnd | None = None

    @classmethod
    def from_table_signature(
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: float | None = None,
        max_samples: int = -1,
    ) -> Self:
        """A dataset with the dtypes and shapes of the table's signature.

        Raises UnknownTableError if there is no such table, DataError if it has no signature, and ConnectionLostError
        if no server answers within `get_signature_timeout_secs` (None: for ever).
        """
        with Client(server_address) as client:
            tables = client.server_info(timeout=get_signature_timeout_secs)
        spec = cls._shown(DataSpec.of_signature(signature_among(tables, server_address, table)))
        return cls(
            server_address,
            table,
            spec.dtypes,
            spec.shapes,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )

    @property
    def element_spec(self) -> ReplaySample:
        """The elements as a nest of TensorSpec. Raises DataError if the dataset was made without dtypes."""
        if self._spec is None:
            raise DataError("the dataset was made without dtypes and shapes, so its elements are as they were written")
        info: Any = [TensorSpec((), dtype, name) for dtype, name in zip(INFO_DTYPES, SampleInfo._fields, strict=True)]
        return ReplaySample(SampleInfo._make(info), self._spec.nest())

    @property
    def ended_by(self) -> DatasetEnd | None:
        """Why the iteration that ended last did so; None while there was none."""
        return self._ended_by

    def __iter__(self) -> Iterator[ReplaySample]:
        with Client(self._address) as client:
            self._compare_with_signature(client)
            dataset = client._dataset(self._plan, self._results)
            try:
                yield from chain.from_iterable(dataset)
            finally:
                dataset.close()
                self._ended_by = dataset.ended_by

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), self._arguments

    @staticmethod
    @abstractmethod
    def _shown(signature: DataSpec) -> DataSpec:
        """What elements are like if items fit this signature."""

    @abstractmethod
    def _elements(self, info: SampleInfo, paths: tuple[Path, ...], arrays: Sequence[NDArray[Any]]) -> Any:
        """The elements that an item becomes."""

    def _results(self, parts: Sequence[SampledBatch], sizes: Sequence[int]) -> Iterator[list[ReplaySample]]:
        from replayd_client.batches import split

        return map(self._samples, split(parts, sizes))

    def _samples(self, parts: Sequence[SampledBatch]) -> list[ReplaySample]:
        """The elements of some replies, made on the thread that draws ahead."""
        # Imported here, so that importing this stays light.
        from replayd_client.ragged import arrays_of_items

        elements: list[ReplaySample] = []
        for part in parts:
            info = part.info
            columns = [getattr(info, name) for name in SampleInfo._fields]
            infos = zip(*(c.astype(dtype) for c, dtype in zip(columns, INFO_DTYPES, strict=True)), strict=True)
            for words, (paths, arrays) in zip(infos, arrays_of_items(part), strict=True):
                elements += self._elements(SampleInfo._make(words), paths, arrays)
        return elements

    def _compare_with_signature(self, client: Client) -> None:
        """Raises DataError if the table's signature says that its items cannot fit; better now than in an hour."""
        if self._spec is None:
            return
        try:
            tables = client.server_info(timeout=SIGNATURE_TIMEOUT_S)
        except (ConnectionLostError, DeadlineExceededError) as error:
            log.warning("the spec of a dataset of table %r is not compared with the signature: %s", self._table, error)
            return
        if self._table in tables and tables[self._table].signature is not None:
            signature = self._shown(DataSpec.of_signature(tables[self._table].signature))
            self._spec.check_signature(signature, self._table)


def signature_among(tables: Mapping[str, Any], server_address: str, table: str) -> Any:
    """The signature of the table that a dataset is made of, of what `server_info` says of all.

    Raises UnknownTableError if there is no such table, DataError if it has no signature.
    """
    if table not in tables:
        raise UnknownTableError(
            f"Server at {server_address} does not contain any table named {table}. Found: {', '.join(sorted(tables))}.",
            detail={"table": table, "tables": sorted(tables)},
        )
    signature = tables[table].signature
    if signature is None:
        raise DataError(f"Table {table} at {server_address} does not have a signature.")
    return signature


def _plan(table: str, in_flight: int, timeout_ms: int, max_samples: int) -> Plan:
    """Batches as a means: whatever the limiter grants at once, while half of the items in flight are being yielded."""
    items = max(min(in_flight // 2, ITEMS_PER_REQUEST), 1)
    return Plan(
        table,
        batch_size=items,
        min_batch_size=1,
        prefetch_batches=in_flight // items - 1,
        timeout_s=None if timeout_ms == -1 else timeout_ms / 1000,
        max_items=None if max_samples == -1 else max_samples,
    )


_BOUNDS: Final[dict[str, tuple[str, Callable[[int], bool]]]] = {
    "positive": ("a positive integer", lambda value: value >= 1),
    "positive or -1": ("a positive integer or -1", lambda value: value >= 1 or value == -1),
    ">= -1": ("an integer >= -1", lambda value: value >= -1),
}
"""What an argument must be, in the field's words."""


def _integer(name: str, value: Any, bounds: str) -> int:
    found, (words, is_within) = integer_of(value), _BOUNDS[bounds]
    if found is None or not is_within(found):
        kind = DataError if found is not None else ArgumentTypeError
        raise kind(f"{name} ({value!r}) must be {words}")
    return found
