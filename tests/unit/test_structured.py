"""Patterns and conditions without a server: what matches is what a naive reading of the configs finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import DataError, PriorityError
from replayd_client.pattern_matcher import PatternMatcher
from replayd_client.specs import TensorSpec
from replayd_client.structured import (
    Condition,
    Config,
    PatternNode,
    constant_priority_fn,
    create_config,
    create_reference_step,
    infer_signature,
    pattern_from_transform,
    td_error,
    unpack_pattern,
)

STEP = {"a": None, "b": {"c": None, "d": [None, None]}}
REF = create_reference_step(STEP)
ONE = create_reference_step(None)


class Steps:
    """Appends to a matcher and remembers what matched."""

    def __init__(self, *configs: Config) -> None:
        self.log = ChunkLog(max(config.reach for config in configs), None)
        self.matcher = PatternMatcher(configs, self.log)
        self.matches: list[Any] = []

    def append(self, data: Any, partial_step: bool = False) -> list[Any]:
        return self._seen(self.matcher.append(data, partial_step))

    def end_episode(self, clear: bool = True) -> list[Any]:
        seen = self._seen(self.matcher.finish_episode())
        self.log.end_episode(clear)
        self.matcher.begin_episode()
        return seen

    def _seen(self, matches: list[Any]) -> list[Any]:
        found = [match.trajectory() for match in matches]
        self.matches += found
        return found


# Patterns.


def test_indexing_a_reference_step_counts_from_the_newest_step() -> None:
    assert REF["a"][-1] == PatternNode(("a",), -1, 0, squeeze=True)
    assert REF["b"]["d"][1][-3:] == PatternNode(("b", "d", 1), -3, 0)
    assert REF["a"][-4:-1:2] == PatternNode(("a",), -4, -1, 2)
    assert list(REF["a"][-5::2].offsets) == [-5, -3, -1]


@pytest.mark.parametrize(
    "index",
    [
        *(0, 3, slice(None), slice(None, -2), slice(-2, -2), slice(-2, -3)),
        *(slice(-3, 1), slice(0, None), slice(-3, None, 0), slice(-3, None, -1)),
    ],
)
def test_a_pattern_outside_the_steps_that_were_appended_is_refused(index: Any) -> None:
    with pytest.raises(DataError):
        REF["a"][index]


@pytest.mark.parametrize("index", ["x", 1.0, [1, 2], None])
def test_a_pattern_is_indexed_by_integers_and_slices(index: Any) -> None:
    with pytest.raises(TypeError):
        REF["a"][index]


def test_a_pattern_survives_its_config() -> None:
    pattern = pattern_from_transform(STEP, lambda step: {"x": step["a"][-1], "y": (step["b"]["c"][-2:],)})
    assert unpack_pattern(create_config(pattern, "t")) == pattern


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"pattern": {}}, DataError),
        ({"pattern": {"x": 3}}, TypeError),
        ({"pattern": {"x": REF["a"]}}, TypeError),
        ({"table": ""}, DataError),
        ({"conditions": [Condition.step_index()]}, TypeError),
        ({"conditions": [True]}, TypeError),
        ({"priority": td_error(0.9, STEP, lambda step: step["b"]["c"])}, DataError),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        create_config(**{"pattern": {"x": REF["a"][-1]}, "table": "t", **change})


def test_priorities_that_make_no_sense_are_refused() -> None:
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(PriorityError):
            constant_priority_fn(value)
    with pytest.raises(DataError):
        td_error(1.5, STEP, lambda step: step["a"])
    with pytest.raises(TypeError):
        td_error(0.5, STEP, lambda step: step)


# Conditions.


@pytest.mark.parametrize(
    ("condition", "steps", "expected"),
    [
        (Condition.step_index() <= 2, 10, [0, 1, 2]),
        (Condition.step_index() < 2, 10, [0, 1]),
        (Condition.step_index() >= 7, 10, [7, 8, 9]),
        (Condition.step_index() > 7, 10, [8, 9]),
        (Condition.step_index() == 3, 10, [3]),
        (Condition.step_index() != 3, 5, [0, 1, 2, 4]),
        (Condition.step_index() % 3 == 0, 10, [0, 3, 6, 9]),
        (Condition.step_index() % 3 != 0, 6, [1, 2, 4, 5]),
        (Condition.steps_since_applied() >= 4, 10, [3, 7]),
        (Condition.steps_since_applied() >= 3, 10, [2, 5, 8]),
        (Condition.is_end_episode(), 5, [4]),
    ],
)
def test_a_condition_decides_at_which_steps_a_pattern_is_applied(
    condition: Condition, steps: int, expected: list[int]
) -> None:
    run = Steps(create_config(ONE[-1], "t", [condition]))
    for number in range(steps):
        run.append(number)
    run.end_episode()
    assert [int(match) for match in run.matches] == expected


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        (lambda b: b > 10, [11, 10, 11, 9, 12], [0, 2, 4]),
        (lambda b: b == 1, [True, False, np.True_, np.array([True]), 0], [0, 2, 3]),
        (lambda b: b != 4, [4, None, 5, np.int8(4), np.array(6)], [2, 4]),
        (lambda b: b % 2 == 1, [-3, -2, 3], [0, 2]),
        (lambda b: b < 10, [1.5, np.zeros(2, int), "text", 2], [3]),
    ],
)
def test_a_condition_may_ask_for_a_value_that_is_not_stored(
    condition: Any, values: list[Any], expected: list[int]
) -> None:
    wanted = condition(Condition.data({"a": None, "b": None})["b"])
    run = Steps(create_config({"x": create_reference_step({"a": None, "b": None})["a"][-1]}, "t", [wanted]))
    for number, value in enumerate(values):
        run.append({"a": number, "b": value})
    assert [int(match["x"]) for match in run.matches] == expected
    assert list(run.log.column_of) == [("a",)]


def test_conditions_that_say_nothing_are_refused() -> None:
    index = Condition.step_index()
    for nonsense in (lambda: index % 0, lambda: index % 2 % 2, lambda: (index % 2) >= 1, lambda: index % 2 == -1):
        with pytest.raises(DataError):
            nonsense()
    for nonsense in (lambda: index == 1.5, lambda: index % "a"):
        with pytest.raises(TypeError):
            nonsense()


def test_steps_since_applied_goes_on_over_episodes() -> None:
    run = Steps(create_config(ONE[-1], "t", [Condition.steps_since_applied() >= 3]))
    for number in range(8):
        run.append(number)
        if number % 2:
            run.end_episode()
    assert [int(match) for match in run.matches] == [2, 5]


# What matches.


NODES = st.builds(
    lambda column, start, length, step, squeeze: (
        PatternNode((column,), start, start + 1, squeeze=True)
        if squeeze
        else PatternNode((column,), start, min(start + length, 0), step)
    ),
    st.sampled_from(["a", "b"]),
    st.integers(-5, -1),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.booleans(), st.booleans()),
        st.tuples(st.just("parts"), st.booleans(), st.booleans()),
        st.tuples(st.sampled_from(["end", "keep", "cut"]), st.just(False), st.just(False)),
    ),
    max_size=40,
)


@given(st.lists(NODES, min_size=1, max_size=3), st.integers(1, 4), ACTIONS)
def test_what_matches_is_what_a_list_of_all_steps_shows(nodes: list[PatternNode], every: int, actions: Any) -> None:
    config = create_config(
        {str(number): node for number, node in enumerate(nodes)}, "t", [Condition.steps_since_applied() >= every]
    )
    run = Steps(config)
    seen: list[dict[str, int | None]] = []
    episode_start = since = number = 0
    expected: list[Any] = []
    for kind, has_a, has_b in actions:
        if kind == "cut":
            run.log.cut()
        elif kind in ("end", "keep"):
            run.end_episode(clear=kind == "end")
            if kind == "end":
                seen, episode_start = [], 0
        else:
            step = {"a": number if has_a else None, "b": -number if has_b else None}
            number += 1
            seen.append(dict.fromkeys("ab"))
            since += 1
            is_applied = False
            parts = [step] if kind == "step" else [{"a": step["a"], "b": None}, {"a": None, "b": step["b"]}]
            for place, part in enumerate(parts):
                run.append(part, partial_step=place < len(parts) - 1)
                seen[-1].update({key: value for key, value in part.items() if value is not None})
                used = {node.path[0] for node in nodes}
                cells = _naive(seen[episode_start:], nodes)
                has_value = any(seen[-1][str(key)] is not None for key in used)
                if not is_applied and since >= every and has_value and cells is not None:
                    is_applied, since = True, 0
                    expected.append(cells)
    assert len(run.matches) == len(expected)
    for match, cells in zip(run.matches, expected, strict=True):
        for key, cell in cells.items():
            np.testing.assert_array_equal(match[key], cell)


def _naive(steps: list[dict[str, int | None]], nodes: list[PatternNode]) -> dict[str, Any] | None:
    shown: dict[str, Any] = {}
    for number, node in enumerate(nodes):
        places = [len(steps) + offset for offset in node.offsets]
        if places[0] < 0:
            return None
        cells = [steps[place][str(node.path[0])] for place in places]
        if None in cells:
            return None
        shown[str(number)] = cells[0] if node.squeeze else cells
    return shown if len(steps) >= max(node.reach for node in nodes) else None


def test_configs_match_in_their_order_and_once_a_step() -> None:
    first, second = create_config(ONE[-1], "first"), create_config(ONE[-2:], "second")
    matcher = PatternMatcher([second, first], ChunkLog(2, None))
    tables = [[match.config.table for match in matcher.append(number, False)] for number in range(3)]
    assert tables == [["first"], ["second", "first"], ["second", "first"]]
    assert matcher.finish_episode() == []


def test_the_end_of_an_episode_without_steps_matches_nothing() -> None:
    run = Steps(create_config(ONE[-1], "t", [Condition.is_end_episode()]))
    assert run.end_episode() == []
    run.append(1)
    assert len(run.end_episode()) == 1
    assert run.end_episode(clear=False) == []


def test_a_td_error_priority_mixes_the_largest_with_the_mean() -> None:
    priority = td_error(0.75, STEP, lambda step: step["b"]["c"])
    config = create_config({"x": REF["a"][-1], "td": REF["b"]["c"][-2:]}, "t", priority=priority)
    matcher = PatternMatcher([config], ChunkLog(2, None))
    matcher.append({"a": 0, "b": {"c": np.float32(-4), "d": [0, 0]}}, False)
    (match,) = matcher.append({"a": 0, "b": {"c": np.float32(2), "d": [0, 0]}}, False)
    assert match.priority == 0.75 * 4 + 0.25 * 3


def test_a_step_lacking_what_a_config_needs_is_refused_and_changes_nothing() -> None:
    run = Steps(create_config({"x": REF["b"]["c"][-1]}, "t"))
    with pytest.raises(DataError, match="b/c"):
        run.append({"a": 1})
    run.append({"a": 1, "b": {"c": 2, "d": [3, 4]}})
    with pytest.raises(DataError) as refused:
        run.append({"a": 1, "b": {"c": 2}})
    assert (refused.value.detail["got"], refused.value.detail["expected"]) == (2, 4)
    with pytest.raises(DataError, match="expected int64"):
        run.append({"a": 1, "b": {"c": 2.5, "d": [3, 4]}})
    run.append({"a": 1, "b": {"c": 5, "d": [3, 4]}})
    assert [int(match["x"]) for match in run.matches] == [2, 5]


# Signatures.


def test_a_signature_is_inferred_from_patterns_and_the_spec_of_a_step() -> None:
    configs = [
        create_config({"x": REF["a"][-6::4], "y": {"z": REF["b"]["c"][-1]}}, "t"),
        create_config({"x": REF["a"][-3:], "y": {"z": REF["b"]["c"][-2]}}, "t"),
    ]
    spec = {"a": TensorSpec((3,), np.float32), "b": {"c": np.zeros((2, 2), np.int8)}}
    assert infer_signature(configs[:1], spec)["x"].shape == (2, 3)
    assert infer_signature(configs, spec) == {
        "x": TensorSpec((None, 3), np.dtype(np.float32), "x"),
        "y": {"z": TensorSpec((2, 2), np.dtype(np.int8), "y/z")},
    }


@given(st.integers(1, 30), st.integers(1, 7))
def test_an_inferred_axis_is_as_long_as_what_matches(reach: int, step: int) -> None:
    config = create_config(ONE[-reach::step], "t")
    run = Steps(config)
    for number in range(reach):
        run.append(number)
    assert infer_signature([config], np.zeros((), np.int64)).shape == run.matches[0].shape


@pytest.mark.parametrize(
    ("configs", "fact"),
    [
        ([], ""),
        ([create_config({"x": REF["a"][-1]}, "t"), create_config({"x": REF["a"][-1]}, "u")], "tables"),
        ([create_config({"x": REF["a"][-1]}, "t"), create_config({"y": REF["a"][-1]}, "t")], "structures"),
        ([create_config({"x": REF["a"][-1]}, "t"), create_config({"x": REF["b"]["c"][-1]}, "t")], "dtypes"),
        ([create_config({"x": REF["a"][-1]}, "t"), create_config({"x": REF["a"][-1:]}, "t")], "shapes"),
        ([create_config({"x": REF["a"][-1:]}, "t"), create_config({"x": REF["b"]["d"][0][-1:]}, "t")], "shapes"),
    ],
)
def test_configs_of_one_table_must_fit_each_other(configs: list[Config], fact: str) -> None:
    spec = {"a": np.zeros(3), "b": {"c": np.zeros(3, np.int32), "d": [np.zeros(4), np.zeros(4)]}}
    with pytest.raises(DataError) as refused:
        infer_signature(configs, spec)
    assert set(refused.value.detail) >= ({fact} if fact else set())
