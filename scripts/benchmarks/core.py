"""The core by itself: what a learner's sample costs in the service, and a draw in each selector, by number of items."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contest import Counted, Side, Told, measured, told
from benchmarks.crew import Crew, Job
from benchmarks.figures import OURS, Figure
from benchmarks.settings import KINDS, Settings

ITEMS, QUICK_ITEMS = 1_000_000, 10_000
COUNTS = 256, 1
POWERS = (3, 4, 5, 6, 7)


def core(settings: Settings) -> Iterator[Figure]:
    """A prioritized Sample through the service, with inserts and updates between; draws of each selector alone."""
    items = QUICK_ITEMS if settings.quick else ITEMS
    service = Job("drive_core", "sample", {"items": items, "counts": COUNTS})
    side = Side(OURS, [Counted("sample", "prioritized Sample through the Service")], [service], table_items=items)
    yield from told(settings, "core", [side], *(Told(f"n = {count}", "µs/item") for count in COUNTS))
    kinds = KINDS[:2] if settings.quick else KINDS
    sizes = [10**power for power in (POWERS[:2] if settings.quick else POWERS)]
    with Crew([Job("drive_selectors", "draw", {"kinds": kinds, "sizes": sizes, "counts": COUNTS})]) as crew:
        for kind, size, count, is_changed, took_us in crew.turn()[0]["draws"]:
            changed = ", of changed priorities" if is_changed else ""
            per_item = (each / count for each in took_us)
            yield measured("core", f"draw of {kind}{changed}, n = {count}", "µs/item", *per_item, items=size)
