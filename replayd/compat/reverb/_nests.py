"""Nests as the incumbent's users have them: what dm-tree calls a structure, without dm-tree.

Dicts and other mappings (keys sorted), lists, tuples and namedtuples; everything else is a leaf, None too. A path has
the key, the position or the field's name of each level. Knows nothing of arrays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]

_IS_NESTED: dict[type, bool] = {}
"""By type, since asking whether something is a Mapping is slow, and every leaf of every step is asked."""


def is_nested(nest: Any) -> bool:
    kind = type(nest)
    known = _IS_NESTED.get(kind)
    if known is None:
        known = _IS_NESTED[kind] = issubclass(kind, (Mapping, list, tuple))
    return known


def flatten_with_path(nest: Any) -> list[tuple[Path, Any]]:
    """Path and value of each leaf, in order."""
    found: list[tuple[Path, Any]] = []
    _collect(found, (), nest)
    return found


def flatten(nest: Any) -> list[Any]:
    """The leaves, in the order of their paths."""
    return [leaf for _, leaf in flatten_with_path(nest)]


def map_structure(function: Callable[..., Any], nest: Any, *others: Any) -> Any:
    """The nest with `function(leaf, …)` in the place of each leaf; the others must have as many."""
    leaves = [flatten(each) for each in (nest, *others)]
    return unflatten_as(nest, [function(*row) for row in zip(*leaves, strict=True)])


def map_structure_with_path(function: Callable[[Path, Any], Any], nest: Any) -> Any:
    """A nest of the same shape: what the function makes of each leaf and its path."""
    return unflatten_as(nest, [function(path, leaf) for path, leaf in flatten_with_path(nest)])


def unflatten_as(structure: Any, leaves: Iterable[Any]) -> Any:
    """The leaves in the shape of `structure`. Raises ValueError if there are more or fewer than it has."""
    found = list(leaves)
    wanted = len(flatten(structure))
    if len(found) != wanted:
        raise ValueError(f"a structure of {wanted} leaves cannot be filled with {len(found)}")
    return _filled(structure, iter(found))


def assert_same_structure(first: Any, second: Any, check_types: bool = True) -> None:
    """Raises ValueError where the nests differ in keys or lengths, TypeError (if asked) where they differ in types."""
    _compare((), first, second, check_types)


def merged(first: Any, second: Any) -> Any:
    """The nest of all leaves of both: of two values at one place the first. None gives way to anything.

    A tuple may go on as a list and the other way round. Raises ValueError for a place that is a leaf here and a nest
    there, or has two other kinds of containers.
    """
    if second is None:
        return first
    if first is None:
        return second
    if not is_nested(first) and not is_nested(second):
        return first
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        keys = dict.fromkeys((*first, *second))
        pairs = {key: merged(first.get(key), second.get(key)) for key in keys}
        return pairs if type(first) is dict or len(pairs) > len(first) else _like(first, pairs)
    if (_is_sequence(first) and _is_sequence(second)) or (_is_namedtuple(first) and type(first) is type(second)):
        short = min(len(first), len(second))
        items = [merged(a, b) for a, b in zip(first[:short], second[:short], strict=True)]
        items += [*first[short:], *second[short:]]
        return _sequence_like(first, items)
    raise ValueError(
        f"the structure of the data may grow but not change: {_kind(first)} was at a place where {_kind(second)} is now"
    )


def _collect(found: list[tuple[Path, Any]], path: Path, nest: Any) -> None:
    if not is_nested(nest):
        found.append((path, nest))
        return
    for name, child in _children(nest):
        if is_nested(child):
            _collect(found, (*path, name), child)
        else:
            found.append(((*path, name), child))


def _children(nest: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return zip(nest._fields, nest, strict=True)
    if isinstance(nest, (list, tuple)):
        return enumerate(nest)
    try:
        names = sorted(nest)
    except TypeError as error:
        raise TypeError(f"the keys of a nest must be sortable, {sorted(map(repr, nest))} are not") from error
    return [(name, nest[name]) for name in names]


def _filled(structure: Any, leaves: Iterator[Any]) -> Any:
    if not is_nested(structure):
        return next(leaves)
    children = [
        (name, _filled(child, leaves) if is_nested(child) else next(leaves)) for name, child in _children(structure)
    ]
    if isinstance(structure, Mapping):
        return _like(structure, dict(children))
    return _sequence_like(structure, [child for _, child in children])


def _like(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    # In the order of the mapping.
    ordered = ((key, values[key]) for key in mapping)
    if isinstance(mapping, defaultdict):
        return defaultdict(mapping.default_factory, ordered)
    return type(mapping)(ordered)  # type: ignore[call-arg]


def _sequence_like(sequence: Any, items: list[Any]) -> Any:
    if _is_namedtuple(sequence):
        return type(sequence)(*items)
    return type(sequence)(items)


def _is_sequence(nest: Any) -> bool:
    return isinstance(nest, (list, tuple)) and not _is_namedtuple(nest)


def _is_namedtuple(nest: Any) -> bool:
    return isinstance(nest, tuple) and hasattr(nest, "_fields")


def _compare(path: Path, first: Any, second: Any, check_types: bool) -> None:
    if is_nested(first) != is_nested(second):
        raise ValueError(f"the structures differ at {path}: {_kind(first)} and {_kind(second)}")
    if not is_nested(first):
        return
    if isinstance(first, Mapping) != isinstance(second, Mapping):
        raise TypeError(f"the structures differ at {path}: {_kind(first)} and {_kind(second)}")
    if check_types and type(first) is not type(second):
        raise TypeError(f"the structures differ at {path}: {_kind(first)} and {_kind(second)}")
    mine, theirs = dict(_children(first)), dict(_children(second))
    if list(mine) != list(theirs) and not (len(mine) == len(theirs) and not isinstance(first, Mapping)):
        raise ValueError(f"the structures differ at {path}: it has {list(mine)} and {list(theirs)}")
    for (name, one), other in zip(mine.items(), theirs.values(), strict=True):
        _compare((*path, name), one, other, check_types)


def _kind(nest: Any) -> str:
    return f"a {type(nest).__name__}" if is_nested(nest) else "a leaf"
