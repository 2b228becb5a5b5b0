"""What episodes led to, where environments tell it beside the step: from a nest to arrays of the episodes that ended.

Owns the forms in which vectorised environments tell it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.columns import Column, array_text, leaf_array, leaf_dtype
from replayd_client.errors import DataError
from replayd_client.structure import Path, flatten, path_text


def final_values(final: Any, columns: Sequence[Column], ends: NDArray[np.bool_]) -> list[NDArray[Any]]:
    """For each column [k, *shape], the values of the k environments whose episodes ended.

    `final` is a nest in which each column's path leads to an array [N, *shape], or to an array [N] of objects, such as
    Gymnasium's `final_obs`: arrays, or nests of them, and None where no episode ended. Raises DataError.
    """
    found: dict[Path, NDArray[Any]] = {}
    for path, leaf in flatten(final):
        if isinstance(leaf, np.ndarray) and leaf.dtype == object and leaf.ndim == 1:
            if leaf.shape != ends.shape:
                raise DataError(f"{path_text(path)}: `final` needs an entry for each of {len(ends)} environments")
            found.update(_stacked(path, leaf[ends]))
        else:
            array = leaf_array(leaf, path)
            if array.shape[:1] != ends.shape:
                raise DataError(f"{path_text(path)}: `final` needs an axis of {len(ends)} environments")
            found[path] = array[ends]
    values = []
    for column in columns:
        value = found.pop(column.path, None)
        if value is None:
            raise DataError(f"`final` lacks {path_text(column.path)}, which the last row of an episode shows")
        dtype = column.dtype if column.is_variable and not value.size else leaf_dtype(value)
        if value.shape[1:] != column.shape or dtype.name != column.dtype.name:
            raise DataError(
                f"{path_text(column.path)}: expected {array_text(column.dtype, column.shape)} of each environment in "
                f"`final`, got {array_text(dtype, value.shape[1:])}"
            )
        values.append(value)
    if found:
        raise DataError(f"`final` has what is no observation: {', '.join(map(path_text, found))}")
    return values


def _stacked(path: Path, entries: NDArray[Any]) -> dict[Path, NDArray[Any]]:
    """Entries of the environments that ended as one array a leaf."""
    leaves: dict[Path, list[NDArray[Any]]] = {}
    for entry in entries:
        if entry is None:
            raise DataError(f"{path_text(path)}: `final` has None where an episode ended")
        for below, leaf in flatten(entry):
            leaves.setdefault((*path, *below), []).append(leaf_array(leaf, (*path, *below)))
    for where, arrays in leaves.items():
        if len(arrays) != len(entries) or len({(array.shape, array.dtype) for array in arrays}) > 1:
            raise DataError(f"{path_text(where)}: the entries of `final` differ in structure, shape or dtype")
    return {where: np.stack(arrays) for where, arrays in leaves.items()}
