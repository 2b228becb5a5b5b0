"""A store whose disk, whose LMDB or whose writer fails: errors have their kind, and what was committed stays."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from replayd.checkpoints import Checkpoints
from replayd.errors import LastCheckpointFailed, StoreError
from replayd.journal import JournalOptions
from replayd.messages import Result
from replayd.store import Store
from tests.daemon.harness import environment
from tests.unit.kept import DEADLINE_S, Kept
from tests.unit.test_store_copies import READER_KILLED

STATE = {"chunks": {"uids": np.zeros(0, np.int64)}, "journal": {"next": 3}}

USES: dict[str, Callable[[Store], object]] = {
    "add_blocks": lambda store: store.add_blocks([b"another"]),
    "drop_blocks": lambda store: store.drop_blocks([1]),
    "add_entries": lambda store: store.add_entries([(9, b"another")]),
    "drop_entries": lambda store: store.drop_entries(3, 10),
    "write_index": lambda store: store.write_index(STATE, saved_at=1.0, clean=False),
    "sweep": lambda store: store.sweep(),
    "next_entry": lambda store: store.next_entry(),
    "content_bytes": lambda store: store.content_bytes(),
    "entries": lambda store: list(store.entries(0)),
    "blocks": lambda store: list(store.blocks()),
    "read_index": lambda store: store.read_index(),
}
FAILURES = [
    lmdb.PanicError("MDB_PANIC"),
    lmdb.DiskError("input/output error"),
    lmdb.Error("mdb_txn_begin: cannot allocate memory"),
    OSError(errno.EIO, "input/output error"),
]


class Failing:
    """An LMDB environment of which no transaction can be had."""

    def __init__(self, env: Any, failure: Exception) -> None:
        self._env, self._failure = env, failure

    def begin(self, *arguments: Any, **how: Any) -> Any:
        raise self._failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


@contextmanager
def stuck_disk(patch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While inside nothing is written; the event tells that something is to be."""
    mended, is_stuck, transact = threading.Event(), threading.Event(), Store._transact

    def wait(store: Store, change: Callable[[Any], None]) -> None:
        is_stuck.set()
        mended.wait()
        transact(store, change)

    patch.setattr(Store, "_transact", wait)
    try:
        yield is_stuck
    finally:
        mended.set()


def filled(directory: Path) -> Store:
    store = Store(directory)
    store.add_blocks([b"block"])
    store.add_entries([(1, b"one"), (2, b"two")])
    store.write_index(STATE, saved_at=0.0, clean=False)
    return store


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_whatever_a_store_is_used_for_a_failure_is_its_error_and_passes(tmp_path: Path, failure: Exception) -> None:
    with filled(tmp_path) as store:
        for name, use in USES.items():
            if name == "sweep":
                # Something must be there to be removed.
                store._put_pieces([(b"stray", b"")])
            env = store._env
            store._env = Failing(env, failure)
            with pytest.raises(StoreError, match=str(tmp_path)):
                use(store)
            if not isinstance(failure, lmdb.PanicError):
                store._env = env
            use(store)
        assert [bytes(value) for _, value in store.blocks()] == [b"another"]
        assert [number for number, _ in store.entries(0)] == [9]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("first", USES)
