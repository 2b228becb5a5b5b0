"""Limits in bytes: what counts, who makes room, who waits, who is refused, and what an operator is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd.columns import Template
from replayd.config import ConfigError, read_config
from replayd.filling import AFTER_INSERTS, Forecasts
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES, resident_most
from replayd.messages import Failed, Result, Sample, Set, Update, Why
from replayd.service import Service
from replayd.snapshots import dump_service, load_service
from replayd.state import frozen, settled
from replayd.table import Table
from replayd.wire import decode
from tests.unit.writer import SCHEMA, StreamWriter, fifo

ONE = ITEM_BYTES + CHUNK_BYTES + COLUMN_BYTES + 100
"""What an item of one chunk of 100 bytes holds."""


def service(*tables: Table, max_bytes: int | None = None) -> Service:
    return Service(tables, server_id=b"s" * 16, version="t", seed=1, started_at=0.0, max_bytes=max_bytes)


def insert(s: Service, writer: StreamWriter, count: int = 1, size: int = 100, **how: Any) -> str | None:
    """Insert items of a chunk each; the code of the error if there is one."""
    before = writer.seq, writer.next_chunk
    first = writer.next_chunk
    request = writer.insert([b"x" * size] * count, [(first + i, 1) for i in range(count)], **how)
    error = s.handle("writer", "insert", request, 0.0)
    s.validate()
    if error is not None:
        writer.seq, writer.next_chunk = before
    return None if error is None else error.code


def ask(s: Service, request: Any) -> Any:
    s.handle("operator", type(request).__name__.lower(), request, 1.0)
    s.validate()
    return next(reply for peer, reply in s.drain() if peer == "operator")


def restored(s: Service, again: Service) -> Service:
    """The other one, which has what this one has."""
    handover = s.chunks.handover
    snapshot = frozen(dump_service(s, 0.0), np.copy)
    saved = handover.take(np.flatnonzero(handover.begin()))
    assert saved is not None
    load_service(again, settled(snapshot), [saved], 0.0, lambda blob: SCHEMA, Template)
    handover.end()
    again.validate()
    return again


def sizes(s: Service) -> dict[str, int]:
    return {name: table.size for name, table in s.tables.items()}


# --- what counts ------------------------------------------------------------------------------------------------------


def test_a_chunk_counts_once_for_a_table_and_once_for_the_server() -> None:
    s = service(fifo("t"), fifo("u"))
    writer = StreamWriter()
    s.handle("w", "insert", writer.insert([b"x" * 100], [(0, 1), (0, 1)]), 0.0)
    s.handle("w", "insert", writer.insert([], [(0, 1)], table="u"), 0.0)
    assert [s.tables[name].capacity.nbytes for name in "tu"] == [ONE + ITEM_BYTES, ONE]
    assert s.capacity.nbytes == ONE + 2 * ITEM_BYTES
    s.validate()


@pytest.mark.parametrize("chunks", [1, 2, 32])
def test_each_chunk_of_an_item_counts_what_it_costs(chunks: int) -> None:
    s, writer = service(fifo("t")), StreamWriter()
    payloads, window = [b"x" * 16] * chunks, [(0, chunks)]
    s.handle("w", "insert", writer.insert(payloads, window, keep_from=chunks), 0.0)
    one = ITEM_BYTES + chunks * (CHUNK_BYTES + COLUMN_BYTES + 16)
    assert s.tables["t"].capacity.nbytes == s.capacity.nbytes == one
    # It enters where there is just so much room, and never where there is less.
    for most, code in ((one, None), (one - 1, "limit_exceeded")):
        for when_full in ("evict", "block", "reject"):
            limited = service(fifo("t", max_bytes=most, when_full=when_full))
            error = limited.handle("w", "insert", StreamWriter().insert(payloads, window, keep_from=chunks), 0.0)
            assert (None if error is None else error.code) == code
            limited.validate()
            assert limited.tables["t"].size == (code is None)


def test_what_only_a_lease_or_a_parked_insert_holds_is_told_apart() -> None:
    s = service(fifo("t", rate_limiter=rate_limiters.Queue(1)))
    writer = StreamWriter()
    insert(s, writer, 2, keep_from=2)
    s.handle("w", "insert", writer.insert([b"x" * 7], keep_from=2), 0.0)
    memory = s.report(0.0)["memory"]
    assert (memory["held_bytes"], memory["transit_bytes"]) == (ONE, 107)
    assert "max_bytes" not in memory


# --- evict ------------------------------------------------------------------------------------------------------------


def test_the_remover_makes_room_for_as_many_bytes_as_come() -> None:
    s = service(fifo("t", max_bytes=5 * ONE))
    writer = StreamWriter()
    insert(s, writer, 5)
    insert(s, writer, 1, size=100 + ONE)
    assert s.tables["t"].size == 4
    assert s.tables["t"].capacity.nbytes == 5 * ONE
    assert s.tables["t"].evictions == 2


def test_items_that_share_a_chunk_leave_until_the_last_of_them_frees_it() -> None:
    s = service(fifo("t", max_bytes=1000 + CHUNK_BYTES + COLUMN_BYTES + 10 * ITEM_BYTES))
    writer = StreamWriter()
    s.handle("w", "insert", writer.insert([b"x" * 1000], [(0, 1)] * 10, keep_from=1), 0.0)
    assert s.tables["t"].size == 10
    s.handle("w", "insert", writer.insert([b"x" * 500], [(1, 1)]), 0.0)
    # Room for 804 bytes more: five of the old ones free only themselves, and that suffices.
    assert s.tables["t"].size == 6
    s.handle("w", "insert", writer.insert([b"x" * 2800], [(2, 1)]), 0.0)
    assert (s.tables["t"].size, s.tables["t"].capacity.nbytes) == (1, 2800 + CHUNK_BYTES + COLUMN_BYTES + ITEM_BYTES)
    s.validate()


def test_for_the_servers_limit_the_table_that_holds_most_gives() -> None:
    s = service(fifo("t"), fifo("u"), max_bytes=10 * ONE)
    writer = StreamWriter()
    insert(s, writer, 7)
    insert(s, writer, 3, table="u")
    insert(s, writer, 6, table="u")
    # t gives two, then u has as many more as it takes; of equal ones t comes first.
    assert sizes(s) == {"t": 5, "u": 5}


def test_a_table_that_blocks_gives_nothing_to_others() -> None:
    s = service(fifo("t", when_full="block"), fifo("u"), max_bytes=4 * ONE)
    writer = StreamWriter()
    insert(s, writer, 3)
    insert(s, writer, 3, table="u")
    assert sizes(s) == {"t": 3, "u": 1}


# --- block ------------------------------------------------------------------------------------------------------------


def test_a_blocked_insert_enters_in_part_and_says_who_must_act() -> None:
    s = service(fifo("t", max_bytes=3 * ONE, when_full="block"))
    writer = StreamWriter()
    insert(s, writer, 5)
    table = s.tables["t"]
    assert (table.size, table.pending_items) == (3, 2)
    (side,) = ask(s, Why(1, "t")).fields["waiting"]
    assert (side["blocked_by"], side["who_must_act"]) == ("max_bytes", "operator")
    assert f"{3 * ONE}" in side["why"]
    assert "needs_samples" not in side
    assert ask(s, Why(1, "t")).fields["verdict"] == "inserts_wait"
    deleted = ask(s, Update(1, "t", table.items.key[:1].copy(), table.items.priority[:1].copy(), table.items.key[:1]))
    assert isinstance(deleted, Result)
    assert (table.size, table.pending_items) == (3, 1)
    ask(s, Set(1, "t", {"max_bytes": None}))
    assert (table.size, table.pending_items) == (4, 0)
    assert s.report(2.0)["tables"][0]["blocked_by_s"]["insert"]["max_bytes"] > 0


def test_where_draws_make_items_leave_learners_may_act() -> None:
    s = service(fifo("t", max_bytes=2 * ONE, when_full="block", max_times_sampled=1))
    insert(s, StreamWriter(), 3)
    (side,) = ask(s, Why(1, "t")).fields["waiting"]
    assert side["who_must_act"] == "learners"
    ask(s, Sample(1, "t", 1, 1, 0.0))
    assert (s.tables["t"].size, s.tables["t"].pending_items) == (2, 0)


def test_room_in_the_server_wakes_a_table_that_waits_for_it() -> None:
    s = service(fifo("t", when_full="block"), fifo("u", when_full="block"), max_bytes=3 * ONE)
    writer = StreamWriter()
    insert(s, writer, 3)
    insert(s, writer, 2, table="u")
    assert sizes(s) == {"t": 3, "u": 0}
    (side,) = ask(s, Why(1, "u")).fields["waiting"]
    assert side["blocked_by"] == "server_max_bytes"
    keys = s.tables["t"].items.key[s.tables["t"].items.in_order()[:1]].copy()
    ask(s, Update(1, "t", keys[:0], keys[:0].astype(float), keys))
    assert sizes(s) == {"t": 2, "u": 1}


# --- reject -----------------------------------------------------------------------------------------------------------


def test_a_rejected_insert_leaves_nothing_behind() -> None:
    s = service(fifo("t", max_bytes=3 * ONE, when_full="reject"))
    writer = StreamWriter()
    assert insert(s, writer, 2) is None
    assert insert(s, writer, 2) == "table_full"
    [_, (_, refused)] = s.drain()
    assert isinstance(refused, Failed)
    assert refused.detail == {
        "table": "t", "limit": "max_bytes", "value": 3 * ONE, "held": 2 * ONE, "needed": 2 * ONE,
    }  # fmt: skip
    assert s.tables["t"].size == 2
    assert insert(s, writer, 1) is None
    assert s.tables["t"].size == 3


@pytest.mark.parametrize("when_full", ["evict", "block", "reject"])
@pytest.mark.parametrize("whose", ["table", "server"])
def test_an_item_larger_than_the_limit_is_refused_at_once(when_full: str, whose: str) -> None:
    own, all = (ONE, None) if whose == "table" else (None, ONE)
    s = service(fifo("t", max_bytes=own, when_full=when_full), max_bytes=all)
    writer = StreamWriter()
    assert insert(s, writer, 1, size=101) == "limit_exceeded"
    assert insert(s, writer, 1, size=100) is None


# --- settings, configuration, restoring -------------------------------------------------------------------------------


def test_a_limit_lowered_while_it_runs_evicts_at_once_or_lets_nothing_in() -> None:
    s = service(fifo("t"), fifo("u", when_full="block"))
    writer = StreamWriter()
    insert(s, writer, 4)
    insert(s, writer, 4, table="u")
    for name in "tu":
        assert ask(s, Set(1, name, {"max_bytes": 2 * ONE})).fields["after"]["max_bytes"] == 2 * ONE
    assert sizes(s) == {"t": 2, "u": 4}
    insert(s, writer, 1, table="u")
    assert s.tables["u"].pending_items == 1
    for wrong in ({"max_bytes": 0}, {"when_full": "explode"}):
        assert ask(s, Set(1, "t", wrong)).code == "bad_request"


def test_settings_of_bytes_come_over_the_wire() -> None:
    changes = {"max_bytes": 5000, "when_full": "block"}
    packed = msgpack.packb({"v": 1, "op": "set", "id": 1, "table": "t", "changes": changes})
    _, request = decode([packed])
    assert ask(service(fifo("t")), request).fields["after"].items() >= changes.items()


@pytest.mark.parametrize("whose", ["table", "server"])
def test_a_store_that_holds_more_than_its_server_may_is_cut_where_tables_evict(whose: str) -> None:
    s = service(fifo("t"), fifo("u", when_full="block"))
    writer = StreamWriter()
    insert(s, writer, 4)
    insert(s, writer, 4, table="u")
    own, all = (ONE, None) if whose == "table" else (None, 5 * ONE)
    limits = {"max_bytes": own}
    again = restored(s, service(fifo("t", **limits), fifo("u", when_full="block", **limits), max_bytes=all))
    assert sizes(again) == {"t": 1, "u": 4}


def test_sizes_have_units_in_the_file_and_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[server]\nmax_bytes = "2GiB"\n[[table]]\nname = "a"\nmax_bytes = 500\nwhen_full = "reject"\n')
    config = read_config(str(path), tables=["b,max_bytes=1.5MB,when_full=block"])
    assert config.server.max_bytes == 2 << 30
    a, b = (table.build() for table in config.table)
    assert [table.replace()._max_bytes for table in (a, b)] == [500, 1_500_000]
    assert [table.replace()._when_full for table in (a, b)] == ["reject", "block"]
    for wrong in ("b,max_bytes=1XB", "b,max_bytes=0", "b,when_full=explode"):
        with pytest.raises(ConfigError):
            read_config(None, tables=[wrong])


def test_limits_that_make_no_sense_are_told_where_the_table_is_made() -> None:
    for wrong in ({"max_bytes": 0}, {"max_bytes": -5}, {"when_full": "explode"}):
        with pytest.raises(ValueError, match=r"max_bytes|when_full"):
            fifo("t", **wrong)
    with pytest.raises(TypeError):
        fifo("t", max_bytes=1.5)
    with pytest.raises(ValueError, match="max_bytes"):
        service(fifo("t"), max_bytes=0)


def test_an_embedded_server_and_its_client_know_the_limits() -> None:
    limited = Table("t", selectors.Uniform(), selectors.Fifo(), 100, rate_limiters.MinSize(1), when_full="reject")
    with replayd.Server([limited], max_bytes=10 * ITEM_BYTES) as server, server.localhost_client() as client:
        assert client.set("t", max_bytes=1000).after["max_bytes"] == 1000
        told = client.set("t").after
        assert (told["max_bytes"], told["when_full"]) == (1000, "reject")


# --- forecast ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "server_bytes", "memory_bytes", "said"),
    [
        ({}, None, 0, None),
        ({}, None, resident_most(10_000 * ONE, has_store=True), None),
        ({}, None, resident_most(10_000 * ONE, has_store=True) - 4, "killed; set max_bytes"),
        (
            {"max_bytes": 2_000 * ONE},
            None,
            5_000 * ONE,
            "reached at about 2000 items (then it evicts",
        ),
        ({"max_bytes": 2_000 * ONE, "when_full": "block"}, None, 0, "then inserts wait"),
        ({}, 3_000 * ONE, 0, "the server's max_bytes"),
        ({"max_bytes": 10_000 * ONE}, 10_000 * ONE, 1 << 40, None),
    ],
)
def test_after_its_first_items_a_table_is_told_of_once_and_warned_of_if_it_will_not_fit(
    settings: dict[str, Any], server_bytes: int | None, memory_bytes: int, said: str | None
) -> None:
    s, forecasts, writer = service(fifo("t", 10_000, **settings), max_bytes=server_bytes), Forecasts(), StreamWriter()
    insert(s, writer, AFTER_INSERTS - 1)
    assert forecasts.due(s.tables.values(), memory_bytes, has_store=True) == []
    insert(s, writer, 1)
    [(name, text, is_bad)] = forecasts.due(s.tables.values(), memory_bytes, has_store=True)
    assert (name, is_bad) == ("t", said is not None)
    assert f"with max_size 10000 it will hold about {10_000 * ONE}" in text
    assert (said or "") in text
    assert ("lower max_size" in text) is is_bad, "a warning says what to do"
    assert forecasts.due(s.tables.values(), memory_bytes, has_store=True) == []


@pytest.mark.parametrize(
    ("writers", "chunks", "stride"), [(1, 32, 1), (16, 32, 1), (8, 32, 32), (50, 16, 2), (1, 1, 1)]
)
def test_the_forecast_knows_how_many_chunks_an_item_adds(writers: int, chunks: int, stride: int) -> None:
    s, forecasts = service(fifo("t", 2000)), Forecasts()
    streams = [StreamWriter(bytes([n]) * 16) for n in range(writers)]
    told: list[tuple[str, str, bool]] = []
    for n in range(0, 2000, 5):
        writer = streams[n // 5 % writers]
        # Of each item's chunks `stride` are new, but those of a writer's first.
        first = max(0, writer.next_chunk - chunks + stride)
        windows = [(first + i * stride, chunks) for i in range(5)]
        new = [b"x" * 1000] * (windows[-1][0] + chunks - writer.next_chunk)
        s.handle("writer", "insert", writer.insert(new, windows, keep_from=windows[-1][0] + stride), 0.0)
        s.drain()
        if n % 170 == 0:
            told += forecasts.due(s.tables.values(), 0, has_store=False)
    assert s.tables["t"].size == 2000
    [(_, text, _)] = told
    assert int(text.rpartition(" ")[2]) == pytest.approx(s.tables["t"].capacity.nbytes, rel=0.1)
