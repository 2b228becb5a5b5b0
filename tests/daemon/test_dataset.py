"""Datasets against a real server: what they draw, how far ahead, how they end, and that nothing of them stays."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd_client import Client, connection, errors, prefetcher
from replayd_client.dataset import Dataset
from tests.daemon.embedded import DEADLINE_S, fifo, free_port, uniform, until
from tests.daemon.forking import forked
from tests.daemon.harness import DaemonProcess, environment

pytest_plugins = ["tests.daemon.embedded_fixtures"]


def filled(client: Client, table: str, count: int, start: int = 0) -> Client:
    client.insert_batch({"x": np.arange(start, start + count)[:, None]}, {table: 1.0})
    return client


def drawn(client: Client, table: str) -> int:
    samples: int = client.info()["tables"][0]["limiter"]["samples"]
    assert client.info()["tables"][0]["name"] == table
    return samples


def is_parked(client: Client, table: str) -> bool:
    return bool(client.server_info()[table].waiting)


def dataset_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("replayd-dataset")]


# What they draw.


def test_batches_come_stacked_with_their_info_and_end_when_all_are_there(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(fifo("t", max_times_sampled=1))), "t", 12)
    with client.dataset("t", 4, max_batches=3) as dataset:
        assert dataset.ended_by is None
        batches = list(dataset)
    assert [batch.data["x"].tolist() for batch in batches] == [
        [[number] for number in range(start, start + 4)] for start in (0, 4, 8)
    ]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert batches[0].info.key.dtype == np.uint64
    assert batches[0].mask is None
    assert dataset.ended_by is not None
    assert dataset.ended_by.reason == "complete"
    assert next(dataset, None) is None


def test_nothing_is_drawn_before_the_first_batch_is_asked_for(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 5)
    with client.dataset("t", 2) as dataset:
        assert drawn(client, "t") == 0
        next(dataset)
        until(lambda: drawn(client, "t") == 2 * 3)


def test_no_more_is_drawn_than_was_taken_and_may_be_ahead(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 50)
    with client.dataset("t", 4, prefetch_batches=3) as dataset:
        for taken in range(1, 6):
            next(dataset)
            until(lambda taken=taken: drawn(client, "t") >= 4 * (taken + 3))  # type: ignore[misc]
            assert drawn(client, "t") == 4 * (taken + 3)


def test_for_a_learner_that_takes_its_time_two_batches_are_ahead(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 50)
    with client.dataset("t", 4) as dataset:
        for taken in range(1, 20):
            next(dataset)
            until(lambda taken=taken: drawn(client, "t") >= 4 * (taken + 2))  # type: ignore[misc]
            assert drawn(client, "t") == 4 * (taken + 2)


def test_a_hurried_learner_gets_every_item_once_and_in_order_however_far_ahead_they_are(
    serve: Any, client_of: Any
) -> None:
    client = filled(client_of(serve(fifo("t", 4000, max_times_sampled=1))), "t", 4000)
    with client.dataset("t", 4, max_batches=1000) as dataset:
        batches = [batch.data["x"][:, 0] for batch in dataset]
        assert {len(batch) for batch in batches} == {4}
        assert np.concatenate(batches).tolist() == list(range(4000))


def test_large_batches_keep_what_they_hold_while_later_ones_come(serve: Any, client_of: Any) -> None:
    # 2 MB each, so that the memory of those that were dropped is used again.
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert_batch({"x": np.repeat(np.arange(240)[:, None, None], 32_768, axis=2)}, {"t": 1.0})
    kept = []
    with client.dataset("t", 8, max_batches=30) as dataset:
        for number, batch in enumerate(dataset):
            assert (batch.data["x"] == np.arange(8 * number, 8 * number + 8)[:, None, None]).all()
            if number % 4 == 0:
                kept.append(batch.data["x"][3:5, 0])
    assert [(part == part[:, :1]).all() for part in kept] == [True] * 8
    assert [part[:, 0].tolist() for part in kept] == [[first + 3, first + 4] for first in range(0, 240, 32)]


def test_without_prefetch_exactly_what_was_taken_is_drawn(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(fifo("t", max_times_sampled=1))), "t", 20)
    with client.dataset("t", 3, prefetch_batches=0) as dataset:
        for taken in range(1, 5):
            assert len(next(dataset)) == 3
            assert drawn(client, "t") == 3 * taken


def test_a_batch_the_table_can_never_grant_whole_comes_as_large_as_it_can(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(replayd.Table.queue("q", 5))), "q", 5)
    with client.dataset("q", 8, prefetch_batches=1) as dataset:
        assert next(dataset).data["x"][:, 0].tolist() == [0, 1, 2, 3, 4]
        filled(client, "q", 5, start=5)
        assert next(dataset).data["x"][:, 0].tolist() == [5, 6, 7, 8, 9]
    with client.dataset("q", 8, min_batch_size=8) as dataset, pytest.raises(errors.NeverGrantableError):
        next(dataset)


def test_small_batches_that_may_be_ahead_are_two_requests(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(fifo("t", max_times_sampled=1))), "t", 64)
    before = client.info()["counters"]["requests"]
    with client.dataset("t", 4, prefetch_batches=16, max_batches=16) as dataset:
        batches = [batch.data["x"][:, 0].tolist() for batch in dataset]
    assert batches == [[*range(start, start + 4)] for start in range(0, 64, 4)]
    # The session's hello, a sample for each half and this look.
    assert client.info()["counters"]["requests"] - before <= 4


@pytest.mark.parametrize("ahead", [2, 16])
def test_the_other_half_is_drawn_while_one_half_is_decoded(ahead: int, serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 50)
    decoding: list[list[int]] = []
    goes_on = threading.Event()

    def decode(parts: list[Any], sizes: list[int]) -> list[list[int]]:
        decoding.append(sizes)
        assert goes_on.wait(DEADLINE_S)
        return [sizes] * len(sizes)

    plan = prefetcher.Plan("t", 4, min_batch_size=None, prefetch_batches=ahead)
    with client._dataset(plan, decode) as dataset, ThreadPoolExecutor(1) as learner:
        taken = learner.submit(next, dataset)
        try:
            until(lambda: drawn(client, "t") == 4 * ahead)
            assert decoding == [[4] * (ahead // 2)]
        finally:
            goes_on.set()
        assert taken.result(DEADLINE_S) == [4] * (ahead // 2)


def test_items_beyond_a_whole_batch_are_the_first_of_the_next_one(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(fifo("t", max_times_sampled=1))), "t", 10)
    with client.dataset("t", 4, prefetch_batches=5) as dataset:
        batches = [next(dataset).data["x"][:, 0].tolist() for _ in range(2)]
        filled(client, "t", 2, start=10)
        batches.append(next(dataset).data["x"][:, 0].tolist())
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_batches_of_one_request_may_differ_in_length_as_those_of_several(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    for length in (1, 2, 3):
        client.insert_batch({"x": np.full((2, length), length)}, {"t": 1.0})
    with client.dataset("t", 2, prefetch_batches=3, max_batches=3) as dataset:
        assert [batch.data["x"].tolist() for batch in dataset] == [[[n] * n] * 2 for n in (1, 2, 3)]
    client.insert_batch({"x": np.full((3, 1), 7)}, {"t": 1.0})
    client.insert_batch({"x": np.full((1, 2), 8)}, {"t": 1.0})
    with client.dataset("t", 2, prefetch_batches=3) as dataset, pytest.raises(errors.DataError, match="lengths"):
        assert next(dataset).data["x"].tolist() == [[7]] * 2
        next(dataset)


def test_padding_reaches_as_far_as_its_own_batch_needs(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    for length in (1, 2, 3, 4):
        client.insert_batch({"x": np.full((1, length), length)}, {"t": 1.0})
    with client.dataset("t", 2, prefetch_batches=2, max_batches=2, ragged="pad") as dataset:
        assert [batch.data["x"].tolist() for batch in dataset] == [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]


def test_a_batch_larger_than_a_reply_comes_whole(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    steps = np.random.default_rng(1).integers(0, 256, (24, 1, 4 << 20), np.uint8)
    for start in range(0, 24, 8):
        client.insert_batch(steps[start : start + 8], {"t": 1.0})
    with client.dataset("t", 20, prefetch_batches=1, max_batches=1) as dataset:
        (batch,) = dataset
    assert batch.data.shape == (20, 1, 4 << 20)
    assert (batch.data == steps[0]).all(), "a fifo sampler draws the oldest again and again"


def test_ragged_items_come_as_asked(serve: Any, client_of: Any) -> None:
    tables = [f"{reader} {ragged}" for reader in ("dataset", "batch") for ragged in ("error", "list", "pad")]
    client = client_of(serve(*(fifo(table, max_times_sampled=1) for table in tables)))
    lengths = [1, 15, 300, 15, 2, 1, 7, 40]
    with client.trajectory_writer(301) as writer:
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append({"obs": np.full(3, number, np.float32), "action": step})
            writer.append({"obs": np.full(3, number, np.float32)})
            trajectory = {
                "obs": writer.history["obs"][-length - 1 :],
                "action": writer.history["action"][-length - 1 : -1],
                "last": writer.history["obs"][-1],
            }
            for table in tables:
                writer.create_item(table, 1.0, trajectory)
            writer.end_episode()

    def drawn_by(reader: str, ragged: Any) -> Any:
        if reader == "batch":
            return client.sample_batch(f"batch {ragged}", 8, ragged=ragged)
        with client.dataset(f"dataset {ragged}", 8, max_batches=1, ragged=ragged) as dataset:
            return next(dataset)

    for reader in ("dataset", "batch"):
        with pytest.raises(errors.DataError, match=r"different lengths \(1, 2, 7, 15, 40, 300\)"):
            drawn_by(reader, "error")
        lists, padded = drawn_by(reader, "list"), drawn_by(reader, "pad")
        assert [len(action) for action in lists.data["action"]] == lengths
        assert [len(obs) for obs in lists.data["obs"]] == [length + 1 for length in lengths]
        assert padded.data["obs"].shape == (8, 301, 3)
        assert padded.data["action"].shape == (8, 300)
        assert padded.mask["obs"].sum(1).tolist() == [length + 1 for length in lengths]
        assert padded.mask["action"].sum(1).tolist() == lengths
        assert padded.data["last"].tolist() == [[number] * 3 for number in range(8)]
        for number, length in enumerate(lengths):
            assert padded.data["action"][number, :length].tolist() == list(range(length))
            assert not padded.data["action"][number, length:].any()


# How they end.


def test_at_the_deadline_iteration_ends_and_says_who_must_act(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t", rate_limiter=rate_limiters.MinSize(1000)))), "t", 10)
    dataset = client.dataset("t", 4, timeout_ms=60)
    assert list(dataset) == []
    assert dataset.ended_by.reason == "deadline"
    error = dataset.ended_by.error
    assert isinstance(error, errors.DeadlineExceededError)
    assert error.detail["who_must_act"] == "writers"
    assert error.detail["waited_s"] >= 0.06
    assert "10 of min_size_to_sample 1000" in str(dataset.ended_by)
    assert list(dataset) == []
    assert not is_parked(client, "t"), "a dataset that ended left a request at the server"


def test_what_there_is_at_the_deadline_is_handed_over(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(replayd.Table.queue("q", 100))), "q", 5)
    with client.dataset("q", 8, timeout_ms=50) as dataset:
        assert [len(batch) for batch in dataset] == [5]
        assert dataset.ended_by.reason == "deadline"


def test_no_wait_at_all_takes_what_there_is(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(replayd.Table.queue("q", 100))), "q", 11)
    with client.dataset("q", 4, timeout_ms=0) as dataset:
        assert [len(batch) for batch in dataset] == [4, 4, 3]


def test_time_counts_only_while_somebody_waits(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(replayd.Table.queue("q", 100))), "q", 4)
    with client.dataset("q", 4, timeout_ms=20) as dataset:
        next(dataset)
        # The thread asks for the next batch, in vain, and then waits for somebody to want it.
        until(lambda: is_parked(client, "q"))
        until(lambda: not is_parked(client, "q"))
        assert dataset.ended_by is None
        filled(client, "q", 4, start=4)
        assert next(dataset).data["x"][:, 0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("closed_by", ["dataset", "client"])
def test_closing_releases_everybody_who_waits(serve: Any, client_of: Any, closed_by: str) -> None:
    watcher = client_of(serve(uniform("t")))
    client = client_of(watcher.server_address)
    dataset = client.dataset("t", 4)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(list, dataset) for _ in range(3)]
        until(lambda: is_parked(watcher, "t"))
        (dataset if closed_by == "dataset" else client).close()
        assert [batches.result(DEADLINE_S) for batches in waiting] == [[], [], []]
    assert dataset.ended_by.reason == "closed"
    assert not dataset_threads()
    dataset.close()
    assert list(dataset) == []


def test_closing_does_not_wait_for_a_server_that_is_away(
    serve: Any, client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for the next attempt to connect to it, or to ask, or for the next word in the log."""
    monkeypatch.setattr(connection, "REOPEN_S", (2 * DEADLINE_S,))
    for pause in ("PUT_OFF_S", "WARN_AFTER_S"):
        monkeypatch.setattr(connection, pause, 2 * DEADLINE_S)
    server = serve(uniform("t"))
    dataset = client_of(server).dataset("t", 4)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(list, dataset)
        until(lambda: bool(dataset._prefetcher._connection) and dataset._prefetcher._connection.ready)
        server.stop()
        # Twice: at once where there was a session, and then after a pause.
        until(lambda: dataset._prefetcher._connection._failures > 0)
        pool.submit(dataset.close).result(DEADLINE_S)
        assert waiting.result(DEADLINE_S) == []