def test_a_store_that_must_be_opened_again_is_as_soon_as_that_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, times: int
) -> None:
    opens = Store._open
    with filled(tmp_path) as store:
        store._env = Failing(store._env, lmdb.PanicError("MDB_PANIC"))
        with pytest.raises(StoreError, match="MDB_PANIC"):
            USES[first](store)
        with monkeypatch.context() as broken:
            broken.setattr(Store, "_open", lambda store: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many")))
            for _ in range(times):
                with pytest.raises(StoreError, match="too many"):
                    USES[first](store)
        assert Store._open is opens
        USES[first](store)
        assert store.head is not None
        [number] = store.add_blocks([b"the last"])
        assert bytes(dict(store.blocks())[number]) == b"the last"
    with Store(tmp_path) as again:
        assert again.head is not None
        assert again.head.generation == 2 if first == "write_index" else 1


GROWS = """
import resource, sys
from pathlib import Path
from replayd.errors import StoreError
from replayd.store import Store
with Store(Path(sys.argv[1]), map_bytes=1 << 20) as store:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    blocks, stored, refused = [bytes([n]) * (1 << 20) for n in range(20)], [], 0
    resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20), hard))
    for n, block in enumerate(blocks):
        if n == len(blocks) - 1:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        try:
            store.add_blocks([block])
            stored.append(n)
        except StoreError as error:
            assert "allocate" in str(error), error
            refused += 1
    assert refused and stored[-1] == n, stored
    assert [value[0] for _, value in store.blocks()] == stored
"""


def test_a_map_for_which_there_is_no_address_space_is_an_error_that_passes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", GROWS, str(tmp_path / "store")], env=environment(), check=True)


def test_a_reader_that_is_killed_does_not_let_a_journal_grow_that_is_trimmed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for n in range(1, 120):
            store.add_entries([(n, bytes(9000))])
            store.drop_entries(n - 20, 4)
            if n == 40:
                before = store.size_bytes
                subprocess.run([sys.executable, "-c", READER_KILLED, str(tmp_path)])
        assert store.size_bytes <= 2 * before


# --- the writer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where", ["add_blocks", "write_index", "drop_entries", "drop_blocks", "_touched", "pack_block", "survey"]
)
def test_a_fault_of_its_own_ends_the_writer_with_its_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise ZeroDivisionError("made up")

    with Kept(tmp_path) as kept:
        kept.insert([b"before"])
        kept.checkpoint()
        kept.insert([b"after"])
        with monkeypatch.context() as broken:
            names = {"_touched": "replayd.store_writer._touched", "pack_block": "replayd.store_writer.pack_block"}
            names["survey"] = "replayd.store_blocks.BlockMap.survey"
            broken.setattr(names.get(where, f"replayd.store.Store.{where}"), fail)
            if where == "drop_blocks":
                # While a failure is being cleaned up.
                broken.setattr(Store, "write_index", lambda *_, **__: (_ for _ in ()).throw(StoreError("full")))
            kept.begin_checkpoint()
            with pytest.raises(AssertionError, match="writes the store") as fault:
                kept.turn_until(lambda: kept.keeper.is_done and not kept.service.durability.askers)
                kept.turn_until(lambda: False)
            assert isinstance(fault.value.__cause__, ZeroDivisionError)
    with Kept(tmp_path) as again:
        assert again.contents() == ([b"before", b"after"] if where in ("drop_entries", "survey") else [b"before"])


@pytest.mark.parametrize("where", ["_touched", "pack_block", "pack_piece"])
def test_memory_that_a_checkpoint_cannot_have_fails_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*arguments: Any) -> Any:
        raise MemoryError

    with Kept(tmp_path) as kept:
        kept.insert([b"one"])
        with monkeypatch.context() as broken:
            broken.setattr(f"replayd.store{'' if where == 'pack_piece' else '_writer'}.{where}", fail)
            kept.checkpoint()
            assert kept.info()["store"]["last_error"] == "MemoryError"
        kept.checkpoint()
    with Kept(tmp_path) as again:
        assert again.contents() == [b"one"]


