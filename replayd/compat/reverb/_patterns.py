"""Patterns and configs of structured writers: which values around the newest step make an item, when and where to.

Pure words; knows no writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replayd.compat.reverb._conditions import ConditionMessage
from replayd.compat.reverb._nests import Path, flatten_with_path, map_structure, map_structure_with_path, unflatten_as


@dataclass(frozen=True, slots=True)
class PatternNode:
    """Values of one leaf of the step, counted from the newest, which is -1.

    With `start` those from there to before `stop` (None: through the newest), every `step`-th; without it the one at
    `stop`, squeezed.
    """

    flat_source_index: int
    start: int | None = None
    stop: int | None = None
    step: int | None = None

    def HasField(self, name: str) -> bool:  # noqa: N802 - protocol buffers' word
        return getattr(self, name) is not None

    @property
    def places(self) -> range:
        """Places of its values, from -1 backwards."""
        if self.start is None:
            assert self.stop is not None, "a node that was checked has a start or a stop"
            return range(self.stop, self.stop + 1)
        return range(self.start, self.stop or 0, self.step or 1)

    def check(self) -> None:
        """Raises ValueError for places that do not exist."""
        if self.flat_source_index < 0:
            raise ValueError(f"`flat_source_index` must be >= 0 but got {self.flat_source_index}.")
        if self.start is None and self.stop is None:
            raise ValueError("At least one of `start` and `stop` must be specified.")
        if self.start is None:
            if self.stop is not None and self.stop >= 0:
                raise ValueError(f"`stop` must be < 0 when `start` isn't specified but got {self.stop}.")
            if self.step is not None:
                raise ValueError(f"`step` must only be set when `start` is set but got {self.step}.")
            return
        if self.start >= 0:
            raise ValueError(f"`start` must be < 0 but got {self.start}.")
        if self.stop is not None and self.stop > 0:
            raise ValueError(f"`stop` must be <= 0 but got {self.stop}.")
        if self.start >= (self.stop or 0):
            raise ValueError(f"`stop` (got {self.stop}) must be > `start` (got {self.start}) when both are specified.")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"`step` must be > 0 but got {self.step}.")


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """A leaf of a reference step: `x[-2]`, `x[-3:]`, `x[-3:-1]` and `x[-5::2]` are nodes of patterns."""

    flat_source_index: int
    path: Path

    def __getitem__(self, index: Any) -> PatternNode:
        if isinstance(index, int):
            return PatternNode(self.flat_source_index, stop=index)
        if isinstance(index, slice):
            return PatternNode(self.flat_source_index, index.start, index.stop, index.step)
        raise TypeError(f"a pattern is indexed by an int or a slice, not {type(index).__name__}")


@dataclass(frozen=True, slots=True)
class Priority:
    """A constant, or with `column` the mixture of TD errors that the item shows of that leaf."""

    constant: float = 1.0
    column: int | None = None
    max_priority_weight: float = 0.0

    def of_errors(self, errors: Any) -> float:
        """max_priority_weight · max |x| + (1 − max_priority_weight) · mean |x|, as in R2D2 (Kapturowski 2019)."""
        sizes = np.abs(np.asarray(errors, np.float64))
        return float(self.max_priority_weight * sizes.max() + (1 - self.max_priority_weight) * sizes.mean())


@dataclass(slots=True)
class Config:
    """A pattern with its table, conditions and priority. Made by `create_config`."""

    flat: list[PatternNode]
    """The nodes of the pattern, in order."""
    pattern_structure: Any
    """The shape of the pattern, with numbers of nodes as its leaves."""
    table: str
    priority: Priority
    conditions: list[ConditionMessage] = field(default_factory=list)

    @property
    def squeezed(self) -> list[bool]:
        return [node.start is None for node in self.flat]

    @property
    def reach(self) -> int:
        return max(-node.places.start for node in self.flat)


def create_reference_step(step_structure: Any) -> Any:
    """A nest of the shape of a step, of ReferenceStep; what its leaves are does not matter."""
    numbers = iter(range(1 << 30))
    return map_structure_with_path(lambda path, leaf: ReferenceStep(next(numbers), path), step_structure)


def pattern_from_transform(step_structure: Any, transform: Callable[[Any], Any]) -> Any:
    """The pattern that a function makes of a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Any, table: str, conditions: Sequence[ConditionMessage] = (), priority: Priority | None = None
) -> Config:
    """A config, which is checked when a writer is made of it. The priority is 1 unless said otherwise."""
    pairs = flatten_with_path(pattern)
    for path, node in pairs:
        if not isinstance(node, PatternNode):
            raise TypeError(
                f"the leaf of the pattern at {path} is a {type(node).__name__} and no indexed reference step"
            )
    numbers = iter(range(len(pairs)))
    return Config(
        flat=[node for _, node in pairs],
        pattern_structure=map_structure(lambda node: next(numbers), pattern),
        table=table,
        priority=Priority() if priority is None else priority,
        conditions=list(conditions),
    )


def unpack_pattern(config: Config) -> Any:
    """The pattern of which the config was made."""
    return unflatten_as(config.pattern_structure, config.flat)


def constant_priority_fn(value: float) -> Priority:
    """The same priority for every item."""
    return Priority(constant=float(value))


def td_error(
    max_priority_weight: float, step_structure: Any, get_field_from_step_fn: Callable[[Any], ReferenceStep]
) -> Priority:
    """Priorities from the TD errors that an item shows of one leaf: see `Priority.of_errors`; 0 if it shows none."""
    leaf = get_field_from_step_fn(create_reference_step(step_structure))
    if not isinstance(leaf, ReferenceStep):
        raise TypeError(f"the function must give one leaf of the step, not a {type(leaf).__name__}")
    return Priority(column=leaf.flat_source_index, max_priority_weight=float(max_priority_weight))


def checked_configs(configs: Sequence[Config]) -> list[Config]:
    """The configs. Raises ValueError for none, and for one that makes no sense, which is named by its position."""
    found = list(configs)
    if not found:
        raise ValueError("At least one config must be provided.")
    for number, config in enumerate(found):
        try:
            _check(config)
        except ValueError as error:
            raise ValueError(f"Configs[{number}] is invalid: {error}") from error
    return found


def reach_of(configs: Sequence[Config]) -> int:
    """Steps that must be kept for all of them."""
    return max(config.reach for config in configs)


def _check(config: Config) -> None:
    if not config.table:
        raise ValueError("`table` must not be empty.")
    if not config.flat:
        raise ValueError("`flat` must not be empty: a pattern has at least one node.")
    for node in config.flat:
        node.check()
    for condition in config.conditions:
        if not isinstance(condition, ConditionMessage):
            raise ValueError(f"{condition!r} is no condition; compare it with an integer")
        condition.check()
