"""An embedded server and its store: what would be lost is refused, and what a program says to let it go."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.errors import StoreMismatch, StoreUnreadable
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES
from replayd.store_files import DATA
from replayd_client import Client
from tests.daemon.embedded import fifo, size

ITEMS, KEPT = 20, 8
ONE = ITEM_BYTES + CHUNK_BYTES + COLUMN_BYTES + 8


def kept_of(server: replayd.Server, table: str = "t") -> list[int]:
    with Client(server.address) as client:
        n = size(client, table)
        return [int(item.data[0, 0]) for item in client.peek(table, oldest=n)] if n else []


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of a table of ITEMS items, each drawn once."""
    path = tmp_path / "data"
    with replayd.Server([fifo("t")], data_dir=path) as server, Client(server.address) as client:
        client.insert_batch(np.arange(ITEMS, dtype=np.float64)[:, None, None], {"t": 1.0})
        client.mutate_priorities("t", dict.fromkeys(client.sample_batch("t", 1).info.key.tolist(), 2.0))
    return path


SMALLER: dict[str, Callable[[], tuple[list[replayd.Table], dict[str, Any]]]] = {
    "max_size": lambda: ([fifo("t", KEPT)], {}),
    "max_bytes": lambda: ([fifo("t", max_bytes=KEPT * ONE)], {}),
    "max_bytes of the server": lambda: ([fifo("t")], {"max_bytes": KEPT * ONE}),
}


@pytest.mark.parametrize("limit", SMALLER)
def test_items_beyond_a_smaller_limit_go_only_if_the_program_says_so(store: Path, limit: str) -> None:
    tables, options = SMALLER[limit]()
    with pytest.raises(StoreMismatch, match=rf"12 of the 20 items .*{limit} .*shrink_tables=True"):
        replayd.Server(tables, data_dir=store, **options)
    with replayd.Server([fifo("t")], data_dir=store) as server:
        assert kept_of(server) == list(range(ITEMS))
    tables, options = SMALLER[limit]()
    with replayd.Server(tables, data_dir=store, shrink_tables=True, **options) as server:
        assert kept_of(server) == list(range(ITEMS - KEPT, ITEMS))
    # It is final with the next checkpoint, and needs not be said again.
    tables, options = SMALLER[limit]()
    with replayd.Server(tables, data_dir=store, **options) as server:
        assert kept_of(server) == list(range(ITEMS - KEPT, ITEMS))


def test_a_table_that_is_not_given_any_more_goes_only_if_the_program_says_so(store: Path) -> None:
    with pytest.raises(StoreMismatch, match="'t' has 20 items.*drop_removed_tables=True"):
        replayd.Server([fifo("u")], data_dir=store)
    with replayd.Server([fifo("u")], data_dir=store, drop_removed_tables=True) as server:
        assert kept_of(server, "u") == []
    with replayd.Server([fifo("t")], data_dir=store) as server:
        assert kept_of(server) == []


def test_a_store_that_cannot_be_read_is_put_aside_only_if_the_program_says_so(store: Path) -> None:
    os.truncate(store / DATA, 20_000)
    with pytest.raises(StoreUnreadable, match="allow_empty=True"):
        replayd.Server([fifo("t")], data_dir=store)
    with replayd.Server([fifo("t")], data_dir=store, allow_empty=True) as server:
        assert kept_of(server) == []
    [aside] = [path for path in store.iterdir() if path.is_dir()]
    assert (aside / DATA).stat().st_size == 20_000


def test_limiters_count_anew_if_the_program_says_so(store: Path) -> None:
    for reset, samples in ((False, 1), (True, 0)):
        with replayd.Server([fifo("t")], data_dir=store, reset_limiter=reset) as server:
            with Client(server.address) as client:
                assert client.info()["tables"][0]["limiter"]["samples"] == samples


@pytest.mark.parametrize("option", ["strict", "allow_empty", "reset_limiter", "drop_removed_tables", "shrink_tables"])
def test_options_of_a_store_need_one(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}.*data_dir"):
        replayd.Server([fifo("t")], **{option: True})  # type: ignore[arg-type]
