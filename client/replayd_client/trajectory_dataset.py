"""Drawn items as whole trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from replayd_client.data_spec import DataSpec
from replayd_client.item_dataset import ItemDataset
from replayd_client.sampling import ReplaySample, SampleInfo
from replayd_client.structure import Path, Structure


class TrajectoryDataset(ItemDataset):
    """An iterable of ReplaySample, one for each drawn item: leaves [T, …], or […] where a column is squeezed.

    Arguments, ends and errors as for ItemDataset.
    """

    @staticmethod
    def _shown(signature: DataSpec) -> DataSpec:
        return signature

    def _elements(
        self, info: SampleInfo, paths: tuple[Path, ...], arrays: Sequence[NDArray[Any]]
    ) -> tuple[ReplaySample]:
        if self._spec is None:
            return (ReplaySample(info, Structure.from_paths(paths).rebuild(arrays)),)
        self._spec.check(paths, arrays)
        return (ReplaySample(info, self._spec.structure.rebuild(arrays)),)
