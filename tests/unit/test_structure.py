"""Nested steps to named leaves and back: every mix of containers, and every way a step can have another shape."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client.errors import DataError
from replayd_client.structure import (
    MAX_COLUMNS,
    MAX_COMPONENT_BYTES,
    MAX_DEPTH,
    Structure,
    check_paths,
    flatten,
    path_text,
)


class Pair(NamedTuple):
    left: Any
    right: Any


STEP = {
    "reward": 1.0,
    "observation": {"pixels": np.zeros((2, 2)), "joints": (np.zeros(3), 0.5)},
    "pair": Pair(1, [2, 3]),
}


def names() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


def nests(leaf: st.SearchStrategy[Any], *, min_size: int = 1, max_leaves: int = 12) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda children: st.one_of(
            st.dictionaries(names() | st.just("a"), children, min_size=min_size, max_size=4),
            st.lists(children, min_size=min_size, max_size=4),
            st.lists(children, min_size=min_size, max_size=4).map(tuple),
            st.builds(Pair, children, children),
        ),
        max_leaves=max_leaves,
    )


LEAF = st.one_of(
    st.integers(), st.none(), st.booleans(), st.builds(lambda n: np.full(2, n), st.integers(0, 9)), st.text()
)


def same(a: Any, b: Any) -> bool:
    """Equal, container types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b


@given(nests(LEAF, min_size=0))
def test_leaves_are_those_of_flatten_and_rebuild_gives_the_nest_back(nest: Any) -> None:
    structure = Structure(nest)
    pairs = flatten(nest)
    leaves = structure.leaves(nest)
    assert structure.paths == tuple(path for path, _ in pairs)
    assert all(leaf is expected for leaf, (_, expected) in zip(leaves, pairs, strict=True))
    assert same(structure.rebuild(leaves), nest)


@given(nests(LEAF), st.randoms(use_true_random=False))
def test_a_structure_of_paths_makes_dicts_and_lists_in_any_order_of_columns(nest: Any, random: Any) -> None:
    pairs = flatten(nest)
    random.shuffle(pairs)
    structure = Structure.from_paths([path for path, _ in pairs])
    leaves = [leaf for _, leaf in pairs]
    rebuilt = structure.rebuild(leaves)
    found = dict(flatten(rebuilt))
    assert found.keys() == dict(pairs).keys()
    assert all(found[path] is leaf for path, leaf in pairs)
    again = structure.leaves(rebuilt)
    assert all(leaf is expected for leaf, expected in zip(again, leaves, strict=True))
    assert "tuple" not in kinds_of(rebuilt)


def kinds_of(nest: Any) -> set[str]:
    if isinstance(nest, dict):
        return {"dict"}.union(*map(kinds_of, nest.values()))
    if isinstance(nest, (list, tuple)):
        return {type(nest).__name__}.union(*map(kinds_of, nest))
    return set()


@given(nests(st.integers(), max_leaves=3), nests(st.integers(), max_leaves=3))
def test_a_nest_is_taken_apart_only_if_its_paths_are_the_same(example: Any, nest: Any) -> None:
    structure = Structure(example)
    pairs = flatten(nest)
    if structure.paths == tuple(path for path, _ in pairs):
        assert structure.leaves(nest) == [leaf for _, leaf in pairs]
    else:
        with pytest.raises(DataError):
            structure.leaves(nest)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("reward",), {}, "reward: expected a leaf, got a dict with keys (none)"),
        (("reward",), [1.0], "reward: expected a leaf, got a list of length 1"),
        (("observation",), None, "observation: expected a dict with keys joints, pixels, got None"),
        (("observation",), 3, "observation: expected a dict with keys joints, pixels, got a int"),
        (("observation",), {"pixels": 1, "jonts": 2}, "got a dict with keys pixels, jonts"),
        (
            ("observation", "joints"),
            (1,),
            "observation/joints: expected a list or tuple of length 2, got a tuple of length 1",
        ),
        (
            ("observation", "joints"),
            np.zeros(2),
            "observation/joints: expected a list or tuple of length 2, got a ndarray",
        ),
        (("pair",), {"left": 1, "right": 2}, "pair: expected a list or tuple of length 2"),
    ],
)
def test_a_mismatch_names_path_expectation_and_what_came(path: tuple[str, ...], value: Any, message: str) -> None:
    structure = Structure(STEP)
    structure.leaves(STEP)
    step = {**STEP, path[0]: value} if len(path) == 1 else {**STEP, path[0]: {**STEP[path[0]], path[1]: value}}  # type: ignore[dict-item]
    with pytest.raises(DataError) as caught:
        structure.leaves(step)
    assert message in str(caught.value)
    structure.leaves(STEP)


