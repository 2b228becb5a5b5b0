"""Samples step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from replayd.compat.reverb._dataset import ReverbDataset
from replayd.compat.reverb._directory import Directory
from replayd.compat.reverb._nests import map_structure
from replayd.compat.reverb.reverb_types import TensorSpec, shape_of


class TimestepDataset(ReverbDataset):
    """An iterable of ReplaySample, one for each step of each drawn item, in order; nothing marks where an item ends.

    The signature of its table, if it has one, is that of a step, as the legacy writer takes it.
    """

    @staticmethod
    def _of_an_element(signature: Any, directory: Directory) -> Any:
        # The signatures of other daemons are always those of whole items.
        return signature if directory.tables().is_of_this_package else map_structure(_of_a_step, signature)

    @staticmethod
    def _elements(
        columns: list[NDArray[Any]], specs: Sequence[TensorSpec], squeezed: Callable[[], list[bool]]
    ) -> Iterable[Sequence[NDArray[Any]]]:
        # Asked only where it may be: an item's one step has the rank of an element then.
        if any(column.ndim in (0, spec.rank) for column, spec in zip(columns, specs, strict=True)):
            columns = [
                column[None] if is_squeezed else column for column, is_squeezed in zip(columns, squeezed(), strict=True)
            ]
        lengths = {len(column) for column in columns}
        if len(lengths) != 1:
            raise ValueError(
                f"Sampled trajectory cannot be decomposed into timesteps: its columns have {sorted(lengths)} of them; "
                "use a TrajectoryDataset"
            )
        return ([column[step, ...] for column in columns] for step in range(lengths.pop()))


def _of_a_step(spec: Any) -> TensorSpec:
    shape = shape_of(spec)
    return TensorSpec(None if shape is None else shape[1:], spec.dtype)
