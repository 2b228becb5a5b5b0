"""Samples as an endless iterable with the incumbent's arguments, yielding numpy instead of TensorFlow's tensors."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb._directory import Directory
from replayd.compat.reverb._nests import (
    assert_same_structure,
    flatten,
    flatten_with_path,
    is_nested,
    map_structure,
    unflatten_as,
)
from replayd.compat.reverb._trajectories import columns_of
from replayd.compat.reverb._values import numpy_dtype
from replayd.compat.reverb.client import Client
from replayd.compat.reverb.errors import DeadlineExceededError, translated
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo, numpy_info
from replayd.compat.reverb.reverb_types import TensorSpec, shapes_fit, spec_text
from replayd_client import Client as ReplaydClient
from replayd_client import TrajectoryDataset as ReplaydDataset
from replayd_client.structure import flatten as replayd_flatten

log = logging.getLogger("replayd")

SIGNATURE_TIMEOUT_S = 30.0
"""Longest wait for the table's signature when iteration starts."""


class Elements(ABC):
    """An iterable that can be iterated again, with the few of tf.data's methods that need nothing but Python."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def as_numpy_iterator(self) -> Iterator[Any]:
        """The same as `iter`: the elements are numpy arrays here."""
        return iter(self)

    def take(self, count: int) -> Elements:
        """The first `count` elements; -1 for all."""
        return _Derived(lambda: islice(self, None if count < 0 else count))

    def map(self, function: Callable[[Any], Any], num_parallel_calls: int | None = None) -> Elements:
        """The elements that the function makes of these, one after the other."""
        return _Derived(lambda: map(function, self))

    def prefetch(self, buffer_size: int) -> Elements:
        """These: samples are drawn ahead as it is."""
        return self

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Elements:
        """Elements stacked along a new first axis, `batch_size` at a time."""
        return _Derived(lambda: _batches(self, batch_size, drop_remainder))


class ReverbDataset(Elements):
    """Draws from a table without end; what the two datasets share.

    Each iteration has a client and a thread of its own. At most `max_in_flight_samples_per_worker` items are drawn and
    not yet yielded. Iteration ends after `max_samples` items, or when the limiter granted none within
    `rate_limiter_timeout_ms`; -1 is without limit. `num_workers_per_iterator` and `max_samples_per_stream` change
    nothing: one thread draws, in order.
    """

    def __init__(
        self,
        server_address: str,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        """Raises ValueError for structures of dtypes and shapes that differ, and for numbers that make no sense."""
        _assert_spec(dtypes, shapes)
        _positive("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker)
        _positive_or("num_workers_per_iterator", num_workers_per_iterator, "auto-tuned")
        _positive_or("max_samples_per_stream", max_samples_per_stream, "auto-tuned")
        _positive_or("max_samples", max_samples, "unlimited")
        if rate_limiter_timeout_ms < -1:
            raise ValueError(f"rate_limiter_timeout_ms ({rate_limiter_timeout_ms}) must be an integer >= -1")
        self._server_address = server_address
        self._table = table
        shape_leaves = iter(_shapes_of(dtypes, shapes))
        self._spec = map_structure(lambda dtype: TensorSpec(next(shape_leaves), numpy_dtype(dtype)), _tuples(dtypes))
        self._dataset = ReplaydDataset(
            server_address,
            table,
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )

    @classmethod
    def from_table_signature(
        cls,
        server_address: str,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: int | None = None,
        max_samples: int = -1,
    ) -> Self:
        """A dataset of the dtypes and shapes of the table's signature.

        Raises ValueError for a table that is unknown or has none, DeadlineExceededError when no server has answered in
        time (None: waits).
        """
        info = Client(server_address).server_info(get_signature_timeout_secs)
        if table not in info:
            raise ValueError(
                f"Server at {server_address} does not contain any table named {table}. Found: "
                f"{', '.join(sorted(info))}."
            )
        signature = info[table].signature
        if signature is None:
            raise ValueError(f"Table {table} at {server_address} does not have a signature.")
        return cls(
            server_address=server_address,
            table=table,
            dtypes=map_structure(lambda spec: spec.dtype, signature),
            shapes=map_structure(cls._element_shape, signature),
            max_in_flight_samples_per_worker=max_in_flight_samples_per_worker,
            num_workers_per_iterator=num_workers_per_iterator,
            max_samples_per_stream=max_samples_per_stream,
            rate_limiter_timeout_ms=rate_limiter_timeout_ms,
            max_samples=max_samples,
        )

    @property
    def element_spec(self) -> ReplaySample:
        """A ReplaySample of TensorSpec."""
        info = SampleInfo(*(TensorSpec((), dtype) for dtype in SampleInfo.tf_dtypes()))
        return ReplaySample(info, self._spec)

    def __iter__(self) -> Iterator[ReplaySample]:
        directory = Directory(ReplaydClient(self._server_address))
        self._check_signature(directory)
        specs = flatten(self._spec)
        with translated():
            facts = directory.table(self._table)
            for sample in self._dataset:
                pairs = replayd_flatten(sample.data)
                columns = columns_of(tuple(path for path, _ in pairs), [array for _, array in pairs])
                info = sample.info
                shown = SampleInfo(
                    info.key, info.probability, info.table_size, facts.shown(info.priority).item(), info.times_sampled
                )
                for leaves in self._elements(columns):
                    _check_element(self._table, leaves, specs)
                    yield ReplaySample(numpy_info(shown), unflatten_as(self._spec, leaves))

    @staticmethod
    @abstractmethod
    def _element_shape(spec: Any) -> Any:
        """The shape of an element's leaf whose column has this spec in the signature."""

    @staticmethod
    @abstractmethod
    def _elements(columns: list[NDArray[Any]]) -> Iterable[Sequence[Any]]:
        """The leaves of each element that a trajectory becomes. Raises ValueError if it cannot be."""

    def _check_signature(self, directory: Directory) -> None:
        """Raises ValueError if the signature of the table says that its items cannot fit."""
        try:
            with translated():
                info = directory.refresh(SIGNATURE_TIMEOUT_S).get(self._table)
        except DeadlineExceededError:
            log.warning("no signature of table %r within %d s; samples are not compared with it", self._table, 30)
            return
        if info is None or info.signature is None:
            return
        wanted = flatten(map_structure(lambda spec: TensorSpec(self._element_shape(spec), spec.dtype), info.signature))
        got = flatten(self._spec)
        if len(wanted) != len(got) or any(
            one.dtype != other.dtype or not shapes_fit(one.shape, other.shape)
            for one, other in zip(wanted, got, strict=True)
        ):
            raise ValueError(
                f"the dtypes and shapes asked for, {', '.join(map(spec_text, got))}, do not fit the signature of table "
                f"{self._table}, {', '.join(map(spec_text, wanted))}"
            )


