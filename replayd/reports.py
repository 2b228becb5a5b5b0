"""Reports: the state of the service in plain values, for `info`.

Reads; changes nothing. Every key is documented in protocol.md §11, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from replayd.accounts import Accounts
from replayd.capacity import ServerCapacity
from replayd.chunks import ChunkStore
from replayd.filling import full_bytes, growth_bytes
from replayd.histograms import times_sampled
from replayd.limits import LIMITS, MAX_WAIT_MS, WINDOW_BYTES, WINDOW_MESSAGES
from replayd.messages import CODECS
from replayd.peer_names import PeerNames
from replayd.quotas import Quotas
from replayd.streams import Streams
from replayd.table import Table
from replayd.vitals import Vitals
from replayd.waiting import waiting

ITEMS_LOOKED_AT = 2048
"""Items of a table whose numbers of draws are looked at: so many that the shares are right to two in a hundred, and so
few that a table of a million items is reported in the time of a small one.
"""


@dataclass(slots=True)
class Counters:
    """Since the start."""

    requests: int = 0
    refused: int = 0
    unreadable: int = 0
    pushes_refused: int = 0
    push_gaps: int = 0
    duplicates: int = 0
    priority_updates: int = 0
    replies_dropped: int = 0
    """The peer's queue was full; the shell counts it."""
    replies_to_the_gone: int = 0
    """The peer had disconnected; the shell counts it."""
    connections_refused: int = 0
    """Their key was not known, or their handshake failed; the shell counts it."""
    handshakes_abandoned: int = 0
    """The peer hung up before it was let in; the shell counts it."""
    vitals: Vitals = field(default_factory=Vitals)
    """Written by the shell alone."""


def report(
    tables: Sequence[Table],
    chunks: ChunkStore,
    streams: Streams,
    accounts: Accounts,
    quotas: Quotas[Any],
    counters: Counters,
    capacity: ServerCapacity,
    names: PeerNames,
    now: float,
    brief: bool,
) -> dict[str, Any]:
    """What `info` says (protocol.md §11), but for who the server is and how long it runs.

    `brief`: without what would have to be looked for among all items, so that the cost is bounded.
    """
    return {
        "tables": [report_table(table, names, now, brief) for table in tables],
        "chunks": {
            "count": len(chunks),
            "bytes": chunks.bytes_in_use,
            "orphan_bytes": streams.orphan_bytes(),
            "added": chunks.chunks_added,
            "bytes_added": chunks.bytes_added,
        },
        "streams": {"open": len(streams), "expired": streams.expired},
        "leases": {
            "bytes": streams.leases.nbytes,
            "max_bytes": streams.leases.of_all.value,
            "refused": streams.leases.refusals,
        },
        "peers": {
            "connected": counters.vitals.connections,
            "waiting": len(accounts),
            "parked_samples": accounts.samples,
            "held_samples": len(quotas.held),
            "unread_bytes": quotas.unread_bytes,
        },
        "counters": {each.name: getattr(counters, each.name) for each in fields(counters) if each.name != "vitals"},
        "loop": counters.vitals.report_loop(now),
        "process": {
            "pid": counters.vitals.pid,
            "open_files": counters.vitals.open_files,
            "most_open_files": counters.vitals.most_open_files,
        },
        "memory": {
            "resident_bytes": counters.vitals.resident_bytes,
            "limit_bytes": counters.vitals.limit_bytes,
            **_when_full(tables, capacity, counters.vitals.resident_bytes),
            "address_space_bytes": counters.vitals.address_space_bytes,
            "held_bytes": capacity.nbytes,
            "transit_bytes": capacity.transit_bytes,
            **({} if capacity.max_bytes is None else {"max_bytes": capacity.max_bytes}),
        },
    }


def report_table(table: Table, names: PeerNames, now: float, brief: bool = False) -> dict[str, Any]:
    """What `info` says of one table; `brief` as of `report`."""
    largest = table.largest.known if brief else table.max_priority
    blocked = table.blocked.seconds(now)
    return {
        "name": table.name,
        "sampler": table.sampler.describe(),
        "remover": table.remover.describe(),
        "size": table.size,
        "max_size": table.max_size,
        "max_times_sampled": table.max_times_sampled,
        **({} if largest is None else {"max_priority": largest}),
        "bytes": table.showing.nbytes,
        **({"bytes_when_full": full_bytes(table)} if table.size else {}),
        "held_bytes": table.capacity.nbytes,
        **({} if table.capacity.max_bytes is None else {"max_bytes": table.capacity.max_bytes}),
        "when_full": table.capacity.when_full,
        "episodes": table.showing.episodes,
        "ended_episodes": table.showing.ended_episodes,
        "unique_samples": table.unique_samples,
        "evictions": table.evictions,
        "evicted_unsampled": table.evicted_unsampled,
        "extension_faults": table.hooks.faults,
        "limiter": table.limiter.describe(),
        "paused": sorted(table.paused),
        "sample_age_s": table.sample_ages.report(),
        **table.showing.staleness.report(),
        "times_sampled": times_sampled(table.items.times_sampled[table.items.spread(ITEMS_LOOKED_AT)]),
        "blocked_s": {side: sum(terms.values()) for side, terms in blocked.items()},
        "blocked_by_s": blocked,
        "waiting": waiting(table, names, now),
    }


def _when_full(tables: Sequence[Table], capacity: ServerCapacity, resident_bytes: int) -> dict[str, int]:
    """What the process will take, as far as that can be told."""
    if not resident_bytes or not any(table.size for table in tables):
        return {}
    return {"bytes_when_full": resident_bytes + growth_bytes(tables, capacity)}


def report_hello(server_id: bytes, version: str, streams: Streams, tables: Iterable[Table]) -> dict[str, Any]:
    """What `hello` says (protocol.md §6.1)."""
    leases = streams.leases
    return {
        "server_id": server_id,
        "server": f"replayd {version}",
        "versions": [1],
        "codecs": list(CODECS),
        "window_messages": WINDOW_MESSAGES.value,
        "window_bytes": WINDOW_BYTES.value,
        "lease_ms": int(streams.lease_s * 1000),
        "max_wait_ms": MAX_WAIT_MS.value,
        "limits": {limit.name: limit.value for limit in (*LIMITS, leases.of_peer, leases.of_all)},
        "tables": {table.name: _signature(table) for table in tables},
    }


def _signature(table: Table) -> dict[str, Any]:
    if table.signature is None:
        return {}
    return {"signature": [[list(c.path), c.dtype, list(c.shape)] for c in table.signature]}
