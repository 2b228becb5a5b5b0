"""Stores that earlier versions wrote, and this one: each is read with all that is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replayd.store import Store
from replayd.store_format import FORMAT
from replayd_client import Client
from tests.daemon.conftest import StartDaemon
from tests.daemon.make_store import draws_of, tables_of, write_store

STORES = Path(__file__).parent / "stores"


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_a_store_of_each_format_there_ever_was_is_read_with_all_that_is_in_it(
    start_daemon: StartDaemon, tmp_path: Path, format: int
) -> None:
    kept = json.loads((STORES / f"store-{format}.json").read_text())
    data, config = tmp_path / "data", tmp_path / "replayd.toml"
    write_store(kept, data)
    config.write_text(kept["config"])
    with Store(data) as store:
        assert store.head is not None
        assert (store.head.format, store.head.clean) == (format, False)
    daemon = start_daemon("--config", str(config), "--data-dir", str(data), "--journal", "sync", "--strict")
    with Client(daemon.address) as client:
        assert client.info()["store"]["replayed_requests"] > 0
        assert tables_of(client) == kept["tables"]
        assert draws_of(client) == kept["draws"]
        # What waited in the queue enters as others leave.
        assert [client.sample_batch("queue", 1).data.item() for _ in range(4)] == [1, 2, 3, 9]
        assert client.checkpoint().items > 0
        daemon.kill()
    with Store(data) as store:
        assert store.head is not None
        assert store.head.format == FORMAT