class _Derived(Elements):
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def _batches(elements: Iterable[Any], size: int, drop_remainder: bool) -> Iterator[Any]:
    rest = iter(elements)
    while batch := list(islice(rest, size)):
        if len(batch) < size and drop_remainder:
            return
        yield map_structure(lambda *leaves: np.stack(leaves), *batch)


def _check_element(table: str, leaves: Sequence[Any], specs: Sequence[TensorSpec]) -> None:
    if len(leaves) != len(specs):
        raise ValueError(f"a sample of table {table} has {len(leaves)} columns and not the {len(specs)} asked for")
    for number, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
        if leaf.dtype != spec.dtype or not shapes_fit(spec.shape, leaf.shape):
            raise ValueError(
                f"column {number} of a sample of table {table} is {spec_text(leaf)}, asked for was {spec_text(spec)}"
            )


def _assert_spec(dtypes: Any, shapes: Any) -> None:
    """Raises ValueError unless there is a shape for each dtype: a list or tuple of sizes is a leaf in `shapes`."""
    if is_nested(dtypes):
        assert_same_structure(dtypes, unflatten_as(dtypes, [None] * len(_shapes_of(dtypes, shapes))), False)


def _shapes_of(dtypes: Any, shapes: Any) -> list[Any]:
    """The shape of each leaf of dtypes. Raises ValueError where there is none."""
    found = []
    for path, _ in flatten_with_path(dtypes):
        shape = shapes
        for name in path:
            try:
                shape = getattr(shape, name) if isinstance(name, str) and hasattr(shape, "_fields") else shape[name]
            except (KeyError, IndexError, TypeError, AttributeError):
                raise ValueError(f"dtypes and shapes have different structures: there is no shape for {path}") from None
        found.append(None if shape is None else tuple(shape))
    if is_nested(dtypes) and (not is_nested(shapes) or len(dtypes) != len(shapes)):
        raise ValueError(f"dtypes and shapes have different structures: {dtypes} and {shapes}")
    return found


def _tuples(nest: Any) -> Any:
    """The nest with tuples for lists, as elements have them."""
    if isinstance(nest, list):
        return tuple(_tuples(child) for child in nest)
    if isinstance(nest, dict):
        return {key: _tuples(child) for key, child in nest.items()}
    return nest


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} ({value}) must be a positive integer")


def _positive_or(name: str, value: int, meaning: str) -> None:
    if value < 1 and value != -1:
        raise ValueError(f"{name} ({value}) must be a positive integer or -1 ({meaning})")
