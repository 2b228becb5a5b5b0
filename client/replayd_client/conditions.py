"""Conditions: when a pattern is applied.

A `Quantity` is what is looked at, and comparing it with an integer gives a `Condition`. Pure words: what the quantities
are at a step is told by whoever asks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.structure import Path, Structure, path_text

Kind = Literal["step_index", "steps_since_applied", "is_end_episode", "data"]

_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
}


class Quantity:
    """An integer that changes from step to step: compare it with an integer to get a Condition.

    `==`, `!=`, `>=`, `>`, `<=` and `<` are there, and `% m` followed by `==` or `!=`. The remainder is Python's, so it
    is never negative. Unlike the incumbent's, `% m` followed by another comparison is refused: there the `% m` is lost.
    """

    __slots__ = ("kind", "modulus", "path")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: Kind, path: Path | None = None, modulus: int | None = None) -> None:
        self.kind = kind
        self.path = path
        """The column, if this is one's value."""
        self.modulus = modulus

    def __mod__(self, modulus: int) -> Quantity:
        if self.modulus is not None:
            raise DataError(f"{self} has a modulus already")
        if _integer(modulus) < 1:
            raise DataError(f"a modulus is at least 1, got {modulus}")
        return Quantity(self.kind, self.path, _integer(modulus))

    def __eq__(self, other: Any) -> Condition:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: Any) -> Condition:  # type: ignore[override]
        return self._compared("!=", other)

    def __ge__(self, other: Any) -> Condition:
        return self._compared(">=", other)

    def __gt__(self, other: Any) -> Condition:
        return self._compared(">", other)

    def __le__(self, other: Any) -> Condition:
        return self._compared("<=", other)

    def __lt__(self, other: Any) -> Condition:
        return self._compared("<", other)

    def __bool__(self) -> bool:
        """Raises TypeError: what it is changes from step to step."""
        raise _no_truth(self)

    def __repr__(self) -> str:
        name = self.kind if self.path is None else path_text(self.path)
        return name if self.modulus is None else f"{name} % {self.modulus}"

    def _compared(self, comparison: str, other: Any) -> Condition:
        operand = _integer(other)
        if self.modulus is not None:
            if comparison not in ("==", "!="):
                raise DataError(f"{self} can be compared with == and != only")
            if operand < 0:
                raise DataError(f"{self} is never {operand}: a remainder is at least 0")
        return Condition(self, comparison, operand)


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A comparison of a quantity with an integer. The static methods give the quantities there are."""

    quantity: Quantity
    comparison: str
    operand: int

    @staticmethod
    def step_index() -> Quantity:
        """Number of the newest step in its episode, from 0."""
        return Quantity("step_index")

    @staticmethod
    def steps_since_applied() -> Quantity:
        """Steps since the pattern was last applied, the newest one included; before that, since the writer was made.

        Goes on over the ends of episodes. `>= k` alone applies a pattern every k steps.
        """
        return Quantity("steps_since_applied")

    @staticmethod
    def is_end_episode() -> Condition:
        """True in `end_episode` and never else."""
        return Quantity("is_end_episode") == 1

    @staticmethod
    def data(step_structure: Any) -> Any:
        """A nest of quantities of the shape of the step: the newest value of each column.

        The value must be one integer or bool; for others and where it is missing the condition does not hold.
        """
        structure = Structure(step_structure)
        return structure.rebuild([Quantity("data", path) for path in structure.paths])

    def holds(self, value: int | None) -> bool:
        """Whether it holds for this value of its quantity; never if there is none."""
        if value is None:
            return False
        if self.quantity.modulus is not None:
            value %= self.quantity.modulus
        return _COMPARISONS[self.comparison](value, self.operand)

    def __bool__(self) -> bool:
        """Raises TypeError, and so do `and`, `or`, `not` and `a < quantity < b`, which ask for it: without a word they
        would leave a condition out."""
        raise _no_truth(self)

    def __repr__(self) -> str:
        return f"<Condition {self.quantity} {self.comparison} {self.operand}>"


def _no_truth(it: Quantity | Condition) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{it} is neither true nor false before a step is there, so `and`, `or`, `not` and `a < quantity < b` cannot "
        "join conditions: pass a list of conditions, which must all hold; instead of `not` compare the other way round"
    )


def _integer(value: Any) -> int:
    try:
        # Bools are integers here, numpy's too: they are what columns of bools are compared with.
        return operator.index(bool(value) if isinstance(value, np.bool_) else value)
    except TypeError:
        raise ArgumentTypeError(f"a condition compares with an integer, not {type(value).__name__}") from None
