"""What a caller may hand in as new priorities, brought into arrays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from replayd_client import errors, updates

LARGEST = (1 << 64) - 1


@pytest.mark.parametrize("key_of", [int, np.uint64])
@pytest.mark.parametrize("value_of", [float, np.float64, np.float32, np.float16, lambda value: int(value)])
def test_a_dict_means_what_its_arrays_would(key_of: Any, value_of: Any) -> None:
    draw = random.Random(1)
    for count in (0, 1, 2, 300):
        keys = [*draw.sample(range(1 << 40), count), LARGEST, 0]
        values = [value_of(draw.random() * 8) for _ in keys]
        got_keys, got_values = updates._updates("t", dict(zip(map(key_of, keys), values, strict=True)))
        assert (got_keys.dtype, got_values.dtype) == (np.uint64, np.float64)
        assert (got_keys.tolist(), got_values.tolist()) == (keys, [float(value) for value in values])


@pytest.mark.parametrize("key", [-1, 1 << 64, 2.0, "1", None])
def test_a_key_in_a_dict_must_be_one(key: Any) -> None:
    with pytest.raises(errors.DataError, match="keys must be unsigned integers"):
        updates._updates("t", {1: 1.0, key: 1.0})
    with pytest.raises(errors.DataError, match="keys must be unsigned integers"):
        updates.keys_of([1, key])


@pytest.mark.parametrize("kind", [list, tuple, lambda keys: [np.uint64(key) for key in keys], np.array])
def test_keys_of_the_highest_shard_are_keys_beside_others(kind: Any) -> None:
    keys = [LARGEST - 1, LARGEST] if kind is np.array else [1, LARGEST, 1 << 63]
    assert updates.keys_of(kind(keys)).tolist() == keys


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e91, -1, 10**400, -(10**400)])
def test_a_priority_in_a_dict_must_be_in_range(value: Any) -> None:
    with pytest.raises(errors.PriorityError):
        updates._updates("t", {1: 1.0, 2: value})


@pytest.mark.parametrize("value", ["1", None, [1.0], 1j])
def test_a_priority_in_a_dict_must_be_a_number(value: Any) -> None:
    with pytest.raises(errors.DataError):
        updates._updates("t", {1: 1.0, 2: value})
