"""Snapshots: the state of a whole service as values, and a service made again from them.

A snapshot is taken between two requests. What it says of chunks goes with the chunks themselves, which are handed over
apart (`handover`). A service that is loaded answers every further request as the other one would have; settings are its
own. Parked samples are kept where a journal goes on from the snapshot (`parked_samples`). Knows no disk and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.chunks import ChunkStore
from replayd.columns import Schema, Template
from replayd.handover import SavedChunks
from replayd.maximum import Maximum
from replayd.parked import dump_parked, load_parked
from replayd.parked_samples import load_waiting, wait_again
from replayd.room import Room
from replayd.selectors import Selector
from replayd.service import Service
from replayd.settings import settings_of
from replayd.signature import check_signature
from replayd.state import State
from replayd.streams import Ticket
from replayd.table import Table
from replayd.table_proof import held_templates


@dataclass(slots=True)
class Losses:
    """What could not come back: because chunks were missing, or because there is no room for it."""

    chunks: int = 0
    items: dict[str, int] = field(default_factory=dict)
    """By table, of missing chunks; parked ones too."""
    beyond: dict[str, int] = field(default_factory=dict)
    """By table, of those that were there and left since the limits allow no more."""


def dump_service(service: Service, now: float) -> State:
    """The state of a service at this moment, `now` on its clock, in seconds; chunks aside."""
    return {
        "server_id": service.server_id.hex(),
        "clock": now,
        "keys": service._keys.dump(),
        "chunks": service.chunks.dump(),
        "templates": service.templates.dump(),
        "streams": service.streams.dump(),
        "tables": [_dump_table(table) for table in service.tables.values()],
    }


def load_service(
    service: Service,
    state: State,
    saved: Iterable[SavedChunks],
    now: float,
    make_schema: Callable[[bytes], Schema],
    make_template: Callable[[bytes], Template],
    *,
    reset_limiters: bool = False,
) -> Losses:
    """Bring a new service to a state, as far as it has the tables and there are the chunks.

    A table that it does not have is left behind, one that the state does not have stays empty. Where its settings ask
    for it, items leave at once and parked ones enter. `reset_limiters`: the counters begin anew, see `begin_anew`.
    Raises SignatureMismatch for items that do not fit their table's signature.
    """
    later_s = now - state["clock"]
    service.server_id = bytes.fromhex(state["server_id"])
    service._keys.load(state["keys"])
    service.chunks.begin_loading(state["chunks"])
    for chunks in saved:
        service.chunks.load(chunks)
    there = service.chunks.end_loading(state["chunks"], make_schema)
    service.streams.load(state["streams"], there, make_schema, later_s)
    tickets = service.streams.tickets()
    slots = state["chunks"]["slots"]
    losses = Losses(slots["capacity"] - len(slots["free"]) - int(there.sum()))
    loaded = [(service.tables[kept["name"]], kept) for kept in state["tables"] if kept["name"] in service.tables]
    for table, kept in loaded:
        lost = _load_table(table, kept, service.chunks, there, tickets, later_s)
        load_waiting(state.get("samples"), table, service.chunks, there)
        if lost:
            losses.items[table.name] = lost
    held = [held_templates(table) for table in service.tables.values()]
    service.templates.load(state["templates"], make_template, np.concatenate(held))
    service.streams.loaded()
    service.chunks.free_unheld()
    wait_again(service, state.get("samples"), later_s)
    for table, _ in loaded:
        _check_signature(table, service)
        if reset_limiters:
            begin_anew(table)
    sizes = sizes_of(service)
    for table, _ in loaded:
        table.resize(table.max_size, table.max_times_sampled)
    losses.beyond = shrunk(service, sizes)
    for table, _ in loaded:
        service._pump(table, now)
    return losses


def sizes_of(service: Service) -> dict[str, int]:
    """How many items each table has."""
    return {name: table.size for name, table in service.tables.items()}


def shrunk(service: Service, before: Mapping[str, int]) -> dict[str, int]:
    """The tables that have fewer items than before, and how many fewer."""
    return {name: was - is_now for name, is_now in sizes_of(service).items() if (was := before[name]) > is_now}


def begin_anew(table: Table) -> None:
    """Set the limiter's counters as if the items that are there were all there ever was.

    The draws that they have had count where they are limited. Else the cursor is put in the middle of its band, or as
    near to it as so many inserts reach.
    """
    limiter, live = table.limiter, table.items.in_order()
    cursor = len(live) * limiter.samples_per_insert
    if table.max_times_sampled:
        samples = int(table.items.times_sampled[live].sum())
    elif limiter.max_diff is None:
        samples = 0
    else:
        lowest = limiter.max_diff if limiter.min_diff is None else limiter.min_diff
        samples = max(0, math.ceil(cursor - (lowest + limiter.max_diff) / 2))
    limiter.load({"inserts": len(live), "samples": samples, "deletes": 0})


def described(table: Table) -> dict[str, Any]:
    """A table's settings in plain values, so that those of a snapshot can be compared with others."""
    signature = table.signature
    return {
        **settings_of(table),
        "sampler": table.sampler.describe(),
        "remover": table.remover.describe(),
        "signature": None if signature is None else [[list(c.path), c.dtype, list(c.shape)] for c in signature],
    }


