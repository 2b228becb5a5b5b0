"""A pattern dataset shows what a naive reading of its configs finds in the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client import PatternDataset
from replayd_client.errors import DataError
from replayd_client.structured import Condition, create_config, create_reference_step

STEP = create_reference_step({"a": None, "end": None})


def steps_of(lengths: list[int]) -> list[dict[str, Any]]:
    number = iter(range(10_000))
    return [{"a": next(number), "end": place == n - 1} for n in lengths for place in range(n)]


@given(st.lists(st.integers(1, 6), max_size=6), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_every_window_is_shown_and_none_over_an_end_that_counts(
    lengths: list[int], cells: int, stride: int, respect: bool
) -> None:
    steps = steps_of(lengths)
    reach = (cells - 1) * stride + 1
    config = create_config({"w": STEP["a"][-reach::stride]}, "any")
    dataset = PatternDataset(steps, [config], respect, lambda step: step["end"])
    starts = np.cumsum([0, *lengths])
    expected = []
    for newest in range(len(steps)):
        first = newest - reach + 1
        start = int(starts[np.searchsorted(starts, newest, side="right") - 1]) if respect else 0
        if first >= start:
            expected.append(list(range(first, newest + 1, stride)))
    for _ in range(2):
        assert [found["w"].tolist() for found in dataset] == expected, "an iteration begins anew"


def test_configs_apply_in_order_and_at_the_end_of_an_episode() -> None:
    always = create_config({"last": STEP["a"][-1]}, "any")
    at_end = create_config({"two": STEP["a"][-2:]}, "any", [Condition.is_end_episode()])
    found = list(PatternDataset(steps_of([3, 2]), [always, at_end], True, lambda step: np.array([step["end"]])))
    assert [{name: array.tolist() for name, array in nest.items()} for nest in found] == [
        {"last": 0},
        {"last": 1},
        {"last": 2},
        {"two": [1, 2]},
        {"last": 3},
        {"last": 4},
        {"two": [3, 4]},
    ]


def test_patterns_show_bytes_and_str() -> None:
    steps = [{"a": f"step {number}", "b": bytes(number), "end": False} for number in range(3)]
    reference = create_reference_step(steps[0])
    config = create_config({"a": reference["a"][-2:], "b": reference["b"][-1]}, "any")
    found = list(PatternDataset(steps, [config], True, lambda step: step["end"]))
    assert [nest["a"].tolist() for nest in found] == [["step 0", "step 1"], ["step 1", "step 2"]]
    assert [nest["b"].item() for nest in found] == [bytes(1), bytes(2)]


def test_trajectories_hold_their_own_data() -> None:
    step = {"a": np.zeros(3), "end": False}
    config = create_config({"w": STEP["a"][-2:]}, "any")

    def steps() -> Any:
        for number in range(5):
            step["a"][:] = number
            yield step

    found = [nest["w"][:, 0].tolist() for nest in PatternDataset(steps(), [config], True, lambda step: step["end"])]
    assert found == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_what_makes_no_sense_is_refused() -> None:
    config = create_config({"w": STEP["a"][-2:]}, "any")
    with pytest.raises(DataError, match="at least one config"):
        PatternDataset([], [], True, bool)
    for answer in (1, np.array([True, False]), None):
        with pytest.raises(DataError, match="must return one bool"):
            list(PatternDataset(steps_of([2]), [config], True, lambda step, answer=answer: answer))
    with pytest.raises(DataError, match="needs the column a"):
        list(PatternDataset([{"b": 1, "end": False}], [config], True, lambda step: step["end"]))
