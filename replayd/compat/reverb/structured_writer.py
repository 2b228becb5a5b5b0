"""Structured writing: all its public words, and the signature that configs ask of their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replayd.compat.reverb._conditions import Condition, ConditionProto
from replayd.compat.reverb._nests import Path, flatten, map_structure_with_path
from replayd.compat.reverb._pattern_writer import StructuredWriter
from replayd.compat.reverb._patterns import (
    Config,
    PatternNode,
    Priority,
    ReferenceStep,
    Window,
    constant_priority_fn,
    create_config,
    create_reference_step,
    pattern_from_transform,
    structure_of,
    td_error,
    unpack_pattern,
)
from replayd.compat.reverb.reverb_types import shape_of, shapes_fit, spec_of

__all__ = [
    "Condition",
    "ConditionProto",
    "Config",
    "Pattern",
    "PatternNode",
    "PatternTransform",
    "Priority",
    "ReferenceStep",
    "StructuredWriter",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]

Pattern = Any
"""A nest of PatternNode."""
PatternTransform = Callable[[Any], Pattern]


def infer_signature(configs: Sequence[Config], step_spec: Any) -> Any:
    """The signature of the table that all these configs write into, for steps of this spec.

    A slice of n places with step s has ceil(n / s) values; where the configs differ in that, the axis is None. Raises
    ValueError for no configs, and for configs of several tables, structures, dtypes or other shapes.
    """
    check_alike(configs)
    specs = flatten(step_spec)
    return map_structure_with_path(
        lambda path, number: _merged(path, [config.flat[number] for config in configs], specs),
        structure_of(configs[0]),
    )


def check_alike(configs: Sequence[Config]) -> None:
    """Raises ValueError for no configs, and for configs of several tables or structures."""
    if not configs:
        raise ValueError("At least one config must be provided.")
    structure = structure_of(configs[0])
    if any(structure_of(config) != structure for config in configs):
        raise ValueError("All configs must have exactly the same pattern_structure.")
    tables = sorted({config.table for config in configs})
    if len(tables) > 1:
        raise ValueError(f"All configs must target the same table but provided configs included {', '.join(tables)}.")


def _merged(path: Path, nodes: Sequence[PatternNode], specs: Sequence[Any]) -> Any:
    windows = [Window.of(node) for node in nodes]
    dtypes = [specs[window.column].dtype for window in windows]
    if any(dtype != dtypes[0] for dtype in dtypes):
        raise ValueError(f"Configs produce trajectories with multiple dtypes at {path}. Got {dtypes}.")
    shapes: list[Any] = []
    for window in windows:
        shape = shape_of(specs[window.column])
        if shape is not None and not window.is_squeezed:
            shape = (len(window.places), *shape)
        shapes.append(shape)
    shape = shapes[0]
    if any(other != shape for other in shapes):
        ranks = {None if other is None else len(other) for other in shapes}
        if len(ranks) > 1 or shape is None or any(not shapes_fit(other[1:], shape[1:]) for other in shapes):
            raise ValueError(f"Configs produce trajectories with incompatible shapes at {path}. Got {shapes}.")
        shape = (None, *shape[1:])
    return spec_of(shape, dtypes[0], "/".join(map(str, path)))
