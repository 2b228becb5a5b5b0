"""What decides the answers of a service, in values that can be compared: of two services, or of one at two moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd import selectors
from replayd.parked import dump_parked
from replayd.service import Service
from replayd.state import settled
from replayd.table import Table


def essence(service: Service) -> dict[str, Any]:
    """All that decides what the service will answer, times aside."""
    streams = settled(service.streams.dump())
    del streams["streams"]["heard_at"]
    streams["unread_until"] = streams["unread_until"] is not None
    return {
        "keys": service._keys.take(0),
        "id": service.server_id,
        "streams": plain(streams),
        "tables": {name: table_essence(table, service) for name, table in service.tables.items()},
        "chunks": len(service.chunks),
    }


def table_essence(table: Table, service: Service) -> dict[str, Any]:
    items, live = table.items, table.items.in_order()
    columns = {name: getattr(items, name)[live] for name in ("key", "priority", "times_sampled", "length", "offset")}
    windows = service.chunks.windows(items.chunk[live], items.chunks[live].astype(np.int64))
    parked = settled(dump_parked(table.pending_inserts))
    del parked["since"]
    return plain(
        {
            **columns,
            "payloads": b"".join(map(bytes, service.chunks.body_of(service.chunks.rows_of(windows)))),
            "sampler": order_of(table.sampler),
            "remover": order_of(table.remover),
            "limiter": table.limiter.dump(),
            "generator": table._rng.bit_generator.state,
            "counters": [table.unique_samples, table.evictions, table.evicted_unsampled],
            "parked": parked,
        }
    )


def order_of(selector: selectors.Selector) -> dict[str, Any]:
    """Its state, of which only the order of stamps matters."""
    dumped = dict(selector.dump())
    if "stamps" in dumped:
        stamps = dumped["stamps"]
        used = np.flatnonzero(stamps >= 0)
        dumped["stamps"] = used[np.argsort(stamps[used], kind="stable")]
    return dumped


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        # As text: what is not a number equals itself there.
        return str(value.tolist())
    return value


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two essences are not the same."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [told for name in one for told in differences(one[name], other[name], f"{where}/{name}")]
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]
