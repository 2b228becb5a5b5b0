"""Patterns, conditions, configs and inferred signatures, and datasets of patterns: all that needs no server."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import structured_writer as structured
from replayd.compat.reverb._conditions import Predicate, as_number
from replayd.compat.reverb._patterns import Rule, rules_of
from replayd.compat.reverb.pattern_dataset import PatternDataset, pattern_dataset_with_info
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo

Condition = structured.Condition
Raw = structured.ConditionProto
Node = structured.PatternNode


def node(*, column: int = 0, **places: int) -> structured.PatternNode:
    return Node(flat_source_index=column, **places)


def config(pattern: Any = None, table: str = "table", **settings: Any) -> structured.Config:
    return structured.create_config(node(stop=-1) if pattern is None else pattern, table, **settings)


def rule(made: structured.Config) -> Rule:
    return rules_of([made])[0]


def test_a_reference_step_has_the_shape_of_the_step() -> None:
    step = structured.create_reference_step({"b": None, "a": [0, np.zeros(3)]})
    assert [leaf.flat_source_index for leaf in (step["a"][0], step["a"][1], step["b"])] == [0, 1, 2]


@pytest.mark.parametrize(
    ("pick", "expected", "places"),
    [
        (lambda x: x[-1], node(stop=-1), [-1]),
        (lambda x: x[-3], node(stop=-3), [-3]),
        (lambda x: x[-3:], node(start=-3), [-3, -2, -1]),
        (lambda x: x[-3:0], node(start=-3, stop=0), [-3, -2, -1]),
        (lambda x: x[-3:-1], node(start=-3, stop=-1), [-3, -2]),
        (lambda x: x[-5::2], node(start=-5, step=2), [-5, -3, -1]),
        (lambda x: x[:-2], node(stop=-2), [-2]),
    ],
)
def test_indexing_a_reference_step_gives_a_node(pick: Any, expected: Any, places: list[int]) -> None:
    made = structured.pattern_from_transform(None, pick)
    assert made == expected
    assert list(rule(config(made)).windows[0].places) == places


def test_what_a_node_does_not_say_reads_as_zero_and_is_told_from_a_zero() -> None:
    last, slices = structured.create_reference_step(None)[-1], structured.create_reference_step(None)[-2:0]
    assert (last.start, last.stop, last.step) == (0, -1, 0)
    assert [last.HasField(name) for name in ("start", "stop", "step")] == [False, True, False]
    assert [slices.HasField(name) for name in ("start", "stop", "step")] == [True, True, False]
    assert slices != structured.create_reference_step(None)[-2:]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (node(), "`start` and `stop` must be specified"),
        (node(stop=0), "`stop` must be < 0 when `start` isn't set but got 0"),
        (node(stop=1), "`stop` must be <= 0 but got 1"),
        (node(start=0), "`start` must be < 0 but got 0"),
        (node(start=2), "`start` must be < 0 but got 2"),
        (node(start=-1, stop=-1), r"`stop` \(-1\) must be > `start` \(-1\)"),
        (node(start=-1, stop=-2), r"`stop` \(-2\) must be > `start` \(-1\)"),
        (node(start=-1, stop=1), "`stop` must be <= 0 but got 1"),
        (node(start=-2, step=0), "`step` must be > 0 but got 0"),
        (node(start=-2, step=-1), "`step` must be > 0 but got -1"),
        (node(stop=-1, step=2), "`step` must only be set when `start` is set"),
        (node(column=-1, stop=-1), "`flat_source_index` must be >= 0 but got -1"),
    ],
)
def test_a_bad_node_is_refused_with_the_position_of_its_config(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"position 1: .*{message}"):
        rules_of([config(), config(bad)])


@pytest.mark.parametrize("bad", [{"table": ""}, {"pattern": {}}])
def test_a_config_needs_a_table_and_a_node(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="position 0: .* must not be empty"):
        rules_of([config(**bad)])


def test_there_must_be_a_config() -> None:
    with pytest.raises(ValueError):
        rules_of([])


@pytest.mark.parametrize("leaf", [structured.create_reference_step(None), 1, None])
def test_a_pattern_is_made_of_nodes(leaf: Any) -> None:
    with pytest.raises(TypeError):
        config({"a": leaf})


@pytest.mark.parametrize("index", ["a", 1.5, None, np.int64(-1), (1, 2)])
def test_a_reference_step_is_indexed_by_ints_and_slices(index: Any) -> None:
    with pytest.raises(ValueError, match="Key must be int or slice"):
        structured.create_reference_step(None)[index]


def test_the_places_of_a_slice_are_integers() -> None:
    with pytest.raises(TypeError):
        structured.create_reference_step(None)[-1.5:]


@pytest.mark.parametrize("pattern", [node(stop=-1), {"x": node(start=-2), "y": (node(column=1, stop=-1),)}])
def test_a_pattern_is_unpacked_as_it_was(pattern: Any) -> None:
    assert structured.unpack_pattern(config(pattern)) == pattern


def test_a_config_tells_what_it_is_made_of() -> None:
    made = config({"x": node(start=-2)}, conditions=[Condition.step_index() > 3])
    assert made.table == "table"
    assert made.flat == [node(start=-2)]
    assert made.conditions == [Raw(step_index=True, ge=4)]
    assert made.priority.constant_fn.value == 1.0
    assert made.HasField("pattern_structure")


def test_a_config_may_be_made_of_its_parts() -> None:
    made = structured.Config(
        flat=[node(stop=-1), node(column=1, start=-2)], table="table", priority=structured.constant_priority_fn(2.0)
    )
    assert structured.unpack_pattern(made) == made.flat
    made.conditions.append(Raw(buffer_length=True, ge=2))
    made.table = "other"
    found = rule(made)
    assert (found.structure, found.table, found.reach, found.squeezed) == ([0, 1], "other", 2, [True, False])
    assert found.predicates[0].holds(2)


def test_a_config_is_copied_and_pickled_as_it_is() -> None:
    made = config({"x": node(start=-2)}, conditions=[Condition.step_index() % 2 == 1])
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):  # noqa: S301 - our own bytes
        assert other == made
        other.conditions.clear()
        assert other != made


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
def test_a_comparison_holds_where_it_says(condition: Any, holding: set[int]) -> None:
    assert {number for number in range(7) if Predicate.of(condition).holds(number)} == holding


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        (Condition.step_index() == 3, {"step_index": True, "eq": 3}),
        (Condition.step_index() > np.int32(3), {"step_index": True, "ge": 4}),
        (Condition.steps_since_applied() <= 3, {"steps_since_applied": True, "ge": 4, "inverse": True}),
        (Condition.data(None) < 3, {"flat_source_index": 0, "ge": 3, "inverse": True}),
        (3 <= Condition.step_index(), {"step_index": True, "ge": 3}),  # noqa: SIM300 - meant
        (Condition.is_end_episode(), {"is_end_episode": True, "eq": 1}),
    ],
)
def test_a_condition_is_the_message_it_says(condition: Any, parts: dict[str, Any]) -> None:
    assert condition == Raw(**parts)


@pytest.mark.parametrize("value", [1.5, 2.0, "x", None])
def test_a_condition_compares_with_integers(value: Any) -> None:
    with pytest.raises(TypeError):
        Condition.step_index() == value  # noqa: B015
    with pytest.raises(TypeError):
        Condition.step_index() >= value  # noqa: B015


def test_a_condition_has_numbers_of_32_bits() -> None:
    with pytest.raises(ValueError, match="out of range: 2147483648"):
        Condition.step_index() == 2**31  # noqa: B015


def test_a_remainder_has_the_sign_of_the_dividend() -> None:
    one, zero = Predicate.of(Condition.data(None) % 3 == 1), Predicate.of(Condition.data(None) % 3 == 0)
    assert one.holds(4)
    assert not one.holds(-2)
    assert zero.holds(-3)


def test_a_remainder_is_only_compared_for_equality() -> None:
    with pytest.raises(ValueError):
        Condition.step_index() % 3 >= 1  # noqa: B015


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (Condition.step_index() % 0 == 0, "`mod_eq.mod` must be > 0 but got 0"),
        (Condition.step_index() % 3 == -1, "`mod_eq.eq` must be >= 0 but got -1"),
        (Raw(is_end_episode=True, eq=0), "must use `eq=1`"),
        (Raw(is_end_episode=True, eq=1, inverse=True), "must use `eq=1`"),
        (Raw(is_end_episode=True, ge=1), "must use `eq=1`"),
        (Raw(flat_source_index=-1, eq=1), "flat_source_index must be >= 0 but got -1"),
        (Raw(eq=1), "a value for `left`"),
        (Raw(step_index=True), "a value for `cmp`"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_with_its_config(condition: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"position 0: .*{message}"):
        rules_of([config(conditions=[condition])])


@pytest.mark.parametrize("condition", [Condition.step_index(), Condition.is_end_episode() == 1, 3])
def test_what_is_no_condition_is_a_type_error(condition: Any) -> None:
    with pytest.raises(TypeError):
        config(conditions=[condition])


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
    assert (step["a"] == 1).flat_source_index == 0
    assert (step["b"] == 1).flat_source_index == 1


class Ref:
    """A reference to a value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def numpy(self) -> Any:
        return self._value


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize(("weight", "priority"), [(1.0, 4.0), (0.0, 2.5), (0.5, 3.25)])
def test_td_errors_mix_the_largest_and_the_mean(weight: float, priority: float, dtype: Any) -> None:
    made = structured.td_error(weight, {"a": None, "td": None}, lambda step: step["td"])
    assert made.WhichOneof("priority_fn") == "td_error"
    assert made.td_error.flat_source_index == 1
    errors = [Ref(dtype(-4)), Ref(dtype(1))]
    shown = config({"a": node(stop=-1), "errors": node(column=1, start=-2)}, priority=made)
    assert rule(shown).priority([[Ref(9.0)], errors]) == pytest.approx(priority)
    twice = config({"a": node(column=1, start=-2), "b": node(column=1, stop=-2)}, priority=made)
    assert rule(twice).priority([errors, errors[:1]]) == 4.0, "the last column that shows them counts"
    hidden = config({"a": node(stop=-1)}, priority=made)
    assert rule(hidden).priority([[Ref(9.0)]]) == 0.0


