"""Nests as dm-tree has them: order, paths, rebuilding, comparing and growing."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from replayd.compat.reverb._nests import (
    assert_same_structure,
    flatten,
    flatten_with_path,
    map_structure,
    merged,
    unflatten_as,
)

Pair = namedtuple("Pair", ["z", "a"])


@pytest.mark.parametrize(
    ("nest", "paths"),
    [
        (1, [()]),
        (None, [()]),
        ({"b": 1, "a": 2}, [("a",), ("b",)]),
        ([1, [2, 3]], [(0,), (1, 0), (1, 1)]),
        ((1, {"x": 2}), [(0,), (1, "x")]),
        (Pair(1, 2), [("z",), ("a",)]),
        ({2: 0, 1: 0}, [(1,), (2,)]),
        ({"a": None}, [("a",)]),
        ({}, []),
        (MappingProxyType({"k": 1}), [("k",)]),
    ],
)
def test_leaves_are_found_in_the_order_of_sorted_keys_and_of_positions(nest: Any, paths: list[Any]) -> None:
    assert [path for path, _ in flatten_with_path(nest)] == paths


def test_an_array_and_a_string_are_leaves() -> None:
    assert len(flatten([np.zeros(3), "abc", b"abc"])) == 3


def test_keys_that_cannot_be_sorted_are_refused() -> None:
    with pytest.raises(TypeError, match="sortable"):
        flatten({1: 0, "a": 0})


@pytest.mark.parametrize(
    "nest",
    [
        {"b": 1, "a": [2, (3, 4)]},
        Pair(1, {"x": 2}),
        OrderedDict([("b", 1), ("a", 2)]),
        [],
        7,
    ],
)
def test_a_nest_is_rebuilt_with_its_own_containers(nest: Any) -> None:
    again = unflatten_as(nest, flatten(nest))
    assert again == nest
    assert type(again) is type(nest)


def test_keys_stay_in_the_order_of_their_mapping() -> None:
    assert list(unflatten_as({"z": 0, "a": 0}, ["of a", "of z"]).items()) == [("z", "of z"), ("a", "of a")]


def test_a_defaultdict_keeps_its_factory() -> None:
    assert map_structure(lambda x: x + 1, defaultdict(list, a=1)).default_factory is list


def test_the_order_of_keys_of_an_ordered_dict_is_kept_while_leaves_go_by_sorted_keys() -> None:
    again = unflatten_as(OrderedDict([("b", 0), ("a", 0)]), ["first", "second"])
    assert list(again.items()) == [("b", "second"), ("a", "first")]


@pytest.mark.parametrize("leaves", [[1], [1, 2, 3]])
def test_a_wrong_number_of_leaves_is_refused(leaves: list[int]) -> None:
    with pytest.raises(ValueError, match="2 leaves"):
        unflatten_as({"a": 0, "b": 0}, leaves)


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        ({"a": 1}, {"b": 1}, ValueError),
        ([1], [1, 2], ValueError),
        ({"a": 1}, 1, ValueError),
        ({"a": 1}, [1], TypeError),
        ([1], (1,), TypeError),
    ],
)
def test_structures_that_differ_are_told_apart(first: Any, second: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        assert_same_structure(first, second)


def test_a_list_and_a_tuple_are_alike_when_types_do_not_count() -> None:
    assert_same_structure([1, (2,)], (1, [2]), check_types=False)


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
        ([1], [1, 2], [1, 2]),
        ([1], (1, 2), [1, 2]),
        ((1, 2), [1], (1, 2)),
        ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": 1}, {"a": None}, {"a": 1}),
        ((1, {"x": 1}), (1, {"y": 2}), (1, {"x": 1, "y": 2})),
    ],
)
def test_a_structure_grows_by_what_is_new(first: Any, second: Any, both: Any) -> None:
    assert merged(first, second) == both


@pytest.mark.parametrize(
    ("first", "second"), [({"a": 1}, [1]), (1, {"a": 1}), ((1, 2), Pair(1, 2)), ({"a": 1}, {"a": [1]})]
)
def test_a_structure_does_not_change_its_kind(first: Any, second: Any) -> None:
    with pytest.raises(ValueError, match="may grow but not change"):
        merged(first, second)