def _dump_table(table: Table) -> State:
    return {
        "name": table.name,
        "settings": described(table),
        "items": table.items.dump(),
        "sampler": table.sampler.dump(),
        "remover": table.remover.dump(),
        "limiter": table.limiter.dump(),
        "generator": table._rng.bit_generator.state,
        "counters": {name: getattr(table, name) for name in _COUNTERS},
        "ended_episodes": table.showing.ended_episodes,
        "parked": dump_parked(table.pending_inserts),
    }


_COUNTERS = ("unique_samples", "evictions", "evicted_unsampled")


def _load_table(
    table: Table,
    state: State,
    chunks: ChunkStore,
    there: NDArray[np.bool_],
    tickets: dict[tuple[int, int], Ticket],
    later_s: float,
) -> int:
    """Items and parked inserts come back as far as their chunks did; how many did not."""
    items = table.items
    items.load(state["items"], later_s)
    live = items.in_order()
    whole = chunks.whole(items.chunk[live], items.chunks[live].astype(np.int64), there)
    items.remove(live[~whole])
    lost, live = int(np.count_nonzero(~whole)), live[whole]
    priorities = items.priority[live]
    for role in ("sampler", "remover"):
        selector: Selector = getattr(table, role)
        if selector.describe()["kind"] == state["settings"][role]["kind"]:
            selector.load(state[role], live, priorities)
        else:
            selector.add(live, priorities)
    table.limiter.load(state["limiter"])
    table.limiter.did_delete(lost)
    table._rng.bit_generator.state = state["generator"]
    for name, value in state["counters"].items():
        setattr(table, name, value)
    table.largest = Maximum()
    table.largest.add(priorities)
    table._room = Room(items, table.max_times_sampled)
    shown = chunks.windows(items.chunk[live], items.chunks[live].astype(np.int64))
    chunks.hold(shown)
    table.showing.add(shown)
    table.showing.ended_episodes = state["ended_episodes"]
    parked = load_parked(state["parked"], tickets, lambda first, counts: chunks.whole(first, counts, there), later_s)
    for pending, lacking in parked:
        lost += lacking
        if len(pending):
            pending.ticket.waiting += len(pending)
            chunks.hold(chunks.windows(pending.chunk, pending.chunks))
            table.park_insert(pending)
    return lost


def _check_signature(table: Table, service: Service) -> None:
    """Raise SignatureMismatch if an item, or a parked one, does not fit."""
    if table.signature is None:
        return
    items, live = table.items, table.items.in_order()
    parked = table.pending_inserts
    first = np.concatenate([items.chunk[live], *(p.chunk for p in parked)])
    template = np.concatenate([items.template[live].astype(np.int64), *(p.template for p in parked)])
    length = np.concatenate([items.length[live].astype(np.int64), *(p.length for p in parked)])
    pairs = np.stack((service.chunks.schema[first].astype(np.int64), template), axis=1)
    distinct, pair_of = np.unique(pairs, axis=0, return_inverse=True)
    for n, (schema, trajectory) in enumerate(distinct.tolist()):
        lengths = np.unique(length[pair_of == n])
        check_signature(
            table.name, table.signature, service.chunks.schemas[schema], service.templates[trajectory], lengths
        )