def test_td_errors_come_from_one_leaf() -> None:
    with pytest.raises(TypeError):
        structured.td_error(1.0, {"a": None}, lambda step: step)


def test_a_constant_priority_is_a_number() -> None:
    assert rule(config(priority=structured.constant_priority_fn(2))).priority([]) == 2.0
    with pytest.raises(TypeError):
        structured.constant_priority_fn("2")  # type: ignore[arg-type]


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


def test_configs_of_a_dataset_of_patterns_go_together() -> None:
    last = pattern(lambda x: x["value"][-1])
    for others, message in (
        ([], "At least one config"),
        ([last, pattern(lambda x: [x["value"][-1]])], "same pattern_structure"),
        ([last, pattern(lambda x: x["value"][-1], table="other")], "included other, table"),
    ):
        with pytest.raises(ValueError, match=message):
            PatternDataset(steps(2), others, True, lambda step: False)


@pytest.mark.parametrize("end", [1, np.zeros(2, np.bool_), None])
def test_the_end_of_an_episode_is_one_bool(end: Any) -> None:
    dataset = PatternDataset(steps(2), [pattern(lambda x: x["value"][-1])], True, lambda step: end)
    with pytest.raises(ValueError, match="must return `bool`"):
        list(dataset)


def test_a_dataset_of_patterns_gives_samples_without_info_if_asked_to() -> None:
    dataset = pattern_dataset_with_info(steps(2), [pattern(lambda x: x["value"][-1])], True, lambda step: False)
    found = list(dataset)
    assert all(isinstance(sample, ReplaySample) for sample in found)
    assert [int(sample.data) for sample in found] == [0, 1]
    assert found[0].info == SampleInfo.zeros()


class Steps(list[Any]):
    """Steps that say what they are."""

    element_spec = {"last": reverb.TensorSpec((), np.bool_), "value": reverb.TensorSpec((2,), np.int64)}  # noqa: RUF012


def test_a_dataset_of_patterns_tells_what_its_elements_are_if_the_steps_do() -> None:
    made = PatternDataset(Steps(), [pattern(lambda x: {"v": x["value"][-3:]})], True, lambda step: False)
    assert made.element_spec == {"v": reverb.TensorSpec((3, 2), np.int64)}
    with pytest.raises(AttributeError):
        PatternDataset([], [pattern(lambda x: x["value"][-1])], True, lambda step: False).element_spec  # noqa: B018


def test_elements_are_mapped_and_batched() -> None:
    dataset = PatternDataset(steps(5), [pattern(lambda x: x["value"][-1])], True, lambda step: False)
    assert [batch.tolist() for batch in dataset.batch(2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in dataset.batch(2, drop_remainder=True)] == [[0, 1], [2, 3]]
    assert list(dataset.map(lambda value: int(value) * 2).prefetch(1).as_numpy_iterator()) == [0, 2, 4, 6, 8]
