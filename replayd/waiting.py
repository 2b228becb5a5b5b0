"""Why requests wait at a table: on which term, since when, what must happen, and whether it can.

Reads a table's queues and limiter; changes nothing. What it says goes into `info`, `why`, and the errors of those who
waited in vain.
"""

from __future__ import annotations

import math
from typing import Any

from replayd.blocked import (
    BLOCKED_BY_EARLIER,
    BLOCKED_BY_MIN_N,
    BLOCKED_BY_PAUSE,
    BLOCKED_BY_UNREAD,
    WHO_MUST_ACT,
    blocks_inserts,
    blocks_samples,
)
from replayd.capacity import BY_SERVER, BY_TABLE
from replayd.errors import Timeout
from replayd.peer_names import PeerNames
from replayd.rate_limiters import BLOCKED_BY_MAX_DIFF, BLOCKED_BY_MIN_DIFF, BLOCKED_BY_MIN_SIZE
from replayd.table import Table


def waiting(table: Table, names: PeerNames, now: float) -> list[dict[str, Any]]:
    """One entry for each side that waits; plain values."""
    sides = []
    if table.pending_inserts:
        inserts = table.pending_inserts
        askers = dict.fromkeys(peer for pending in inserts for peer, _ in pending.ticket.askers)
        sides.append(
            {
                "side": "insert",
                "requests": len(inserts),
                "items": table.pending_items,
                "peers": len(askers),
                "who": names.tell(askers),
                "waited_s": now - inserts[0].since,
                **_blocked(table, "insert"),
            }
        )
    if table.pending_samples:
        samples = table.pending_samples
        askers = dict.fromkeys(request.peer for request in samples)
        sides.append(
            {
                "side": "sample",
                "requests": len(samples),
                "items": sum(request.n - request.drawn for request in samples),
                "peers": len(askers),
                "who": names.tell(askers),
                "waited_s": now - samples[0].since,
                **_blocked(table, "sample"),
            }
        )
    return sides


def why(table: Table, names: PeerNames, now: float) -> dict[str, Any]:
    """Who waits, and a verdict on the whole: `flowing`, `samples_wait`, `inserts_wait`, `deadlock` or `paused`."""
    sides = waiting(table, names, now)
    verdict, advice = _verdict(table, sides)
    return {
        "table": table.name,
        "verdict": verdict,
        "advice": advice,
        "waiting": sides,
        "paused": sorted(table.paused),
        "size": table.size,
        "max_size": table.max_size,
        "limiter": table.limiter.describe(),
    }


def timeout(table: Table, was_first: bool) -> Timeout:
    """The error of a sample request whose deadline passed, and which was at the head of the queue or not."""
    term = blocks_samples(table.limiter, table.paused, BLOCKED_BY_MIN_N if was_first else BLOCKED_BY_EARLIER)
    return _timeout(table, term, _explain(table, term))


def timeout_unread(table: Table) -> Timeout:
    """The error of a sample request whose peer did not read what it had asked for before."""
    return _timeout(table, BLOCKED_BY_UNREAD, "earlier replies to this peer are unread")


def _timeout(table: Table, term: str, text: str) -> Timeout:
    return Timeout(
        f"table {table.name!r} granted no sample in time: {text}",
        table=table.name,
        blocked_by=term,
        who_must_act=WHO_MUST_ACT[term],
        size=table.size,
        limiter=table.limiter.describe(),
    )


def _blocked(table: Table, side: str) -> dict[str, Any]:
    """On which term the first of a side waits, and what must happen."""
    if side == "insert":
        term = blocks_inserts(table.limiter, table.paused, table.capacity.keeping_out(table.pending_inserts))
    else:
        term = blocks_samples(table.limiter, table.paused)
    entry: dict[str, Any] = {
        "blocked_by": term,
        # Where items leave by draws, draws make room.
        "who_must_act": "learners" if term == BY_TABLE and table.max_times_sampled else WHO_MUST_ACT[term],
        "why": _explain(table, term),
    }
    needed = _needed(table, side, term)
    if needed is not None:
        entry["needs_samples" if side == "insert" else "needs_inserts"] = needed
    return entry


