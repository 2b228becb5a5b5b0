"""Reports: the state of the service in plain values, for `info`.

Reads; changes nothing. Every key is documented in protocol.md §11, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from replayd.accounts import Accounts
from replayd.chunks import ChunkStore
from replayd.limits import LIMITS, MAX_WAIT_MS, WINDOW_BYTES, WINDOW_MESSAGES
from replayd.messages import CODECS
from replayd.streams import Streams
from replayd.table import Table
from replayd.waiting import waiting


@dataclass(slots=True)
class Counters:
    """Since the start."""

    requests: int = 0
    refused: int = 0
    pushes_refused: int = 0
    push_gaps: int = 0
    duplicates: int = 0
    priority_updates: int = 0
    replies_dropped: int = 0
    """The peer's queue was full; the shell counts it."""
    replies_to_the_gone: int = 0
    """The peer had disconnected; the shell counts it."""


def report(
    tables: Iterable[Table], chunks: ChunkStore, streams: Streams, accounts: Accounts, counters: Counters, now: float
) -> dict[str, Any]:
    """What `info` says (protocol.md §11), but for who the server is and how long it runs."""
    return {
        "tables": [report_table(table, now) for table in tables],
        "chunks": {
            "count": len(chunks),
            "bytes": chunks.bytes_in_use,
            "orphan_bytes": streams.orphan_bytes(),
            "added": chunks.chunks_added,
            "bytes_added": chunks.bytes_added,
        },
        "streams": {"open": len(streams), "expired": streams.expired},
        "peers": {"waiting": len(accounts), "parked_samples": accounts.samples},
        "counters": asdict(counters),
    }


def report_table(table: Table, now: float) -> dict[str, Any]:
    """What `info` says of one table."""
    largest = table.max_priority
    return {
        "name": table.name,
        "sampler": table.sampler.describe(),
        "remover": table.remover.describe(),
        "size": table.size,
        "max_size": table.max_size,
        "max_times_sampled": table.max_times_sampled,
        **({} if largest is None else {"max_priority": largest}),
        "bytes": table.showing.nbytes,
        "episodes": table.showing.episodes,
        "ended_episodes": table.showing.ended_episodes,
        "unique_samples": table.unique_samples,
        "evictions": table.evictions,
        "evicted_unsampled": table.evicted_unsampled,
        "extension_faults": table.hooks.faults,
        "limiter": table.limiter.describe(),
        "paused": sorted(table.paused),
        "blocked_s": {side: stopwatch.total(now) for side, stopwatch in table.blocked.items()},
        "waiting": waiting(table, now),
    }


def report_hello(server_id: bytes, version: str, lease_s: float, tables: Iterable[Table]) -> dict[str, Any]:
    """What `hello` says (protocol.md §6.1)."""
    return {
        "server_id": server_id,
        "server": f"replayd {version}",
        "versions": [1],
        "codecs": list(CODECS),
        "window_messages": WINDOW_MESSAGES.value,
        "window_bytes": WINDOW_BYTES.value,
        "lease_ms": int(lease_s * 1000),
        "max_wait_ms": MAX_WAIT_MS.value,
        "limits": {limit.name: limit.value for limit in LIMITS},
        "tables": {table.name: _signature(table) for table in tables},
    }


def _signature(table: Table) -> dict[str, Any]:
    if table.signature is None:
        return {}
    return {"signature": [[list(c.path), c.dtype, list(c.shape)] for c in table.signature]}
