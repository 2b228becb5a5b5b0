"""The largest of a table's priorities, for new data that wants to enter at the top.

Told of what comes and goes; looks at all values again only when the last of the largest has gone. Owns nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from replayd.messages import Float64s


class Maximum:
    """The largest of a bag of values."""

    def __init__(self) -> None:
        self._known = True
        self._largest = -np.inf
        self._count = 0
        """How many values are that large."""

    def add(self, values: Float64s) -> None:
        """These values come, f64[n]."""
        if not self._known or len(values) == 0:
            return
        largest = float(values[values.argmax()])
        if largest > self._largest:
            self._largest, self._count = largest, 0
        if largest == self._largest:
            self._count += int(np.count_nonzero(values == largest))

    def remove(self, values: Float64s) -> None:
        """These values go, each of which is there."""
        if self._known:
            self._count -= int(np.count_nonzero(values == self._largest))
            self._known = self._count > 0

    @property
    def known(self) -> float | None:
        """The largest value; None if there is none, or if it must be looked for."""
        return self._largest if self._known and self._count else None

    def get(self, everything: Callable[[], Float64s]) -> float | None:
        """The largest value, None if there is none; `everything` gives all values when it must be looked for."""
        if not self._known:
            self._known, self._largest, self._count = True, -np.inf, 0
            self.add(everything())
        return self._largest if self._count else None
