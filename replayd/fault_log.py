"""Log lines that may repeat: faults that no reply can tell of, and whatever else happens as often as peers like.

Owns how often they are told. The first fault of a kind is told in full, with its traceback where it is foreign code's;
then at most one line each interval, with the number of those since the line before. Other lines are told one by one up
to BURST of a kind in an interval. No count is lost: what is left is told when the interval is over, or at the end. Must
not know what the lines are about.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from replayd.errors import Fault, PeerError

log = logging.getLogger("replayd")

INTERVAL_S = 10.0
"""Between two lines about one kind of fault: soon enough for who looks at the log, and few enough for a day of them."""

BURST = 10
"""Lines of one kind, faults aside, that are told in one interval: a person changes settings less often, a program that
does it in each step of a training is not worth a line each.
"""

KINDS = 256
"""Kinds that are told apart; further ones share their lines. Foreign code may name what it does as it likes."""

_FURTHER = "further kinds"
_NO_FIELDS: Mapping[str, str] = MappingProxyType({})


class FaultLog:
    """Tells of faults in the log of the name `replayd`, as warnings. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def tell(self, fault: Fault, now: float) -> None:
        """Log this fault, or count it if its kind was logged less than INTERVAL_S ago."""
        text = _in_short(fault.error) if self._is_known(fault.what) else _in_full(fault)
        fields = {"event": "fault", "table": fault.table}
        self._kind(fault.what, logging.WARNING, 1).take(f"{fault.what}: {text}", now, fields)

    def say(
        self, text: str, *, kind: str, now: float, level: int = logging.INFO, fields: Mapping[str, str] = _NO_FIELDS
    ) -> None:
        """Log this line, or count it if BURST of its kind have been logged in the last INTERVAL_S.

        `fields` are those of `logs.FIELDS`; `event` is the kind unless said.
        """
        self._kind(kind, level, BURST).take(text, now, {"event": kind, **fields})

    def tick(self, now: float) -> float | None:
        """Log the counts that are due; when the next one will be, None if all is told."""
        untold = self._untold()
        if not untold:
            return None
        for kind in untold:
            if now >= kind.silent_until:
                kind.tell(now)
        return min((kind.silent_until for kind in self._untold()), default=None)

    def close(self, now: float) -> None:
        """Log all counts."""
        for kind in self._untold():
            kind.tell(now)

    def _untold(self) -> list[_Kind]:
        return [kind for kind in self._kinds.values() if kind.untold]

    def _is_known(self, name: str) -> bool:
        return name in self._kinds or (len(self._kinds) >= KINDS and _FURTHER in self._kinds)

    def _kind(self, name: str, level: int, burst: int) -> _Kind:
        if name not in self._kinds and len(self._kinds) >= KINDS:
            name = _FURTHER
        return self._kinds.setdefault(name, _Kind(level, burst))


@dataclass(slots=True)
class _Kind:
    """Lines of one kind: how many more may be told until when, and those that were not."""

    level: int
    burst: int
    left: int = 0
    silent_until: float = -math.inf
    untold: int = 0
    last: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    def take(self, text: str, now: float, fields: Mapping[str, str]) -> None:
        self.untold += 1
        self.last, self.fields = text, fields
        if now >= self.silent_until or self.left > 0:
            self.tell(now)

    def tell(self, now: float) -> None:
        count = f" (the last of {self.untold} since the line before)" if self.untold > 1 else ""
        log.log(self.level, "%s%s", self.last, count, extra=dict(self.fields))
        if now >= self.silent_until:
            self.silent_until = now + INTERVAL_S
            self.left = self.burst
        self.left -= 1
        self.untold = 0


def _in_full(fault: Fault) -> str:
    if isinstance(fault.error, PeerError):
        return f"{fault.error.message}; {fault.advice}"
    return "".join(traceback.format_exception(fault.error)) + fault.advice


def _in_short(error: BaseException) -> str:
    return error.message if isinstance(error, PeerError) else traceback.format_exception_only(error)[-1].rstrip()
