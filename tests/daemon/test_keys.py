"""Keys of items: none is drawn twice, whatever becomes of the server that drew it."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd.items import EPOCH_NS, FIRST_KEY, KEY_SHARD_SHIFT, first_key_at
from replayd.service import Service
from tests.daemon.harness import DaemonProcess, Peer
from tests.unit.writer import StreamWriter, fifo, service

SECOND_NS = 10**9


# --- where they begin -------------------------------------------------------------------------------------------------


def test_a_server_begins_behind_all_that_one_before_it_can_have_drawn() -> None:
    chance = random.Random(1)
    for _ in range(1000):
        started_ns = EPOCH_NS + chance.randrange(31 * 365 * 86400 * SECOND_NS)
        lived_ns = chance.choice((1_000, 10**6, SECOND_NS, 3600 * SECOND_NS)) * chance.randint(1, 100)
        drawn = 4_000_000 * lived_ns // SECOND_NS
        first, later = first_key_at(started_ns), first_key_at(started_ns + lived_ns)
        assert first >= FIRST_KEY
        assert first + drawn <= later < 1 << KEY_SHARD_SHIFT


@pytest.mark.parametrize("wall_ns", [0, -1, EPOCH_NS - 1, EPOCH_NS, EPOCH_NS + 1, 1 << 62, 1 << 70])
def test_a_clock_that_is_wrong_still_gives_keys_of_the_shard(wall_ns: int) -> None:
    # And leaves room for many more.
    assert FIRST_KEY <= first_key_at(wall_ns) <= (1 << KEY_SHARD_SHIFT) - (1 << 48)


def test_keys_rise_from_where_they_are_told_to_begin() -> None:
    made = Service([fifo()], server_id=b"s" * 16, version="0", seed=1, started_at=0.0, shard=3, first_key=1000)
    made.handle("peer", "insert", StreamWriter().insert([b"a", b"b"], [(0, 1), (1, 1)]), 0.0)
    table = made.tables["t"]
    shard = 3 << KEY_SHARD_SHIFT
    assert table.items.key[table.items.in_order()].tolist() == [shard + 1000, shard + 1001]


# --- across restarts --------------------------------------------------------------------------------------------------


@pytest.fixture
def served(zmq_context: Any) -> Callable[..., Any]:
    """`served(…)`: a peer of a server of table `t` in this process, which ends with the context."""

    @contextmanager
    def served(**options: Any) -> Iterator[Peer]:
        table = replayd.Table("t", selectors.Uniform(), selectors.Fifo(), 100, rate_limiters.MinSize(1))
        with replayd.Server([table], **options) as server:
            peer = Peer(zmq_context, server.address)
            try:
                yield peer
            finally:
                peer.close()

    return served


def key(peer: Peer) -> int:
    first: int = peer.insert("t")["first_key"]
    return first


def test_a_server_without_a_store_draws_no_key_of_one_before_it(served: Any) -> None:
    keys = []
    for _ in range(3):
        with served() as peer:
            keys += [key(peer) for _ in range(5)]
    assert keys == sorted(set(keys))


def test_a_learner_that_outlives_the_daemon_changes_no_other_items(
    start_daemon: Callable[..., DaemonProcess], connect: Callable[[DaemonProcess], Peer]
) -> None:
    table = "t,sampler=prioritized,priority_exponent=1"
    first = start_daemon("--table", table)
    drawn = key(connect(first))
    first.kill()
    peer = connect(start_daemon("--table", table))
    assert key(peer) > drawn
    reply = peer.ask("update", table="t", keys=struct.pack("<Q", drawn), priorities=struct.pack("<d", 9.0))
    assert (reply["updated"], reply["missing"]) == (0, struct.pack("<Q", drawn))


def test_with_a_seed_they_begin_at_1_each_time(served: Any) -> None:
    for _ in range(2):
        with served(seed=7) as peer:
            assert [key(peer), key(peer)] == [1, 2]


@pytest.mark.parametrize("seed", [None, 7])
def test_a_store_goes_on_behind_what_it_has(served: Any, tmp_path: Path, seed: int | None) -> None:
    keys = []
    for _ in range(3):
        with served(data_dir=tmp_path / "store", seed=seed) as peer:
            keys += [key(peer) for _ in range(3)]
    assert keys == (sorted(set(keys)) if seed is None else list(range(1, 10)))


def test_a_copy_of_a_store_that_is_brought_back_repeats_no_key(served: Any, tmp_path: Path) -> None:
    store, copy = tmp_path / "store", tmp_path / "copy"
    with served(data_dir=store) as peer:
        key(peer)
    shutil.copytree(store, copy)
    with served(data_dir=store) as peer:
        lost = [key(peer) for _ in range(3)]
    with served(data_dir=copy) as peer:
        assert key(peer) > max(lost)


def test_the_pure_service_begins_at_1() -> None:
    made = service(fifo())
    made.handle("peer", "insert", StreamWriter().insert([b"a"], [(0, 1)]), 0.0)
    [(_, reply)] = made.drain()
    assert reply.fields["first_key"] == FIRST_KEY
