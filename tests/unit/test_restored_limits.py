"""Restoring under limits that are smaller than before: what has no room is let go only if somebody says so."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from replayd.errors import StoreMismatch
from replayd.journal import JournalOptions
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES
from replayd.messages import Sample, Set
from replayd.restoring import RestoreRules
from tests.model.wire_traffic import encoded
from tests.unit.test_journal import Journaled, ask, contents, inserted
from tests.unit.writer import StreamWriter, fifo

JOURNALS = pytest.mark.parametrize("journal", [JournalOptions("off"), JournalOptions("sync")], ids=["plain", "journal"])
SIZE, KEPT = 100, 60
BYTES = KEPT * (ITEM_BYTES + CHUNK_BYTES + COLUMN_BYTES + 1)
SHRINK = RestoreRules(shrink_tables=True)


def limited(directory: Path, limit: str | None = None, **options: Any) -> Journaled:
    """With a limit that not all items fit, if some of them were drawn."""
    changes = {None: {}, "max_size": {"max_size": KEPT}, "max_bytes": {"max_bytes": BYTES}}
    changes |= {"max_times_sampled": {"max_times_sampled": 1}, "max_bytes of the server": {}}
    server_bytes = BYTES if limit == "max_bytes of the server" else None
    return Journaled(directory, [fifo(**changes[limit])], max_bytes=server_bytes, **options)


def filled(directory: Path, journal: JournalOptions) -> None:
    """A store of SIZE items, all that there is to know of them in the journal if there is one."""
    with limited(directory, journal=journal) as live:
        now = time.monotonic()
        ask(live, inserted(StreamWriter(), SIZE))
        draw = encoded(Sample(1, "t", 40, 1, 0.0))
        assert draw is not None
        ask(live, draw)
        if journal.mode == "off":
            live.checkpoint(now)
        live.settle(now)


@JOURNALS
@pytest.mark.parametrize("limit", ["max_size", "max_times_sampled", "max_bytes", "max_bytes of the server"])
def test_items_beyond_a_smaller_limit_are_let_go_only_if_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: str, journal: JournalOptions
) -> None:
    filled(tmp_path, journal)
    # What is refused stays as it was, however often it is tried.
    for _ in range(2):
        with pytest.raises(StoreMismatch, match=r"of the 100 items of table 't' .*--shrink-tables") as refused:
            limited(tmp_path, limit, journal=journal)
        value = {"max_size": KEPT, "max_times_sampled": 1}.get(limit, BYTES)
        assert f"{limit} {value}" in str(refused.value)
    with limited(tmp_path, journal=journal) as again:
        assert contents(again.service) == list(range(SIZE))
        again.checkpoint(time.monotonic())
        again.settle(time.monotonic())
    caplog.clear()
    with limited(tmp_path, limit, journal=journal, rules=SHRINK) as shrunk:
        left = contents(shrunk.service)
        assert 0 < len(left) < SIZE
        [told] = [record for record in caplog.records if record.getMessage().startswith(f"{SIZE - len(left)} of the")]
        assert told.levelno == logging.WARNING
        shrunk.service.validate()
        shrunk.checkpoint(time.monotonic())
        shrunk.settle(time.monotonic())
    with limited(tmp_path, limit, journal=journal) as after:
        assert contents(after.service) == left


@JOURNALS
def test_a_smaller_limit_that_all_items_fit_refuses_nothing(tmp_path: Path, journal: JournalOptions) -> None:
    filled(tmp_path, journal)
    with Journaled(tmp_path, [fifo(max_size=SIZE, max_times_sampled=50)], journal) as again:
        assert contents(again.service) == list(range(SIZE))


def test_what_was_restored_tells_of_checkpoint_and_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    filled(tmp_path, JournalOptions("sync"))
    with limited(tmp_path):
        assert "restored 100 items of 1 table, " in caplog.text
        assert "from checkpoint 1 and 2 requests of the journal, as of 0 s ago" in caplog.text


@JOURNALS
@pytest.mark.parametrize("limit", ["max_bytes", "max_bytes of the server"])
@pytest.mark.parametrize("when_full", ["evict", "block", "reject"])
def test_a_version_that_counts_more_begins_with_settings_as_they_were(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    journal: JournalOptions,
    when_full: str,
) -> None:
    def started() -> Journaled:
        is_servers = limit == "max_bytes of the server"
        table = fifo(max_bytes=None if is_servers else BYTES, when_full=when_full)
        return Journaled(tmp_path, [table], max_bytes=BYTES if is_servers else None, journal=journal)

    with started() as live:
        ask(live, inserted(StreamWriter(), KEPT // 2))
        live.checkpoint(time.monotonic())
        live.settle(time.monotonic())
        before = contents(live.service)
        assert len(before) == KEPT // 2
    monkeypatch.setattr("replayd.capacity.COLUMN_BYTES", COLUMN_BYTES + 2 * BYTES // KEPT)
    with started() as live:
        left = contents(live.service)
        evicts = when_full == "evict"
        assert 0 < len(left) < len(before) if evicts else left == before
        assert left == before[-len(left) :]
        assert (f"of the {len(before)} items of table 't' are beyond its limits" in caplog.text) is evicts
        assert ("this version counts more" in caplog.text) is evicts
        live.service.validate()


@pytest.mark.parametrize("limit", ["max_size", "max_bytes"])
def test_items_that_came_by_a_limit_which_was_raised_live_are_not_let_go_in_silence(tmp_path: Path, limit: str) -> None:
    journal = JournalOptions("sync")
    with limited(tmp_path, limit, journal=journal) as live:
        writer = StreamWriter()
        ask(live, inserted(writer, KEPT // 2))
        live.checkpoint(time.monotonic())
        live.settle(time.monotonic())
        raised = encoded(Set(1, "t", {limit: 100 * BYTES}))
        assert raised is not None
        ask(live, raised)
        ask(live, inserted(writer, SIZE - KEPT // 2))
        live.settle(time.monotonic())
        assert len(contents(live.service)) == SIZE
    with pytest.raises(StoreMismatch, match=rf"of the {SIZE} items of table 't' are beyond its limits"):
        limited(tmp_path, limit, journal=journal)
