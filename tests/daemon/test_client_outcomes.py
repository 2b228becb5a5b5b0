"""What a call that ends with an error says of the data, and whether that is what becomes of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.compat.reverb import errors as compat_errors
from replayd.limits import Limit
from replayd_client import errors, structured
from tests.daemon.embedded import DEADLINE_S, free_port, size, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]

FATES = [f"trajectories_{fate}" for fate in ("acknowledged", "refused", "open", "not_sent")]


def fates(error: errors.ReplaydError) -> list[int]:
    return [error.detail[fate] for fate in FATES]


def test_what_was_sent_to_a_server_that_went_is_open_and_delivered_once(serve: Any, client_of: Any) -> None:
    port = free_port()
    server = serve(replayd.Table.queue("t", 2), port=port)
    client = client_of(f"127.0.0.1:{port}")
    other = client_of(server)
    with ThreadPoolExecutor(1) as pool:
        batch = np.arange(5)[:, None]
        inserted = pool.submit(client.insert_batch, batch, {"t": 1.0}, timeout_ms=1500)
        until(lambda: size(other, "t") == 2)
        server.stop()
        error = inserted.exception(DEADLINE_S)
    assert isinstance(error, errors.ConnectionLostError)
    assert "Trajectories: 5 sent and may or may not have been applied" in str(error)
    assert "must not be inserted again" in str(error)
    assert fates(error) == [0, 0, 5, 0]
    serve(uniform("t"), port=port)
    until(lambda: size(client, "t") == 5)
    client.insert(5, {"t": 1.0})
    assert sorted(int(item.data[0]) for item in client.peek("t", oldest=100)) == [0, 1, 2, 3, 4, 5]


def test_what_found_no_server_is_told_as_never_sent(client_of: Any) -> None:
    client = client_of(f"127.0.0.1:{free_port()}")
    with pytest.raises(errors.ConnectionLostError, match=r"Trajectories: 3 not sent and will not be\.$") as caught:
        client.insert_batch(np.zeros((3, 1)), {"t": 1.0, "u": 1.0}, timeout_ms=50)
    assert fates(caught.value) == [0, 0, 0, 3]
    assert "no replayd at" in str(caught.value)


def test_what_a_limiter_holds_back_is_open(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2), uniform("t")))
    with pytest.raises(errors.DeadlineExceededError, match="learners must sample.* Trajectories: 3 sent and") as caught:
        client.insert_batch(np.zeros((3, 1)), {"q": 1.0, "t": 1.0}, timeout_ms=200)
    assert fates(caught.value) == [0, 0, 3, 0]


def test_a_batch_of_several_messages_is_counted_by_what_became_of_each(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 16)))
    # A message has 16 MiB and a window 32: of these some are in the table, some wait, and some never leave.
    batch = np.zeros((100, 1, 1 << 20), np.uint8)
    with pytest.raises(errors.DeadlineExceededError) as caught:
        client.insert_batch(batch, {"q": 1.0}, timeout_ms=3_000, codec="raw")
    acknowledged, refused, unanswered, not_sent = fates(caught.value)
    assert (acknowledged, refused) == (16, 0)
    assert min(unanswered, not_sent) > 0
    assert acknowledged + unanswered + not_sent == len(batch)
    assert f"Trajectories: 16 in their tables, {unanswered} sent and may" in str(caught.value)
    drawn = 0
    while drawn < acknowledged + unanswered:
        drawn += len(client.sample_batch("q", 8, min_n=1))
    assert drawn == acknowledged + unanswered
    with pytest.raises(errors.DeadlineExceededError):
        client.sample_batch("q", 1, timeout_ms=100)


def test_what_a_server_refuses_is_told_as_that(serve: Any, client_of: Any) -> None:
    port = free_port()
    server = serve(uniform("t"), port=port)
    client = client_of(server)
    client.insert(1, {"t": 1.0})
    server.stop()
    # The client knows the tables of the first one.
    serve(uniform("t", signature=replayd.TensorSpec((None,), np.float32)), port=port)
    with pytest.raises(errors.SignatureError, match=r"Trajectories: 3 refused\.$") as caught:
        client.insert_batch(np.zeros((3, 1), int), {"t": 1.0})
    assert fates(caught.value) == [0, 3, 0, 0]


def test_a_step_that_found_no_room_was_not_added_and_the_rest_is_delivered(serve: Any, client_of: Any) -> None:
    port = free_port()
    server = serve(uniform("t"), port=port)
    client = client_of(server)
    writer = client.writer(1, max_in_flight_items=3, timeout_ms=50)
    made = 0

    def make_for_ever() -> None:
        nonlocal made
        while made < 1000:
            writer.append(made)
            writer.create_item("t", 1, 1.0)
            made += 1

    writer.append(-1)
    writer.create_item("t", 1, 1.0)
    writer.flush(timeout_ms=DEADLINE_S * 1000)
    server.stop()
    with pytest.raises(errors.ConnectionLostError, match=r"\d+ items not acknowledged: .*Nothing was added") as caught:
        make_for_ever()
    assert caught.value.detail["unacknowledged_items"] == writer.open_items
    with pytest.raises(errors.ConnectionLostError, match="This writer goes on delivering them, exactly once"):
        writer.flush()
    serve(uniform("t"), port=port)
    writer.flush(timeout_ms=DEADLINE_S * 1000)
    assert sorted(int(item.data[0]) for item in client.peek("t", oldest=1000)) == list(range(made))


def test_a_writer_that_closes_without_a_server_says_what_that_means(serve: Any, client_of: Any) -> None:
    server = serve(uniform("t"))
    writer = client_of(server).trajectory_writer(1, timeout_ms=50)
    writer.append(1)
    handle = writer.create_item("t", 1.0, writer.history[-1:])
    server.stop()
    with pytest.raises(errors.ConnectionLostError, match="wait: 1 item not acknowledged: .*goes on delivering"):
        handle.wait()
    with pytest.raises(
        errors.ConnectionLostError, match="The writer is closed; what was not acknowledged may or may not"
    ):
        writer.close()


def test_a_step_by_configs_without_a_server_is_not_added_without_its_items(serve: Any, client_of: Any) -> None:
    port = free_port()
    client = client_of(f"127.0.0.1:{port}")
    config = structured.create_config(structured.create_reference_step(None)[-1:], "t")
    writer = client.structured_writer([config], timeout_ms=50)
    with pytest.raises(errors.ConnectionLostError):
        writer.append(1)
    serve(uniform("t"), port=port)
    client.info()  # By its own deadline.
    writer.append(2)
    writer.flush(timeout_ms=DEADLINE_S * 1000)
    assert [int(item.data[0]) for item in client.peek("t", oldest=10)] == [2]
    writer.close()


def test_who_must_keep_less_is_told_in_time(serve: Any, client_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.leases.ALL_LEASED_BYTES", Limit("all_leased_bytes", 20_000, "a test"))
    server, noise = serve(uniform("t")), np.random.default_rng(1)
    client = client_of(server)

    def fill(writer: Any) -> errors.LimitExceededError:
        """Keep more and more, until that is put off."""
        for _ in range(30):
            writer.append(noise.random(100))
            writer.create_item("t", 1.0, writer.history[-1:])
            try:
                writer.flush(timeout_ms=300)
            except errors.LimitExceededError as error:
                return error
        raise AssertionError("it keeps what it likes")

    # Each wants more than half, and neither lets go.
    first, second = (client.trajectory_writer(50, chunk_length=1) for _ in range(2))
    for _ in range(12):
        for writer in (first, second):
            writer.append(noise.random(100))
            writer.create_item("t", 1.0, writer.history[-1:])
            writer.flush(timeout_ms=DEADLINE_S * 1000)
    for writer in (first, second):
        error = fill(writer)
        assert error.detail["limit"] == "all_leased_bytes"
        assert "1 item not acknowledged" in str(error)
        assert "raise max_bytes, keep shorter trajectories, or run fewer writers" in str(error)
        assert "goes on delivering" in str(error)
    leases = client.info()["leases"]
    assert (leases["max_bytes"], leases["refused"] > 1) == (20_000, True)
    assert 10_000 < leases["bytes"] <= 20_000
    assert "run fewer writers" in client.why("t").advice
    with pytest.raises(compat_errors.DeadlineExceededError, match="run fewer writers"), compat_errors.translated():
        first.flush(timeout_ms=50)
    # One of them goes, with a word about what it could not send, and what the other has waits no more.
    with pytest.raises(errors.LimitExceededError, match="may or may not arrive"):
        second.close(timeout_ms=50)
    before = size(client, "t")
    first.flush(timeout_ms=DEADLINE_S * 1000)
    assert size(client, "t") == before + 1
    first.close(timeout_ms=DEADLINE_S * 1000)
