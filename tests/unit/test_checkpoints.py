"""Checkpoints of a service: what comes back, what is written, and what happens while one is under way."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from replayd.checkpoints import BYTES_A_TURN, CHUNKS_A_TURN
from replayd.errors import LastCheckpointFailed, NoStore, StoreError
from replayd.handover import SavedChunks
from replayd.items import KEY_SHARD_SHIFT
from replayd.messages import Checkpoint, Failed, Result, Sample, Sampled, Update
from replayd.store import Store
from replayd.store_format import pack_block
from replayd.store_writer import Chunks, StoreWriter
from replayd.table import Table
from tests.unit.kept import SCHEMA, Kept
from tests.unit.test_store_format import chunks_of
from tests.unit.writer import StreamWriter, fifo, service


def numbered(n: int, first: int = 0, size: int = 20) -> list[bytes]:
    return [f"payload {first + i}".encode().ljust(size) for i in range(n)]


def delete_all(kept: Kept, table: str = "t", newest: int = 0) -> None:
    """All items, or so many."""
    items = kept.service.tables[table].items
    nothing = np.zeros(0)
    keys = items.key[items.in_order()[-newest:]]
    assert isinstance(kept.ask(Update(1, table, nothing.astype(np.uint64), nothing, keys)), Result)


def test_what_a_checkpoint_saved_is_there_after_a_crash(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(100))
        reply = kept.checkpoint()
        assert isinstance(reply, Result)
        assert reply.fields["items"] == reply.fields["chunks"] == 100
        kept.insert(numbered(5, 100))
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(100)
        assert again.draw() == numbered(1)


def test_a_server_that_was_told_to_stop_begins_where_it_ended(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        kept.draw(4)
        kept.stop()
        generator = kept.service.tables["t"]._rng.bit_generator.state
        key = kept.service._keys.take(0)
        identity = kept.service.server_id
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(10)
        assert again.service.tables["t"].limiter.samples == 4
        assert again.service.tables["t"]._rng.bit_generator.state == generator
        assert again.service._keys.take(0) == key
        assert again.service.server_id == identity


def test_no_key_is_drawn_twice_after_a_crash(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        kept.checkpoint()
        kept.insert(numbered(10))
        lost = kept.service._keys.take(0)
    with Kept(tmp_path) as again:
        first = again.service._keys.take(1)
        assert first > lost
        assert first >> KEY_SHARD_SHIFT == lost >> KEY_SHARD_SHIFT
        again.insert(numbered(10))
        lost = again.service._keys.take(0)
    # It has left nothing on the disk.
    with Kept(tmp_path) as third:
        assert third.service._keys.take(1) >= lost


def test_a_second_checkpoint_writes_only_what_is_new(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(1000, size=2000))
        first = kept.checkpoint()
        again = kept.checkpoint()
        kept.insert(numbered(10, 1000, size=2000))
        third = kept.checkpoint()
        assert isinstance(first, Result)
        assert isinstance(again, Result)
        assert isinstance(third, Result)
        assert first.fields["chunks"] == 1000
        assert (again.fields["chunks"], again.fields["bytes"]) == (0, 0)
        assert third.fields["chunks"] == 10
        assert third.fields["bytes"] < first.fields["bytes"] / 5


def test_a_chunk_that_is_freed_before_its_turn_is_in_the_checkpoint(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(100))
        kept.begin_checkpoint()
        kept.turn_until(lambda: kept.service.chunks.handover.under_way)
        delete_all(kept)
        assert len(kept.service.chunks) == 0
        kept.insert(numbered(50, 500))
        kept.turn_until(lambda: kept.keeper.is_done)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(100)
        again.service.validate()


def test_what_happens_after_the_moment_is_not_in_the_checkpoint_but_in_the_next(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        kept.begin_checkpoint()
        kept.turn_until(lambda: kept.service.chunks.handover.under_way)
        kept.insert(numbered(10, 10))
        kept.turn_until(lambda: kept.keeper.is_done)
        [(_, first)] = kept.service.drain()
        assert isinstance(first, Result)
        assert first.fields["items"] == 10
        second = kept.checkpoint()
        assert isinstance(second, Result)
        assert (second.fields["items"], second.fields["chunks"]) == (20, 10)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(20)


def test_the_turn_that_copies_the_index_has_no_requests(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        kept.begin_checkpoint()
        kept.turn_until(lambda: kept.keeper.is_behind)
        assert not kept.service.chunks.handover.under_way
        # The memory is there: the loop reads nothing, comes at once, and copies.
        kept.keeper.turn(time.monotonic())
        assert kept.service.chunks.handover.under_way
        assert not kept.keeper.is_behind
        kept.turn_until(lambda: kept.keeper.is_done)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(10)


def test_a_turn_hands_over_so_many_chunks_and_bytes_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[list[SavedChunks]] = [[]]
    real = StoreWriter.post

    def post(writer: StoreWriter, job: object) -> None:
        if isinstance(job, Chunks):
            turns[-1].append(job.chunks)
        real(writer, job)

    monkeypatch.setattr(StoreWriter, "post", post)
    with Kept(tmp_path) as kept:
        kept.insert(numbered(2 * CHUNKS_A_TURN + 10))
        kept.insert([bytes([n]) * (BYTES_A_TURN // 3) for n in range(7)])
        kept.begin_checkpoint()
        kept.turn_until(lambda: turns.append([]) or kept.keeper.is_done)  # type: ignore[func-returns-value]
        [(_, reply)] = kept.service.drain()
        assert isinstance(reply, Result)
        # What the copy of the index took is told, of which nothing is said here: it depends on the machine.
        assert reply.fields["held_ms"] > 0
    handed = [chunks for turn in turns for chunks in turn]
    assert sum(len(chunks.uids) for chunks in handed) == 2 * CHUNKS_A_TURN + 17
    assert max(map(len, turns)) == 1
    assert len(handed) >= 5
    for chunks in handed:
        assert len(chunks.uids) <= CHUNKS_A_TURN
        assert chunks.nbytes.sum() <= BYTES_A_TURN


def test_who_asks_before_the_moment_joins_and_who_asks_later_gets_the_next(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        for id in (1, 2):
            kept.service.handle("early", "checkpoint", Checkpoint(id), 0.0)
        kept.turn_until(lambda: kept.service.chunks.handover.under_way)
        kept.service.handle("late", "checkpoint", Checkpoint(3), 0.0)
        kept.turn_until(lambda: kept.keeper.is_done and not kept.service.durability.askers)
        told = [(peer, reply.id, reply.fields["generation"]) for peer, reply in kept.service.drain()]
        assert told == [("early", 1, 1), ("early", 2, 1), ("late", 3, 2)]


def test_a_store_does_not_grow_while_its_contents_change(tmp_path: Path) -> None:
    with Kept(tmp_path, fifo(max_size=200)) as kept:
        sizes = []
        for n in range(30):
            kept.insert(numbered(100, 100 * n, size=5000))
            kept.checkpoint()
            sizes.append(kept.info()["store"]["size_bytes"])
        # What is in use is 1 MB; a checkpoint adds half as much before it drops the same.
        assert max(sizes) < 6_000_000
        assert max(sizes[15:]) <= max(sizes[:15])
    with Kept(tmp_path, fifo(max_size=200)) as again:
        assert again.contents() == numbered(200, 2800, size=5000)


def test_chunks_that_are_left_in_nearly_empty_blocks_are_written_anew(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(1000, size=2000))
        kept.checkpoint()
        items = kept.service.tables["t"].items
        keys = items.key[items.in_order()]
        nothing = np.zeros(0)
        kept.ask(Update(1, "t", nothing.astype(np.uint64), nothing, np.delete(keys, [3, 500, 999])))
        kept.checkpoint()
        anew = kept.checkpoint()
        assert isinstance(anew, Result)
        assert anew.fields["chunks"] == 3
        settled = kept.checkpoint()
        assert isinstance(settled, Result)
        assert settled.fields["chunks"] == 0
        expected = [numbered(1, n, size=2000)[0] for n in (3, 500, 999)]
    with Kept(tmp_path) as again:
        assert again.contents() == expected
        assert sum(len(value) for _, value in again.keeper._writer.store.blocks()) < 10_000  # type: ignore[union-attr]


def test_a_map_that_is_full_grows(tmp_path: Path) -> None:
    with Kept(tmp_path, map_bytes=1 << 20) as kept:
        kept.insert(numbered(1000, size=10_000))
        assert isinstance(kept.checkpoint(), Result)
    with Kept(tmp_path, map_bytes=1 << 20) as again:
        assert again.contents() == numbered(1000, size=10_000)


@contextmanager
def disk_takes_no_more_than(nbytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(100, size=1000))
        kept.checkpoint()
        kept.insert(numbered(5000, 100, size=1000))
        with disk_takes_no_more_than(1_000_000):
            failed = kept.checkpoint()
            assert isinstance(failed, Failed)
            assert failed.code == "checkpoint_failed"
            assert failed.detail["path"] == str(tmp_path)
            store = kept.info()["store"]
            assert (store["failures"], store["checkpoints"]) == (1, 1)
            assert failed.detail["reason"] == store["last_error"]
            # The service goes on.
            kept.insert(numbered(1, 5100, size=1000))
            assert kept.draw()
            kept.service.validate()
        with Kept(tmp_path / "elsewhere"):
            pass
        mended = kept.checkpoint()
        assert isinstance(mended, Result)
        assert "last_error" not in kept.info()["store"]
        kept.service.validate()
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(5101, size=1000)


def test_what_was_durable_before_a_failed_checkpoint_still_is(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(100, size=1000))
        kept.checkpoint()
        kept.insert(numbered(5000, 100, size=1000))
        with disk_takes_no_more_than(1_000_000):
            assert isinstance(kept.checkpoint(), Failed)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(100, size=1000)


def test_a_last_checkpoint_that_fails_is_told(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(2000, size=1000))
        with disk_takes_no_more_than(100_000), pytest.raises(LastCheckpointFailed, match="older"):
            kept.stop()


@pytest.mark.parametrize("turns", range(12))
def test_a_checkpoint_that_is_cut_short_anywhere_leaves_the_last_one(tmp_path: Path, turns: int) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(3000, size=1000))
        kept.checkpoint()
        delete_all(kept)
        kept.insert(numbered(6000, 3000, size=1000))
        kept.begin_checkpoint()
        left = iter(range(turns))
        kept.turn_until(lambda: next(left, None) is None)
    before, after = numbered(3000, size=1000), numbered(6000, 3000, size=1000)
    with Kept(tmp_path) as again:
        again.service.validate()
        assert again.contents() in (before, after)
        # What it left behind is in nobody's way.
        again.writer = StreamWriter(b"another stream..")
        again.insert(numbered(10, 20_000))
        expected = again.contents()
        assert expected[-10:] == numbered(10, 20_000)
        again.checkpoint()
    with Kept(tmp_path) as third:
        assert third.contents() == expected


@pytest.mark.parametrize("is_first", [True, False])
def test_chunks_that_a_checkpoint_left_behind_are_not_taken_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    before = [] if is_first else numbered(10)
    with Kept(tmp_path) as kept:
        if not is_first:
            kept.insert(before)
            kept.checkpoint()
        kept.insert(numbered(20, 100))

        def fail(*arguments: object, **named: object) -> None:
            raise StoreError("no space left on the disk")

        with monkeypatch.context() as full:
            # There was room for its chunks, and none for its index nor to remove them.
            full.setattr(Store, "write_index", fail)
            full.setattr(Store, "drop_blocks", fail)
            assert isinstance(kept.checkpoint(), Failed)
    monkeypatch.setattr(Store, "drop_blocks", fail)
    with Kept(tmp_path) as again:
        assert again.contents() == before
        again.writer = StreamWriter(b"another stream..")
        again.insert(numbered(10, 200))
        assert isinstance(again.checkpoint(), Result)
        again.service.validate()
    with Kept(tmp_path) as third:
        assert third.contents() == before + numbered(10, 200)


def test_blocks_of_checkpoints_that_were_cut_short_are_gone_with_the_next_start(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert(numbered(100, size=1000))
        kept.checkpoint()
    for _ in range(3):
        with Store(tmp_path) as store:
            # What a crash leaves right behind the first transaction.
            store.add_blocks([pack_block(chunks_of([b"new"] * 10, [1] * 10, first_uid=1000))])
        with Kept(tmp_path) as again:
            assert again.contents() == numbered(100, size=1000)
            # Their names are not given again.
            assert again.service.chunks._next_uid > 1000
            assert len(again.keeper._writer._blocks) == 1  # type: ignore[union-attr]
        with Store(tmp_path) as store:
            assert [number for number, _ in store.blocks()] == [1]


class Panicking:
    """An LMDB environment after a commit of which it could not write the end: it must be opened again."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def begin(self, **how: Any) -> Any:
        raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def test_an_index_that_only_seems_not_to_be_written_is_what_the_next_one_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Store._replace_head

    def seem_to_fail(store: Store, *arguments: Any) -> None:
        before = store.head
        replace(store, *arguments)
        store.head, store._env = before, Panicking(store._env)
        raise StoreError("input/output error")

    with Kept(tmp_path) as kept:
        kept.insert(numbered(10))
        kept.checkpoint()
        kept.insert(numbered(10, 100))
        with monkeypatch.context() as broken:
            broken.setattr(Store, "_replace_head", seem_to_fail)
            assert isinstance(kept.checkpoint(), Failed)
        # Much is again as it was in the index before that one, of which the disk has nothing any more.
        delete_all(kept, newest=10)
        assert isinstance(kept.checkpoint(), Result)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(10)
        again.service.validate()


