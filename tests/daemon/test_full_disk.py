"""Starts on a full disk: a clear sentence, or a daemon that serves and tells; the store stays good either way."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replayd.store import Store
from replayd.store_copies import copy_store
from replayd.store_files import DATA, LOCK, MARK
from replayd_client import Client, errors
from tests.daemon.conftest import StartDaemon
from tests.daemon.disks import filled, small_disk
from tests.daemon.embedded import size
from tests.daemon.harness import REPLAYD, START_S, environment, run_replayd
from tests.daemon.storm import emptied, padded
from tests.unit.kept import Kept

TABLE = ("--table", "t,sampler=fifo,max_size=100000")
ITEMS = 20


@pytest.fixture
def client_of() -> Iterator[Callable[[str], Client]]:
    with ExitStack() as clients:
        yield lambda address: clients.enter_context(Client(address))


def refused(ended: subprocess.CompletedProcess[str], directory: Path, reason: str) -> None:
    """It went by itself, with one sentence that says what and where."""
    assert ended.returncode == os.EX_IOERR, ended.stderr
    assert f"replayd: {directory}: " in ended.stderr
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Fatal" not in ended.stderr


# Room for nothing, for the data but not for the lock in shared memory, for both but for no transaction.
@pytest.mark.parametrize("left_bytes", [0, 8192, 20480], ids=lambda left: f"{left} bytes free")
def test_a_new_store_on_a_full_disk_is_refused_and_leaves_nothing_that_is_in_the_way(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path, left_bytes: int
) -> None:
    with small_disk(tmp_path / "disk", 2 << 20) as disk:
        data = disk / "data"
        with filled(disk, left_bytes):
            refused(run_replayd("serve", "--port", "0", *TABLE, "--data-dir", str(data)), data, "space left on")
        daemon = start_daemon(*TABLE, "--data-dir", str(data), "--journal", "sync")
        client = client_of(daemon.address)
        client.insert_batch(padded(range(ITEMS), 2)[:, None], {"t": 1.0})
        daemon.stop()


@pytest.mark.parametrize("blocks", [0, 16], ids=lambda blocks: f"{blocks} kB a file")
def test_a_new_store_of_which_the_files_may_not_grow_is_refused_too(tmp_path: Path, blocks: int) -> None:
    data = tmp_path / "data"
    ended = subprocess.run(
        [*REPLAYD, "serve", "--port", "0", *TABLE, "--data-dir", str(data)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (blocks << 10, resource.RLIM_INFINITY)),
    )
    refused(ended, data, "")
    assert {path.name for path in data.iterdir()} <= {DATA, LOCK, MARK}


# The second on no real disk, also where one could be mounted: what stands in for it where none can is tested too.
@pytest.mark.parametrize(("journal", "is_mounted"), [("off", None), ("sync", False)], ids=["off", "sync"])
def test_a_daemon_that_starts_on_a_full_disk_serves_what_it_has_and_tells_what_it_cannot_keep(
    start_daemon: StartDaemon, client_of: Callable[[str], Client], tmp_path: Path, journal: str, is_mounted: bool | None
) -> None:
    with small_disk(tmp_path / "disk", 2 << 20, is_mounted=is_mounted) as disk:
        arguments = (*TABLE, "--data-dir", str(disk / "data"), "--journal", journal)
        daemon = start_daemon(*arguments)
        client = client_of(daemon.address)
        client.insert_batch(padded(range(ITEMS), 50)[:, None], {"t": 1.0})
        if journal == "off":
            client.checkpoint()
        daemon.kill()
        with filled(disk):
            full = start_daemon(*arguments)
            again = client_of(full.address)
            assert size(again, "t") == ITEMS
            with pytest.raises(errors.CheckpointFailedError, match="no space left on the disk"):
                again.checkpoint()
            store = again.info()["store"]
            assert store["failures"] >= 1
            assert "no space left" in store["last_error"]
            if journal != "off":
                assert store["journal"]["state"] == "broken"
                assert "no space left" in store["journal"]["last_error"]
                assert "the journal cannot begin" in full.output()
            if journal == "sync":
                with pytest.raises(errors.NotDurableError, match="no space left"):
                    again.mutate_priorities("t", {again.peek("t", oldest=1)[0].info.key: 2.0}, timeout_ms=500)
            assert len(again.peek("t", oldest=5)) == 5
            full.kill()
        last = start_daemon(*arguments)
        again = client_of(last.address)
        assert emptied(again) == list(range(ITEMS))
        again.insert_batch(padded(range(3), 50)[:, None], {"t": 1.0})
        assert again.checkpoint().items == 3
        last.stop()


def test_a_store_whose_data_is_gone_is_no_empty_one(tmp_path: Path, start_daemon: StartDaemon) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    start_daemon(*TABLE, *data).stop()
    (tmp_path / "data" / DATA).unlink()
    ended = run_replayd("serve", "--port", "0", *TABLE, *data)
    assert ended.returncode == os.EX_DATAERR, ended.stderr
    assert f"has a {MARK} but no {DATA}" in ended.stderr
    assert "--allow-empty" in ended.stderr
    start_daemon(*TABLE, *data, "--allow-empty").stop()


def generation(directory: Path) -> int:
    """The number of the checkpoint that a start would begin with."""
    with Store(directory) as store:
        assert store.head is not None
        return store.head.generation


@pytest.mark.parametrize("is_mounted", [None, False], ids=["a disk", "an injected one"])
def test_a_restore_on_a_full_disk_leaves_the_store_that_is_there(tmp_path: Path, is_mounted: bool | None) -> None:
    with small_disk(tmp_path / "disk", 4 << 20, is_mounted=is_mounted) as disk:
        data, copy = disk / "data", disk / "copy"
        restore = ("restore", str(copy), "--data-dir", str(data), "--replace")
        with Kept(data) as kept:
            kept.insert([os.urandom(400_000)])
            kept.stop()
        copy_store(data, copy)
        with Kept(data) as kept:
            kept.stop()
        with filled(disk, 100_000):
            refused(run_replayd(*restore), data, "space left on")
            assert {path.name for path in data.iterdir()} == {DATA, LOCK, MARK}
        assert generation(data) == 2
        assert run_replayd(*restore).returncode == 0
        assert generation(data) == 1
