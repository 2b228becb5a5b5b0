"""How numbers are written for people: counts with their noun, sizes, times, rates, and how full a table is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def count(number: int, noun: str) -> str:
    """`1 item`, `2 items`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(number: int) -> str:
    """Bytes, in the largest unit of which there is one."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(number.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{number / 1024**power:.4g} {units[power]}"


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns of numbers to the right, the last one, which is text, as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *numbers, text in rows:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[:-1], strict=True)]
        yield "  " + "  ".join([*cells, text])


def fill(table: Mapping[str, Any]) -> tuple[float, str]:
    """How full a table of `info` is, by the limit it is nearer to, and the name of that."""
    items, limit = table["size"] / table["max_size"], table.get("max_bytes")
    held = 0.0 if limit is None else table["held_bytes"] / limit
    return max((items, "max_size"), (held, "max_bytes"), key=lambda each: each[0])


def short(number: float) -> str:
    """At most three digits and a power: `12`, `3.4`, `14.2k`, `1.05M`."""
    magnitude = abs(number)
    for power, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if magnitude >= power:
            return f"{number / (1e3 if letter == 'k' else power):.3g}{letter}"
    return f"{number:.0f}" if magnitude >= 100 or number == int(number) else f"{number:.2g}"


def duration(seconds: float) -> str:
    """The two largest units that matter: `3 ms`, `2.5 s`, `4 min 10 s`, `3 h 12 min`, `2 d 5 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, name, lesser, lesser_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // lesser} {lesser_name}"
    raise AssertionError(f"{seconds} s is less than a minute")
