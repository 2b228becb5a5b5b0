"""Declarative writing: configs say which cells of the last steps make an item, of which table, when, how important.

`Client.structured_writer(configs)` makes items by them. This module is the place of all public words for it:

    step = create_reference_step({"obs": None, "action": None})
    config = create_config(
        {"obs": step["obs"][-2:], "action": step["action"][-2]},
        table="replay",
        conditions=[Condition.step_index() >= 1],
    )
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_members, checked_number, checked_table, value_text
from replayd_client.conditions import Condition, Quantity
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.patterns import (
    Pattern,
    PatternNode,
    ReferenceColumn,
    ReferenceStep,
    create_reference_step,
    nodes_of,
    pattern_from_transform,
)
from replayd_client.signatures import checked_priority
from replayd_client.specs import TensorSpec, signature_of
from replayd_client.structure import Path, Structure, path_text

__all__ = [
    "Condition",
    "Config",
    "ConstantPriority",
    "Pattern",
    "PatternNode",
    "Quantity",
    "ReferenceColumn",
    "ReferenceStep",
    "TdErrorPriority",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]


@dataclass(frozen=True, slots=True)
class ConstantPriority:
    """Every item has this priority: a number from 0 to 1e90, or "max", the largest in its table when it enters."""

    value: float | Literal["max"]

    def __post_init__(self) -> None:
        checked_priority(self.value)


@dataclass(frozen=True, slots=True)
class TdErrorPriority:
    """max_priority_weight · max |x| + (1 − max_priority_weight) · mean |x| over the item's cells of `path`.

    The mixture of R2D2 (Kapturowski et al. 2019, §2.3), where the weight is 0.9.
    """

    max_priority_weight: float
    path: Path

    def __post_init__(self) -> None:
        checked_number("max_priority_weight", self.max_priority_weight, 0, 1)

    def of(self, errors: NDArray[Any]) -> float:
        """The priority for these TD errors, of any shape and a real dtype."""
        if errors.dtype.kind not in "iuf":
            raise DataError(f"{path_text(self.path)}: TD errors are real numbers, not {errors.dtype.name}")
        sizes = np.abs(errors.astype(np.float64))
        return float(self.max_priority_weight * sizes.max() + (1 - self.max_priority_weight) * sizes.mean())


Priority = ConstantPriority | TdErrorPriority


@dataclass(frozen=True, slots=True, eq=False)
class Config:
    """A pattern, the table of its items, when it is applied, and their priority. Made by `create_config`."""

    table: str
    conditions: tuple[Condition, ...]
    priority: Priority
    structure: Structure
    """Shape of the pattern; its paths are those of the trajectory."""
    nodes: tuple[PatternNode, ...]
    """In the order of the structure's paths."""

    @property
    def reach(self) -> int:
        """Steps that must be there before it is applied."""
        return max(node.reach for node in self.nodes)


def create_config(
    pattern: Pattern, table: str, conditions: Sequence[Condition] = (), priority: Priority | None = None
) -> Config:
    """A config: wherever all `conditions` hold, and all cells of the pattern are there, it makes an item of `table`.

    `pattern` is a nest of `PatternNode`. `priority` is what `constant_priority_fn` makes, of a number or "max", or what
    `td_error` makes, of the TD errors that the item shows; None is a constant 1.0.

    Raises DataError for an empty pattern, an empty name, and a TD error in a column that the pattern does not show;
    ArgumentTypeError, a TypeError too, for a pattern, a name, conditions or a priority that are something else, a bare
    number among them.
    """
    nodes = nodes_of(pattern)
    if not checked_table(table):
        raise DataError(f"a config needs the name of a table, got {table!r}")
    found = checked_members("conditions", conditions)
    for number, condition in enumerate(found):
        if not isinstance(condition, Condition):
            hint = ": compare it with an integer" if isinstance(condition, Quantity) else ""
            raise ArgumentTypeError(f"condition {number} is no Condition but {type(condition).__name__}{hint}")
    if priority is None:
        priority = ConstantPriority(1.0)
    elif not isinstance(priority, Priority):
        raise ArgumentTypeError(
            f"a priority is made by constant_priority_fn(number or 'max') or td_error(...), not {value_text(priority)}"
        )
    if isinstance(priority, TdErrorPriority) and all(node.path != priority.path for _, node in nodes):
        raise DataError(
            f"the pattern does not show {path_text(priority.path)}, the column of the TD error; its priority would "
            "always be 0"
        )
    return Config(table, tuple(found), priority, Structure(pattern), tuple(node for _, node in nodes))