def test_a_list_may_stand_for_a_tuple_and_any_kind_of_dict_for_a_dict() -> None:
    structure = Structure(STEP)
    step = OrderedDict(STEP, pair=[7, (8, 9)])
    assert structure.leaves(step)[-4:] == [7, 8, 9, 1.0]


def test_a_dict_that_invents_values_is_not_asked_for_a_missing_key() -> None:
    structure = Structure({"a": 1, "b": 2})
    nest = defaultdict(int, a=1, c=2)
    with pytest.raises(DataError, match="expected a dict with keys a, b"):
        structure.leaves(nest)
    assert set(nest) == {"a", "c"}


def test_a_leaf_that_becomes_a_container_is_found_after_many_good_steps() -> None:
    structure = Structure([1, 2.0])
    for step in ([1, 2.0], [True, np.float32(2)], [None, "x"]):
        assert structure.leaves(step) == step
    with pytest.raises(DataError, match=r"^1: expected a leaf"):
        structure.leaves([1, Pair(1, 2)])


def test_an_empty_container_is_kept_by_an_example_and_has_no_leaves() -> None:
    structure = Structure({"a": 1, "extras": (), "info": {}})
    assert structure.paths == (("a",),)
    assert structure.rebuild([5]) == {"a": 5, "extras": (), "info": {}}
    with pytest.raises(DataError, match="extras"):
        structure.leaves({"a": 1, "extras": (1,), "info": {}})


def test_a_bare_leaf_is_the_step_itself() -> None:
    structure = Structure(7)
    assert structure.paths == ((),)
    assert structure.leaves(8) == [8]
    assert structure.rebuild([9]) == 9
    assert Structure.from_paths([()]).rebuild([9]) == 9
    assert path_text(()) == "<step>"
    assert path_text(("obs", "pos", 0)) == "obs/pos/0"


def test_rebuild_wants_every_leaf() -> None:
    with pytest.raises(DataError, match="2 leaves, got 1"):
        Structure([1, 2]).rebuild([1])


def nested(depth: int) -> Any:
    nest: Any = 1
    for _ in range(depth):
        nest = [nest]
    return nest


def test_the_limits_of_a_nest_are_exact() -> None:
    assert flatten(nested(MAX_DEPTH)) == [((0,) * MAX_DEPTH, 1)]
    assert len(flatten([0] * MAX_COLUMNS)) == MAX_COLUMNS
    assert flatten({"é" * (MAX_COMPONENT_BYTES // 2): 1})
    endless: list[Any] = []
    endless.append(endless)
    for bad in (nested(MAX_DEPTH + 1), [0] * (MAX_COLUMNS + 1), {"é" * (MAX_COMPONENT_BYTES // 2) + "x": 1}, endless):
        with pytest.raises(DataError):
            flatten(bad)
        with pytest.raises(DataError):
            Structure(bad)


@pytest.mark.parametrize("key", ["", "a\nb", "\x00", "\x7f", "\x85", "\ud800", 1, None, b"a", ("a",)])
def test_a_key_that_is_no_name_is_refused(key: Any) -> None:
    with pytest.raises(DataError):
        flatten({"outer": {key: 1}})


@pytest.mark.parametrize(
    "paths",
    [
        [("a",), ("a",)],
        [("a",), ("a", "b")],
        [("a", "b"), ("a",)],
        [(), ("a",)],
        [("a", 0), ("a", "b")],
        [("a", -1)],
        [("a", True)],
        [("a", 1.0)],
        [("",)],
        [("a", "\n")],
        [(0,) * (MAX_DEPTH + 1)],
        [(str(n),) for n in range(MAX_COLUMNS + 1)],
    ],
)
def test_paths_that_are_not_of_one_nest_are_refused(paths: list[Any]) -> None:
    with pytest.raises(DataError):
        check_paths(paths)


@pytest.mark.parametrize("paths", [[], [("a", 1)], [("a", 0), ("a", 2)], [(0,), (1, 1)]])
def test_positions_with_gaps_cannot_be_rebuilt(paths: list[Any]) -> None:
    check_paths(paths)
    with pytest.raises(DataError):
        Structure.from_paths(paths)


def test_equal_paths_share_one_structure() -> None:
    assert Structure.from_paths([("a",), ("b", 0)]) is Structure.from_paths([["a"], ["b", 0]])
