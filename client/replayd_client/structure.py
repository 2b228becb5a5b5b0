"""Nested structures and the flat, named leaves they are made of.

A *nest* is a dict with string keys (taken in sorted order), a list, a tuple or a named tuple (by position), nested to
any mix; whatever else is a *leaf*. A leaf's *path* is the tuple of keys and positions that leads to it, `()` for a step
that is a bare leaf. An empty container has no leaves: a `Structure` made from an example keeps it, one made from paths
cannot.

This module knows nothing of dtypes, schemas or bytes: it moves references to leaves and never looks into one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from operator import itemgetter
from typing import Any

from replayd_client.errors import DataError

Path = tuple[str | int, ...]

MAX_COMPONENT_BYTES = 128
"""Longest key, in UTF-8: the protocol's limit of a name. Enough for any identifier, and short enough to be printed."""

MAX_DEPTH = 16
"""Most components of a path. Real observations nest three or four deep; a list that contains itself stops here."""

MAX_COLUMNS = 512
"""Most leaves: each costs a blob record in every chunk and a call of the codec."""


def path_text(path: Path) -> str:
    """A path for people: `obs/pos/0`, and `<step>` for the path of a bare leaf."""
    return "/".join(map(str, path)) if path else "<step>"


def flatten(nest: Any) -> list[tuple[Path, Any]]:
    """The leaves of a nest with their paths, dict keys in sorted order. `None` is a leaf like any other.

    Raises DataError for a key that is no valid component, and beyond MAX_DEPTH or MAX_COLUMNS.
    """
    pairs: list[tuple[Path, Any]] = []
    _flatten_into(pairs, (), nest)
    return pairs


