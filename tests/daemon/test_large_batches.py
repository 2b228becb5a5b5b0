"""Batches of more items than one sample request may ask for, against a real daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from replayd import limits
from replayd_client import Client, errors, large_batches, sampling
from tests.daemon.harness import DaemonProcess

LIMIT = sampling.ITEMS_OF_REQUEST
MANY = 2 * LIMIT + 1000
DEADLINE_S = 30.0
TABLES = {
    "once": 'max_size = 100_000\nmax_times_sampled = 1\nsampler = "fifo"',
    "ready": "max_size = 100_000",
    "band": 'max_size = 100_000\nlimiter = { type = "queue", size = 1000 }\nsampler = "fifo"\nmax_times_sampled = 1',
}


@pytest.fixture
def client(server: DaemonProcess) -> Iterator[Client]:
    with Client(server.address) as client:
        for table in TABLES:
            client.reset(table)
        yield client


def fill(client: Client, table: str, count: int, start: int = 0) -> None:
    client.insert_batch({"x": np.arange(start, start + count)[:, None]}, {table: 1.0})


def size(client: Client, table: str) -> int:
    return client.server_info()[table].current_size


def test_the_client_knows_the_servers_limit() -> None:
    assert limits.SAMPLES.value == LIMIT


def test_a_batch_beyond_the_limit_is_one_batch_of_all_its_items_in_order(client: Client) -> None:
    fill(client, "once", MANY + 5)
    batch = client.sample_batch("once", MANY)
    assert len(batch) == MANY
    assert batch.data["x"].tolist() == [[number] for number in range(MANY)]
    assert len(np.unique(batch.info.key)) == MANY
    assert set(batch.info.times_sampled.tolist()) == {1}
    assert size(client, "once") == 5


def test_items_that_may_be_drawn_again_make_a_batch_of_any_size(client: Client) -> None:
    fill(client, "ready", 10)
    batch = client.sample_batch("ready", MANY)
    assert len(batch) == MANY
    assert set(batch.data["x"].ravel().tolist()) == set(range(10))


@pytest.mark.parametrize("there", [LIMIT, LIMIT + 700])
@pytest.mark.parametrize("min_n", [1, 700, LIMIT])
def test_with_a_least_number_nothing_waits_for_more_than_that(client: Client, there: int, min_n: int) -> None:
    fill(client, "once", there)
    batch = client.sample_batch("once", MANY, min_n, timeout_ms=None)
    assert batch.data["x"].ravel().tolist() == list(range(there))
    assert size(client, "once") == 0


@pytest.mark.parametrize("min_n", [None, LIMIT + 701, MANY])
def test_at_the_deadline_there_is_what_there_is(client: Client, min_n: int | None) -> None:
    fill(client, "once", LIMIT + 700)
    batch = client.sample_batch("once", MANY, min_n, timeout_ms=300)
    assert batch.data["x"].ravel().tolist() == list(range(LIMIT + 700))
    with pytest.raises(errors.DeadlineExceededError):
        client.sample_batch("once", MANY, min_n, timeout_ms=50)


def test_what_a_table_can_never_grant_at_once_is_not_waited_for(client: Client) -> None:
    fill(client, "band", 1000)
    assert len(client.sample_batch("band", MANY, timeout_ms=None)) == 1000
    with pytest.raises(errors.NeverGrantableError):
        client.sample_batch("band", MANY, 1001)


def test_a_datasets_large_batches_are_whole(client: Client) -> None:
    fill(client, "once", 2 * MANY)
    with client.dataset("once", MANY, max_batches=2) as dataset:
        batches = list(dataset)
        assert dataset.ended_by is not None
        assert dataset.ended_by.reason == "complete"
    assert [len(batch) for batch in batches] == [MANY, MANY]
    assert np.concatenate([batch.data["x"].ravel() for batch in batches]).tolist() == list(range(2 * MANY))


def test_a_datasets_last_large_batch_is_what_there_is_at_the_deadline(client: Client) -> None:
    fill(client, "once", MANY + LIMIT + 700)
    with client.dataset("once", MANY, timeout_ms=300) as dataset:
        batches = [batch.data["x"].ravel() for batch in dataset]
        assert dataset.ended_by is not None
        assert dataset.ended_by.reason == "deadline"
    assert [len(batch) for batch in batches] == [MANY, LIMIT + 700]
    assert np.concatenate(batches).tolist() == list(range(MANY + LIMIT + 700))


@pytest.mark.parametrize("there", [LIMIT, LIMIT + 700, MANY])
@pytest.mark.parametrize("least", [1, LIMIT])
def test_a_dataset_with_a_least_size_takes_what_there_is_and_waits_for_no_more(
    client: Client, there: int, least: int
) -> None:
    fill(client, "once", there)
    with client.dataset("once", MANY, min_batch_size=least, prefetch_batches=0) as dataset:
        assert next(dataset).data["x"].ravel().tolist() == list(range(there))
    assert size(client, "once") == 0


def test_a_dataset_learns_what_a_table_can_grant_at_once(client: Client) -> None:
    fill(client, "band", 1000)
    with client.dataset("band", MANY, max_batches=1) as dataset:
        assert [len(batch) for batch in dataset] == [1000]


def test_ragged_items_of_several_requests_are_padded_to_one_length(client: Client) -> None:
    fill(client, "once", LIMIT)
    client.insert_batch({"x": np.arange(2 * 10).reshape(10, 2)}, {"once": 1.0})
    batch = client.sample_batch("once", LIMIT + 10, ragged="pad")
    assert batch.data["x"].shape == (LIMIT + 10, 2)
    assert batch.mask["x"].sum(axis=1).tolist() == [1] * LIMIT + [2] * 10


def test_a_dataset_that_waits_for_the_rest_of_a_large_batch_closes(client: Client) -> None:
    fill(client, "once", LIMIT + 1)
    dataset = client.dataset("once", MANY, timeout_ms=None)
    ended: list[int] = []
    reader = threading.Thread(target=lambda: ended.append(len(list(dataset))))
    reader.start()
    # The first part has been drawn, and the rest is being waited for.
    while size(client, "once") > 0:
        pass
    dataset.close()
    reader.join(DEADLINE_S)
    assert ended == [0]


def test_only_large_batches_take_the_longer_way(client: Client) -> None:
    kinds: list[Any] = [type(client.dataset("t", size)._prefetcher) for size in (LIMIT, LIMIT + 1)]
    assert [kind is large_batches.LargeBatchPrefetcher for kind in kinds] == [False, True]