def test_a_dataset_nobody_holds_ends_its_thread(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 5)
    dataset = client.dataset("t", 2)
    next(dataset)
    assert dataset_threads()
    del dataset
    gc.collect()
    until(lambda: not dataset_threads())


def test_a_dataset_of_a_closed_client_says_so(serve: Any) -> None:
    client = Client(serve(uniform("t")).address)
    client.close()
    with pytest.raises(errors.ClosedError):
        next(client.dataset("t", 1))


def test_errors_of_the_thread_are_raised_in_every_consumer_with_their_type(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 5)
    with client.dataset("nowhere", 2) as dataset:
        for _ in range(2):
            with pytest.raises(errors.UnknownTableError, match="nowhere"):
                next(dataset)
        assert dataset.ended_by.reason == "error"

    def decode(parts: Any, sizes: Any) -> list[None]:
        raise ZeroDivisionError(len(parts[0]))

    broken: Dataset[None] = client._dataset(prefetcher.Plan("t", 3, None, 1), decode)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(next, broken) for _ in range(4)]
        for result in results:
            with pytest.raises(ZeroDivisionError, match="3"):
                result.result(DEADLINE_S)


def test_batches_drawn_before_an_error_are_handed_over_first(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    client.insert_batch(np.zeros((3, 1)), {"t": 1.0})
    client.insert_batch(np.zeros((3, 2)), {"t": 1.0})
    with client.dataset("t", 2) as dataset:
        assert next(dataset).data.shape == (2, 1)
        with pytest.raises(errors.DataError, match="different lengths"):
            next(dataset)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"batch_size": 4, "min_batch_size": 5},
        {"batch_size": 4, "min_batch_size": 0},
        {"batch_size": 4, "prefetch_batches": -1},
        {"batch_size": 4, "prefetch_batches": "all"},
        {"batch_size": 4, "max_batches": 0},
        {"batch_size": 4, "timeout_ms": -1},
        {"batch_size": 4, "timeout_ms": float("nan")},
        {"batch_size": 4, "ragged": "maybe"},
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(arguments: dict[str, Any]) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(errors.DataError):
        client.dataset("t", **arguments)