class Structure:
    """The shape of a nest, compiled: takes nests of this shape apart, and puts them together again, quickly.

    `Structure(example)` keeps the example's container types (a subclass of dict becomes dict), `Structure.from_paths`
    makes dicts and lists. `paths` are those of the leaves, in the order in which `leaves` gives and `rebuild` takes
    them.
    """

    __slots__ = ("_flat", "_leaf_types", "_make", "_pick", "_root", "_visits", "paths")

    paths: tuple[Path, ...]
    _leaf_types: list[type]

    def __init__(self, example: Any) -> None:
        paths = tuple(path for path, _ in flatten(example))
        self._compile(paths, _node_of_example(example, count()))

    @classmethod
    def from_paths(cls, paths: Iterable[Iterable[str | int]]) -> Structure:
        """The structure of dicts (string components) and lists (integer components) with these leaves, in this order.

        Raises DataError if the paths are not those of one nest. Equal paths give the same object (bounded cache).
        """
        return _structure_of_paths(tuple(tuple(path) for path in paths))

    def leaves(self, nest: Any) -> list[Any]:
        """The leaves of `nest` in the order of `paths`; the leaves themselves, not copies.

        Raises DataError that names the path, what was expected there and what was found, if the nest is not of this
        shape. A list and a tuple of the same length are the same shape.
        """
        leaves = self.parts(nest)
        types = [*map(type, leaves)]
        if types != self._leaf_types:
            if has_containers(leaves):
                raise self._fault(nest)
            self._leaf_types = types
        return leaves

    def parts(self, nest: Any) -> list[Any]:
        """As `leaves`, but what stands where a leaf should may be a container: for callers who take no such leaf."""
        flat = self._flat
        if flat is not None and type(nest) is flat[0] and len(nest) == flat[1]:  # type: ignore[arg-type]
            try:
                return [*flat[2](nest)]
            except KeyError:
                raise self._fault(nest) from None
        nodes = [nest]
        for place, usual, fits, length, get in self._visits:
            container = nodes[place]
            if (type(container) is not usual and not fits(container)) or len(container) != length:
                raise self._fault(nest)
            try:
                nodes += get(container)
            except KeyError:
                raise self._fault(nest) from None
        return self._pick(nodes)

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The nest with these leaves, given in the order of `paths`."""
        if len(leaves) != len(self.paths):
            raise DataError(f"the structure has {len(self.paths)} leaves, got {len(leaves)}")
        return self._make(leaves)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"<Structure {', '.join(map(path_text, self.paths))}>"

    def _compile(self, paths: tuple[Path, ...], root: _Node) -> None:
        self.paths = paths
        self._root = root
        self._visits, self._pick = _compile_visits(root, len(paths))
        self._make = _compile_make(root)
        # Most steps and trajectories are one dict or tuple of leaves, for which the nodes need not be listed.
        self._flat: tuple[type, int, Callable[[Any], Iterable[Any]]] | None = None
        if isinstance(root, _Container) and root.children == tuple(range(len(paths))):
            _, usual, _, length, get = self._visits[0]
            self._flat = usual, length, get
        # The types of the last leaves: comparing them costs less than asking each leaf whether it is a container.
        self._leaf_types = []

    def _fault(self, nest: Any) -> DataError:
        fault = _first_fault(self._root, (), nest)
        assert fault is not None, "the fast flattener refused a nest in which the slow one finds no fault"
        return fault


def has_containers(leaves: Iterable[Any]) -> bool:
    """Whether one of these is no leaf."""
    return any(isinstance(leaf, _CONTAINERS) for leaf in leaves)


def check_paths(paths: Sequence[Path]) -> None:
    """Raises DataError unless all these can be leaves of one nest: valid components, no duplicates, no leaf inside
    another, no container with both keys and positions, at most MAX_COLUMNS paths of at most MAX_DEPTH components."""
    if len(paths) > MAX_COLUMNS:
        raise DataError(f"{len(paths)} columns are more than the limit of {MAX_COLUMNS}")
    leaves: set[Path] = set()
    kinds: dict[Path, type] = {}
    for path in paths:
        if len(path) > MAX_DEPTH:
            raise DataError(f"path {path_text(path[:MAX_DEPTH])}/… is deeper than the limit of {MAX_DEPTH}")
        for depth, component in enumerate(path):
            parent = path[:depth]
            _check_component(parent, component)
            kind = str if isinstance(component, str) else int
            if kinds.setdefault(parent, kind) is not kind:
                raise DataError(f"{path_text(parent)} has both keys and positions below it")
        if path in leaves:
            raise DataError(f"column {path_text(path)} occurs twice")
        leaves.add(path)
    for path in leaves & kinds.keys():
        raise DataError(f"{path_text(path)} is both a column and a container of columns")


# The compiled form. A leaf is its number in `paths`; a container is what follows.

_CONTAINERS = (dict, list, tuple)


@dataclass(frozen=True, slots=True)
class _Container:
    make: Callable[[Iterable[Any]], Any]
    """Makes the container by position; of no use for a dict."""
    keys: tuple[str, ...] | None
    """Sorted keys of a dict, None for the others."""
    children: tuple[_Node, ...]

    def fault(self, path: Path, nest: Any) -> DataError | None:
        if self.keys is not None:
            if isinstance(nest, dict) and nest.keys() == set(self.keys):
                return None
            return _mismatch(path, f"a dict with keys {', '.join(self.keys) or '(none)'}", nest)
        if isinstance(nest, (list, tuple)) and len(nest) == len(self.children):
            return None
        return _mismatch(path, f"a list or tuple of length {len(self.children)}", nest)

    def components(self) -> Iterable[str | int]:
        return range(len(self.children)) if self.keys is None else self.keys

    def children_of(self, nest: Any) -> Iterable[Any]:
        return nest if self.keys is None else [nest[key] for key in self.keys]


_Node = _Container | int
_Visit = tuple[int, type, Callable[[Any], bool], int, Callable[[Any], Iterable[Any]]]


def _node_of_example(nest: Any, numbers: Iterator[int]) -> _Node:
    if isinstance(nest, dict):
        keys = tuple(sorted(nest))
        return _Container(dict, keys, tuple(_node_of_example(nest[key], numbers) for key in keys))
    if isinstance(nest, (list, tuple)):
        make = list if isinstance(nest, list) else getattr(type(nest), "_make", tuple)
        return _Container(make, None, tuple(_node_of_example(child, numbers) for child in nest))
    return next(numbers)


@lru_cache(maxsize=256)
def _structure_of_paths(paths: tuple[Path, ...]) -> Structure:
    check_paths(paths)
    if not paths:
        raise DataError("a structure needs at least one path")
    structure = Structure.__new__(Structure)
    structure._compile(paths, _node_of_paths((), list(enumerate(paths))))
    return structure


def _node_of_paths(prefix: Path, leaves: list[tuple[int, Path]]) -> _Node:
    depth = len(prefix)
    if len(leaves[0][1]) == depth:
        return leaves[0][0]
    below: dict[Any, list[tuple[int, Path]]] = {}
    for number, path in leaves:
        below.setdefault(path[depth], []).append((number, path))
    names = sorted(below)
    children = tuple(_node_of_paths((*prefix, name), below[name]) for name in names)
    if isinstance(names[0], str):
        return _Container(dict, tuple(names), children)
    if names != list(range(len(names))):
        raise DataError(f"positions below {path_text(prefix)} are {names}, not 0 to {len(names) - 1}")
    return _Container(list, None, children)


def _compile_visits(root: _Node, leaf_count: int) -> tuple[tuple[_Visit, ...], Callable[[list[Any]], list[Any]]]:
    """The containers to visit, breadth first, and how to pick the leaves from the list of all nodes met so far.

    The list begins with the nest itself; each visit takes a container at a place in it and puts its children behind.
    """
    nodes = [root]
    visits: list[_Visit] = []
    for place, node in enumerate(nodes):
        if isinstance(node, _Container):
            usual, fits = (tuple, _is_sequence) if node.keys is None else (dict, _is_dict_with(node.keys))
            visits.append((place, usual, fits, len(node.children), _getter(node.keys)))
            nodes.extend(node.children)
    places = {node: place for place, node in enumerate(nodes) if isinstance(node, int)}
    order = [places[number] for number in range(leaf_count)]
    if not order:
        return tuple(visits), lambda nodes: []
    first = order[0]
    if order == list(range(first, first + leaf_count)):
        return tuple(visits), itemgetter(slice(first, first + leaf_count))
    pick = itemgetter(*order)  # at least two: a single place is a range
    return tuple(visits), lambda nodes: [*pick(nodes)]


def _getter(keys: tuple[str, ...] | None) -> Callable[[Any], Iterable[Any]]:
    if keys is None:
        return iter
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda nest: [nest[key] for key in keys]


def _is_sequence(nest: Any) -> bool:
    return isinstance(nest, (list, tuple))


def _is_dict_with(keys: tuple[str, ...]) -> Callable[[Any], bool]:
    # A subclass of dict may invent a value for a missing key, so its keys are compared before any is looked up.
    wanted = frozenset(keys)
    return lambda nest: isinstance(nest, dict) and nest.keys() == wanted


def _compile_make(node: _Node) -> Callable[[Sequence[Any]], Any]:
    if isinstance(node, int):
        return itemgetter(node)
    makers = tuple(map(_compile_make, node.children))
    if node.keys is not None:
        keys = node.keys
        if node.children == tuple(range(len(keys))):
            # The first leaves, and those of a flat dict are no more: twice as fast as one by one.
            return lambda leaves: dict(zip(keys, leaves))  # noqa: B905 - hot, and the callers count
        keyed = tuple(zip(node.keys, makers, strict=True))
        return lambda leaves: {key: make(leaves) for key, make in keyed}
    container = node.make
    return lambda leaves: container([make(leaves) for make in makers])


def _flatten_into(pairs: list[tuple[Path, Any]], path: Path, nest: Any) -> None:
    if not isinstance(nest, _CONTAINERS):
        if len(pairs) == MAX_COLUMNS:
            raise DataError(f"more leaves than the limit of {MAX_COLUMNS} columns")
        pairs.append((path, nest))
        return
    if len(path) == MAX_DEPTH:
        raise DataError(f"{path_text(path)} is a container at the limit of {MAX_DEPTH} levels")
    children: Iterable[tuple[str | int, Any]]
    if isinstance(nest, dict):
        for key in nest:
            if not isinstance(key, str):
                raise DataError(f"key {key!r} below {path_text(path)} is {_kind(key)}, not a string")
            _check_component(path, key)
        children = [(key, nest[key]) for key in sorted(nest)]
    else:
        children = enumerate(nest)
    for component, child in children:
        _flatten_into(pairs, (*path, component), child)


def _check_component(parent: Path, component: Any) -> None:
    if isinstance(component, str):
        try:
            size = len(component.encode())
        except UnicodeEncodeError:
            raise DataError(f"key {component!r} below {path_text(parent)} is not valid Unicode") from None
        if not 1 <= size <= MAX_COMPONENT_BYTES:
            raise DataError(
                f"a key of {size} bytes below {path_text(parent)}: the limits are 1 and {MAX_COMPONENT_BYTES}"
            )
        if _CONTROL.search(component):
            raise DataError(f"key {component!r} below {path_text(parent)} has a control character")
    elif type(component) is not int or component < 0:
        raise DataError(f"component {component!r} below {path_text(parent)} is neither a string nor a position")


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def _first_fault(node: _Node, path: Path, nest: Any) -> DataError | None:
    if isinstance(node, int):
        return _mismatch(path, "a leaf", nest) if isinstance(nest, _CONTAINERS) else None
    fault = node.fault(path, nest)
    if fault is not None:
        return fault
    for component, child, value in zip(node.components(), node.children, node.children_of(nest), strict=True):
        fault = _first_fault(child, (*path, component), value)
        if fault is not None:
            return fault
    return None


def _mismatch(path: Path, wanted: str, nest: Any) -> DataError:
    return DataError(f"{path_text(path)}: expected {wanted}, got {_kind(nest)}")


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict with keys {', '.join(map(str, value)) or '(none)'}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
