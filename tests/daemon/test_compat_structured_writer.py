"""The structured writer against a running server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import structured_writer as structured
from tests.daemon.compat import by_priority, data, fifo, items, size

pytest_plugins = ["tests.daemon.compat_fixtures"]

Condition = structured.Condition
STEP = {"a": None, "b": {"c": None}}
TABLES = [
    fifo("table"),
    fifo("other"),
    fifo("signed", signature=reverb.TensorSpec((7,), np.int8)),
    by_priority("prioritized", reverb.selectors.MaxHeap()),
]


def config(make: Any, structure: Any = None, table: str = "table", **settings: Any) -> structured.Config:
    return structured.create_config(structured.pattern_from_transform(structure, make), table, **settings)


CONDITIONS: list[tuple[list[Any], list[int]]] = [
    ([], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ([Condition.step_index() == 3], [3]),
    ([Condition.step_index() != 3], [0, 1, 2, 4, 5, 6, 7, 8, 9]),
    ([Condition.step_index() <= 2], [0, 1, 2]),
    ([Condition.step_index() < 2], [0, 1]),
    ([Condition.step_index() >= 8], [8, 9]),
    ([Condition.step_index() > 8], [9]),
    ([Condition.step_index() % 3 == 0], [0, 3, 6, 9]),
    ([Condition.step_index() % 4 != 0], [1, 2, 3, 5, 6, 7, 9]),
    ([Condition.steps_since_applied() >= 4], [3, 7]),
    ([Condition.steps_since_applied() >= 1], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ([Condition.steps_since_applied() >= 3, Condition.step_index() >= 5], [5, 8]),
    ([Condition.is_end_episode()], [9]),
    ([Condition.data(None) >= 7], [7, 8, 9]),
    ([Condition.data(None) % 5 == 4], [4, 9]),
    ([Condition.step_index() > 2, Condition.step_index() < 5], [3, 4]),
]


@pytest.mark.parametrize(("conditions", "steps"), CONDITIONS)
def test_an_item_is_made_where_all_conditions_hold(client: reverb.Client, conditions: Any, steps: list[int]) -> None:
    writer = client.structured_writer([config(lambda x: x[-1], conditions=conditions)])
    for step in range(10):
        writer.append(step)
    writer.end_episode()
    assert data(client, "table") == [[step] for step in steps]


PATTERNS: list[tuple[Any, int, Any]] = [
    (lambda x: x[-1], 1, lambda t: t),
    (lambda x: x[-3], 3, lambda t: t - 2),
    (lambda x: x[-3:], 3, lambda t: [t - 2, t - 1, t]),
    (lambda x: x[-3:-1], 3, lambda t: [t - 2, t - 1]),
    (lambda x: x[-5::2], 5, lambda t: [t - 4, t - 2, t]),
    (lambda x: x[-5:-1:3], 5, lambda t: [t - 4, t - 1]),
    (lambda x: x[-1:], 1, lambda t: [t]),
]


@pytest.mark.parametrize(("make", "reach", "shown"), PATTERNS)
def test_a_pattern_is_relative_to_the_newest_step(client: reverb.Client, make: Any, reach: int, shown: Any) -> None:
    writer = client.structured_writer([config(make)])
    for step in range(12):
        writer.append(step)
    writer.flush()
    assert [columns[0] for columns in data(client, "table")] == [shown(step) for step in range(reach - 1, 12)]


def test_a_pattern_has_a_structure_of_its_own(client: reverb.Client) -> None:
    made = config(lambda x: {"z": x["a"][-1], "y": (x["b"]["c"][-2:], x["a"][-2])}, STEP)
    writer = client.structured_writer([made])
    for step in range(3):
        writer.append({"a": step, "b": {"c": float(step)}})
    writer.flush()
    assert data(client, "table") == [[[0.0, 1.0], 0, 1], [[1.0, 2.0], 1, 2]]


def test_configs_make_items_of_several_tables_in_order(client: reverb.Client) -> None:
    writer = client.structured_writer(
        [
            config(lambda x: x[-2:]),
            config(lambda x: x[-1], table="other"),
            config(lambda x: x[-1]),
        ]
    )
    for step in range(2):
        writer.append(step)
    writer.flush()
    assert data(client, "table") == [[0], [[0, 1]], [1]]
    assert data(client, "other") == [[0], [1]]


def test_steps_since_applied_go_on_over_the_end_of_an_episode(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1], conditions=[Condition.steps_since_applied() >= 3])])
    for episode in range(3):
        for step in range(2):
            writer.append(10 * episode + step)
        writer.end_episode()
    assert data(client, "table") == [[10], [21]]


@pytest.mark.parametrize(("clear", "windows"), [(True, [[0, 1], [2, 3]]), (False, [[0, 1], [1, 2], [2, 3]])])
def test_a_pattern_crosses_the_end_of_an_episode_if_buffers_are_kept(
    client: reverb.Client, clear: bool, windows: Any
) -> None:
    writer = client.structured_writer([config(lambda x: x[-2:])])
    for step in range(4):
        writer.append(step)
        if step == 1:
            writer.end_episode(clear_buffers=clear)
    writer.flush()
    assert data(client, "table") == [[window] for window in windows]


def test_step_indices_begin_anew_with_each_episode(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1], conditions=[Condition.step_index() == 1])])
    for episode in range(2):
        for step in range(3):
            writer.append(10 * episode + step)
        writer.end_episode()
    assert data(client, "table") == [[1], [11]]


def test_a_config_is_applied_once_a_step(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: {"a": x["a"][-1]}, STEP)])
    writer.append({"a": 1, "b": {"c": None}}, partial_step=True)
    assert writer.step_is_open
    writer.append({"a": None, "b": {"c": 2}}, partial_step=True)
    writer.append({"a": None, "b": {"c": None}})
    assert not writer.step_is_open
    writer.end_episode()
    assert data(client, "table") == [[1]]


def test_a_pattern_waits_for_the_parts_of_its_step(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: {"a": x["a"][-1], "c": x["b"]["c"][-1]}, STEP)])
    for step in range(2):
        writer.append({"a": step, "b": {"c": None}}, partial_step=True)
        writer.append({"a": None, "b": {"c": -step}})
    writer.flush()
    assert data(client, "table") == [[0, 0], [1, -1]]


def test_a_leaf_of_the_open_step_must_not_come_again(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x["a"][-1], STEP)])
    writer.append({"a": 1, "b": {"c": 1}}, partial_step=True)
    with pytest.raises(ValueError):
        writer.append({"a": 1, "b": {"c": None}})
    with pytest.raises(ValueError):
        writer.append({"a": None, "b": {"c": 1}})
    writer.end_episode()
    assert data(client, "table") == [[1]]


def test_a_window_with_a_missing_value_makes_no_item(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x["a"][-2:], STEP)])
    for step in range(5):
        writer.append({"a": None if step == 2 else step, "b": {"c": step}})
    writer.flush()
    assert data(client, "table") == [[[0, 1]], [[3, 4]]]


def test_leaves_that_no_config_shows_may_be_anything(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x["a"][-1], STEP)])
    for step, other in enumerate([object(), "text", np.zeros(3)]):
        writer.append({"a": step, "b": {"c": other}})
    writer.flush()
    assert data(client, "table") == [[0], [1], [2]]


def test_a_condition_may_look_at_a_leaf_that_is_not_shown(client: reverb.Client) -> None:
    condition = Condition.data(STEP)["b"]["c"] == 1
    writer = client.structured_writer([config(lambda x: x["a"][-1], STEP, conditions=[condition])])
    for step, flag in enumerate([True, False, np.array([1], np.uint8), 1.0, "1", None]):
        writer.append({"a": step, "b": {"c": flag}})
    writer.flush()
    assert data(client, "table") == [[0], [2]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"a": 1, "b": {"c": 2}}, r"for column 1 (path=('b', 'c')). Got int64 but expected double."),
        (
            {"a": 1, "b": {"c": np.zeros((1, 2))}},
            r"for column 1 (path=('b', 'c')). Got [1,2] which is incompatible with [].",
        ),
        ({"a": 1, "b": {"c": 1.0, "d": 2, "e": 3}}, "Flattened data has an unexpected length, got 4 but wanted 2."),
    ],
)
def test_a_step_that_does_not_fit_is_named(client: reverb.Client, step: Any, message: str) -> None:
    writer = client.structured_writer([config(lambda x: {"a": x["a"][-1], "c": x["b"]["c"][-1]}, STEP)])
    writer.append({"a": 0, "b": {"c": 0.0}})
    with pytest.raises(ValueError) as error:
        writer.append(step)
    assert message in str(error.value)
    writer.append({"a": 1, "b": {"c": 1.0}})
    writer.flush()
    assert data(client, "table") == [[0, 0.0], [1, 1.0]]


def test_what_cannot_be_stored_is_a_type_error(client: reverb.Client) -> None:
    with pytest.raises(TypeError):
        client.structured_writer([config(lambda x: x[-1])]).append(object())


def test_signatures_are_not_compared(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1], table="signed")])
    writer.append("text")
    writer.flush()
    assert items(client, "signed")[0].data[0].item() == b"text"


@pytest.mark.parametrize("priority", [0.0, 2.5, -1.0])
def test_a_priority_may_be_constant(client: reverb.Client, priority: float) -> None:
    made = config(lambda x: x[-1], table="prioritized", priority=structured.constant_priority_fn(priority))
    writer = client.structured_writer([made])
    writer.append(1)
    writer.flush()
    assert next(client.sample("prioritized", emit_timesteps=False)).info.priority == priority


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(("weight", "priority"), [(1.0, 3.0), (0.0, 2.0), (0.5, 2.5)])
def test_a_priority_may_come_from_td_errors(client: reverb.Client, dtype: Any, weight: float, priority: float) -> None:
    made = config(
        lambda x: {"td": x["a"][-2:]},
        STEP,
        "prioritized",
        priority=structured.td_error(weight, STEP, lambda step: step["a"]),
    )
    writer = client.structured_writer([made])
    for error in (1, -3):
        writer.append({"a": dtype(error), "b": {"c": 0}})
    writer.flush()
    found = next(client.sample("prioritized", emit_timesteps=False)).info.priority
    assert found == pytest.approx(priority)


def test_td_errors_that_are_not_shown_give_priority_zero(client: reverb.Client) -> None:
    priority = structured.td_error(1.0, STEP, lambda step: step["b"]["c"])
    writer = client.structured_writer([config(lambda x: x["a"][-1], STEP, "prioritized", priority=priority)])
    writer.append({"a": 1.0, "b": {"c": 5.0}})
    writer.flush()
    assert next(client.sample("prioritized", emit_timesteps=False)).info.priority == 0.0


def test_flush_takes_no_negative_number(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1])])
    with pytest.raises(ValueError):
        writer.flush(-1)


def test_flush_and_end_of_episode_time_out_where_a_queue_is_full() -> None:
    server = reverb.Server([reverb.Table.queue("queue", 1)])
    client = server.localhost_client()
    writer = client.structured_writer([config(lambda x: x[-1], table="queue")])
    for step in range(3):
        writer.append(step)
    for timeout_ms in (0, 1):
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=timeout_ms)
        with pytest.raises(reverb.DeadlineExceededError):
            writer.end_episode(timeout_ms=timeout_ms)
    assert [sample.data[0].item() for sample in client.sample("queue", 3, emit_timesteps=False)] == [0, 1, 2]
    writer.end_episode()
    server.stop()


def test_an_unknown_table_is_told_by_the_next_flush(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1], table="nowhere")])
    writer.append(1)
    with pytest.raises(RuntimeError, match="nowhere"):
        writer.flush()


def test_items_are_as_the_inferred_signature_says(client: reverb.Client) -> None:
    spec = {"a": reverb.TensorSpec((), np.int64), "b": {"c": reverb.TensorSpec((2,), np.float32)}}
    made = config(lambda x: {"x": x["a"][-3::2], "y": x["b"]["c"][-1]}, spec)
    signature = structured.infer_signature([made], spec)
    writer = client.structured_writer([made])
    for step in range(3):
        writer.append({"a": step, "b": {"c": np.zeros(2, np.float32)}})
    writer.flush()
    assert size(client, "table") == 1
    for column, leaf in zip(items(client, "table")[0].data, (signature["x"], signature["y"]), strict=True):
        assert leaf.is_compatible_with(column)


def test_what_a_writer_that_is_dropped_has_made_is_there(client: reverb.Client) -> None:
    writer = client.structured_writer([config(lambda x: x[-1])])
    for step in range(3):
        writer.append(step)
    del writer
    assert data(client, "table") == [[0], [1], [2]]


def test_a_writer_that_is_dropped_does_not_wait_for_samples() -> None:
    queue = reverb.Server([reverb.Table.queue("queue", 1)])
    client = queue.localhost_client()
    writer = client.structured_writer([config(lambda x: x[-1], table="queue")])
    for step in range(2):
        writer.append(step)
    del writer
    assert [sample.data for sample in client.sample("queue", 2, emit_timesteps=False)] == [[0], [1]]
    queue.stop()


def test_items_may_show_a_step_that_is_open(client: reverb.Client) -> None:
    first = config(lambda x: {"a": x["a"][-1]}, STEP)
    both = config(lambda x: {"a": x["a"][-1], "c": x["b"]["c"][-1]}, STEP, table="other")
    writer = client.structured_writer([first, both])
    for step in range(2):
        writer.append({"a": step, "b": {"c": None}}, partial_step=True)
        writer.flush()
        assert data(client, "table") == [[step]]
        writer.append({"a": None, "b": {"c": 10 + step}})
        writer.flush()
        assert data(client, "other") == [[step, 10 + step]]


def test_a_timeout_says_which_call_did_not_end_in_time() -> None:
    queue = reverb.Server([reverb.Table.queue("queue", 1)])
    writer = queue.localhost_client().structured_writer([config(lambda x: x[-1], table="queue")])
    for step in range(2):
        writer.append(step)
    with pytest.raises(reverb.DeadlineExceededError, match="Flush call did not complete .* 0:00:00.010000"):
        writer.flush(timeout_ms=10)
    with pytest.raises(reverb.DeadlineExceededError, match="End episode call did not complete .* 0:00:00.010000"):
        writer.end_episode(timeout_ms=10)
    queue.stop()


@pytest.mark.parametrize(
    ("conditions", "made"),
    [
        ([], [[1]]),
        ([Condition.data(STEP)["b"]["c"] >= 0], [[2]]),
        ([Condition.steps_since_applied() >= 1, Condition.data(STEP)["b"]["c"] >= 0], [[2]]),
    ],
)
def test_a_step_counts_if_it_has_what_a_pattern_shows_or_a_condition_looks_at(
    client: reverb.Client, conditions: Any, made: Any
) -> None:
    writer = client.structured_writer([config(lambda x: x["a"][-2], STEP, conditions=conditions)])
    for a, c in ((1, None), (2, None), (None, 5), (None, None)):
        writer.append({"a": a, "b": {"c": c}})
    writer.end_episode()
    assert data(client, "table") == made