def test_without_a_store_a_checkpoint_is_refused() -> None:
    made = service(fifo())
    error = made.handle("operator", "checkpoint", Checkpoint(1), 0.0)
    assert isinstance(error, NoStore)


def test_checkpoints_come_on_the_interval(tmp_path: Path) -> None:
    with Kept(tmp_path, checkpoint_interval_s=0.01) as kept:
        kept.insert(numbered(3))
        kept.turn_until(lambda: kept.info()["store"]["checkpoints"] >= 3)
    with Kept(tmp_path) as again:
        assert again.contents() == numbered(3)


def test_an_insert_that_waits_survives_and_is_acknowledged_once(tmp_path: Path) -> None:
    writer = StreamWriter()
    one = writer.insert([b"one"], [(0, 1)], schema=SCHEMA, table="q")
    two = writer.insert([b"two"], [(1, 1)], schema=SCHEMA, table="q")
    with Kept(tmp_path, Table.queue("q", 1)) as kept:
        assert isinstance(kept.ask(one), Result)
        kept.service.handle("old connection", "insert", two, 0.0)
        assert kept.service.drain() == []
        kept.checkpoint()
    with Kept(tmp_path, Table.queue("q", 1)) as again:
        again.service.handle("new connection", "insert", two, 0.0)
        assert again.service.drain() == []
        again.service.handle("learner", "sample", Sample(9, "q", 1, 1, 0.0), 0.0)
        replies = dict(again.service.drain())
        assert isinstance(replies["learner"], Sampled)
        acknowledged = replies["new connection"]
        assert isinstance(acknowledged, Result)
        assert acknowledged.fields == {"items": 1, "duplicate": False, "first_key": 2}
        assert again.contents("q") == [b"two"]
        repeated = again.ask(one)
        assert repeated.fields == {"items": 1, "duplicate": True, "first_key": 1}
        again.service.validate()


def test_a_store_is_whole_for_its_own_eyes_after_each_checkpoint(tmp_path: Path) -> None:
    with Kept(tmp_path, fifo(max_size=300)) as kept:
        for n in range(5):
            kept.insert(numbered(200, 200 * n, size=3000))
            kept.checkpoint()
    # Opening verifies every page of the file.
    with Store(tmp_path) as store:
        assert store.head is not None
        assert store.head.generation == 5
