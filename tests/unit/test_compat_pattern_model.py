"""What a structured writer makes of random steps is what the definitions say, read off a list of all steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replayd.compat.reverb import structured_writer as structured
from replayd.compat.reverb._pattern_writer import PatternMatcher
from replayd.compat.reverb._patterns import rules_of

LEAVES = 3
STEP = [None] * LEAVES
REFERENCE = structured.create_reference_step(STEP)
NEWEST = structured.Condition.data(STEP)


class Cells:
    """Values are their own references."""

    def Append(self, data: Sequence[Any]) -> Sequence[Any]:  # noqa: N802
        return data

    AppendPartial = Append


@st.composite
def nodes(draw: st.DrawFn) -> tuple[int, Any]:
    leaf = draw(st.integers(0, LEAVES - 1))
    first = draw(st.integers(-4, -1))
    index: int | slice = first
    if draw(st.booleans()):
        index = slice(first, draw(st.sampled_from([None, *range(first + 1, 1)])), draw(st.sampled_from([None, 1, 2])))
    return leaf, index


@st.composite
def conditions(draw: st.DrawFn) -> tuple[str, int, str, int, int]:
    left = draw(st.sampled_from(["index", "since", "end", "data"]))
    how = "==" if left == "end" else draw(st.sampled_from(["==", "!=", ">=", "<", "%"]))
    value = 1 if left == "end" else draw(st.integers(0, 4))
    return left, draw(st.integers(0, LEAVES - 1)), how, value, draw(st.integers(1, 3))


CONFIGS = st.lists(st.tuples(st.lists(nodes(), min_size=1, max_size=2), st.lists(conditions(), max_size=2)), min_size=1)
VALUES = st.lists(st.sampled_from([None, 0, 1, 2, 3, 4]), min_size=LEAVES, max_size=LEAVES)
# Each episode: its steps, each with the number of leaves that come in a first part (0: all at once), and whether the
# buffers are cleared behind it.
EPISODES = st.lists(
    st.tuples(st.lists(st.tuples(VALUES, st.integers(0, LEAVES - 1)), max_size=6), st.booleans()), max_size=3
)


def compare(number: int | None, how: str, value: int, modulus: int) -> bool:
    if number is None:
        return False
    return {
        "==": number == value,
        "!=": number != value,
        ">=": number >= value,
        "<": number < value,
        "%": number % modulus == value,
    }[how]


def built(condition: tuple[str, int, str, int, int]) -> Any:
    left, leaf, how, value, modulus = condition
    about = {
        "index": structured.Condition.step_index(),
        "since": structured.Condition.steps_since_applied(),
        "data": NEWEST[leaf],
    }
    if left == "end":
        return structured.Condition.is_end_episode()
    subject = about[left]
    if how == "%":
        return subject % modulus == value
    return {"==": subject == value, "!=": subject != value, ">=": subject >= value, "<": subject < value}[how]


class Definition:
    """Everything anew from a list of all steps that are in the buffers."""

    def __init__(self, configs: Any) -> None:
        self.configs = configs
        self.kept: list[list[int | None]] = []
        self.index = -1
        self.since = [0] * len(configs)
        self.counted = [-1] * len(configs)
        self.applied = [-1] * len(configs)
        self.made: list[tuple[int, list[Any]]] = []

    def look(self, is_end: bool) -> None:
        used = {leaf for shown, tests in self.configs for leaf, _ in shown}
        used |= {leaf for _, tests in self.configs for left, leaf, *_ in tests if left == "data"}
        if self.index < 0 or all(self.kept[-1][leaf] is None for leaf in used):
            return
        for number, (shown, tests) in enumerate(self.configs):
            if self.applied[number] == self.index:
                continue
            if self.counted[number] != self.index:
                self.counted[number] = self.index
                self.since[number] += 1
            subjects = {"index": self.index, "since": self.since[number], "end": int(is_end)}
            if not all(
                compare(self.kept[-1][leaf] if left == "data" else subjects[left], how, value, modulus)
                for left, leaf, how, value, modulus in tests
            ):
                continue
            columns = []
            for leaf, index in shown:
                history = [step[leaf] for step in self.kept]
                reach = -(index if isinstance(index, int) else index.start)
                if len(history) < reach:
                    break
                if isinstance(index, slice) and index.stop == 0:
                    index = slice(index.start, None, index.step)
                column = history[index] if isinstance(index, slice) else [history[index]]
                if None in column:
                    break
                columns.append(column)
            else:
                self.made.append((number, columns))
                self.applied[number] = self.index
                self.since[number] = 0

    def end(self, clear: bool) -> None:
        self.look(is_end=True)
        self.index = -1
        self.counted = [-1] * len(self.configs)
        self.applied = [-1] * len(self.configs)
        if clear:
            self.kept.clear()


@settings(max_examples=100, deadline=None)
@given(CONFIGS, EPISODES)
def test_items_are_what_the_definitions_make_of_all_steps(configs: Any, episodes: Any) -> None:
    rules = rules_of(
        [
            structured.create_config(
                [REFERENCE[leaf][index] for leaf, index in shown], "table", [built(each) for each in tests]
            )
            for shown, tests in configs
        ]
    )
    made: list[tuple[int, list[Any]]] = []
    matcher = PatternMatcher(
        Cells(), rules, lambda rule, columns: made.append((number_of(rules, rule), [*map(list, columns)]))
    )
    definition = Definition(configs)
    for steps, clear in episodes:
        for values, split in steps:
            definition.kept.append([value if leaf < split else None for leaf, value in enumerate(values)])
            definition.index += 1
            if split:
                matcher.append(definition.kept[-1], True)
                definition.look(is_end=False)
                definition.kept[-1] = values
                matcher.append([None if leaf < split else value for leaf, value in enumerate(values)], False)
            else:
                definition.kept[-1] = values
                matcher.append(values, False)
            definition.look(is_end=False)
        matcher.finish_episode()
        matcher.begin_episode(clear)
        definition.end(clear)
    assert made == definition.made


def number_of(rules: Sequence[Any], rule: Any) -> int:
    return next(number for number, each in enumerate(rules) if each is rule)


def test_the_model_is_not_blind() -> None:
    """A step more in a window would be seen."""
    definition = Definition([([(0, slice(-2, None))], [])])
    for value in range(3):
        definition.kept.append([value, None, None])
        definition.index += 1
        definition.look(is_end=False)
    assert definition.made == [(0, [[0, 1]]), (0, [[1, 2]])]
