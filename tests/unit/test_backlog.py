"""What waits for a disk: who waits with it, for how long, and what is told of that."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from replayd.backlog import STUCK_S, TOLD_S, Backlog
from replayd.limits import MIB, WAITING_BYTES
from replayd.messages import Result, Sample, Why
from tests.unit.writer import fifo, service

OVER, UNDER, HALF = WAITING_BYTES + 1, WAITING_BYTES - 1, WAITING_BYTES // 2


class Watched:
    """A backlog, looked at as a loop does that has a turn at least each `step_s`."""

    def __init__(self, *, is_recorded: bool = False) -> None:
        self.backlog = Backlog("/data")
        self.is_recorded = is_recorded
        self.now = 0.0
        self.due: float | None = None

    def look(self, nbytes: int, after_s: float = 0.0) -> Backlog:
        self.now += after_s
        self.due = self.backlog.look(self.now, nbytes, 0, is_recorded=self.is_recorded)
        return self.backlog


@pytest.mark.parametrize("job_s", [0.01, 0.2, 1.9, 30.0])
@pytest.mark.parametrize("job_bytes", [MIB // 4, 4 * MIB])
def test_beside_a_disk_that_takes_a_job_now_and_then_requests_are_left_unread_for_a_moment_only(
    job_s: float, job_bytes: int
) -> None:
    watched = Watched()
    nbytes, unread_s, episodes, was_low = 0, 0.0, 0, True
    for _ in range(2000):
        before = watched.backlog.holds_all
        backlog = watched.look(nbytes, job_s)
        unread_s += min(job_s, STUCK_S) if before else 0.0
        if nbytes > WAITING_BYTES and was_low:
            episodes, was_low = episodes + 1, False
        was_low |= nbytes <= HALF
        if backlog.holds_all and watched.due is not None and watched.due < watched.now + job_s:
            # The loop has a turn then.
            assert not watched.look(nbytes, watched.due - watched.now).holds_all
        # Writers bring twice what the disk takes, while they may.
        is_held = watched.backlog.holds_all or watched.backlog.holds_inserts
        nbytes = max(0, nbytes - job_bytes) + (0 if is_held else 2 * job_bytes)
        assert nbytes <= WAITING_BYTES + 2 * job_bytes
    assert episodes > 0
    assert unread_s <= episodes * (STUCK_S + min(job_s, STUCK_S))


def test_inserts_that_are_put_off_stay_so_until_half_is_written() -> None:
    watched = Watched()
    assert watched.look(OVER).holds_all
    assert watched.due == STUCK_S
    assert watched.look(UNDER, STUCK_S / 2).holds_inserts is watched.backlog.holds_all is False
    for nbytes in (OVER, UNDER, HALF + 1):
        backlog = watched.look(nbytes, STUCK_S / 2)
        assert (backlog.holds_all, backlog.holds_inserts) == (False, True)
        assert backlog.story is not None
    backlog = watched.look(HALF)
    assert (backlog.holds_all, backlog.holds_inserts, backlog.story) == (False, False, None)
    assert watched.look(OVER).holds_all


def test_what_is_recorded_waits_as_long_as_there_is_too_much() -> None:
    watched = Watched(is_recorded=True)
    for after_s in (0.0, STUCK_S / 2):
        backlog = watched.look(OVER, after_s)
        assert (backlog.holds_all, backlog.holds_inserts, backlog.story) == (True, False, None)
    backlog = watched.look(OVER, STUCK_S)
    assert (backlog.holds_all, backlog.holds_inserts) == (True, False)
    assert "wait for the disk of /data" in (backlog.story or "")
    # A journal that breaks records nothing: then inserts alone wait.
    watched.is_recorded = False
    assert (watched.look(OVER).holds_all, watched.backlog.holds_inserts) == (False, True)
    watched.is_recorded = True
    assert (watched.look(UNDER).holds_all, watched.backlog.holds_inserts, watched.backlog.story) == (False, False, None)


def test_a_disk_at_its_limit_does_not_fill_the_log_and_what_lasts_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched()
    for _ in range(100):
        for nbytes in (OVER, OVER, HALF):
            watched.look(nbytes, STUCK_S)
    told = [record.levelname for record in caplog.records]
    episodes_s = 100 * 3 * STUCK_S
    assert 2 <= told.count("WARNING") == told.count("INFO") <= episodes_s / TOLD_S + 1
    caplog.clear()
    watched.look(OVER, STUCK_S)
    watched.look(OVER, STUCK_S)
    if watched.due is not None:
        # Not told yet, as there was another a moment ago.
        assert caplog.records == []
        watched.look(OVER, watched.due - watched.now)
    [record] = caplog.records
    assert record.getMessage().startswith("inserts are put off: ")
    watched.look(0)
    assert caplog.records[-1].getMessage() == "the disk of /data takes again what it is given, and requests go on"


def test_why_tells_of_the_disk_whoever_waits_at_the_table() -> None:
    asked = service(fifo())

    def why() -> dict[str, Any]:
        asked.handle("operator", "why", Why(1, "t"), 0.0)
        [(_, reply)] = asked.drain()
        assert isinstance(reply, Result)
        return reply.fields

    asked.durability.wait("70 MB wait for the disk", 0.0)
    assert (why()["verdict"], why()["advice"]) == ("inserts_wait", "70 MB wait for the disk")
    asked.handle("learner", "sample", Sample(1, "t", 1, 1, 60.0), 0.0)
    told = why()
    assert told["verdict"] == "samples_wait"
    assert told["advice"].startswith("70 MB wait for the disk; ")
    assert told["advice"].endswith("are the writers running?")
    asked.durability.wait(None, 1.0)
    assert "disk" not in why()["advice"]
