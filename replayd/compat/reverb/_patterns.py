"""Patterns and configs of structured writers: which values around the newest step make an item, when and where to.

What users hold are messages; a writer makes rules of them. Knows no writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replayd.compat.reverb._conditions import ConditionProto, Predicate
from replayd.compat.reverb._messages import INT32, Message
from replayd.compat.reverb._nests import Path, flatten, flatten_with_path, map_structure, unflatten_as
from replayd.compat.reverb._trajectories import WirePath, wire_paths


class PatternNode(
    Message,
    fields={"flat_source_index": INT32, "start": INT32, "stop": INT32, "step": INT32},
    oneofs={"start_or_none": ("start",), "stop_or_none": ("stop",), "step_or_none": ("step",)},
):
    """Values of one leaf of the step, counted from the newest, which is -1.

    With `start` those from there to before `stop` (none: through the newest), every `step`-th; without it the one at
    `stop`, squeezed.
    """


class ReferenceStep:
    """A leaf of a reference step: `x[-2]`, `x[-3:]`, `x[-3:-1]` and `x[-5::2]` are nodes of patterns."""

    def __init__(self, flat_source_index: int) -> None:
        self.flat_source_index = flat_source_index

    def __getitem__(self, key: int | slice) -> PatternNode:
        if isinstance(key, int):
            key = slice(key)
        if not isinstance(key, slice):
            raise ValueError(f"Key must be int or slice, got {key} (type {type(key)}).")
        return PatternNode(flat_source_index=self.flat_source_index, start=key.start, stop=key.stop, step=key.step)


class ConstantPriorityFn(Message, fields={"value": float}):
    """The same priority for every item."""


class TDError(Message, fields={"max_priority_weight": float, "flat_source_index": INT32}):
    """The mixture of the TD errors that an item shows of a leaf."""


class Priority(
    Message,
    fields={"constant_fn": ConstantPriorityFn, "td_error": TDError},
    oneofs={"priority_fn": ("constant_fn", "td_error")},
):
    """How the priority of an item is found."""


class Config(
    Message,
    fields={
        "flat": [PatternNode],
        "pattern_structure": object,
        "table": str,
        "priority": Priority,
        "conditions": [ConditionProto],
    },
):
    """A pattern with its table, conditions and priority: see `create_config`.

    `flat` has the nodes of the pattern in order, `pattern_structure` its nest, with any leaves; without it the pattern
    is a list. Made sense of when a writer is made.
    """


def create_reference_step(step_structure: Any) -> Any:
    """A nest of the shape of a step, of ReferenceStep; what its leaves are does not matter."""
    numbers = iter(range(1 << 30))
    return map_structure(lambda leaf: ReferenceStep(next(numbers)), step_structure)


def pattern_from_transform(step_structure: Any, transform: Callable[[Any], Any]) -> Any:
    """The pattern that a function makes of a reference step."""
    return transform(create_reference_step(step_structure))


def create_config(
    pattern: Any, table: str, conditions: Sequence[ConditionProto] = (), priority: Priority | None = None
) -> Config:
    """A config, which is checked when a writer is made of it. The priority is 1 unless said otherwise.

    Raises TypeError for a leaf that is no node, and for what is no condition.
    """
    nodes = flatten(pattern)
    numbers = iter(range(len(nodes)))
    return Config(
        flat=nodes,
        pattern_structure=map_structure(lambda node: next(numbers), pattern),
        table=table,
        priority=constant_priority_fn(1.0) if priority is None else priority,
        conditions=conditions,
    )


def structure_of(config: Config) -> Any:
    """The nest of the config's pattern, with its nodes' numbers as leaves."""
    numbers = range(len(config.flat))
    return unflatten_as(config.pattern_structure, numbers) if config.HasField("pattern_structure") else list(numbers)


def unpack_pattern(config: Config) -> Any:
    """The pattern of which the config was made."""
    return map_structure(config.flat.__getitem__, structure_of(config))


def constant_priority_fn(value: float) -> Priority:
    """The same priority for every item."""
    return Priority(constant_fn=ConstantPriorityFn(value=value))


def td_error(max_priority_weight: float, step_structure: Any, get_field_from_step_fn: Callable[[Any], Any]) -> Priority:
    """Priorities from the TD errors that an item shows of one leaf of the step, which the function picks.

    max_priority_weight · max |x| + (1 − max_priority_weight) · mean |x|, as in R2D2 (Kapturowski 2019); 0 if the item
    does not show the leaf. Raises TypeError if the function gives a nest.
    """
    numbers = iter(range(1 << 30))
    column = get_field_from_step_fn(map_structure(lambda leaf: next(numbers), step_structure))
    return Priority(td_error=TDError(max_priority_weight=max_priority_weight, flat_source_index=column))


@dataclass(frozen=True, slots=True)
class Window:
    """A node that makes sense: a leaf of the step, and the places of the values it shows, from -1 backwards."""

    column: int
    places: range
    is_squeezed: bool

    @classmethod
    def of(cls, node: PatternNode) -> Window:
        """Raises ValueError for places that do not exist."""
        has_start, has_stop, has_step = map(node.HasField, ("start", "stop", "step"))
        start, stop, step = node.start, node.stop, node.step
        if node.flat_source_index < 0:
            raise ValueError(f"`flat_source_index` must be >= 0 but got {node.flat_source_index}.")
        if not has_start and not has_stop:
            raise ValueError("At least one of `start` and `stop` must be specified.")
        if stop > 0:
            raise ValueError(f"`stop` must be <= 0 but got {stop}.")
        if not has_start:
            if stop == 0:
                raise ValueError(f"`stop` must be < 0 when `start` isn't set but got {stop}.")
            if has_step:
                raise ValueError("`step` must only be set when `start` is set.")
            return cls(node.flat_source_index, range(stop, stop + 1), True)
        if start >= 0:
            raise ValueError(f"`start` must be < 0 but got {start}.")
        if start >= stop:
            raise ValueError(f"`stop` ({stop}) must be > `start` ({start}) when both are specified.")
        if has_step and step <= 0:
            raise ValueError(f"`step` must be > 0 but got {step}.")
        return cls(node.flat_source_index, range(start, stop, step if has_step else 1), False)


@dataclass(frozen=True, slots=True)
class Rule:
    """A config that makes sense, as a writer applies it."""

    windows: list[Window]
    squeezed: list[bool]
    structure: Any
    """The nest of the pattern, with numbers of windows as its leaves."""
    paths: list[Path]
    wire_paths: tuple[WirePath, ...]
    """The paths of the pattern's leaves, in order, and as replayd takes them."""
    table: str
    predicates: list[Predicate]
    constant_priority: float
    td_error: TDError | None
    """In the place of a constant."""

    @classmethod
    def of(cls, config: Config) -> Rule:
        """Raises ValueError for a config that makes no sense."""
        if not config.table:
            raise ValueError("`table` must not be empty.")
        if not config.flat:
            raise ValueError("`flat` must not be empty.")
        windows = [Window.of(node) for node in config.flat]
        structure = structure_of(config)
        return cls(
            windows=windows,
            squeezed=[window.is_squeezed for window in windows],
            structure=structure,
            paths=[path for path, _ in flatten_with_path(structure)],
            wire_paths=wire_paths(structure),
            table=config.table,
            predicates=[Predicate.of(condition) for condition in config.conditions],
            constant_priority=config.priority.constant_fn.value,
            td_error=config.priority.td_error if config.priority.HasField("td_error") else None,
        )

    @property
    def reach(self) -> int:
        """Steps that must be there before it is applied."""
        return max(-window.places.start for window in self.windows)

    def priority(self, columns: Sequence[Sequence[Any]]) -> float:
        """The priority of an item that shows these references."""
        if self.td_error is None:
            return self.constant_priority
        # Of several columns that show the leaf, the last, as there.
        for window, refs in reversed(list(zip(self.windows, columns, strict=True))):
            if window.column == self.td_error.flat_source_index:
                sizes = np.abs(np.stack([ref.numpy() for ref in refs]).astype(np.float64))
                weight = self.td_error.max_priority_weight
                return float(weight * sizes.max() + (1 - weight) * sizes.mean())
        return 0.0


def rules_of(configs: Sequence[Config]) -> list[Rule]:
    """Raises ValueError for no configs, and for one that makes no sense, which is named by its position."""
    if not configs:
        raise ValueError("At least one config must be provided.")
    rules = []
    for number, config in enumerate(configs):
        try:
            rules.append(Rule.of(config))
        except ValueError as error:
            raise ValueError(f"Invalid configuration at position {number}: {error}") from error
    return rules


def reach_of(rules: Sequence[Rule]) -> int:
    """Steps that must be kept for all of them."""
    return max(rule.reach for rule in rules)
