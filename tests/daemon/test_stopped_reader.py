"""A learner that is stopped for a while costs its quota and nobody else's time: the short form of the script."""

from __future__ import annotations

import pytest

from replayd.limits import UNREAD_BYTES
from replayd_client import Client
from tests.daemon.conftest import StartDaemon
from tests.daemon.stopped import (
    REQUESTS,
    STEP_BYTES,
    STEPS,
    Findings,
    bound_bytes,
    delayed,
    fill,
    info_when,
    observe,
    stopped,
)

ANSWERS = 30
TABLES = ("--table", "t,max_size=5000", "--table", "inserts,max_size=1000")


def test_a_stopped_learner_costs_its_quota_and_nobody_elses_time_and_finds_all_replies(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(*TABLES)
    with Client(daemon.address) as client:
        # Others are served as ever, in the same table too, as often as they like.
        found = observe(client, daemon.address, daemon.pid, lambda _, answers: min(answers.values()) >= ANSWERS)
        assert 0 < found.unread_bytes < 2 * (UNREAD_BYTES.value + STEPS * STEP_BYTES)
        assert found.grown_bytes < bound_bytes()
        for replies in found.replies:
            assert sorted(id for id, _, _ in replies) == list(range(REQUESTS))
            # Draws with replacement show each chunk once: two thirds of them.
            assert all(code is None and nbytes > STEPS * STEP_BYTES / 2 for _, code, nbytes in replies)
        info_when(client, lambda info: info["peers"]["unread_bytes"] == info["peers"]["held_samples"] == 0)
        assert client.info()["counters"]["replies_dropped"] == 0


@pytest.mark.parametrize(
    ("late", "count", "told"),
    [(0.010, 100, []), (0.019, 100, []), (0.021, 100, ["learner"]), (1.0, 1, ["learner"]), (1.0, 0, [])],
)
def test_the_script_tells_whose_answers_came_later(late: float, count: int, told: list[str]) -> None:
    before = {"learner": [0.010] * 50, "actor": [0.010] * 50}
    during = {"learner": [0.010] * (50 - min(count, 50)) + [late] * count, "actor": [0.011] * 50}
    words = delayed(Findings(before, during, 0, 0, []))
    assert [word.split()[3].removesuffix("'s") for word in words] == told


def test_what_a_killed_learner_had_not_read_is_freed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*TABLES)
    with Client(daemon.address) as client:
        fill(client)
        with stopped(daemon.address) as learner:
            info_when(client, lambda info: info["peers"]["held_samples"] > 0)
            learner.hold()
            learner.process.kill()
            learner.process.wait()
            info_when(client, lambda info: info["peers"]["unread_bytes"] == info["peers"]["held_samples"] == 0)
        assert len(client.sample_batch("t", 16).info.key) == 16