# Servers that go, threads, processes.


def test_a_dataset_outlives_its_server(serve: Any, client_of: Any) -> None:
    first = serve(fifo("t", max_times_sampled=1))
    client = filled(client_of(first), "t", 4)
    with client.dataset("t", 4, prefetch_batches=1) as dataset, ThreadPoolExecutor(1) as pool:
        assert next(dataset).data["x"][:, 0].tolist() == [0, 1, 2, 3]
        waiting = pool.submit(next, dataset)
        until(lambda: is_parked(client, "t"))
        first.stop()
        serve(fifo("t", max_times_sampled=1), port=first.port)
        filled(client, "t", 4, start=4)
        assert waiting.result(DEADLINE_S).data["x"][:, 0].tolist() == [4, 5, 6, 7]


def test_a_server_that_stays_away_is_an_error_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetcher, "GRACE_S", 0.1)
    port = free_port()
    with Client(f"127.0.0.1:{port}") as client, client.dataset("t", 4, timeout_ms=50) as dataset:
        with pytest.raises(errors.ConnectionLostError, match=f"127.0.0.1:{port}"):
            next(dataset)
        assert dataset.ended_by.reason == "error"


@pytest.mark.parametrize("timeout_ms", [None, 120_000])
def test_a_server_that_is_silent_for_a_while_costs_no_items(
    start_daemon: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: float | None,
) -> None:
    monkeypatch.setattr(prefetcher, "WAIT_S", 0.02)
    monkeypatch.setattr(prefetcher, "GRACE_S", 0.02)
    monkeypatch.setattr(connection, "WARN_AFTER_S", 0.2)
    daemon: DaemonProcess = start_daemon("--table", "t,sampler=fifo,max_times_sampled=1")
    with Client(daemon.address) as client, client.dataset("t", 2, timeout_ms=timeout_ms) as dataset:
        filled(client, "t", 2)
        next(dataset)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, dataset)
            until(lambda: is_parked(client, "t"))
            daemon.send_signal(signal.SIGSTOP)
            try:
                until(lambda: "no answer to a sample" in caplog.text)
            finally:
                daemon.send_signal(signal.SIGCONT)
            filled(client, "t", 6, start=2)
            assert waiting.result(DEADLINE_S).data["x"].tolist() == [[2], [3]]
        assert [next(dataset).data["x"].tolist() for _ in range(2)] == [[[4], [5]], [[6], [7]]]


