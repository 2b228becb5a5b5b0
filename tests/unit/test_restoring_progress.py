"""How far a start is: what it tells while it reads a store, and what it makes of the time that is left."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from replayd.journal import JournalOptions
from replayd.loading import TOLD_S, Progress
from replayd.restoring import RestoreRules, restore
from replayd.service import Service
from replayd.store import Store
from tests.unit.kept import Kept
from tests.unit.test_journal import Journaled, ask, inserted
from tests.unit.writer import StreamWriter, fifo, service

CHUNKS, CHUNK_BYTES, A_BLOCK = 80, 8192, 8
STEP_S = 1.5
"""By the clock of these tests, for each part that is read."""


class Watched(Progress):
    """Each part takes its time by a clock that goes on with it alone; keeps what one would be told then."""

    __slots__ = ("reports",)

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        super().__init__(lambda: STEP_S * len(self.reports), 0.0, 0.0)

    def advance(self, nbytes: int) -> None:
        super().advance(nbytes)
        self.reports.append({})
        self.reports[-1] = self.report()
        self.tell()


def restored(directory: Path) -> tuple[Watched, Service]:
    progress, made = Watched(), service(fifo(max_size=1000), seed=1)
    with Store(directory) as store:
        restore(store, made, RestoreRules(), progress, time.monotonic())
    return progress, made


def test_a_start_tells_items_and_the_time_left_with_each_part_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("replayd.checkpoints.CHUNKS_A_TURN", A_BLOCK)
    with Kept(tmp_path) as kept:
        kept.insert([bytes([n]) * CHUNK_BYTES for n in range(CHUNKS)])
        kept.stop()
    caplog.set_level(logging.INFO)
    caplog.clear()
    progress, _ = restored(tmp_path)
    reports = progress.reports
    assert len(reports) == CHUNKS // A_BLOCK
    assert {(report["phase"], report["items"], report["total_items"]) for report in reports} == {("chunks", 0, CHUNKS)}
    assert [report["elapsed_s"] for report in reports] == [STEP_S * n for n in range(1, len(reports) + 1)]
    # Parts of one size in equal times: what is left of them, and then the items, which take less than a part does.
    for left, report in enumerate(reversed(reports)):
        assert STEP_S * left <= report["remaining_s"] < STEP_S * (left + 3)
    assert STEP_S >= TOLD_S
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loading: ")]
    assert len(lines) == len(reports)
    assert lines[1] == "loading: chunks, 0 of 1 MB, 0 of 80 items, for 3 s, about 15 s left"
    assert (progress.phase, progress.items) == ("checking", CHUNKS)


def test_lines_of_the_log_have_their_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    progress = Progress(lambda: now, 0.0, 0.0)
    for _ in range(41):
        progress.tell()
        now += TOLD_S / 8
    assert len(caplog.records) == 5
    assert caplog.records[0].getMessage() == "loading: opening, for 1 s"


def test_the_journal_counts_too(tmp_path: Path) -> None:
    writer, parts = StreamWriter(), 6
    with Journaled(tmp_path, [fifo(max_size=1000)], JournalOptions("sync")) as live:
        for _ in range(parts):
            ask(live, inserted(writer, 10, 500))
            live.settle(time.monotonic())
    progress, made = restored(tmp_path)
    assert [report["phase"] for report in progress.reports] == ["journal"] * parts
    assert [report["items"] for report in progress.reports] == [10 * n for n in range(parts)]
    left = [report["remaining_s"] for report in progress.reports]
    assert left == sorted(left, reverse=True)
    assert made.tables["t"].size == 10 * parts


def test_a_start_without_a_store_has_nothing_to_tell(tmp_path: Path) -> None:
    progress, _ = restored(tmp_path)
    assert progress.report() == {
        "phase": "opening",
        "done_bytes": 0,
        "total_bytes": 0,
        "items": 0,
        "total_items": 0,
        "elapsed_s": 0.0,
    }
