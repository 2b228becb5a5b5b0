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
from replayd.columns import Schema, Template
from replayd.extensions import InsertOnSample, PriorityDiffusion
from replayd.handover import SavedChunks
from replayd.messages import Reply
from replayd.rate_limiters import RateLimiter
from replayd.service import Service
from replayd.snapshots import dump_service, load_service
from replayd.state import frozen, settled
from replayd.table import Table
from tests.model.traffic import LEASE_S, SCHEMAS, TABLES, TEMPLATES, WAIT_S, Traffic

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
            taken, todo = handover.take(todo[:2]), todo[2:]
            saved += handover.take_rescued() + ([] if taken is None else [taken])
        service.validate()
        taken = handover.take(todo)
        saved += [] if taken is None else [taken]
        handover.end()
        # The other one's clock began at another time.
        shift = after_s
        losses = load_service(again, settled(snapshot), saved, snapshot["clock"] + shift, schema_of, template_of)
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


def service_of(tables: Sequence[Table], seed: int) -> Service:
    return Service(tables, server_id=bytes(16), version="test", seed=seed, started_at=0.0, lease_s=LEASE_S)


def table_again(table: Table) -> Table:
    """An empty table of the same settings, those that were changed live too."""
    again = table.replace()
    again.paused = table.paused
    return again


def schema_of(blob: bytes) -> Schema:
    return next(schema for schema in SCHEMAS if schema.blob == blob)


def template_of(blob: bytes) -> Template:
    return next(template for template in TEMPLATES if template.blob == blob)


NOT_COMPARED = {"chunks", "streams", "counters", "peers", "blocked_s", "extension_faults", "uptime_s"}
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
