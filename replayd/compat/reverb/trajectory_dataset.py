"""Samples as whole trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from replayd.compat.reverb._dataset import ReverbDataset
from replayd.compat.reverb.reverb_types import shape_of


class TrajectoryDataset(ReverbDataset):
    """An iterable of ReplaySample, one for each drawn item: leaves [T, …], or […] where a column is squeezed."""

    @staticmethod
    def _element_shape(spec: Any) -> Any:
        return shape_of(spec)

    @staticmethod
    def _elements(columns: list[NDArray[Any]]) -> Iterable[Sequence[Any]]:
        return (columns,)
