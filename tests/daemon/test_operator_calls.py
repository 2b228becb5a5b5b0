"""Transcripts of what operators ask of a real daemon: `why`, `peek`, `set`, and the inserts that come with them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.daemon.conftest import ConnectPeer
from tests.daemon.harness import ROOT, DaemonProcess, Peer
from tests.daemon.transcripts import (
    SCHEMA,
    Stream,
    error,
    f64,
    insert,
    nothing_has_come,
    numbers,
    rows,
    sample,
    send_insert,
    table_info,
    u32,
    u64,
)

RATIO = 'limiter = {{ type = "sample_to_insert_ratio", samples_per_insert = {}, min_size_to_sample = 1,'
# One table for each test that needs an empty one: its name and its lines in the file.
TABLES = {
    "plain": "",
    "verdicts": RATIO.format(2.0) + " error_buffer = [0.0, 5.0] }",
    "deadlock": RATIO.format(2.0) + " error_buffer = [0.0, 5.0] }",
    "preload": RATIO.format(2.0) + " error_buffer = [0.0, 6.0] }",
    "short queue": 'preset = "queue"\nmax_size = 4',
    "long queue": 'preset = "queue"\nmax_size = 10',
    "ranked": 'sampler = { type = "prioritized", priority_exponent = 1.0 }',
    "refusals": 'sampler = { type = "prioritized", priority_exponent = 1.0 }',
    "shrunk": 'sampler = "max_heap"',
    "flattened": 'sampler = { type = "prioritized", priority_exponent = 1.0 }',
    "paused": "",
    "opposite": "",
    "deadline": "",
    "windows": "",
    "at max": "",
    "at max later": 'preset = "queue"\nmax_size = 1',
}


def peek(peer: Peer, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
    id = peer.send("peek", **fields)
    header, body = peer.receive()
    assert (header["op"], header["id"]) == ("peek", id)
    return header, body


def peeked(peer: Peer, table: str, **fields: Any) -> list[int]:
    """The keys of what a peek shows."""
    return numbers(peek(peer, table=table, **fields)[0], "keys", "<u8")


def change(peer: Peer, table: str, **changes: Any) -> dict[str, Any]:
    """The settings after a change that is accepted."""
    reply = peer.ask("set", table=table, changes=changes)
    assert "error" not in reply, reply
    after = reply["after"]
    assert isinstance(after, dict)
    return after


def insert_each(peer: Peer, stream: Stream, table: str, *priorities: float) -> list[int]:
    """An item of each priority; their keys."""
    return [insert(peer, stream.message(rows(p), tables=[table], priority=f64(p)))["first_key"] for p in priorities]


# --- why --------------------------------------------------------------------------------------------------------------


def test_every_documented_verdict_is_given_for_what_it_says(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    actor, learner, stream = connect(server), connect(server), Stream()
    seen = []

    def verdict() -> str:
        seen.append(peer.ask("why", table="verdicts")["verdict"])
        return seen[-1]

    assert verdict() == "flowing"
    learner.send("sample", table="verdicts", n=5, min_n=5, timeout_ms=60_000)
    learner.send("hello")
    learner.receive()
    assert verdict() == "samples_wait"
    for value in (1.0, 2.0):
        insert(actor, stream.one("verdicts", value))
    send_insert(actor, stream.one("verdicts", 3.0))
    actor.send("hello")
    actor.receive()
    assert verdict() == "deadlock"
    change(peer, "verdicts", paused_inserts=True)
    assert verdict() == "paused"
    change(peer, "verdicts", paused_inserts=False, min_diff=-1)
    header, _ = learner.receive()
    assert len(numbers(header, "keys", "<u8")) == 5
    header, _ = actor.receive()
    assert header["items"] == 1
    insert(actor, stream.one("verdicts", 4.0))
    insert(actor, stream.one("verdicts", 5.0))
    send_insert(actor, stream.one("verdicts", 6.0))
    actor.send("hello")
    actor.receive()
    assert verdict() == "inserts_wait"
    text = (ROOT / "protocol.md").read_text(encoding="utf-8")
    between = re.search(r"<!-- table: verdicts -->\n(.*?)<!-- end", text, re.DOTALL)
    assert between is not None
    assert set(re.findall(r"^\| `(\w+)`", between[1], re.MULTILINE)) == set(seen)


def test_a_deadlock_is_told_with_what_each_side_needs_and_a_set_resolves_it(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    actor, learner, stream = connect(server), connect(server), Stream()
    for value in (1.0, 2.0):
        insert(actor, stream.one("deadlock", value))
    # Cursor 4: an insert would take it to 6, beyond 5; and no more than 4 samples pass, although 5 might some day.
    send_insert(actor, stream.one("deadlock", 3.0))
    sent = learner.send("sample", table="deadlock", n=8, min_n=5, timeout_ms=60_000)
    learner.send("sample", table="deadlock", n=2, timeout_ms=60_000)
    assert nothing_has_come(learner, by=peer)
    assert nothing_has_come(actor, by=peer)
    why = peer.ask("why", table="deadlock")
    assert (why["verdict"], why["size"], why["paused"]) == ("deadlock", 2, [])
    assert "at most 4 at once" in why["advice"]
    assert why["limiter"]["cursor"] == 4.0
    inserts, samples = why["waiting"]
    assert inserts["waited_s"] >= 0.0
    assert {name: inserts[name] for name in ("side", "requests", "items", "peers", "blocked_by", "who_must_act")} == {
        "side": "insert", "requests": 1, "items": 1, "peers": 1, "blocked_by": "max_diff", "who_must_act": "learners",
    }  # fmt: skip
    assert {name: samples[name] for name in ("side", "requests", "items", "peers", "blocked_by", "who_must_act")} == {
        "side": "sample", "requests": 2, "items": 10, "peers": 1, "blocked_by": "min_n", "who_must_act": "writers",
    }  # fmt: skip
    assert (inserts["needs_samples"], samples["needs_inserts"]) == (1, 1)
    assert "needs_inserts" not in inserts
    assert "4 can pass now, the first request asks for at least 5" in samples["why"]
    assert table_info(peer, "deadlock")["waiting"][1]["needs_inserts"] == 1
    change(peer, "deadlock", max_diff=6)
    header, _ = learner.receive()
    assert header["id"] == sent
    assert len(numbers(header, "keys", "<u8")) == 6
    header, _ = actor.receive()
    assert header["items"] == 1


def test_more_than_a_queue_can_hold_is_never_grantable_and_does_not_wait(peer: Peer) -> None:
    code, detail = error(peer.ask("sample", table="short queue", n=5, min_n=5))
    assert (code, detail["largest"]) == ("never_grantable", 4)
    assert peer.ask("why", table="short queue")["verdict"] == "flowing"


def test_what_a_batch_needs_of_items_that_are_drawn_once_is_counted_by_items(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    learner, stream = connect(server), Stream()
    insert_each(peer, stream, "long queue", 1.0, 1.0, 1.0)
    change(peer, "long queue", min_diff=None)
    learner.send("sample", table="long queue", n=8, min_n=8, timeout_ms=60_000)
    assert nothing_has_come(learner, by=peer)
    [side] = peer.ask("why", table="long queue")["waiting"]
    assert (side["blocked_by"], side["needs_inserts"]) == ("min_n", 5)
    assert "3 can pass now" in side["why"]
    insert_each(peer, stream, "long queue", *[1.0] * 4)
    assert nothing_has_come(learner, by=peer)
    insert_each(peer, stream, "long queue", 1.0)
    header, _ = learner.receive()
    assert len(numbers(header, "keys", "<u8")) == 8


# --- peek -------------------------------------------------------------------------------------------------------------


def test_a_peek_finds_items_by_key_by_age_and_by_priority(peer: Peer) -> None:
    keys = insert_each(peer, Stream(), "ranked", 2.0, 9.0, 0.5, 3.0)
    assert peeked(peer, "ranked") == keys[:1]
    assert peeked(peer, "ranked", order="oldest", n=3) == keys[:3]
    assert peeked(peer, "ranked", order="newest", n=3) == keys[:0:-1]
    assert peeked(peer, "ranked", order="highest", n=2) == [keys[1], keys[3]]
    assert peeked(peer, "ranked", order="lowest", n=1024) == [keys[2], keys[0], keys[3], keys[1]]
    header, body = peek(peer, table="ranked", keys=u64(keys[3], 999_999, keys[0]))
    assert numbers(header, "keys", "<u8") == [keys[3], keys[0]]
    assert numbers(header, "missing", "<u8") == [999_999]
    assert numbers(header, "priorities", "<f8") == [3.0, 2.0]
    assert numbers(header, "times_sampled", "<u4") == [0, 0]
    assert all(age >= 0 for age in numbers(header, "ages_s", "<f8"))
    assert header["schemas"] == [SCHEMA]
    assert numbers(header, "length", "<u4") == [1, 1]
    steps = np.frombuffer(b"".join(body), "<f4").reshape(-1, 2)[numbers(header, "chunk", "<u4")]
    assert steps.tolist() == [[3.0, -3.0], [2.0, -2.0]]


def test_a_peek_shows_windows_over_chunks(peer: Peer) -> None:
    message = Stream().message(
        rows(1.0, 2.0), rows(3.0), tables=["windows"], chunks=u32(2), offset=u32(1), length=u32(2)
    )
    insert(peer, message)
    header, body = peek(peer, table="windows", order="newest", n=1)
    assert [numbers(header, name, "<u4") for name in ("chunk", "chunks", "offset", "length")] == [[0], [2], [1], [2]]
    assert numbers(header, "rows", "<u4") == [2, 1]
    assert b"".join(body) == rows(1.0, 2.0) + rows(3.0)


def test_a_peek_touches_nothing(peer: Peer) -> None:
    [key] = insert_each(peer, Stream(), "plain", 1.0)
    before = table_info(peer, "plain")
    for fields in ({"keys": u64(key)}, *({"order": order, "n": 9} for order in ("oldest", "newest", "highest"))):
        peek(peer, table="plain", **fields)
    assert table_info(peer, "plain") == before
    header, _ = sample(peer, table="plain", n=1)
    assert numbers(header, "times_sampled", "<u4") == [1]
    assert numbers(peek(peer, table="plain", keys=u64(key))[0], "times_sampled", "<u4") == [1]


def test_a_peek_never_waits_and_an_empty_table_shows_nothing(peer: Peer) -> None:
    header, body = peek(peer, table="short queue", order="newest", n=5)
    assert (numbers(header, "keys", "<u8"), numbers(header, "missing", "<u8")) == ([], [])
    assert (header["schemas"], header["blobs"], body) == ([], b"", [])
    header, _ = peek(peer, table="short queue", keys=u64(5, 6))
    assert numbers(header, "missing", "<u8") == [5, 6]


# --- set --------------------------------------------------------------------------------------------------------------


def test_a_refused_set_changes_nothing(peer: Peer) -> None:
    before = change(peer, "refusals")
    refused = [
        {"max_size": 0},
        {"max_size": 5.0},
        {"max_size": None},
        {"max_size": 10, "min_size_to_sample": 11},
        {"max_times_sampled": -1},
        {"samples_per_insert": 0},
        {"samples_per_insert": float("nan")},
        {"min_size_to_sample": 0},
        {"min_diff": 3, "max_diff": 2.5},
        {"max_diff": float("inf")},
        {"priority_exponent": 3.5},
        {"priority_exponent": "1"},
        {"paused_samples": 1},
        {"paused_samples": None},
        {"paused_inserts": "yes"},
        {"paused": ["sample"]},
        {"size": 5},
    ]
    for changes in refused:
        code, detail = error(peer.ask("set", table="refusals", changes={"max_times_sampled": 7, **changes}))
        assert code == "bad_request", changes
        assert ("settings" in detail) == ("size" in changes or "paused" in changes)
    code, detail = error(peer.ask("set", table="plain", changes={"max_size": 5, "priority_exponent": 1.0}))
    assert (code, "priority_exponent" in detail["settings"]) == ("bad_request", False)
    assert error(peer.ask("set", table="refusals", changes=[]))[0] == "bad_message"
    assert error(peer.ask("set", table="refusals"))[0] == "bad_message"
    assert error(peer.ask("set", table="nowhere", changes={}))[0] == "unknown_table"
    assert change(peer, "refusals") == before
    assert change(peer, "plain")["max_size"] != 5


def test_a_smaller_table_evicts_at_once_and_fewer_samples_expire_items(peer: Peer) -> None:
    keys = insert_each(peer, Stream(), "shrunk", 1.0, 2.0, 3.0, 4.0)
    # The sampler takes the item of largest priority, twice.
    sample(peer, table="shrunk", n=2)
    assert change(peer, "shrunk", max_times_sampled=2)["max_times_sampled"] == 2
    assert peeked(peer, "shrunk", n=9) == keys[:3]
    change(peer, "shrunk", max_size=2)
    assert peeked(peer, "shrunk", n=9) == keys[1:3]
    info = table_info(peer, "shrunk")
    assert (info["evictions"], info["evicted_unsampled"], info["limiter"]["deletes"]) == (1, 1, 2)
    assert (info["size"], info["max_size"]) == (2, 2)


def test_a_new_exponent_changes_probabilities(peer: Peer) -> None:
    insert_each(peer, Stream(), "flattened", 1.0, 3.0)

    def probabilities() -> set[float]:
        header, _ = sample(peer, table="flattened", n=200)
        return set(numbers(header, "probabilities", "<f8"))

    assert probabilities() == {0.25, 0.75}
    change(peer, "flattened", priority_exponent=0.0)
    assert probabilities() == {0.5}
    assert table_info(peer, "flattened")["sampler"] == {"kind": "prioritized", "priority_exponent": 0.0}


def test_paused_sides_wait_whatever_the_limiter_says(connect: ConnectPeer, server: DaemonProcess, peer: Peer) -> None:
    actor, learner, stream = connect(server), connect(server), Stream()
    after = change(peer, "paused", paused_samples=True, paused_inserts=True)
    assert (after["paused_inserts"], after["paused_samples"]) == (True, True)
    send_insert(actor, stream.one("paused", 1.0))
    learner.send("sample", table="paused", n=1, timeout_ms=60_000)
    assert nothing_has_come(actor, by=peer)
    assert nothing_has_come(learner, by=peer)
    why = peer.ask("why", table="paused")
    assert (why["verdict"], why["paused"]) == ("paused", ["insert", "sample"])
    assert [(side["blocked_by"], side["who_must_act"]) for side in why["waiting"]] == [("paused", "operator")] * 2
    assert not any("needs_samples" in side or "needs_inserts" in side for side in why["waiting"])
    change(peer, "paused", paused_inserts=False)
    header, _ = actor.receive()
    assert header["items"] == 1
    assert nothing_has_come(learner, by=peer)
    change(peer, "paused", paused_samples=False)
    header, _ = learner.receive()
    assert len(numbers(header, "keys", "<u8")) == 1
    blocked_s = table_info(peer, "paused")["blocked_s"]
    assert blocked_s["sample"] >= blocked_s["insert"] > 0


def test_operators_who_pause_opposite_sides_at_once_do_not_undo_each_other(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    one, other = connect(server), connect(server)
    for paused in (True, False):
        # Both are on their way before either is answered; neither has seen what the other did.
        one.send("set", table="opposite", changes={"paused_inserts": paused})
        other.send("set", table="opposite", changes={"paused_samples": paused})
        assert all("error" not in operator.receive()[0] for operator in (one, other))
        assert peer.ask("why", table="opposite")["paused"] == (["insert", "sample"] if paused else [])


def test_a_sample_of_a_paused_table_ends_at_its_deadline_with_the_reason(peer: Peer) -> None:
    insert_each(peer, Stream(), "deadline", 1.0)
    change(peer, "deadline", paused_samples=True)
    header, _ = sample(peer, table="deadline", n=1, timeout_ms=0)
    code, detail = error(header)
    assert (code, detail["blocked_by"], detail["who_must_act"]) == ("timeout", "paused", "operator")
    assert table_info(peer, "deadline")["limiter"]["samples"] == 0


def test_changes_are_logged_and_looks_at_settings_are_not(peer: Peer, server: DaemonProcess) -> None:
    before = change(peer, "refusals")["max_size"]
    size = before + 1
    change(peer, "refusals", max_size=size)
    peer.ask("hello")
    assert f"table refusals: max_size {before} -> {size}\n" in server.output()
    assert "table refusals: \n" not in server.output()


# --- the preload recipe of §7.1 ---------------------------------------------------------------------------------------


def test_a_table_is_preloaded_and_goes_on_as_if_the_data_had_always_been_there(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    actor, learner, stream = connect(server), connect(server), Stream()
    reply = peer.ask("set", table="preload", changes={"max_diff": None, "paused_samples": True})
    band = {name: reply["before"][name] for name in ("min_diff", "max_diff")}
    learner.send("sample", table="preload", n=1, timeout_ms=60_000)
    preloaded = 20
    for value in range(preloaded):
        assert insert(actor, stream.one("preload", float(value)))["items"] == 1
    assert nothing_has_come(learner, by=peer)
    limiter = peer.ask("why", table="preload")["limiter"]
    assert (limiter["cursor"], limiter["samples"]) == (preloaded * limiter["samples_per_insert"], 0)
    shifted = {name: bound + preloaded * limiter["samples_per_insert"] for name, bound in band.items()}
    after = change(peer, "preload", paused_samples=False, **shifted)
    assert {name: after[name] for name in shifted} == shifted
    # As in a new table: the band is 6 wide, so three inserts pass before a sample must, and then six samples do.
    assert nothing_has_come(learner, by=peer)
    for value in range(3):
        insert(actor, stream.one("preload", float(value)))
    header, _ = learner.receive()
    assert len(numbers(header, "keys", "<u8")) == 1
    header, _ = sample(peer, table="preload", n=100)
    assert len(numbers(header, "keys", "<u8")) == 5
    assert set(numbers(header, "table_sizes", "<u8")) == {preloaded + 3}
    for value in range(3):
        insert(actor, stream.one("preload", float(value)))
    send_insert(actor, stream.one("preload", 9.0))
    assert nothing_has_come(actor, by=peer)


# --- at_max -----------------------------------------------------------------------------------------------------------


def at_max_priorities(peer: Peer, stream: Stream, table: str, priority: list[float], at_max: list[int]) -> list[float]:
    """The priorities with which items enter."""
    m = len(priority)
    message = stream.message(
        rows(1.0), tables=[table] * m, priority=f64(*priority), at_max=bytes(at_max), length=u32(*[1] * m)
    )
    first = insert(peer, message)["first_key"]
    header, _ = peek(peer, table=table, keys=u64(*range(first, first + m)))
    return numbers(header, "priorities", "<f8")


def test_items_enter_with_the_largest_priority_there_is(peer: Peer) -> None:
    stream = Stream()
    assert at_max_priorities(peer, stream, "at max", [7.0], [1]) == [1.0], "an empty table"
    assert at_max_priorities(peer, stream, "at max", [0.5, 0.0, 4.0], [0, 1, 0]) == [0.5, 1.0, 4.0]
    assert at_max_priorities(peer, stream, "at max", [0.0], [1]) == [4.0]
    assert table_info(peer, "at max")["max_priority"] == 4.0
    largest = peeked(peer, "at max", order="highest", n=2)
    peer.ask("update", table="at max", keys=u64(largest[0]), priorities=f64(0.25), deletes=u64(largest[1]))
    assert at_max_priorities(peer, stream, "at max", [0.0], [1]) == [1.0], "the largest have gone"
    peer.ask("reset", table="at max")
    assert "max_priority" not in table_info(peer, "at max")
    code, _ = error(insert(peer, stream.message(rows(1.0), tables=["at max"], priority=f64(-1.0), at_max=b"\x01")))
    assert code == "bad_priority"


def test_the_largest_priority_is_that_of_the_moment_when_a_parked_item_enters(
    connect: ConnectPeer, server: DaemonProcess, peer: Peer
) -> None:
    actor, stream = connect(server), Stream()
    [key] = insert_each(actor, stream, "at max later", 2.0)
    send_insert(actor, stream.message(rows(2.0), tables=["at max later"], priority=f64(0.0), at_max=b"\x01"))
    assert nothing_has_come(actor, by=peer)
    peer.ask("update", table="at max later", keys=u64(key), priorities=f64(6.0))
    change(peer, "at max later", max_diff=None, max_size=2)
    header, _ = actor.receive()
    header, _ = peek(peer, table="at max later", keys=u64(header["first_key"]))
    assert numbers(header, "priorities", "<f8") == [6.0]
