"""Patterns: declared once, which cells around the newest step make a trajectory.

A reference step has the shape of a step; indexing one of its leaves, as one indexes a list from its end, gives a
`PatternNode`, and a nest of those is a pattern. Pure words: no data, no writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replayd_client.arguments import value_text
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.scalars import checked_index
from replayd_client.structure import Path, Structure, flatten, path_text


@dataclass(frozen=True, slots=True)
class PatternNode:
    """One output column of a pattern: the cells of `path` at these places, where −1 is the newest step.

    `start`, `stop` and `step` are those of a slice; `stop` 0 is just behind the newest step. Shown as [n, *shape], or
    with `squeeze` as the one cell, [*shape].
    """

    path: Path
    start: int
    stop: int
    step: int = 1
    squeeze: bool = False

    def __post_init__(self) -> None:
        where = path_text(self.path)
        if self.start >= 0 or self.stop > 0:
            raise DataError(f"{where}: a pattern counts from its newest step, which is -1; got {self._slice_text()}")
        if self.start >= self.stop:
            raise DataError(f"{where}: {self._slice_text()} has no cell")
        if self.step < 1:
            raise DataError(f"{where}: the step of a pattern is at least 1, got {self.step}")
        assert not self.squeeze or self.stop == self.start + 1, "one cell is squeezed, not several"

    @property
    def offsets(self) -> range:
        """The places of its cells, in order."""
        return range(self.start, self.stop, self.step)

    @property
    def reach(self) -> int:
        """Steps that must be there."""
        return -self.start

    def _slice_text(self) -> str:
        step = "" if self.step == 1 else f":{self.step}"
        return f"[{self.start}:{self.stop or ''}{step}]"


@dataclass(frozen=True, slots=True)
class ReferenceColumn:
    """A leaf of a reference step. `x[-a]` is one cell, `x[-a:]`, `x[-a:-b]` and `x[-a:-b:s]` are several.

    Unlike the incumbent's, `x[:-a]` is refused: there it means the same as `x[-a]`. Raises DataError, and
    ArgumentTypeError for an index that is neither an integer nor a slice.
    """

    path: Path

    def __getitem__(self, index: Any) -> PatternNode:
        if isinstance(index, slice):
            if index.start is None:
                raise DataError(f"{path_text(self.path)}: a slice in a pattern needs a start, such as [-3:]")
            start = checked_index(index.start, "a pattern")
            stop = 0 if index.stop is None else checked_index(index.stop, "a pattern")
            return PatternNode(
                self.path, start, stop, 1 if index.step is None else checked_index(index.step, "a pattern")
            )
        at = checked_index(index, "a pattern")
        return PatternNode(self.path, at, at + 1, squeeze=True)


Pattern = Any
"""A nest of PatternNode."""
ReferenceStep = Any
"""A nest of ReferenceColumn."""


def create_reference_step(step_structure: Any) -> ReferenceStep:
    """A nest of the shape of `step_structure`, whatever its leaves are (None too), to build patterns from."""
    structure = Structure(step_structure)
    return structure.rebuild([ReferenceColumn(path) for path in structure.paths])


def pattern_from_transform(step_structure: Any, transform: Callable[[ReferenceStep], Pattern]) -> Pattern:
    """The pattern that a function from a reference step to a nest of its cells gives. Raises ArgumentTypeError for what
    is no function."""
    if not callable(transform):
        raise ArgumentTypeError(f"a transform is a function of a reference step, not {value_text(transform)}")
    return transform(create_reference_step(step_structure))


def nodes_of(pattern: Pattern) -> list[tuple[Path, PatternNode]]:
    """Path and node of each output column. Raises DataError for no cell, ArgumentTypeError for another leaf."""
    nodes = flatten(pattern)
    if not nodes:
        raise DataError("a pattern needs at least one cell")
    for path, node in nodes:
        if not isinstance(node, PatternNode):
            hint = ": index it, for example with [-1]" if isinstance(node, ReferenceColumn) else ""
            raise ArgumentTypeError(
                f"{path_text(path)}: a pattern is made of PatternNode, not {type(node).__name__}{hint}"
            )
    return nodes
