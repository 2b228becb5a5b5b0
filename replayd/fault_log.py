"""Log lines about faults that no reply can tell of: pushed messages, and extensions.

Owns how often they are told. The first fault of a kind is told in full, with its traceback where it is foreign code's;
then at most one line each interval, with the number of those since the line before. No count is lost: what is left is
told when the interval is over, or at the end. Must not know what the faults are about.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass

from replayd.errors import Fault, PeerError

log = logging.getLogger("replayd")

INTERVAL_S = 10.0
"""Between two lines about one kind of fault: soon enough for who looks at the log, and few enough for a day of them."""

KINDS = 256
"""Kinds that are told apart; further ones share their lines. Foreign code may name what it does as it likes."""

_FURTHER = "further kinds of faults"


class FaultLog:
    """Tells of faults in the log of the name `replayd`, as warnings. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def tell(self, fault: Fault, now: float) -> None:
        """Log this fault, or count it if its kind was logged less than INTERVAL_S ago."""
        name = fault.what if fault.what in self._kinds or len(self._kinds) < KINDS else _FURTHER
        kind = self._kinds.get(name)
        if kind is None:
            self._kinds[name] = _Kind(now + INTERVAL_S)
            log.warning("%s: %s", fault.what, _in_full(fault.error))
            return
        kind.untold += 1
        kind.last = f"{fault.what}: {_in_short(fault.error)}"
        if now >= kind.silent_until:
            kind.tell(now)

    def tick(self, now: float) -> float | None:
        """Log the counts that are due; when the next one will be, None if all is told."""
        for kind in self._untold():
            if now >= kind.silent_until:
                kind.tell(now)
        return min((kind.silent_until for kind in self._untold()), default=None)

    def close(self, now: float) -> None:
        """Log all counts."""
        for kind in self._untold():
            kind.tell(now)

    def _untold(self) -> list[_Kind]:
        return [kind for kind in self._kinds.values() if kind.untold]


@dataclass(slots=True)
class _Kind:
    """Faults of one kind since the last line about them."""

    silent_until: float
    untold: int = 0
    last: str = ""

    def tell(self, now: float) -> None:
        count = f" (the last of {self.untold} since the line before)" if self.untold > 1 else ""
        log.warning("%s%s", self.last, count)
        self.silent_until = now + INTERVAL_S
        self.untold = 0


def _in_full(error: BaseException) -> str:
    if isinstance(error, PeerError):
        return error.message
    return "".join(traceback.format_exception(error)).rstrip()


def _in_short(error: BaseException) -> str:
    return error.message if isinstance(error, PeerError) else traceback.format_exception_only(error)[-1].rstrip()
