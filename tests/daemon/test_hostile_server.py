"""A live client whose server lies: the short form of `scripts/fuzz --calls`."""

from __future__ import annotations

import random
import resource

import msgpack
import numpy as np
import pytest

from replayd_client import Client, errors
from tests.daemon import hostile

CALLS = 50
GROWTH_MIB = 64
"""Less than a forged size of which a client believed anything: those begin with 2 GiB."""


def test_whatever_a_server_forges_calls_give_results_or_typed_errors_and_take_no_memory() -> None:
    outcomes, forged = hostile.suffer(0, CALLS)  # What is allocated once is there then.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in (1, 2):
        more, count = hostile.suffer(seed, CALLS)
        outcomes += more
        forged += count
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < GROWTH_MIB
    assert outcomes.total() == 3 * CALLS
    assert forged > CALLS
    assert outcomes["result"] > CALLS / 2, "little is whole, so little was reached"
    assert {"ProtocolError", "DataError", "DeadlineExceededError"} <= outcomes.keys()


@pytest.mark.parametrize("fields", [{"items": 1}, {"items": 2, "first_key": None}, {"first_key": (1 << 63) - 1}])
def test_an_acknowledgement_of_something_else_is_an_error_of_the_protocol(
    fields: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names other numbers of items, or keys that there cannot be; nobody may take these for items of theirs."""

    def forged(frames: hostile.Frames, chance: random.Random) -> list[hostile.Frames]:
        header = msgpack.unpackb(frames[0])
        return [[msgpack.packb({**header, **fields} if header["op"] == "insert" else header), *frames[1:]]]

    monkeypatch.setattr(hostile, "forged", forged)
    monkeypatch.setattr(hostile, "FORGED", 1.0)
    with hostile.HostileServer(0) as server, Client(server.address) as client:
        with pytest.raises((errors.ProtocolError, errors.DeadlineExceededError, errors.ConnectionLostError)):
            client.insert_batch(np.ones((2, 1)), {"t": 1.0}, timeout_ms=hostile.TIMEOUT_MS)