def test_waiting_is_told_in_the_log(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetcher, "WAIT_S", 0.02)
    monkeypatch.setattr(prefetcher, "WARN_AFTER_S", 0.01)
    client = filled(client_of(serve(uniform("t", rate_limiter=rate_limiters.MinSize(7)))), "t", 5)
    with caplog.at_level(logging.WARNING, "replayd_client"), client.dataset("t", 1) as dataset:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(next, dataset)
            until(lambda: "has waited for a batch of table 't'" in caplog.text)
            filled(client, "t", 2)
            assert len(waiting.result(DEADLINE_S)) == 1
    assert "5 of min_size_to_sample 7" in caplog.text


def test_many_threads_share_a_dataset_and_each_batch_goes_to_one(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(fifo("t", max_times_sampled=1))), "t", 400)
    with client.dataset("t", 4, max_batches=100) as dataset, ThreadPoolExecutor(8) as pool:
        shares = [pool.submit(list, dataset) for _ in range(8)]
        batches = [batch for share in shares for batch in share.result(DEADLINE_S)]
    assert sorted(x for batch in batches for x in batch.data["x"][:, 0].tolist()) == list(range(400))


def test_two_datasets_and_the_client_work_side_by_side(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("a"), uniform("b")))
    filled(filled(client, "a", 3), "b", 3, start=10)
    with client.dataset("a", 2) as a, client.dataset("b", 2) as b:
        for _ in range(5):
            batch = next(a)
            assert (batch.data["x"] < 3).all()
            assert (next(b).data["x"] >= 10).all()
            assert client.mutate_priorities("a", (batch.info.key[:1], [2.0])).updated == 1


