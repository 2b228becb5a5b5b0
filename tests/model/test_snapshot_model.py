"""A service made again from a snapshot answers as the one that went on: any requests before, any requests since.

The snapshot is worked out, and its chunks are handed over, while the further requests are handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from replayd import selectors
from replayd.blobs import parse_schema, parse_template
from replayd.extensions import InsertOnSample, PriorityDiffusion
from replayd.handover import SavedChunks
from replayd.messages import Reply
from replayd.rate_limiters import RateLimiter
from replayd.service import Service
from replayd.snapshots import dump_service, load_service
from replayd.state import frozen, settled
from replayd.table import Table
from tests.model.traffic import LEASE_S, TABLES, WAIT_S, Traffic

BEFORE, SINCE, GENERATIONS = 60, 40, 3

kinds = st.sampled_from(["Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized"])


def selector(kind: str) -> selectors.Selector:
    return selectors.Prioritized(0.7) if kind == "Prioritized" else getattr(selectors, kind)()


@st.composite
def tables(draw: st.DrawFn) -> list[Table]:
    extensions = st.sampled_from([(), (), (PriorityDiffusion(0.5, 2),), (InsertOnSample("b"),)])
    limiters = st.builds(
        RateLimiter,
        st.sampled_from([0.5, 1.0, 2.0]),
        st.integers(1, 4),
        st.sampled_from([None, -3.0, 0.0]),
        st.sampled_from([None, None, 6.5, 20.0]),
    )
    return [
        Table(
            name,
            selector(draw(kinds)),
            selector(draw(kinds)),
            draw(st.integers(5, 30)),
            draw(limiters),
            draw(st.sampled_from([0, 0, 1, 3])),
            extensions=draw(extensions) if name == "a" else (),
        )
        for name in TABLES
    ]


# A seed is no smaller than another.
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tables=tables(), seed=st.integers(0, 1 << 32), after_s=st.sampled_from([0.0, 0.0, 1000.0]))
def test_a_restored_service_answers_as_the_one_that_went_on(tables: list[Table], seed: int, after_s: float) -> None:
    service, traffic = service_of(tables, seed=1), Traffic(seed)
    saved: list[SavedChunks] = []
    for _ in range(GENERATIONS):
        for _ in range(BEFORE):
            traffic.step(service)
        # Who waits for a sample at that moment asks again, which is not what is compared here.
        traffic.pass_time(service, 2 * WAIT_S)
        snapshot = frozen(dump_service(service, traffic.now), np.copy)
        again = service_of([table_again(table) for table in service.tables.values()], seed=2)
        handover, traffic.said = service.chunks.handover, []
        traffic.connection += 1
        todo = np.flatnonzero(handover.begin())
        for _ in range(SINCE):
            traffic.step(service)
            saved += [*handover.take_rescued(), handover.take(handover.still_wanted(todo[:2]))]
            todo = todo[2:]
        service.validate()
        saved += [handover.take(handover.still_wanted(todo))]
        handover.end()
        # The other one's clock began at another time.
        shift = after_s
        then = snapshot["clock"] + shift
        losses = load_service(again, settled(snapshot), saved, then, parse_schema, parse_template)
        assert (losses.chunks, losses.items) == (0, {})
        again.validate()
        assert again.drain() == []
        asked = {request.id for _, request, _, _ in traffic.said if request is not None}
        for peer, request, now, replies in traffic.said:
            if request is None:
                again.tick(now + shift)
            else:
                again.handle(peer, type(request).__name__, request, now + shift)
            # Who asked before the snapshot is gone, as with the connections of a server that ended.
            expected = [plain(entry) for entry in replies if entry[1].id in asked]
            assert [plain(entry) for entry in again.drain()] == expected
        again.validate()
        if not shift:
            service = again


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tables=tables(), seed=st.integers(0, 1 << 32), share=st.sampled_from([0.05, 0.3, 1.0]))
def test_what_misses_a_chunk_is_left_out_and_nothing_else(tables: list[Table], seed: int, share: float) -> None:
    service, traffic = service_of(tables, seed=1), Traffic(seed)
    for _ in range(2 * BEFORE):
        traffic.step(service)
    snapshot = frozen(dump_service(service, traffic.now), np.copy)
    again = service_of([table_again(table) for table in service.tables.values()], seed=2)
    handover = service.chunks.handover
    saved = handover.take(np.flatnonzero(handover.begin()))
    lost = np.array([traffic.random.random() < share for _ in saved.uids], np.bool_)
    intact = {name: intact_items(service, table, saved.uids[lost]) for name, table in service.tables.items()}
    # A chunk without a name is none that the index has.
    saved.uids = np.where(lost, 0, saved.uids)
    losses = load_service(again, settled(snapshot), [saved], traffic.now, parse_schema, parse_template)
    again.validate()
    assert losses.chunks == np.count_nonzero(lost)
    for name, table in again.tables.items():
        # Parked inserts may have entered behind them, into the room that the others left.
        keys = table.items.key[table.items.in_order()].tolist()
        assert keys[: len(intact[name])] == intact[name][: len(keys)]
    for _ in range(BEFORE):
        traffic.step(again)
    again.validate()


def intact_items(service: Service, table: Table, lost: np.ndarray[Any, Any]) -> list[int]:
    """Keys of the items that show none of these chunks, oldest first."""
    items, chunks = table.items, service.chunks
    return [
        int(items.key[slot])
        for slot in items.in_order()
        if not np.isin(chunks._uid[chunks.windows(items.chunk[[slot]], items.chunks[[slot]])], lost).any()
    ]


def service_of(tables: Sequence[Table], seed: int) -> Service:
    return Service(tables, server_id=bytes(16), version="test", seed=seed, started_at=0.0, lease_s=LEASE_S)


def table_again(table: Table) -> Table:
    """An empty table of the same settings, those that were changed live too."""
    again = table.replace()
    again.paused = table.paused
    return again


NOT_COMPARED = {
    "chunks",
    "streams",
    "counters",
    "peers",
    "blocked_s",
    "blocked_by_s",
    "who",
    "sample_age_s",
    "staleness_versions",
    "newest_policy_version",
    "extension_faults",
    "uptime_s",
}
"""What info tells of a server's own life, and of peers that are not there any more."""


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float):
        return round(value, 9)
    if is_dataclass(value):
        # The chunks of an item are `chunks` too.
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if name not in NOT_COMPARED}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def test_reply_comparison_sees_a_changed_number() -> None:
    a, b = (Reply, {"tables": [{"size": 1}]}), (Reply, {"tables": [{"size": 2}]})
    assert plain(a) != plain(b)
