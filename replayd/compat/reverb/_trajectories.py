"""How a trajectory of the incumbent travels as one of replayd's, whose paths are stricter: under the same paths where
that may be. Strings are bytes there, and str to some of replayd's own programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from replayd.compat.reverb._nests import flatten, is_nested
from replayd.compat.reverb._values import as_array
from replayd_client.errors import DataError
from replayd_client.structure import Structure

WirePath = tuple[str | int, ...]


def wire_paths(nest: Any) -> tuple[WirePath, ...]:
    """The path of each leaf of a nest, as replayd takes paths, in the nest's own order.

    That of the user where it may be; positions in the place of keys that are no strings and of names of namedtuples,
    whose order is not that of the names; positions alone if it cannot be.
    """
    return _checked(tuple(_paths(nest, ())))


def rebuilt(paths: Sequence[WirePath], leaves: Sequence[Any]) -> Any:
    """The nest of replayd with these leaves."""
    return Structure.from_paths(paths).rebuild(leaves)


def step_nest(data: Any) -> tuple[Any, list[NDArray[Any]]]:
    """A single step as the nest that replayd stores, and its values. Raises TypeError, ValueError."""
    arrays = [as_array(leaf) for leaf in flatten(data)]
    return rebuilt(wire_paths(data), arrays), arrays


def columns_of(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The columns of a trajectory as the incumbent has them, of the arrays that came."""
    return [as_array(array) for array in arrays]


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
