"""Conditions of structured writers: what is looked at, and what it is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from replayd.compat.reverb._messages import INT32, Message
from replayd.compat.reverb._nests import map_structure_with_path


class ModuloEq(Message, fields={"mod": INT32, "eq": INT32}):
    """The remainder of a division by `mod` is `eq`."""


class ConditionProto(
    Message,
    fields={
        "step_index": bool,
        "steps_since_applied": bool,
        "buffer_length": bool,
        "is_end_episode": bool,
        "flat_source_index": INT32,
        "eq": INT32,
        "ge": INT32,
        "mod_eq": ModuloEq,
        "inverse": bool,
    },
    oneofs={
        "left": ("step_index", "steps_since_applied", "buffer_length", "is_end_episode", "flat_source_index"),
        "cmp": ("eq", "ge", "mod_eq"),
    },
):
    """A condition: an integer, `left`, is equal to a number, at least it, or has a remainder, or with `inverse` not."""


class ConditionBuilder:
    """What is looked at: compare it with an integer to get a condition. `% m` may come before `==` and `!=`."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, left: Mapping[str, Any], modulus: int | None = None) -> None:
        self._left = left
        self._modulus = modulus

    def __mod__(self, modulus: int) -> ConditionBuilder:
        return ConditionBuilder(self._left, index(modulus))

    def __eq__(self, value: Any) -> ConditionProto:  # type: ignore[override]
        return self._equal(value, inverse=False)

    def __ne__(self, value: Any) -> ConditionProto:  # type: ignore[override]
        return self._equal(value, inverse=True)

    def __ge__(self, value: int) -> ConditionProto:
        return self._at_least(value, inverse=False)

    def __gt__(self, value: int) -> ConditionProto:
        return self._at_least(value + 1, inverse=False)

    def __le__(self, value: int) -> ConditionProto:
        return self._at_least(value + 1, inverse=True)

    def __lt__(self, value: int) -> ConditionProto:
        return self._at_least(value, inverse=True)

    def _equal(self, value: int, *, inverse: bool) -> ConditionProto:
        if self._modulus is None:
            return ConditionProto(**self._left, eq=index(value), inverse=inverse)
        return ConditionProto(**self._left, mod_eq=ModuloEq(mod=self._modulus, eq=index(value)), inverse=inverse)

    def _at_least(self, value: int, *, inverse: bool) -> ConditionProto:
        if self._modulus is not None:
            raise ValueError("a remainder can be compared with == and != only")
        return ConditionProto(**self._left, ge=index(value), inverse=inverse)


class Condition:
    """The things that conditions are about."""

    @staticmethod
    def step_index() -> ConditionBuilder:
        """Number of the newest step in its episode, from 0."""
        return ConditionBuilder({"step_index": True})

    @staticmethod
    def steps_since_applied() -> ConditionBuilder:
        """Steps since the pattern was last applied, or since the writer was made; goes on over ends of episodes."""
        return ConditionBuilder({"steps_since_applied": True})

    @staticmethod
    def is_end_episode() -> ConditionProto:
        """Holds in `end_episode` and never else."""
        return ConditionProto(is_end_episode=True, eq=1)

    @staticmethod
    def data(step_structure: Any) -> Any:
        """A nest of the shape of the step: the newest value of each leaf, which must be one integer or bool."""
        numbers = iter(range(1 << 30))
        return map_structure_with_path(
            lambda path, leaf: ConditionBuilder({"flat_source_index": next(numbers)}), step_structure
        )


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition that makes sense, as it is looked at after each step."""

    left: str
    """The integer: a member of the group `left`."""
    column: int
    """Number of the leaf of the step, for `flat_source_index`."""
    modulus: int | None
    is_at_least: bool
    value: int
    inverse: bool

    @classmethod
    def of(cls, condition: Any) -> Predicate:
        """Raises ValueError for what is no condition and for one that makes no sense."""
        if not isinstance(condition, ConditionProto):
            raise ValueError(f"{condition!r} is no condition; compare it with an integer")
        left, comparison = condition.WhichOneof("left"), condition.WhichOneof("cmp")
        if left is None:
            raise ValueError("Conditions must specify a value for `left`.")
        if comparison is None:
            raise ValueError("Conditions must specify a value for `cmp`.")
        if condition.flat_source_index < 0:
            raise ValueError(f"flat_source_index must be >= 0 but got {condition.flat_source_index}.")
        if left == "is_end_episode" and (condition.eq != 1 or condition.inverse):
            raise ValueError("Condition must use `eq=1` when using `is_end_episode`.")
        modulus = None
        if comparison == "mod_eq":
            modulus, value = condition.mod_eq.mod, condition.mod_eq.eq
            if modulus < 1:
                raise ValueError(f"`mod_eq.mod` must be > 0 but got {modulus}.")
            if value < 0:
                raise ValueError(f"`mod_eq.eq` must be >= 0 but got {value}.")
        else:
            value = getattr(condition, comparison)
        return cls(left, condition.flat_source_index, modulus, comparison == "ge", value, condition.inverse)

    def holds(self, number: int | None) -> bool:
        """Whether it holds for this number; never without one."""
        if number is None:
            return False
        if self.modulus is not None:
            number = int(math.fmod(number, self.modulus))  # The sign is that of the dividend.
        met = number >= self.value if self.is_at_least else number == self.value
        return met is not self.inverse


def as_number(value: Any) -> int | None:
    """A value as conditions see it: one integer or bool, cut to 32 bits; None for anything else."""
    if value is None:
        return None
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iub":
        return None
    return int(array.reshape(()).astype(np.int64, copy=False).astype(np.int32))
