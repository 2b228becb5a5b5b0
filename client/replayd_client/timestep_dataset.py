"""Drawn items step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from replayd_client.data_spec import DataSpec
from replayd_client.errors import DataError
from replayd_client.item_dataset import ItemDataset
from replayd_client.sampling import ReplaySample, SampleInfo
from replayd_client.structure import Path, Structure, path_text


class TimestepDataset(ItemDataset):
    """An iterable of ReplaySample, one for each step of each drawn item, in order: leaves […], without time.

    All steps of an item have its info; nothing else marks where an item ends. `max_samples` and the items in flight
    count items. Raises DataError for items whose columns differ in length or are squeezed: they have no steps.
    Arguments, ends and other errors as for ItemDataset.
    """

    @staticmethod
    def _shown(signature: DataSpec) -> DataSpec:
        return signature.of_a_step()

    def _elements(
        self, info: SampleInfo, paths: tuple[Path, ...], arrays: Sequence[NDArray[Any]]
    ) -> Iterator[ReplaySample]:
        for path, array in zip(paths, arrays, strict=True):
            if array.ndim == 0:
                raise DataError(f"column {path_text(path)!r} is squeezed and has no steps: use a TrajectoryDataset")
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1:
            raise DataError(f"the columns have {sorted(lengths)} rows, so there are no steps: use a TrajectoryDataset")
        structure = Structure.from_paths(paths)
        if self._spec is not None:
            self._spec.check(paths, [array[0] for array in arrays])
            structure = self._spec.structure
        return (ReplaySample(info, structure.rebuild(row)) for row in zip(*arrays, strict=True))
