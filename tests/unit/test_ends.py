"""The end of a server with a store: what is not on the disk then is told, with whose fault that is."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from replayd.errors import LastCheckpointFailed, StoreError
from replayd.journal import JournalOptions
from replayd.store import Store
from tests.unit.kept import DEADLINE_S, Kept
from tests.unit.test_journal import Journaled, ask, contents, inserted
from tests.unit.test_store_faults import stuck_disk
from tests.unit.writer import StreamWriter, fifo

SLOW = JournalOptions("interval", 1000.0)


def full(*arguments: Any, **settings: Any) -> Any:
    raise StoreError("no space left")


def end(live: Journaled) -> None:
    live.service.stop()
    live.keeper.begin_last(time.monotonic())


@pytest.mark.parametrize("mode", ["interval", "sync"])
def test_without_a_last_checkpoint_the_end_of_the_journal_is_on_the_disk_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr("replayd.store_writer.CUT_SHORT_S", 0.05)
    options = JournalOptions(mode, 1000.0)
    writer = StreamWriter()
    with Journaled(tmp_path, [fifo()], options, checkpoint_on_stop=False) as live:
        ask(live, inserted(writer))
        end(live)
        live.settle_until(lambda: live.keeper.is_done)
    with Journaled(tmp_path, [fifo()], options, checkpoint_on_stop=False) as live:
        assert contents(live.service) == [0]
        ask(live, inserted(writer))
        with monkeypatch.context() as broken:
            broken.setattr(Store, "add_entries", full)
            broken.setattr(Store, "write_index", full)
            end(live)
            live.settle_until(lambda: live.keeper.is_done)
            with pytest.raises(LastCheckpointFailed, match=r"journal is not on the disk \(no space left\)"):
                live.keeper.close()
    live = Journaled(tmp_path, [fifo()], options, checkpoint_on_stop=False)
    assert contents(live.service) == [0]
    thread = live.keeper._writer._thread if live.keeper._writer else None
    assert thread is not None
    with stuck_disk(monkeypatch):
        ask(live, inserted(StreamWriter()))
        end(live)
        assert not live.keeper.is_done
        with pytest.raises(LastCheckpointFailed, match=r"journal is not on the disk \(the disk does not answer\)"):
            live.keeper.close()
    thread.join()


def test_a_disk_that_failed_the_last_checkpoint_is_told_of_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Kept(tmp_path) as kept:
        kept.insert([b"one"])
        monkeypatch.setattr(Store, "write_index", full)
        kept.service.stop()
        kept.keeper.begin_last(time.monotonic())
        checkpoints, writer = kept.keeper._checkpoints, kept.keeper._writer
        assert checkpoints is not None
        assert writer is not None
        # The clean-up is cut short, and nothing of the failure was heard.
        monkeypatch.setattr(Store, "drop_blocks", lambda store, numbers: setattr(writer, "_is_closing", True))
        hears = checkpoints.hear
        kept.turn_until(lambda: checkpoints._running is not None and checkpoints._running.finishing)
        checkpoints.hear = lambda now: None  # type: ignore[method-assign]
        writer._thread.join(DEADLINE_S)
        assert not writer.is_alive
        checkpoints.hear = hears  # type: ignore[method-assign]
        with pytest.raises(LastCheckpointFailed, match="no space left.*see to the disk"):
            kept.keeper.close()


def test_a_last_checkpoint_that_is_durable_is_no_failure_while_it_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replayd.store_writer.CUT_SHORT_S", 0.05)
    kept = Kept(tmp_path)
    kept.insert([b"one"])
    kept.checkpoint()
    kept.insert([b"two"])
    kept.service.stop()
    kept.keeper.begin_last(time.monotonic())
    writer, drops, goes_on = kept.keeper._writer, Store.drop_entries, threading.Event()
    assert writer is not None
    monkeypatch.setattr(Store, "drop_entries", lambda *arguments: goes_on.wait(DEADLINE_S) and drops(*arguments))
    kept.turn_until(lambda: kept.service.durability.checkpoints == 2)
    assert not kept.keeper.is_done
    kept.keeper.close()
    goes_on.set()
    writer._thread.join()
    with Kept(tmp_path) as again:
        assert again.contents() == [b"one", b"two"]
