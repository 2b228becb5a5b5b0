"""Which term holds a side of a table back, and for how many seconds each term has.

Owns the names of the terms, who must act on each, and the seconds. Knows the limiter and what is paused; no queues and
no clock: the table says whether a side waits, and what time it is.
"""

from __future__ import annotations

from collections.abc import Container

from replayd.capacity import BY_SERVER, BY_TABLE
from replayd.rate_limiters import BLOCKED_BY_MAX_DIFF, BLOCKED_BY_MIN_DIFF, BLOCKED_BY_MIN_SIZE, RateLimiter

BLOCKED_BY_PAUSE = "paused"
BLOCKED_BY_MIN_N = "min_n"
"""Fewer samples could pass than the first request asks for at least."""
BLOCKED_BY_EARLIER = "earlier_request"

BLOCKED_BY_UNREAD = "unread_replies"
"""The peer itself has not read what it was sent."""

WHO_MUST_ACT = {
    BLOCKED_BY_MIN_SIZE: "writers",
    BLOCKED_BY_MIN_DIFF: "writers",
    BLOCKED_BY_MIN_N: "writers",
    BLOCKED_BY_MAX_DIFF: "learners",
    BLOCKED_BY_EARLIER: "learners",
    BLOCKED_BY_PAUSE: "operator",
    BLOCKED_BY_UNREAD: "learners",
    BY_TABLE: "operator",
    BY_SERVER: "operator",
}
"""Where draws make items leave, learners may act on BY_TABLE as well: see `waiting`."""

TERMS = {
    "insert": (BLOCKED_BY_MAX_DIFF, BY_TABLE, BY_SERVER, BLOCKED_BY_PAUSE),
    "sample": (BLOCKED_BY_MIN_SIZE, BLOCKED_BY_MIN_DIFF, BLOCKED_BY_MIN_N, BLOCKED_BY_PAUSE),
}
"""What can hold the first request of each side."""


def blocks_inserts(limiter: RateLimiter, paused: Container[str], full_by: str | None) -> str:
    """The term that holds the first insert, which waits; `full_by`: the limit of bytes in which it has no room."""
    if "insert" in paused:
        return BLOCKED_BY_PAUSE
    return limiter.blocking_insert() or full_by or BLOCKED_BY_MAX_DIFF


def blocks_samples(limiter: RateLimiter, paused: Container[str], otherwise: str = BLOCKED_BY_MIN_N) -> str:
    """The term that holds the first sample, which waits; `otherwise` where neither limiter nor operator does."""
    if "sample" in paused:
        return BLOCKED_BY_PAUSE
    return limiter.blocking_sample() or otherwise


class Blocked:
    """Seconds during which requests waited, by side and by the term that held the first of them."""

    def __init__(self) -> None:
        self._seconds = {side: dict.fromkeys(terms, 0.0) for side, terms in TERMS.items()}
        self._running: dict[str, tuple[str, float]] = {}

    def note(
        self,
        inserts_wait: bool,
        samples_wait: bool,
        limiter: RateLimiter,
        paused: Container[str],
        full_by: str | None,
        now: float,
    ) -> None:
        """Who waits from now on. To be told after whatever may change it."""
        self._run("insert", blocks_inserts(limiter, paused, full_by) if inserts_wait else None, now)
        self._run("sample", blocks_samples(limiter, paused) if samples_wait else None, now)

    def seconds(self, now: float) -> dict[str, dict[str, float]]:
        """By side and term, up to now."""
        seconds = {side: dict(terms) for side, terms in self._seconds.items()}
        for side, (term, since) in self._running.items():
            seconds[side][term] += now - since
        return seconds

    def _run(self, side: str, term: str | None, now: float) -> None:
        running = self._running.get(side)
        if running is None and term is None:
            return
        if running is not None:
            before, since = running
            if before == term:
                return
            self._seconds[side][before] += now - since
            del self._running[side]
        if term is not None:
            self._running[side] = (term, now)