def constant_priority_fn(value: float | Literal["max"]) -> ConstantPriority:
    """The same priority for every item, or "max": the largest in the table when it enters. Raises PriorityError unless
    it is finite and at least 0."""
    return ConstantPriority(value)


def td_error(
    max_priority_weight: float,
    step_structure: Any,
    get_field_from_step_fn: Callable[[ReferenceStep], ReferenceColumn],
) -> TdErrorPriority:
    """A priority from the TD errors that an item shows; `get_field_from_step_fn` picks their column of a step.

    See `TdErrorPriority`. If the pattern shows the column more than once, the first one counts. Raises DataError for a
    weight outside [0, 1], ArgumentTypeError if the function is none or gives something else than a column.
    """
    if not callable(get_field_from_step_fn):
        raise ArgumentTypeError(f"get_field_from_step_fn must be a function, got {value_text(get_field_from_step_fn)}")
    field = get_field_from_step_fn(create_reference_step(step_structure))
    if not isinstance(field, ReferenceColumn):
        raise ArgumentTypeError(f"the function must give one column of the step, not {type(field).__name__}")
    return TdErrorPriority(max_priority_weight, field.path)


def checked_configs(configs: Sequence[Config]) -> list[Config]:
    """The configs. Raises DataError if there are none, ArgumentTypeError that names the place of something else."""
    found = checked_members("configs", configs)
    if not found:
        raise DataError("at least one config must be provided")
    for place, config in enumerate(found):
        if not isinstance(config, Config):
            raise ArgumentTypeError(f"config {place} is no Config (see create_config) but {type(config).__name__}")
    return found


def unpack_pattern(config: Config) -> Pattern:
    """The pattern that the config was made of. Raises ArgumentTypeError for what is no Config."""
    (config,) = checked_configs([config])
    return config.structure.rebuild(config.nodes)


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:
    """The signature of a table into which all these configs write: a nest of TensorSpec.

    `step_spec` is a nest of things with `shape` and `dtype`, as the steps. A slice of n places with a step s has
    ⌈n / s⌉ cells; where the configs differ in that, the axis is None. Raises ArgumentTypeError for something else than
    configs, and DataError, whose detail names what differs, if there is none, or if they have several tables,
    structures, dtypes or other shapes.
    """
    configs = checked_configs(configs)
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise DataError(f"the configs write into several tables: {', '.join(tables)}", detail={"tables": tables})
    first = configs[0]
    if any(config.structure.paths != first.structure.paths for config in configs):
        structures = [[path_text(path) for path in config.structure.paths] for config in configs]
        raise DataError("the patterns of the configs differ in structure", detail={"structures": structures})
    specs = {path: (dtype, shape) for path, dtype, shape in signature_of(step_spec)}
    leaves = [
        _merged(path, [_shown(config.nodes[number], specs) for config in configs])
        for number, path in enumerate(first.structure.paths)
    ]
    return first.structure.rebuild(leaves)


_Shown = tuple[str, int | None, tuple[int | None, ...]]
"""Dtype, number of cells (None: one, squeezed), shape of a cell."""


def _shown(node: PatternNode, specs: dict[Path, tuple[str, tuple[int | None, ...]]]) -> _Shown:
    if node.path not in specs:
        raise DataError(f"the step's spec has no column {path_text(node.path)}", detail={"path": node.path})
    dtype, shape = specs[node.path]
    return dtype, None if node.squeeze else len(node.offsets), shape


def _merged(path: Path, shown: list[_Shown]) -> TensorSpec:
    dtypes = [dtype for dtype, _, _ in shown]
    if len(set(dtypes)) > 1:
        raise DataError(
            f"{path_text(path)}: the configs show several dtypes: {', '.join(dtypes)}",
            detail={"path": path, "dtypes": dtypes},
        )
    shapes = [shape if cells is None else (cells, *shape) for _, cells, shape in shown]
    shape = shapes[0]
    if any(other != shape for other in shapes):
        if any(cells is None for _, cells, _ in shown) or len({other[1:] for other in shapes}) > 1:
            raise DataError(
                f"{path_text(path)}: the configs show shapes that do not fit each other: "
                + ", ".join(str(list(other)) for other in shapes),
                detail={"path": path, "shapes": shapes},
            )
        shape = (None, *shape[1:])
    return TensorSpec(shape, np.dtype(dtypes[0]), "/".join(map(str, path)))