def _needed(table: Table, side: str, term: str) -> int | None:
    """Fewest requests of the other side that set the first one here free; None if that is not what it waits for."""
    if term in (BLOCKED_BY_PAUSE, BY_TABLE, BY_SERVER):
        return None
    if side == "insert":
        return table.limiter.samples_needed(1)
    first = table.pending_samples[0]
    least = first.min_n - first.drawn
    # It waits, so one insert at least is missing, however the limiter's numbers are rounded.
    needed = max(1, table.limiter.inserts_needed(least))
    left = table.draws_left
    return needed if left is None else max(needed, math.ceil((least - left) / table.max_times_sampled))


def _explain(table: Table, term: str) -> str:
    limiter = table.limiter
    if term == BLOCKED_BY_PAUSE:
        return "it was paused; an operator must resume it"
    if term in (BY_TABLE, BY_SERVER):
        return _explain_full(table, term)
    if term == BLOCKED_BY_MIN_SIZE:
        return f"it holds {table.size} of min_size_to_sample {limiter.min_size_to_sample} items; writers must insert"
    if term == BLOCKED_BY_MIN_DIFF:
        return f"the cursor {limiter.cursor:g} may not go below min_diff {limiter.min_diff:g}; writers must insert"
    if term == BLOCKED_BY_MAX_DIFF:
        return f"the cursor {limiter.cursor:g} may not pass max_diff {limiter.max_diff:g}; learners must sample"
    if term == BLOCKED_BY_EARLIER:
        return "an earlier request waits in front of it"
    if not table.pending_samples:
        return "fewer can pass now than it asks for at least; writers must insert"
    first = table.pending_samples[0]
    return (
        f"{table.grantable(first.n - first.drawn)} can pass now, the first request asks for at least "
        f"{first.min_n - first.drawn}; writers must insert"
    )


def _explain_full(table: Table, term: str) -> str:
    capacity = table.capacity
    if term == BY_SERVER:
        return (
            f"all tables hold {capacity.server.nbytes} of the server's max_bytes {capacity.server.max_bytes}; an "
            "operator must delete items, or start it with more"
        )
    first = "learners must sample, or an operator" if table.max_times_sampled else "an operator must delete items or"
    return f"its items hold {capacity.nbytes} of max_bytes {capacity.max_bytes}; {first} raise it"


def _at_the_edge(table: Table) -> str:
    """Who will wait that comes next, where nobody waits yet."""
    if table.paused:
        return f"; who comes to {' or '.join(sorted(table.paused))} will: that is paused"
    will = []
    if not table.limiter.can_insert(1):
        will.append(f"the next insert will: {_explain(table, BLOCKED_BY_MAX_DIFF)}")
    if table.size and (term := blocks_samples(table.limiter, table.paused, "")):
        will.append(f"the next sample will: {_explain(table, term)}")
    return "".join(f"; {text}" for text in will)


def _verdict(table: Table, sides: list[dict[str, Any]]) -> tuple[str, str]:
    if not sides:
        return "flowing", f"nobody waits{_at_the_edge(table)}"
    # Also when the paused side has no requests: whoever waits for it waits for an operator.
    if table.paused:
        return "paused", "an operator must resume it"
    if len(sides) == 2:
        inserts, samples = sides
        first = table.pending_samples[0]
        granted = table.grantable(first.n - first.drawn)
        if granted and "needs_samples" in inserts:
            needs = _count(inserts["needs_samples"], "sample"), _count(samples["needs_inserts"], "insert")
            return "deadlock", (
                f"both sides wait for each other: inserts for {needs[0]}, samples for {needs[1]}; ask for at most "
                f"{granted} at once (min_n), or widen the band"
            )
        return "deadlock", (
            f"both sides wait for each other: {inserts['why']}; {samples['why']}; widen the limiter's band, or lower "
            f"min_size_to_sample{'' if 'needs_samples' in inserts else ', or raise max_bytes'}"
        )
    (side,) = sides
    if side["side"] == "insert" and "needs_samples" not in side:
        return "inserts_wait", side["why"]
    if side["side"] == "insert":
        needed = _count(side["needs_samples"], "sample")
        return "inserts_wait", f"{needed} would set the first one free: is a learner running?"
    needed = _count(side["needs_inserts"], "insert")
    return "samples_wait", f"{needed} would set the first one free: are the writers running?"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
