"""What waits for a disk, and who has to wait for that disk meanwhile: everybody for a moment, then inserts alone.

Owns the rule and its log lines. Where requests are recorded all of them wait as long as there is too much, since each
would add to it. The clock is handed in; what waits is told each turn. Knows no store and no journal.
"""

from __future__ import annotations

import logging
import math

from replayd.limits import WAITING_BYTES

log = logging.getLogger("replayd")

STUCK_S = 0.25
"""For which all requests are left unread, which is what slows writers down most smoothly. From then on inserts alone
are put off, so that learners and operators are answered."""
RESUMED_AT = 0.5
"""Inserts are put off until no more than this share of WAITING_BYTES waits: with a disk that takes a little now and
then nobody else waits again for each little."""
TOLD_S = 10.0
"""Between two lines about what waits, so that a disk at its limit does not fill the log."""


class Backlog:
    """What waits for the disk at `place`. `look` comes once a turn, and what it found holds until the next."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._since: float | None = None
        """Since when there is too much, or has not been little enough again."""
        self._is_told = False
        self._silent_until = -math.inf
        self.holds_all = False
        """Requests are to be left unread."""
        self.holds_inserts = False
        """Inserts are to be put off, and nothing else."""
        self.story: str | None = None
        """Why somebody waits longer than for a moment, for people; None: nobody does."""

    def look(self, now: float, rescued_bytes: int, journal_bytes: int, *, is_recorded: bool) -> float | None:
        """See what waits: chunks that left the tables, and the journal's; when to look again if nothing happens.

        `is_recorded`: whatever is asked for is recorded, and adds to it.
        """
        nbytes = rescued_bytes + journal_bytes
        is_over = nbytes > WAITING_BYTES
        if self._since is None and is_over:
            self._since = now
        elif nbytes <= RESUMED_AT * WAITING_BYTES:
            self._since = None
        is_long = self._since is not None and now - self._since >= STUCK_S
        self.holds_inserts = is_long and not is_recorded
        self.holds_all = is_over and not self.holds_inserts
        is_felt = is_long and (self.holds_inserts or self.holds_all)
        self.story = self._text(rescued_bytes, journal_bytes) if is_felt else None
        self._tell(now)
        if self._since is None:
            return None
        if not is_long:
            return self._since + STUCK_S
        return self._silent_until if self.story is not None and not self._is_told else None

    def _tell(self, now: float) -> None:
        if self.story is not None and not self._is_told and now >= self._silent_until:
            log.warning("%s: %s", "inserts are put off" if self.holds_inserts else "requests wait", self.story)
            self._is_told, self._silent_until = True, now + TOLD_S
        if self._since is None and self._is_told:
            log.info("the disk of %s takes again what it is given, and requests go on", self._place)
            self._is_told = False

    def _text(self, rescued_bytes: int, journal_bytes: int) -> str:
        waiting = []
        if rescued_bytes:
            waiting.append(f"{rescued_bytes / 1e6:.1f} MB that left the tables and belong to a checkpoint")
        if journal_bytes:
            waiting.append(f"{journal_bytes / 1e6:.1f} MB of the journal")
        return f"{' and '.join(waiting)} wait for the disk of {self._place}: see to it if that does not end"
