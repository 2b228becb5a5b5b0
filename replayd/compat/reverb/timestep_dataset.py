"""Samples step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from replayd.compat.reverb._dataset import ReverbDataset
from replayd.compat.reverb.reverb_types import shape_of


class TimestepDataset(ReverbDataset):
    """An iterable of ReplaySample, one for each step of each drawn item, in order; nothing marks where an item ends."""

    @staticmethod
    def _element_shape(spec: Any) -> Any:
        shape = shape_of(spec)
        return None if shape is None else shape[1:]

    @staticmethod
    def _elements(columns: list[NDArray[Any]]) -> Iterable[Sequence[Any]]:
        if any(column.ndim == 0 for column in columns) or len({len(column) for column in columns}) != 1:
            shapes = ", ".join(str(list(column.shape)) for column in columns)
            raise ValueError(f"an item whose columns have the shapes {shapes} has no steps: use a TrajectoryDataset")
        return zip(*columns, strict=True)
