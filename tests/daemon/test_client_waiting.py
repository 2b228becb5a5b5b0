"""Limiters hold requests back: every wait ends, and says who must act."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters
from replayd_client import connection, errors, sender
from tests.daemon.embedded import DEADLINE_S, size, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


# Waiting.


def test_a_sample_that_waits_too_long_says_who_must_act(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t", rate_limiter=rate_limiters.MinSize(1000))))
    client.insert(1, {"t": 1.0})
    for call in (lambda: list(client.sample("t", timeout_ms=60)), lambda: client.sample_batch("t", 1, timeout_ms=0)):
        with pytest.raises(errors.DeadlineExceededError, match=r"'t'.*1 of min_size_to_sample 1000.*writers") as caught:
            call()
        assert caught.value.detail["who_must_act"] == "writers"
        assert isinstance(caught.value, TimeoutError)


def test_an_insert_that_is_held_back_says_who_must_act_and_enters_later(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2), uniform("free")))
    client.insert(0, {"q": 1.0})
    client.insert(1, {"q": 1.0})
    for number in (2, 3):
        with pytest.raises(errors.DeadlineExceededError, match=r"table 'q'.*learners must sample"):
            client.insert(number, {"q": 1.0}, timeout_ms=50)
    client.insert(0, {"free": 1.0})
    assert size(client, "free") == 1
    assert [int(s.data[0][0]) for s in client.sample("q", 4, emit_timesteps=False)] == [0, 1, 2, 3]


def test_whatever_call_of_a_client_meets_its_deadline_says_who_must_act(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1), uniform("held")))
    client.pause("held", "insert")
    client.insert(1, {"q": 1.0})
    writers = {table: client.writer(max_sequence_length=1, timeout_ms=50) for table in ("q", "held")}
    batches = client.batch_writer(timeout_ms=50)
    batches.insert(np.zeros((1, 1)), {"held": 1.0})
    for table, writer in writers.items():
        writer.append(0.0)
        writer.create_item(table, 1, 1.0)
    calls = {
        "insert": (lambda: client.insert(2.0, {"q": 1.0}, timeout_ms=50), "learners", "max_diff"),
        "insert_batch": (
            lambda: client.insert_batch(np.zeros((1, 1)), {"held": 1.0}, timeout_ms=50),
            "operator",
            "paused",
        ),
        "flush": (writers["q"].flush, "learners", "max_diff"),
        "end_episode": (writers["held"].end_episode, "operator", "paused"),
        "flush of batches": (batches.flush, "operator", "paused"),
        "close": (writers["q"].close, "learners", "max_diff"),
        "sample_batch": (lambda: client.sample_batch("held", 1, timeout_ms=50), "writers", "min_size_to_sample"),
    }
    told = {}
    for call, (do, _, _) in calls.items():
        with pytest.raises(errors.DeadlineExceededError) as caught:
            do()
        told[call] = (caught.value.detail["who_must_act"], caught.value.detail["blocked_by"])
    assert told == {call: (who, term) for call, (_, who, term) in calls.items()}
    assert errors.DeadlineExceededError("the server did not answer").detail == {"who_must_act": None}
    client.resume("held")


def test_an_insert_that_is_held_back_does_not_contradict_itself(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    client.insert(1, {"q": 1.0})
    with pytest.raises(errors.DeadlineExceededError) as caught:
        client.insert(2, {"q": 1.0}, timeout_ms=50)
    # What became of it is said once, and by who knows: the client.
    assert str(caught.value).count(". ") == 2
    assert "learners must sample. Trajectories: 1 sent and may or may not have been applied (" in str(caught.value)
    with client.writer(max_sequence_length=1) as writer:
        writer.append(3)
        writer.create_item("q", 1, 1.0)
        with pytest.raises(errors.DeadlineExceededError, match=r"This writer goes on delivering them, exactly once\."):
            writer.flush(timeout_ms=50)
        assert [int(s.data[0][0]) for s in client.sample("q", 3, emit_timesteps=False)] == [1, 2, 3]


def test_a_writer_waits_when_its_window_is_full_and_loses_nothing(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    writer = client.writer(max_sequence_length=1, max_in_flight_items=3, timeout_ms=50)
    created = 0

    def create_for_ever() -> None:
        nonlocal created
        while created < 1000:
            writer.append(created)
            writer.create_item("q", 1, 1.0)
            created += 1

    with pytest.raises(errors.DeadlineExceededError, match="learners must sample"):
        create_for_ever()
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(lambda: [int(s.data[0][0]) for s in client.sample("q", created, emit_timesteps=False)])
        writer.flush(timeout_ms=DEADLINE_S * 1000)
        assert drawn.result(DEADLINE_S) == list(range(created))


def test_waiting_is_told_in_the_log(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WARN_AFTER_S", 0.05)
    monkeypatch.setattr(sender, "WARN_AFTER_S", 0.05)
    client = client_of(serve(replayd.Table.queue("q", 1)))
    with caplog.at_level(logging.WARNING, "replayd_client"), ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.sample_batch, "q", 1, timeout_ms=None)
        until(lambda: "waiting for a sample of table 'q'" in caplog.text and "writers must insert" in caplog.text)
        client.insert(1, {"q": 1.0})
        assert len(drawn.result(DEADLINE_S)) == 1
        client.insert(2, {"q": 1.0})
        inserted = pool.submit(client.insert, 3, {"q": 1.0}, timeout_ms=None)
        until(lambda: "learners must sample" in caplog.text)
        assert len(client.sample_batch("q", 1)) == 1
        inserted.result(DEADLINE_S)
