"""Loading: how far a start has read its store, for its log, for who asks meanwhile, and for the service manager.

Written by the thread that restores and read by others. The clock is handed in; what is done is weighed, so that the
time that is left can be told. Knows no store, no service and no socket.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replayd.errors import StoreError
from replayd.wording import count

log = logging.getLogger("replayd")

TOLD_S = 1.0
"""Between two lines of the log."""

ITEM_WORK, JOURNAL_WORK = 1024.0, 2.0
"""What else there is to do, in bytes of chunks that are read in that time: putting an item in its table and checking it
(2.5 µs), and handling a byte of the journal again (6 ns, a byte of chunks 2.7)."""


@dataclass(slots=True)
class Progress:
    """How far it is. `clock` gives seconds."""

    clock: Callable[[], float]
    began_at: float
    told_at: float
    phase: str = "opening"
    """`opening`, reading the `index` and the `chunks`, putting `items` in tables, the `journal`, `checking`, and then
    the journal's first `checkpoint`."""
    done_bytes: int = 0
    total_bytes: int = 0
    total_items: int = 0
    """That the index has; those of the journal come to them."""
    is_cancelled: bool = False
    """Set by others: what is being restored is not wanted any more."""
    _weighed_at: float = 0.0
    _done_work: float = 0.0
    _total_work: float = 0.0
    _count_items: Callable[[], int] = int

    def expect(self, chunk_bytes: int, journal_bytes: int, items: int, count_items: Callable[[], int]) -> None:
        """The index is read, and tells what there is to do. `count_items`: how many are there by now."""
        self.total_bytes = chunk_bytes + journal_bytes
        self.total_items, self._count_items = items, count_items
        self._total_work = chunk_bytes + JOURNAL_WORK * journal_bytes + ITEM_WORK * items
        self._weighed_at = self.clock()

    def advance(self, nbytes: int) -> None:
        """So much more has been read. Raises StoreError if it is not wanted any more."""
        self.done_bytes += nbytes
        self._done_work += nbytes * (JOURNAL_WORK if self.phase == "journal" else 1.0)
        if self.is_cancelled:
            raise StoreError("restoring was given up")

    @property
    def items(self) -> int:
        """In the tables by now."""
        items = self._count_items()
        # A table that is just being filled may say anything.
        return min(items, self.total_items) if self.phase in ("chunks", "items") else items

    @property
    def elapsed_s(self) -> float:
        """Since the beginning."""
        return self.clock() - self.began_at

    @property
    def remaining_s(self) -> float | None:
        """About how much longer it takes; None while nothing says."""
        # Checking is half of what there is to do for an item, and the last.
        done = self._done_work + ITEM_WORK / 2 * min(self.items, self.total_items)
        if not done or self.phase == "checkpoint":
            return None
        return (self.clock() - self._weighed_at) * max(0.0, self._total_work - done) / done

    def report(self) -> dict[str, Any]:
        """For who asks: plain values."""
        remaining_s = self.remaining_s
        return {
            "phase": self.phase,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "items": self.items,
            "total_items": self.total_items,
            "elapsed_s": self.elapsed_s,
            **({} if remaining_s is None else {"remaining_s": remaining_s}),
        }

    def text(self) -> str:
        """For people."""
        parts = ["all is read, writing the journal's checkpoint" if self.phase == "checkpoint" else self.phase]
        if self.total_bytes:
            items, total = self.items, count(self.total_items, "item")
            parts.append(f"{self.done_bytes / 1e6:.0f} of {self.total_bytes / 1e6:.0f} MB")
            parts.append(f"{items} of {total}" if items < self.total_items else count(items, "item"))
        parts.append(f"for {self.elapsed_s:.0f} s")
        remaining_s = self.remaining_s
        if remaining_s is not None:
            parts.append(f"about {remaining_s:.0f} s left")
        return ", ".join(parts)

    def tell(self) -> None:
        """A line of the log, if the last one was long enough ago."""
        now = self.clock()
        if now - self.told_at >= TOLD_S:
            self.told_at = now
            log.info("loading: %s", self.text(), extra={"event": "loading", "passing": True})


def begun(clock: Callable[[], float]) -> Progress:
    """Nothing is done yet."""
    now = clock()
    return Progress(clock, now, now)
