"""Vitals: what only the shell can know of a daemon, its loop's turns and its process, for `info`.

Owns how long turns took. The shell writes it; the core only shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from replayd.histograms import TURN_BOUNDS_S, Histogram

WINDOW_S = 10.0
"""The slowest turn told of is that of the last one to two windows: long enough to be seen by who looks now and then."""


@dataclass(slots=True)
class Vitals:
    """How the loop turns and what the process has; zeros until the shell has looked."""

    turns: Histogram = field(default_factory=lambda: Histogram(TURN_BOUNDS_S))
    resident_bytes: int = 0
    """Of the process, in RAM."""
    limit_bytes: int = 0
    """The most it may have: what the machine has, or its control group if that is less."""
    address_space_bytes: int = 0
    """The most address space that it may have; 0: no limit."""
    pid: int = 0
    open_files: int = 0
    """File descriptors."""
    most_open_files: int = 0
    """0: no limit."""
    connections: int = 0
    """Open connections of peers."""
    _slowest: float = 0.0
    _slowest_before: float = 0.0
    _window_end: float = 0.0

    def turn(self, started: float, ended: float) -> None:
        """The loop took a turn: it was away from its sockets between these two times."""
        took_s = ended - started
        self.turns.add(took_s)
        if started >= self._window_end:
            self._slowest_before = self._slowest if started < self._window_end + WINDOW_S else 0.0
            self._slowest = 0.0
            self._window_end = started + WINDOW_S
        if took_s > self._slowest:
            self._slowest = took_s

    def slowest_turn_s(self, now: float) -> float:
        """The longest turn of the last one to two windows, seconds; 0 if there was none."""
        if now < self._window_end:
            return max(self._slowest, self._slowest_before)
        return self._slowest if now < self._window_end + WINDOW_S else 0.0

    def report_loop(self, now: float) -> dict[str, Any]:
        """The part `loop` of `info`."""
        return {"turn_s": self.turns.report(), "slowest_turn_s": self.slowest_turn_s(now)}