def test_a_learner_may_only_run_ahead_by_what_is_prefetched(serve: Any, client_of: Any) -> None:
    # One sample an insert: the thread must not eat the budget that the limiter gives, or the two wait for each other.
    limiter = rate_limiters.SampleToInsertRatio(samples_per_insert=1.0, min_size_to_sample=1, error_buffer=2.0)
    table = replayd.Table("t", selectors.Fifo(), selectors.Fifo(), 100, limiter)
    client = client_of(serve(table))
    client.insert_batch(np.zeros((2, 1)), {"t": 1.0})
    with client.dataset("t", 1, prefetch_batches=1) as dataset:
        for _ in range(10):
            next(dataset)
            client.insert(0.0, {"t": 1.0})


def test_a_forked_child_is_told_and_makes_its_own(daemon: DaemonProcess) -> None:
    with Client(daemon.address) as client:
        table = next(iter(client.server_info()))
        filled(client, table, 5)
        fresh = client.dataset(table, 2)
        with client.dataset(table, 2) as dataset:
            next(dataset)

            def use_it() -> None:
                with pytest.raises(errors.ForkedClientError):
                    next(dataset)
                dataset.close()
                gc.collect()
                with client.dataset(table, 3) as mine:
                    assert (len(next(mine)), len(next(fresh))) == (3, 2)
                client.close()

            assert forked(use_it) == 0
            for _ in range(4):
                assert len(next(dataset)) == 2, "the parent's dataset goes on"


