"""What a sample is: info and data, as the incumbent's two named tuples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class SampleInfo(NamedTuple):
    """What the server says of a drawn item. From `Client.sample` plain ints and floats, from datasets numpy scalars."""

    key: Any
    probability: Any
    """Chance of the item at its draw."""
    table_size: Any
    """Items in the table at the draw."""
    priority: Any
    times_sampled: Any
    """Draws of the item so far, this one included."""

    @classmethod
    def tf_dtypes(cls) -> SampleInfo:
        """The dtype of each field, as numpy's."""
        return cls(*map(np.dtype, _DTYPES))

    @classmethod
    def tf_shapes(cls) -> SampleInfo:
        """The shape of each field: all are scalars."""
        return cls((), (), (), (), ())

    @classmethod
    def zeros(cls) -> SampleInfo:
        """An info that says nothing, of Python's numbers."""
        return cls(0, 0.0, 0, 0.0, 0)


_DTYPES = (np.uint64, np.float64, np.int64, np.float64, np.int32)


def numpy_info(info: SampleInfo) -> SampleInfo:
    """The info with numpy scalars of `tf_dtypes`, as datasets give it."""
    return SampleInfo(*(dtype(value) for dtype, value in zip(_DTYPES, info, strict=True)))


class ReplaySample(NamedTuple):
    """Info and data of a drawn item, or of one step of it."""

    info: SampleInfo
    data: Any
