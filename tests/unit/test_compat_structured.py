"""Patterns, conditions, configs and inferred signatures, and datasets of patterns: all that needs no server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import structured_writer as structured
from replayd.compat.reverb._conditions import ConditionMessage, as_number
from replayd.compat.reverb._patterns import checked_configs
from replayd.compat.reverb.pattern_dataset import PatternDataset, pattern_dataset_with_info
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo

Condition = structured.Condition
Node = structured.PatternNode


def config(pattern: Any = None, table: str = "table", **settings: Any) -> structured.Config:
    return structured.create_config(Node(0, stop=-1) if pattern is None else pattern, table, **settings)


def test_a_reference_step_has_the_shape_of_the_step() -> None:
    step = structured.create_reference_step({"b": None, "a": [0, np.zeros(3)]})
    assert [leaf.flat_source_index for leaf in (step["a"][0], step["a"][1], step["b"])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("pick", "node", "places"),
    [
        (lambda x: x[-1], Node(0, stop=-1), [-1]),
        (lambda x: x[-3], Node(0, stop=-3), [-3]),
        (lambda x: x[-3:], Node(0, -3), [-3, -2, -1]),
        (lambda x: x[-3:-1], Node(0, -3, -1), [-3, -2]),
        (lambda x: x[-5::2], Node(0, -5, None, 2), [-5, -3, -1]),
        (lambda x: x[:-2], Node(0, stop=-2), [-2]),
    ],
)
def test_indexing_a_reference_step_gives_a_node(pick: Any, node: Node, places: list[int]) -> None:
    made = structured.pattern_from_transform(None, pick)
    assert made == node
    assert list(made.places) == places


@pytest.mark.parametrize(
    "node",
    [
        Node(0), Node(0, stop=0), Node(0, stop=1), Node(0, start=0), Node(0, start=2), Node(0, start=-1, stop=-1),
        Node(0, start=-1, stop=-2), Node(0, start=-1, stop=1), Node(0, start=-2, step=0), Node(0, start=-2, step=-1),
        Node(0, stop=-1, step=2), Node(-1, stop=-1),
    ],
)  # fmt: skip
def test_a_bad_node_is_refused_with_the_position_of_its_config(node: Node) -> None:
    with pytest.raises(ValueError, match=r"\[1\]"):
        checked_configs([config(), config(node)])


@pytest.mark.parametrize("bad", [{"table": ""}, {"pattern": {}}])
def test_a_config_needs_a_table_and_a_node(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[0\]"):
        checked_configs([config(**bad)])


def test_there_must_be_a_config() -> None:
    with pytest.raises(ValueError):
        checked_configs([])


def test_a_pattern_is_made_of_nodes() -> None:
    with pytest.raises(TypeError):
        config({"a": structured.create_reference_step(None)})


@pytest.mark.parametrize("index", ["a", 1.5, None])
def test_a_reference_step_is_indexed_by_ints_and_slices(index: Any) -> None:
    with pytest.raises(TypeError):
        structured.create_reference_step(None)[index]


@pytest.mark.parametrize("pattern", [Node(0, stop=-1), {"x": Node(0, -2), "y": (Node(1, stop=-1),)}])
def test_a_pattern_is_unpacked_as_it_was(pattern: Any) -> None:
    assert structured.unpack_pattern(config(pattern)) == pattern


def test_a_config_tells_what_it_is_made_of() -> None:
    made = config({"x": Node(0, -2)}, conditions=[Condition.step_index() > 3])
    assert made.table == "table"
    assert made.flat == [Node(0, -2)]
    assert len(made.conditions) == 1
    assert made.priority.constant == 1.0


@pytest.mark.parametrize(
    ("condition", "holding"),
    [
        (Condition.step_index() == 3, {3}),
        (Condition.step_index() != 3, {0, 1, 2, 4, 5, 6}),
        (Condition.step_index() >= 3, {3, 4, 5, 6}),
        (Condition.step_index() > 3, {4, 5, 6}),
        (Condition.step_index() <= 3, {0, 1, 2, 3}),
        (Condition.step_index() < 3, {0, 1, 2}),
        (Condition.step_index() % 3 == 1, {1, 4}),
        (Condition.step_index() % 3 != 1, {0, 2, 3, 5, 6}),
    ],
)
def test_a_comparison_holds_where_it_says(condition: ConditionMessage, holding: set[int]) -> None:
    assert {number for number in range(7) if condition.holds(number)} == holding


def test_a_remainder_has_the_sign_of_the_dividend() -> None:
    assert (Condition.data(None) % 3 == 1).holds(4)
    assert not (Condition.data(None) % 3 == 1).holds(-2)
    assert (Condition.data(None) % 3 == 0).holds(-3)


def test_a_remainder_is_only_compared_for_equality() -> None:
    with pytest.raises(ValueError):
        Condition.step_index() % 3 >= 1  # noqa: B015


@pytest.mark.parametrize(
    "condition",
    [
        Condition.step_index() % 0 == 0,
        Condition.step_index() % 3 == -1,
        ConditionMessage("is_end_episode", value=0),
        ConditionMessage("is_end_episode", value=1, inverse=True),
        ConditionMessage("is_end_episode", comparison="ge", value=1),
        ConditionMessage("flat_source_index", column=-1),
        Condition.step_index(),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_with_its_config(condition: Any) -> None:
    with pytest.raises(ValueError, match=r"\[0\]"):
        checked_configs([config(conditions=[condition])])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3), (True, 1), (np.array([7], np.int8), 7), (np.array([[2]]), 2), (np.bool_(False), 0),
        (2**32 + 5, 5), (1.0, None), (np.array([1, 2]), None), ("a", None), (None, None),
    ],
)  # fmt: skip
def test_data_is_a_number_if_it_is_one_integer(value: Any, number: int | None) -> None:
    assert as_number(value) == number


def test_data_conditions_are_found_in_the_shape_of_the_step() -> None:
    step = Condition.data({"b": None, "a": None})
    assert (step["a"] == 1).column == 0
    assert (step["b"] == 1).column == 1


@pytest.mark.parametrize(("weight", "priority"), [(1.0, 4.0), (0.0, 2.5), (0.5, 3.25)])
def test_td_errors_mix_the_largest_and_the_mean(weight: float, priority: float) -> None:
    made = structured.td_error(weight, {"a": None, "td": None}, lambda step: step["td"])
    assert made.column == 1
    assert made.of_errors(np.array([-4.0, 1.0], np.float32)) == pytest.approx(priority)


def test_td_errors_come_from_one_leaf() -> None:
    with pytest.raises(TypeError):
        structured.td_error(1.0, {"a": None}, lambda step: step)


STEP = {"a": reverb.TensorSpec((3,), np.float32), "b": reverb.TensorSpec((), np.int64)}


def inferred(*patterns: Any, tables: tuple[str, ...] = ("table", "table")) -> Any:
    step = structured.create_reference_step(STEP)
    configs = [config(make(step), table) for make, table in zip(patterns, tables, strict=False)]
    return structured.infer_signature(configs, STEP)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: x["a"][-1], (3,)),
        (lambda x: x["a"][-2:], (2, 3)),
        (lambda x: x["a"][-3:-1], (2, 3)),
        (lambda x: x["a"][-5::2], (3, 3)),
        (lambda x: x["a"][-4::2], (2, 3)),
        (lambda x: x["a"][-5::3], (2, 3)),
        (lambda x: x["b"][-1:], (1,)),
    ],
)
def test_the_signature_follows_from_the_pattern(make: Any, shape: tuple[int, ...]) -> None:
    assert inferred(make).shape == shape


def test_the_signature_has_the_shape_of_the_pattern_and_names_of_paths() -> None:
    signature = inferred(lambda x: {"x": {"y": x["a"][-1]}, "z": x["b"][-2:]})
    assert signature["x"]["y"] == STEP["a"]
    assert signature["x"]["y"].name == "x/y"
    assert signature["z"].dtype == np.int64


def test_lengths_that_differ_become_unknown() -> None:
    assert inferred(lambda x: x["a"][-2:], lambda x: x["a"][-3:]).shape == (None, 3)
    assert inferred(lambda x: x["b"][-2:], lambda x: x["b"][-3:]).shape == (None,)


@pytest.mark.parametrize(
    ("patterns", "tables", "message"),
    [
        ((), (), "At least one config must be provided."),
        ((lambda x: [x["a"][-1]], lambda x: {"x": x["a"][-1]}), ("t", "t"), "exactly the same pattern_structure"),
        (
            (lambda x: x["a"][-1],) * 2,
            ("one", "two"),
            "must target the same table but provided configs included one, two",
        ),
        ((lambda x: {"x": x["a"][-1]}, lambda x: {"x": x["b"][-1]}), ("t", "t"), r"multiple dtypes at \('x',\)"),
        ((lambda x: {"x": x["a"][-1]}, lambda x: {"x": x["a"][-1:]}), ("t", "t"), r"incompatible shapes at \('x',\)"),
    ],
)
def test_configs_that_do_not_go_together_are_refused(patterns: Any, tables: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inferred(*patterns, tables=tables)


def test_other_trailing_sizes_are_refused() -> None:
    spec = {"a": reverb.TensorSpec((2,), np.int64), "b": reverb.TensorSpec((3,), np.int64)}
    step = structured.create_reference_step(spec)
    with pytest.raises(ValueError, match="incompatible shapes"):
        structured.infer_signature([config(step["a"][-1:]), config(step["b"][-1:])], spec)


def steps(count: int, ends: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    return [{"value": value, "last": value in ends} for value in range(count)]


def pattern(make: Any, **settings: Any) -> structured.Config:
    step = {"last": None, "value": None}
    return config(structured.pattern_from_transform(step, make), **settings)


@pytest.mark.parametrize(
    ("respects", "windows"),
    [(True, [[0, 1], [1, 2], [3, 4], [4, 5]]), (False, [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]])],
)
def test_a_dataset_of_patterns_respects_episodes_if_asked_to(respects: bool, windows: Any) -> None:
    dataset = PatternDataset(
        steps(6, ends=(2,)), [pattern(lambda x: x["value"][-2:])], respects, lambda step: np.bool_(step["last"])
    )
    assert [window.tolist() for window in dataset] == windows
    assert [window.tolist() for window in dataset.take(1)] == windows[:1]


def test_a_dataset_of_patterns_applies_configs_in_order_and_at_the_end() -> None:
    configs = [
        pattern(lambda x: {"v": x["value"][-1]}, conditions=[Condition.step_index() == 1]),
        pattern(lambda x: {"v": x["value"][-1]}, conditions=[Condition.is_end_episode()]),
    ]
    dataset = PatternDataset(steps(4, ends=(3,)), configs, True, lambda step: step["last"])
    assert [int(item["v"]) for item in dataset] == [1, 3]


@pytest.mark.parametrize("end", [1, np.zeros(2, np.bool_), None])
def test_the_end_of_an_episode_is_one_bool(end: Any) -> None:
    dataset = PatternDataset(steps(2), [pattern(lambda x: x["value"][-1])], True, lambda step: end)
    with pytest.raises(ValueError):
        list(dataset)


def test_a_dataset_of_patterns_over_samples_gives_samples_without_info() -> None:
    info = SampleInfo(1, 1.0, 1, 1.0, 1)
    samples = [ReplaySample(info, step) for step in steps(2)]
    dataset = pattern_dataset_with_info(samples, [pattern(lambda x: x["value"][-1])], True, lambda step: False)
    found = list(dataset)
    assert [int(sample.data) for sample in found] == [0, 1]
    assert found[0].info == SampleInfo.zeros()


def test_elements_are_mapped_and_batched() -> None:
    dataset = PatternDataset(steps(5), [pattern(lambda x: x["value"][-1])], True, lambda step: False)
    assert [batch.tolist() for batch in dataset.batch(2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in dataset.batch(2, drop_remainder=True)] == [[0, 1], [2, 3]]
    assert list(dataset.map(lambda value: int(value) * 2).prefetch(1).as_numpy_iterator()) == [0, 2, 4, 6, 8]