@pytest.mark.parametrize("failure", [*FAILURES[1:], MemoryError()], ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize(
    ("where", "is_durable"),
    [
        ("replayd.store_writer.pack_block", False),
        ("replayd.store_writer.settled", False),
        ("replayd.store_blocks.BlockMap.survey", True),
        ("replayd.store_blocks.BlockMap.add", False),
        ("replayd.store_blocks.BlockMap.remove", False),
    ],
)
def test_what_the_machine_refuses_the_writer_fails_a_checkpoint_or_its_sweep_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, is_durable: bool, failure: Exception
) -> None:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise failure

    with Kept(tmp_path) as kept:
        kept.insert([b"one"])
        kept.checkpoint()
        kept.insert([b"two"])
        with monkeypatch.context() as broken:
            if where.endswith("remove"):
                # While a failure is cleaned up.
                broken.setattr(Store, "write_index", fail)
            broken.setattr(where, fail)
            reply = kept.checkpoint()
            assert isinstance(reply, Result) is is_durable
        kept.insert([b"three"])
        assert isinstance(kept.checkpoint(), Result)
    with Kept(tmp_path) as again:
        assert again.contents() == [b"one", b"two", b"three"]


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "made up"), MemoryError()], ids=["OSError", "MemoryError"])
def test_a_size_that_cannot_be_seen_does_not_take_a_checkpoint_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fail(path: Path) -> Any:
        raise failure

    with Kept(tmp_path) as kept:
        kept.insert([b"one"])
        size_bytes = kept.info()["store"]["size_bytes"]
        with monkeypatch.context() as broken:
            broken.setattr("pathlib.Path.stat", fail)
            reply = kept.checkpoint()
        assert isinstance(reply, Result)
        assert reply.fields["size_bytes"] == size_bytes > 0
    with Kept(tmp_path) as again:
        assert again.contents() == [b"one"]


def test_a_server_is_not_done_before_what_the_last_checkpoint_does_not_need_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops = Store.drop_entries
    with Kept(tmp_path) as kept:
        kept.insert([b"one"])
        goes_on = threading.Event()
        monkeypatch.setattr(Store, "drop_entries", lambda *arguments: goes_on.wait() and drops(*arguments))
        kept.service.stop()
        kept.keeper.begin_last(time.monotonic())
        kept.turn_until(lambda: kept.service.durability.checkpoints == 1)
        assert not kept.keeper.is_done
        goes_on.set()
        kept.turn_until(lambda: kept.keeper.is_done)


@pytest.mark.parametrize("interval_s", [1e-9, 1e9], ids=["always due", "never due"])
def test_a_start_does_not_wait_until_the_journal_before_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    options = {"journal": JournalOptions("interval"), "checkpoint_interval_s": interval_s}
    with Kept(tmp_path, **options) as kept:
        kept.insert([b"one"])
    goes_on, drops, turn, turns = threading.Event(), Store.drop_entries, Checkpoints.turn, []
    at_last = threading.Timer(DEADLINE_S, goes_on.set)
    at_last.start()

    def counted(checkpoints: Checkpoints, now: float) -> float | None:
        turns.append(now)
        assert len(turns) < 100, "a start spins"
        return turn(checkpoints, now)

    monkeypatch.setattr(Store, "drop_entries", lambda *arguments: goes_on.wait() and drops(*arguments))
    monkeypatch.setattr(Checkpoints, "turn", counted)
    try:
        kept = Kept(tmp_path, **options)
        assert kept.service.durability.checkpoints == 1
        assert not kept.keeper.is_done
    finally:
        at_last.cancel()
        goes_on.set()
    kept.keeper.close()


@pytest.mark.parametrize("is_stuck", [True, False], ids=["a stuck disk", "a disk"])
def test_a_last_checkpoint_can_be_cut_short_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_stuck: bool
) -> None:
    monkeypatch.setattr("replayd.store_writer.CUT_SHORT_S", 0.05 if is_stuck else 60.0)
    kept = Kept(tmp_path)
    kept.insert([bytes(1000)] * 10)
    writer = kept.keeper._writer
    assert writer is not None
    with stuck_disk(monkeypatch) if is_stuck else nullcontext() as stuck:
        kept.service.stop()
        kept.keeper.begin_last(time.monotonic())
        if stuck is not None:
            kept.turn_until(stuck.is_set)
        with pytest.raises(LastCheckpointFailed, match="disk does not answer" if is_stuck else "second signal"):
            kept.keeper.close()
        assert ("does not answer" in caplog.text) is is_stuck
        assert writer._thread.is_alive() is is_stuck
    # Whenever that comes to an end the store is let go of.
    writer._thread.join()
    with Kept(tmp_path) as again:
        assert again.contents() == []
