"""How a trajectory of the incumbent travels as one of replayd's, whose paths are stricter and whose columns are too.

A column there may join cells of several columns, and may have strings. It goes as one or several columns of bytes or
numbers, and the last components of their paths say what to do with them on the way out: JOIN and a position, STRING.
Readers of this package see none of that; others see it and can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb._nests import flatten, is_nested
from replayd.compat.reverb._values import STRING, as_array, decode_strings, encode_strings, width_for
from replayd_client.errors import DataError
from replayd_client.structure import Structure

STRING_MARK: Final = "~string"
JOIN_MARK: Final = "~join"

WirePath = tuple[str | int, ...]


def wire_paths(nest: Any) -> tuple[WirePath, ...]:
    """The path of each leaf of a nest, as replayd takes paths, in the nest's own order.

    That of the user where it may be; positions in the place of keys that are no strings and of names of namedtuples,
    whose order is not that of the names; positions alone if it cannot be.
    """
    paths = tuple(_paths(nest, ()))
    if any(mark in path for path in paths for mark in (STRING_MARK, JOIN_MARK)):
        return tuple((number,) for number in range(len(paths)))
    return _checked(paths)


def rebuilt(paths: Sequence[WirePath], leaves: Sequence[Any]) -> Any:
    """The nest of replayd with these leaves."""
    return Structure.from_paths(paths).rebuild(leaves)


def step_nest(data: Any) -> tuple[Any, list[NDArray[Any]]]:
    """A single step as the nest that replayd stores, and its values as they are meant. Raises TypeError, ValueError."""
    arrays = [as_array(leaf) for leaf in flatten(data)]
    paths, leaves = [], []
    for path, array in zip(wire_paths(data), arrays, strict=True):
        is_string = array.dtype == STRING
        paths.append((*path, STRING_MARK) if is_string else path)
        leaves.append(encode_strings(array, width_for(array)) if is_string else array)
    return rebuilt(paths, leaves), arrays


def columns_of(paths: tuple[WirePath, ...], arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The columns of a trajectory as they were meant, of the arrays that came."""
    columns = []
    for numbers, is_string in _plan(paths):
        parts = [decode_strings(arrays[number]) if is_string else arrays[number] for number in numbers]
        columns.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return columns


def squeezed_of(paths: tuple[WirePath, ...], squeezed: Sequence[bool]) -> list[bool]:
    """Which of the columns that `columns_of` gives have no axis of steps, of which of the arrays have none."""
    return [squeezed[numbers[0]] for numbers, _ in _plan(paths)]


@lru_cache(maxsize=256)
def _plan(paths: tuple[WirePath, ...]) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """For each column the numbers of the arrays it is made of, and whether it has strings."""
    columns: dict[WirePath, tuple[list[int], bool]] = {}
    for number, path in enumerate(paths):
        is_string = path[-1:] == (STRING_MARK,)
        base = path[:-1] if is_string else path
        if base[-2:-1] == (JOIN_MARK,):
            base = base[:-2]
        columns.setdefault(base, ([], is_string))[0].append(number)
    return tuple((tuple(numbers), is_string) for numbers, is_string in columns.values())


def _paths(nest: Any, prefix: WirePath) -> Iterator[WirePath]:
    if not is_nested(nest):
        yield prefix
        return
    names: Sequence[str | int] = range(len(nest))
    children = nest
    if isinstance(nest, Mapping):
        keys = sorted(nest)
        children = [nest[key] for key in keys]
        names = keys if all(isinstance(key, str) for key in keys) else names
    for name, child in zip(names, children, strict=True):
        yield from _paths(child, (*prefix, name))


@lru_cache(maxsize=256)
def _checked(paths: tuple[WirePath, ...]) -> tuple[WirePath, ...]:
    try:
        Structure.from_paths(paths)
    except DataError:
        return tuple((number,) for number in range(len(paths)))
    return paths
