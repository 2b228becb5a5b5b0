"""What tables are and what they say of themselves: `TableInfo`, and the spec of a tensor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

from replayd.compat.reverb._protos import KeyDistributionOptions, RateLimiterInfo, TableWorkerTime
from replayd.compat.reverb._values import STRING, numpy_dtype, shape_text, tf_name
from replayd.compat.reverb.item_selectors import (
    FifoSelector,
    HeapSelector,
    LifoSelector,
    PrioritizedSelector,
    SelectorType,
    UniformSelector,
)

__all__ = [
    "Fifo",
    "Heap",
    "Lifo",
    "Prioritized",
    "SelectorType",
    "SpecNest",
    "TableInfo",
    "TensorSpec",
    "Uniform",
]

Fifo = FifoSelector
Heap = HeapSelector
Lifo = LifoSelector
Prioritized = PrioritizedSelector
Uniform = UniformSelector

SpecNest = Any
"""A nest of specs: TensorSpec, or anything that has a shape and a dtype."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorSpec:
    """The spec of a tensor where TensorFlow is not: shape (None for any size, or for any shape at all) and dtype.

    Equal to any spec of the same shape and dtype, TensorFlow's too; the name does not count.
    """

    shape: Any
    dtype: Any = "float32"
    name: str | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        object.__setattr__(self, "shape", None if shape is None else shape_of(self))
        object.__setattr__(self, "dtype", numpy_dtype(self.dtype))

    @property
    def rank(self) -> int | None:
        """The number of axes; None if the shape is unknown."""
        return None if self.shape is None else len(self.shape)

    def is_compatible_with(self, value: Any) -> bool:
        """Whether an array, or anything of a spec, has this dtype and a shape that fits."""
        return numpy_dtype(value.dtype) == self.dtype and shapes_fit(self.shape, shape_of(value))

    def __eq__(self, other: object) -> bool:
        if not hasattr(other, "shape") or not hasattr(other, "dtype"):
            return NotImplemented
        return bool(self.shape == shape_of(other) and self.dtype == numpy_dtype(other.dtype))

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        dtype = "string" if self.dtype == STRING else self.dtype.name
        return f"TensorSpec(shape={self.shape}, dtype={dtype}{name})"


def spec_of(shape: Any, dtype: Any, name: str | None = None) -> Any:
    """A TensorSpec to hand out: TensorFlow's if the program has imported that, since it expects its own then."""
    kind = getattr(sys.modules.get("tensorflow"), "TensorSpec", TensorSpec)
    return kind(shape, dtype, name)


def shape_of(spec: Any) -> tuple[int | None, ...] | None:
    """The shape of a spec or an array, None in the place of a size that is not known; None for an unknown shape."""
    return sizes_of(spec.shape)


def sizes_of(shape: Any) -> tuple[int | None, ...] | None:
    """A shape as a tuple, of numpy's, TensorFlow's, or any sizes; None for an unknown one. Raises TypeError."""
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    # Of TensorFlow's dimensions, which have a value.
    sizes = [getattr(size, "value", size) for size in shape]
    return tuple(None if size is None else index(size) for size in sizes)


def shapes_fit(one: Any, other: Any) -> bool:
    """Whether an array may have both shapes."""
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def spec_text(spec: Any) -> str:
    """Dtype and shape under TensorFlow's names: `(float, [3,?])`."""
    return f"({tf_name(numpy_dtype(spec.dtype))}, {shape_text(shape_of(spec))})"


@dataclass(slots=True)
class TableInfo:
    """State of a table, of its selectors and its limiter."""

    name: str
    sampler_options: KeyDistributionOptions
    remover_options: KeyDistributionOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: SpecNest | None
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int
    table_worker_time: TableWorkerTime

    @classmethod
    def of(cls, described: Mapping[str, Any], signature: SpecNest | None) -> TableInfo:
        """From what replayd says of a table."""
        return cls(
            name=described["name"],
            sampler_options=KeyDistributionOptions.of(described["sampler"]),
            remover_options=KeyDistributionOptions.of(described["remover"]),
            max_size=described["max_size"],
            max_times_sampled=described["max_times_sampled"],
            rate_limiter_info=RateLimiterInfo.of(described["limiter"]),
            signature=signature,
            current_size=described["size"],
            num_episodes=described.get("episodes", 0),
            num_deleted_episodes=described.get("ended_episodes", 0),
            num_unique_samples=described["unique_samples"],
            table_worker_time=TableWorkerTime.of(described.get("blocked_s", {})),
        )
