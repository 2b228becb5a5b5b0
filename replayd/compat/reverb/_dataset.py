"""Samples as an endless iterable with the incumbent's arguments, yielding numpy instead of TensorFlow's tensors."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb._directory import ANSWER_S, Directory
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
from replayd.compat.reverb.errors import DeadlineExceededError, translated
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo, numpy_info
from replayd.compat.reverb.reverb_types import TensorSpec, shape_of, shapes_fit, sizes_of, spec_of, spec_text
from replayd_client import Client as ReplaydClient
from replayd_client import TrajectoryDataset as ReplaydDataset
from replayd_client.batches import SampledBatch
from replayd_client.item_dataset import signature_among

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
        server_address: Any,
        table: Any,
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
        shape_leaves = iter(_shapes_of(dtypes, shapes))
        self._spec = map_structure(lambda dtype: TensorSpec(next(shape_leaves), numpy_dtype(dtype)), _tuples(dtypes))
        self._server_address = _text(server_address)
        self._table = _text(table)
        self._items = _Items(
            self._server_address,
            self._table,
            None,
            None,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
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
        """A dataset of the dtypes and shapes of the table's signature, which is that of an element.

        Raises ValueError for a table that is unknown or has none, DeadlineExceededError when no server has answered in
        time (None: waits).
        """
        directory = Directory(ReplaydClient(server_address))
        overdue = f"ServerInfo call did not complete within provided timeout of {get_signature_timeout_secs}s"
        with translated(overdue):
            tables = directory.refresh(get_signature_timeout_secs or None)
        signature = cls._of_an_element(signature_among(tables, server_address, table), directory)
        return cls(
            server_address,
            table,
            map_structure(lambda spec: spec.dtype, signature),
            map_structure(shape_of, signature),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )

    @property
    def element_spec(self) -> ReplaySample:
        """A ReplaySample of TensorSpec, as `tf.data.Dataset.from_generator` takes it where TensorFlow was imported."""
        info = SampleInfo(*(spec_of((), dtype) for dtype in SampleInfo.tf_dtypes()))
        return ReplaySample(info, map_structure(lambda spec: spec_of(spec.shape, spec.dtype), self._spec))

    def __iter__(self) -> Iterator[ReplaySample]:
        self._check_signature(self._items.directory)
        specs = flatten(self._spec)
        items: Iterable[Any] = self._items
        with translated():
            self._items.directory.table(self._table)
            for item in items:
                columns = columns_of(item.arrays)
                if len(columns) != len(specs):
                    raise ValueError(
                        f"Inconsistent number of tensors received from table '{self._table}'.  Specification has "
                        f"{len(specs)} tensors, but data coming from the table shows {len(columns)} tensors."
                    )
                info = numpy_info(SampleInfo(*item.info)._replace(priority=item.priority))
                for leaves in self._elements(columns, specs, item.squeezed):
                    self._check_element(leaves, specs)
                    # A scalar is none of an array.
                    yield ReplaySample(info, unflatten_as(self._spec, [leaf[()] for leaf in leaves]))

    @staticmethod
    @abstractmethod
    def _of_an_element(signature: Any, directory: Directory) -> Any:
        """The specs of an element, of a table's signature."""

    @staticmethod
    @abstractmethod
    def _elements(
        columns: list[NDArray[Any]], specs: Sequence[TensorSpec], squeezed: Callable[[], list[bool]]
    ) -> Iterable[Sequence[NDArray[Any]]]:
        """The leaves of each element that a trajectory becomes; `squeezed` tells which columns have no axis of steps.

        Raises ValueError if it cannot be."""

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
        wanted = flatten(self._of_an_element(info.signature, directory))
        asked = flatten(self._spec)
        if len(wanted) != len(asked):
            raise ValueError(
                f"Inconsistent number of tensors requested from table '{self._table}'.  Requested {len(asked)} "
                f"tensors, but table signature shows {len(wanted)} tensors."
            )
        for number, (spec, other) in enumerate(zip(asked, wanted, strict=True)):
            if spec.dtype != numpy_dtype(other.dtype) or not shapes_fit(spec.shape, shape_of(other)):
                raise ValueError(
                    f"Requested incompatible tensor at flattened index {number} from table '{self._table}'.  "
                    f"Requested (dtype, shape): {spec_text(spec)}.  Signature (dtype, shape): {spec_text(other)}."
                )

    def _check_element(self, leaves: Sequence[NDArray[Any]], specs: Sequence[TensorSpec]) -> None:
        for number, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
            if leaf.dtype != spec.dtype or not shapes_fit(spec.shape, leaf.shape):
                raise ValueError(
                    f"Received incompatible tensor at flattened index {number} from table '{self._table}'.  "
                    f"Specification has (dtype, shape): {spec_text(spec)}.  Tensor has (dtype, shape): "
                    f"{spec_text(leaf)}."
                )


@dataclass(frozen=True, slots=True)
class _Item:
    """A drawn item as it came, with the batch in which it did."""

    info: Any
    priority: float
    """As it was given."""
    arrays: Sequence[NDArray[Any]]
    batch: SampledBatch
    index: int

    def squeezed(self) -> list[bool]:
        """Which of its columns have no axis of steps."""
        return [output.squeeze for output in self.batch.windows.shown(self.index)]


class _Items(ReplaydDataset):
    """Draws items as they are, and leaves all else to others."""

    def __init__(self, server_address: str, *arguments: Any) -> None:
        super().__init__(server_address, *arguments)
        self.directory = Directory(ReplaydClient(server_address))

    def _elements(self, info: Any, paths: Any, arrays: Any) -> Any:
        return ((info, arrays),)

    def _samples(self, parts: Sequence[SampledBatch]) -> Any:
        # They are of the server that is there now, or was a moment ago.
        facts = self.directory.table(self._table, ANSWER_S)
        places = (
            (part, index, priority)
            for part in parts
            for index, priority in enumerate(facts.shown(part.info.priority).tolist())
        )
        drawn: Iterable[Any] = super()._samples(parts)
        return [
            _Item(info, priority, arrays, batch, index)
            for (info, arrays), (batch, index, priority) in zip(drawn, places, strict=True)
        ]


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
        try:
            found.append(sizes_of(shape))
        except TypeError:
            raise ValueError(f"dtypes and shapes have different structures: {shape!r} at {path} is no shape") from None
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


def _text(value: Any) -> str:
    """A text, which may be given as bytes or as a tensor of them."""
    plain = value.numpy() if hasattr(value, "numpy") else value
    return plain.decode() if isinstance(plain, bytes) else str(plain)
