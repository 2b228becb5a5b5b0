"""Samples as whole trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from replayd.compat.reverb._dataset import ReverbDataset
from replayd.compat.reverb._directory import Directory
from replayd.compat.reverb.reverb_types import TensorSpec


class TrajectoryDataset(ReverbDataset):
    """An iterable of ReplaySample, one for each drawn item: leaves [T, …], or […] where a column is squeezed."""

    @staticmethod
    def _of_an_element(signature: Any, directory: Directory) -> Any:
        return signature

    @staticmethod
    def _elements(
        columns: list[NDArray[Any]], specs: Sequence[TensorSpec], squeezed: Callable[[], list[bool]]
    ) -> Iterable[Sequence[NDArray[Any]]]:
        return (columns,)
