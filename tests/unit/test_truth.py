"""What `if`, `or`, `and` and `not` make of public objects: settings are true, and conditions have no truth yet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import extensions, rate_limiters, selectors
from replayd.compat import reverb
from replayd.compat.reverb import reverb_types
from replayd_client import structured
from replayd_client.structured import Condition

LIMITERS = [
    lambda kind: kind.MinSize(1),
    lambda kind: kind.Queue(1),
    lambda kind: kind.Stack(1),
    lambda kind: kind.SampleToInsertRatio(1.0, 1, 2.0),
]
SELECTORS = [
    lambda kind: kind.Fifo(),
    lambda kind: kind.Lifo(),
    lambda kind: kind.MaxHeap(),
    lambda kind: kind.MinHeap(),
    lambda kind: kind.Prioritized(0.0),
    lambda kind: kind.Uniform(),
]


def native_table() -> replayd.Table:
    return replayd.Table("t", selectors.Uniform(), selectors.Fifo(), 1, rate_limiters.MinSize(1))


SETTINGS: list[Any] = [
    *(make(kind) for make in SELECTORS for kind in (selectors, reverb.selectors)),
    *(make(kind) for make in LIMITERS for kind in (rate_limiters, reverb.rate_limiters)),
    native_table(),
    reverb.Table.queue("t", 1),
    extensions.PriorityDiffusion(0.5, 1),
    replayd.TensorSpec((), np.int8),
    reverb.TensorSpec((), np.int8),
    structured.constant_priority_fn(0.0),
    structured.create_reference_step(None),
    reverb.checkpointers.DefaultCheckpointer("/nowhere"),
    reverb_types.TensorSpec((0,), np.int8),
]


@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda setting: f"{type(setting).__module__}.{type(setting).__name__}"
)
def test_a_setting_is_true_however_little_it_holds(setting: Any) -> None:
    other = object()
    assert (setting or other) is setting
    assert bool(setting)


def test_a_selector_that_is_a_default_for_none_given_stays_the_one_given() -> None:
    def agent(sampler: Any = None) -> replayd.Table:
        return replayd.Table("t", sampler or selectors.Uniform(), selectors.Fifo(), 1, rate_limiters.MinSize(1))

    assert agent(selectors.Prioritized(0.6)).sampler == selectors.Prioritized(0.6)
    assert agent().sampler == selectors.Uniform()


STEP = Condition.step_index()
END = Condition.is_end_episode()
DATA = Condition.data({"done": None})["done"]


@pytest.mark.parametrize(
    "join",
    [
        lambda: 2 < STEP < 5,
        lambda: 2 == STEP % 3 != 1,
        lambda: 0 == DATA != 3,
        lambda: STEP > 2 and END,
        lambda: STEP > 2 or END,
        lambda: not END,
        lambda: not STEP,
        lambda: STEP and END,
        lambda: END if STEP == 3 else None,
        lambda: all([STEP > 2, END]),
        lambda: any([END, STEP > 2]),
        lambda: [each for each in (END,) if each],
    ],
)
def test_conditions_are_joined_by_nothing_that_would_leave_one_out(join: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="list of conditions"):
        join()


def test_a_list_of_conditions_is_what_they_are_joined_by() -> None:
    step = structured.create_reference_step({"done": None})
    config = structured.create_config(step["done"][-1], "t", [STEP > 2, STEP < 5, DATA == 1])
    holding = [
        value for value in range(8) if all(each.holds(value) for each in config.conditions if each.quantity is STEP)
    ]
    assert holding == [3, 4]


def test_conditions_of_the_compatible_package_are_true_as_messages_of_the_incumbent_are() -> None:
    quantity = reverb.structured.Condition.step_index()
    conditions = [quantity > 2, quantity == 0, reverb.structured.Condition.is_end_episode()]
    assert all(bool(each) for each in (*conditions, quantity, type(conditions[0])()))
    for one, other in itertools.pairwise(conditions):
        assert (one and other) is other
        assert (one or other) is one