def test_a_process_ends_although_its_datasets_wait(daemon: DaemonProcess) -> None:
    script = textwrap.dedent(
        f"""
        import threading
        from replayd_client import Client
        full, idle, gone = Client("{daemon.address}"), Client("{daemon.address}"), Client("127.0.0.1:{free_port()}")
        table = next(iter(full.server_info()))
        waiting = [client.dataset(table, 2) for client in (idle, gone)]
        for dataset in waiting:
            threading.Thread(target=next, args=(dataset, None), daemon=True).start()
        while not full.server_info()[table].waiting:
            pass
        full.insert(0, {{table: 1.0}})
        stays = full.dataset(table, 2)
        print(len(next(stays)), flush=True)
        """
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "2\n"
    assert not ended.stderr


def test_a_dataset_costs_no_descriptors_once_closed(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 5)
    counts = set()
    for _ in range(6):
        with client.dataset("t", 2) as dataset:
            next(dataset)
        del dataset
        gc.collect()
        counts.add(len(os.listdir("/proc/self/fd")))
    assert max(counts) - min(counts) <= 4


def test_a_dataset_does_not_pickle_and_says_what_does(serve: Any, client_of: Any) -> None:
    client = filled(client_of(serve(uniform("t"))), "t", 5)
    with pytest.raises(TypeError, match="pickle its client instead"):
        pickle.dumps(client.dataset("t", 2))
    with pickle.loads(pickle.dumps(client)) as copy, copy.dataset("t", 2) as dataset:  # noqa: S301
        assert len(next(dataset)) == 2
    assert "Dataset of table 't', ended by closed" in repr(dataset)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_dataset_that_ended_with_an_error_is_not_kept(daemon: DaemonProcess, is_closed: bool) -> None:
    def use(client: Client) -> weakref.ref[Any]:
        dataset = client.dataset("no such table", 2)
        try:
            next(dataset)
        except errors.UnknownTableError:
            if is_closed:
                dataset.close()
            return weakref.ref(dataset)
        raise AssertionError("there is no such table")

    with Client(daemon.address) as client:
        gone = use(client)
        # Its thread may still be on its way out.
        until(lambda: gc.collect() >= 0 and gone() is None)
