"""Limiters hold requests back: every wait ends, and says who must act."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
        writer.flush()
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
