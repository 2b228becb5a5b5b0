"""The journal of a service: after a crash all of it is repeated, and the state is exactly what it was."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayd import rate_limiters, selectors
from replayd.extensions import InsertOnSample
from replayd.journal import Journal, JournalOptions
from replayd.keeper import Keeper, StoreOptions
from replayd.messages import Checkpoint
from replayd.parked import dump_parked
from replayd.parked_samples import forget_peers
from replayd.reception import Reception
from replayd.restoring import KEYS_SKIPPED
from replayd.service import Service
from replayd.settings import change_settings, settings_of
from replayd.state import settled
from replayd.table import Table
from replayd.wire import encode
from tests.model.wire_traffic import WireTraffic, give
from tests.unit.kept import DEADLINE_S
from tests.unit.writer import service as service_of

SYNC = JournalOptions("sync")
KINDS = ("Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized")


class Journaled:
    """A service with a store and a journal. Leaving it ends it without a checkpoint, as a crash does."""

    def __init__(self, directory: Path, tables: list[Table], journal: JournalOptions = SYNC, **options: Any) -> None:
        self.service: Service = service_of(*tables, seed=1, lease_s=50.0)
        self.woken = threading.Event()
        self.keeper = Keeper(StoreOptions(directory, journal=journal, **options), self.service, self.woken.set)
        self.keeper.load()
        self.restored_at = time.monotonic()
        self.reception = Reception(self.service, bytes, lambda fault, now: None, self.keeper.journal)
        self.sent: list[Any] = []

    @property
    def journal(self) -> Journal:
        assert self.keeper.journal is not None
        return self.keeper.journal

    def turn(self, now: float) -> None:
        """What a loop does after it has taken requests."""
        self.keeper.turn(now)
        self.sent += self.keeper.released(self.service.drain())

    def checkpoint(self, now: float) -> None:
        self.service.handle(("op",), "checkpoint", Checkpoint(1), now)

    def settle(self, now: float) -> None:
        """Wait until nothing is on its way to the disk."""
        deadline = time.monotonic() + DEADLINE_S
        self.turn(now)
        while not self.keeper.is_done or self.service.durability.askers:
            assert time.monotonic() < deadline, "what was waited for did not come"
            self.woken.wait(0.05)
            self.woken.clear()
            self.turn(now)

    def __enter__(self) -> Journaled:
        return self

    def __exit__(self, *exception: object) -> None:
        self.keeper.close()


def tables_of(seed: int) -> list[Table]:
    """Any two tables, the same for the same seed."""
    draw = random.Random(seed)

    def selector() -> selectors.Selector:
        kind = draw.choice(KINDS)
        return selectors.Prioritized(0.7) if kind == "Prioritized" else getattr(selectors, kind)()

    return [
        Table(
            name,
            selector(),
            selector(),
            draw.randint(5, 30),
            rate_limiters.RateLimiter(
                draw.choice([0.5, 1.0, 2.0]),
                draw.randint(1, 4),
                draw.choice([None, -3.0, 0.0]),
                draw.choice([None, None, 6.5, 20.0]),
            ),
            draw.choice([0, 0, 1, 3]),
            extensions=(InsertOnSample("b"),) if name == "a" and draw.random() < 0.3 else (),
        )
        for name in ("a", "b")
    ]


def essence(service: Service) -> dict[str, Any]:
    """All that decides what the service will answer, times aside."""
    streams = settled(service.streams.dump())
    del streams["streams"]["heard_at"]
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


def as_restarted(service: Service, configured: dict[str, dict[str, Any]], now: float) -> None:
    """What a restart does to a state beside losing nothing of it."""
    forget_peers(service)
    for name, table in service.tables.items():
        now_is = settings_of(table)
        change_settings(table, {n: value for n, value in configured[name].items() if now_is[n] != value})
        service._pump(table, now)
    service._keys.take(KEYS_SKIPPED)
    service.drain()


@pytest.mark.parametrize("seed", range(20))
def test_a_service_that_crashed_goes_on_as_if_nothing_had_been(tmp_path: Path, seed: int) -> None:
    rules, traffic = random.Random(seed), WireTraffic(seed, time.monotonic())
    with ExitStack() as running:
        live = running.enter_context(Journaled(tmp_path, tables_of(seed)))
        configured = {name: settings_of(table) for name, table in live.service.tables.items()}
        for _ in range(3):
            traffic.now = max(traffic.now, time.monotonic())
            for _ in range(rules.choice([10, 60])):
                traffic.turn(live.reception, live.service)
                if rules.random() < 0.05:
                    live.checkpoint(traffic.now)
                live.turn(traffic.now)
                if rules.random() < 0.2:
                    live.settle(traffic.now)
            running.close()
            as_restarted(live.service, configured, traffic.now)
            again = running.enter_context(Journaled(tmp_path, tables_of(seed)))
            again.service.validate()
            assert differences(essence(again.service), essence(live.service)) == []
            # And what is asked from now on is answered alike.
            shift_s = again.restored_at - traffic.now
            live.reception.recorder = None
            traffic.connection += 1
            for _ in range(10):
                sent = traffic.turn(live.reception, live.service)
                expected = [(peer, encode(reply)) for peer, reply in live.service.drain()]
                give(again.reception, sent, traffic.now + shift_s)
                assert [(peer, encode(reply)) for peer, reply in again.service.drain()] == expected
                again.turn(traffic.now + shift_s)
            assert differences(essence(again.service), essence(live.service)) == []
            live = again
            traffic.now += shift_s
