"""Calls that take several requests, at servers that allow less than others do and over connections that break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from replayd import limits
from replayd_client import Client, errors
from tests.daemon.embedded import fifo, size
from tests.daemon.proxy import CuttingProxy

pytest_plugins = "tests.daemon.embedded_fixtures"

LIMIT = 100
MANY = 2 * LIMIT + 50
CUTS = range(1500, 24_000, 2500)
"""Bytes of the server after which a connection ends: 1.3 kB are its hello, and about 7 kB a reply with LIMIT items."""


@pytest.fixture(autouse=True)
def low_limits() -> Iterator[None]:
    """A server in this process allows as little as this in one request, and says so."""
    before = [(limit, limit.value) for limit in (limits.SAMPLES, limits.UPDATES)]
    for limit, _ in before:
        object.__setattr__(limit, "value", LIMIT)
    yield
    for limit, value in before:
        object.__setattr__(limit, "value", value)


def fill(client: Client, count: int) -> list[int]:
    keys = client.insert_batch({"x": np.arange(count)[:, None]}, {"t": 1.0})
    return [int(key) for key in keys]


def numbers(batch: Any) -> list[int]:
    assert batch.data["x"].shape == (len(batch), 1)
    return [int(number) for number in batch.data["x"].ravel()]


def test_a_batch_takes_as_many_requests_as_the_server_wants(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    fill(client, 3 * MANY)
    assert numbers(client.sample_batch("t", MANY)) == list(range(MANY))
    assert numbers(client.sample_batch("t", MANY, 1)) == list(range(MANY, 2 * MANY))
    with client.dataset("t", MANY, max_batches=1) as dataset:
        assert numbers(next(dataset)) == list(range(2 * MANY, 3 * MANY))


def test_the_first_words_to_a_server_ask_for_no_more_than_it_allows(serve: Any, client_of: Any) -> None:
    server = serve(fifo("t", max_times_sampled=1))
    fill(client_of(server), 2 * MANY)
    assert numbers(client_of(server).sample_batch("t", MANY, 1)) == list(range(MANY))
    with client_of(server).dataset("t", MANY, max_batches=1) as dataset:
        assert numbers(next(dataset)) == list(range(MANY, 2 * MANY))


def test_an_update_takes_as_many_requests_as_the_server_wants(serve: Any, client_of: Any) -> None:
    server = serve(fifo("t"))
    keys = fill(client_of(server), MANY)
    doomed, gone = keys[:LIMIT], [keys[-1] + 1]
    result = client_of(server).mutate_priorities("t", dict.fromkeys(keys + gone, 2.0), doomed)
    assert (result.updated, result.deleted, result.missing.tolist()) == (MANY - LIMIT, LIMIT, gone)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("way", ["call", "dataset"])
def test_a_batch_is_whole_and_repeats_nothing_when_its_connection_breaks(
    serve: Any, client_of: Any, way: str, cut: int
) -> None:
    """What a lost reply held is lost with it, as these items are drawn once; the batch goes on with those behind."""
    server = serve(fifo("t", max_times_sampled=1))
    direct = client_of(server)
    fill(direct, 4 * MANY)
    proxy = CuttingProxy(("127.0.0.1", server.port), iter([cut]))
    try:
        client = client_of(proxy.address)
        if way == "call":
            batches = [client.sample_batch("t", MANY) for _ in range(2)]
        else:
            with client.dataset("t", MANY, max_batches=2) as dataset:
                batches = list(dataset)
        client.close()
    finally:
        proxy.close()
    assert proxy.cuts == 1
    drawn = [number for batch in batches for number in numbers(batch)]
    assert [len(batch) for batch in batches] == [MANY, MANY]
    assert drawn == sorted(set(drawn))
    assert size(direct, "t") <= 4 * MANY - len(drawn)
    assert drawn[-1] < len(drawn) + 2 * LIMIT, "more than one reply is lost"


@pytest.mark.parametrize("least", [1, LIMIT])
def test_what_was_drawn_is_a_batch_when_the_server_is_gone_and_it_is_enough(
    serve: Any, client_of: Any, least: int
) -> None:
    server = serve(fifo("t", max_times_sampled=1))
    fill(client_of(server), MANY)
    proxy = CuttingProxy(("127.0.0.1", server.port), iter([LIMIT * 100, *[0] * 1000]))
    try:
        client = client_of(proxy.address)
        batch = client.sample_batch("t", MANY, least, timeout_ms=500)
        assert numbers(batch) == list(range(LIMIT))
        with pytest.raises(errors.ConnectionLostError):
            client.sample_batch("t", MANY, timeout_ms=200)
        client.close()
    finally:
        proxy.close()
