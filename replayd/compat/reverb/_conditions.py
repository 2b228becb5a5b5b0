"""Conditions of structured writers: what is looked at, and what it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from replayd.compat.reverb._nests import map_structure_with_path

Kind = Literal["step_index", "steps_since_applied", "buffer_length", "is_end_episode", "flat_source_index"]


@dataclass(frozen=True, slots=True)
class ConditionMessage:
    """A condition: an integer, its remainder if there is a modulus, is equal to or at least `value`, or is not."""

    kind: Kind
    column: int = 0
    """Number of the leaf of the step, for `flat_source_index`."""
    modulus: int | None = None
    comparison: Literal["eq", "ge"] = "eq"
    value: int = 0
    inverse: bool = False

    def check(self) -> None:
        """Raises ValueError for what makes no sense."""
        if self.kind == "flat_source_index" and self.column < 0:
            raise ValueError(f"a condition looks at column {self.column}, which does not exist")
        if self.kind == "is_end_episode" and (self.comparison, self.value, self.inverse) != ("eq", 1, False):
            raise ValueError("Condition must use `eq=1` when using `is_end_episode`.")
        if self.modulus is not None and self.modulus < 1:
            raise ValueError(f"`mod` must be > 0 but got {self.modulus}.")
        if self.modulus is not None and self.value < 0:
            raise ValueError(f"the remainder of a division is never {self.value}")

    def holds(self, number: int | None) -> bool:
        """Whether it holds for this number; never without one."""
        if number is None:
            return False
        if self.modulus is not None:
            number = int(math.fmod(number, self.modulus))  # The sign is that of the dividend.
        met = number == self.value if self.comparison == "eq" else number >= self.value
        return met is not self.inverse


@dataclass(frozen=True, slots=True, eq=False)
class ConditionBuilder:
    """What is looked at: compare it with an integer to get a condition. `% m` may come before `==` and `!=`."""

    kind: Kind
    column: int = 0
    modulus: int | None = None

    __hash__ = None  # type: ignore[assignment]

    def __mod__(self, modulus: int) -> ConditionBuilder:
        return ConditionBuilder(self.kind, self.column, int(modulus))

    def __eq__(self, value: Any) -> ConditionMessage:  # type: ignore[override]
        return ConditionMessage(self.kind, self.column, self.modulus, "eq", int(value))

    def __ne__(self, value: Any) -> ConditionMessage:  # type: ignore[override]
        return ConditionMessage(self.kind, self.column, self.modulus, "eq", int(value), inverse=True)

    def __ge__(self, value: Any) -> ConditionMessage:
        return self._at_least(int(value), inverse=False)

    def __gt__(self, value: Any) -> ConditionMessage:
        return self._at_least(int(value) + 1, inverse=False)

    def __le__(self, value: Any) -> ConditionMessage:
        return self._at_least(int(value) + 1, inverse=True)

    def __lt__(self, value: Any) -> ConditionMessage:
        return self._at_least(int(value), inverse=True)

    def _at_least(self, value: int, *, inverse: bool) -> ConditionMessage:
        if self.modulus is not None:
            raise ValueError("a remainder can be compared with == and != only")
        return ConditionMessage(self.kind, self.column, None, "ge", value, inverse)


class Condition:
    """The things that conditions are about."""

    @staticmethod
    def step_index() -> ConditionBuilder:
        """Number of the newest step in its episode, from 0."""
        return ConditionBuilder("step_index")

    @staticmethod
    def steps_since_applied() -> ConditionBuilder:
        """Steps since the pattern was last applied, or since the writer was made; goes on over ends of episodes."""
        return ConditionBuilder("steps_since_applied")

    @staticmethod
    def is_end_episode() -> ConditionMessage:
        """Holds in `end_episode` and never else."""
        return ConditionMessage("is_end_episode", value=1)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """A nest of the shape of the step: the newest value of each leaf, which must be one integer or bool."""
        numbers = iter(range(1 << 30))
        return map_structure_with_path(
            lambda path, leaf: ConditionBuilder("flat_source_index", next(numbers)), step_structure
        )


def as_number(value: Any) -> int | None:
    """A value as conditions see it: one integer or bool, cut to 32 bits; None for anything else."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iub":
        return None
    return int(array.reshape(()).astype(np.int64, copy=False).astype(np.int32))
