"""Former formats: what an index that an earlier version wrote says, in the words of today's.

Owns what each format changed; how bytes are read is `store_format`'s and `journal_format`'s. A store of a former format
becomes one of today's with the next checkpoint. Whoever changes what is saved raises FORMAT, says here how it was, and
keeps a store (`tests/daemon/make_store.py`). Knows no disk and no service.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.state import State
from replayd.store_format import FORMAT

SAMPLES_APART = 2
"""Before it, samples that waited were a list of all of them in the order in which they came, and what peers had not
read was not known. The server's limit in bytes was not saved, so the one that is configured is taken for it."""

LEASES_END = 3
"""Before it, streams of which a message was parked did not end, so that while a journal of then is replayed they must
not; and those of pushers did although nobody read them: which these are was not saved."""


def as_of_today(state: State, format: int, max_bytes: int | None) -> State:
    """What `dump_service` and a journal would say of that state now; `max_bytes` of the server as it is configured."""
    assert 1 <= format <= FORMAT, f"an index of format {format}"
    if format < SAMPLES_APART:
        state = {**state, "journal": _with_limit(state.get("journal"), max_bytes)}
        if isinstance(state.get("samples"), list):
            state["samples"] = _apart(state["samples"])
    if format < LEASES_END:
        state = {**state, "streams": _with_pushed(state["streams"])}
        if state.get("journal") is not None:
            state["journal"] = {**state["journal"], "keeps_parked": True}
    return state


def _with_limit(journal: dict[str, Any] | None, max_bytes: int | None) -> dict[str, Any] | None:
    # Some stores of format 1 were written when the limit was saved already.
    return None if journal is None else {"max_bytes": max_bytes, **journal}


def _with_pushed(streams: State) -> State:
    kept = streams["streams"]
    pushed = np.zeros(len(kept["heard_at"]), np.bool_)
    return {**streams, "unread_until": None, "streams": {**kept, "pushed": pushed}}


def _apart(samples: list[State]) -> State:
    waiting = [{**kept, "order": order} for order, kept in enumerate(samples, 1)]
    return {"waiting": waiting, "ready": [], "held": [], "unread": []}
