"""What was measured: figures with all their runs, and the ratios of runs that were made in turn.

Knows nothing of how they came about, and gives them to people (a line) and to programs (a dict).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

OURS = "replayd"


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity of one system in one setting."""

    workload: str
    quantity: str
    """What is counted or timed, in words."""
    system: str
    unit: str
    runs: tuple[float, ...]
    payload_bytes: int | None = None
    clients: int | None = None
    table_items: int | None = None
    """Where a figure depends on them and is measured with several."""
    ratios: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By peer: what we did over what it did, for each pair of runs made in the same round. For times and sizes the
    inverse, so that more than 1 always speaks for us."""
    load: float = 0.0
    """Mean number of runnable processes on the machine in the last minute, ours included."""
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def as_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "quantity": self.quantity,
            "system": self.system,
            "payload_bytes": self.payload_bytes,
            "clients": self.clients,
            "table_items": self.table_items,
            "unit": self.unit,
            "median": self.median,
            "runs": list(self.runs),
            "ratios": {peer: {"median": statistics.median(of), "runs": list(of)} for peer, of in self.ratios.items()},
            "load": self.load,
            **self.notes,
        }

    def __str__(self) -> str:
        payload = "" if self.payload_bytes is None else size(self.payload_bytes)
        clients = "" if self.clients is None else f"{self.clients}x"
        items = "" if self.table_items is None else count(self.table_items)
        what = f"{self.workload:11} {payload:>7} {items:>4} {clients:>4}  {self.system:9} {self.quantity:32}"
        more = [f"{name} {number(note)}" for name, note in self.notes.items() if not isinstance(note, dict)]
        more += [f"{spread(of)} x {peer}" for peer, of in self.ratios.items()]
        return f"{what} {number(self.median):>10} {self.unit:8} {'; '.join(more)}".rstrip()


def ratios(ours: Sequence[float], theirs: Sequence[float], *, less_is_better: bool = False) -> tuple[float, ...]:
    """Of each pair of runs, more than 1 where we are better."""
    pairs = zip(ours, theirs, strict=True)
    return tuple((b / a if less_is_better else a / b) if a and b else float("nan") for a, b in pairs)


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the largest."""
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f} to {max(values):.2f})"


def number(value: Any) -> str:
    """Three digits that count."""
    if not isinstance(value, (int, float)):
        return str(value)
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def give_or_take(values: Sequence[float]) -> str:
    """The median, and half of what lies between the least and the largest, in per cent of it."""
    middle = statistics.median(values)
    if len(values) == 1 or not middle:
        return number(middle)
    return f"{number(middle)} ±{50 * (max(values) - min(values)) / abs(middle):.0f} %"


def count(items: int) -> str:
    """A power of ten as one, for short."""
    digits = str(items)
    return f"10^{len(digits) - 1}" if digits.strip("0") == "1" else number(items)


def size(payload_bytes: int) -> str:
    return f"{payload_bytes / 1000:g} kB" if payload_bytes >= 1000 else f"{payload_bytes} B"
