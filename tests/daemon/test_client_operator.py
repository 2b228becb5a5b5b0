"""The client's calls for operators: why, peek, set, pause, resume, and items that enter at the largest priority."""

from __future__ import annotations

import math
import os
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import replayd
from replayd import rate_limiters, selectors
from replayd_client import Client, SetResult, errors, structured
from replayd_client.vector_items import VectorItem
from tests.daemon.embedded import fifo, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


def prioritized(name: str, limiter: Any = None) -> replayd.Table:
    limiter = limiter or rate_limiters.MinSize(1)
    return replayd.Table(name, selectors.Prioritized(1.0), selectors.Fifo(), 100, limiter)


def band(name: str, low: float, high: float, samples_per_insert: float = 2.0) -> replayd.Table:
    """Samples pass while the cursor stays at `low` or above, inserts while it stays at `high` or below."""
    limiter = rate_limiters.SampleToInsertRatio(samples_per_insert, 1, (low, high))
    return replayd.Table(name, selectors.Uniform(), selectors.Fifo(), 1000, limiter)


def sides(client: Client, table: str) -> list[str]:
    return [side.side for side in client.why(table).waiting]


# --- why --------------------------------------------------------------------------------------------------------------


def test_a_queue_refuses_what_it_can_never_grant_and_nobody_waits(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 3)))
    with pytest.raises(errors.NeverGrantableError) as refused:
        client.sample_batch("q", 4, min_n=4)
    assert refused.value.detail["largest"] == 3
    why = client.why("q")
    assert (why.verdict, why.waiting, why.paused, why.size, why.max_size) == ("flowing", (), (), 0, 3)
    assert str(why).splitlines()[0] == "table 'q': flowing; nobody waits"


def test_both_sides_waiting_for_each_other_are_a_deadlock_that_says_how_to_end_it(serve: Any, client_of: Any) -> None:
    client = client_of(serve(band("t", 0.0, 5.0)))
    client.insert_batch(np.zeros((2, 1)), {"t": 1.0})
    with ThreadPoolExecutor(2) as pool:
        inserting: Future[Any] = pool.submit(client.insert, 1.0, {"t": 1.0}, timeout_ms=None)
        sampling: Future[Any] = pool.submit(client.sample_batch, "t", 5, 5, timeout_ms=None)
        until(lambda: sides(client, "t") == ["insert", "sample"])
        why = client.why("t")
        inserts, samples = why.waiting
        assert why.verdict == "deadlock"
        assert (inserts.blocked_by, inserts.who_must_act, inserts.needs_samples) == ("max_diff", "learners", 1)
        assert (samples.blocked_by, samples.who_must_act, samples.needs_inserts) == ("min_n", "writers", 1)
        assert (inserts.needs_inserts, samples.needs_samples) == (None, None)
        assert (samples.requests, samples.items, samples.peers) == (1, 5, 1)
        assert why.limiter["cursor"] == 4.0
        text = str(why)
        assert text.startswith("table 't': deadlock; both sides wait for each other")
        assert "ask for at most 4 at once (min_n), or widen the band" in text
        here = f" {os.getpid()}@{socket.gethostname()[:50]}"
        assert all(len(side.who) == 1 and side.who[0].endswith(here) for side in why.waiting)
        assert f"1 insert request (1 item, 1 peer: {inserts.who[0]}), the oldest for " in text
        assert "2 of at most 1000 items; cursor 4, min_diff 0, max_diff 5" in text
        client.set("t", max_diff=6)
        inserting.result()
        assert len(sampling.result()) == 5
    assert client.why("t").verdict == "flowing"


def test_why_knows_the_servers_tables_only(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    for ask in (client.why, client.set, client.pause, lambda table: client.peek(table, newest=1)):
        with pytest.raises(errors.UnknownTableError, match="there are: t"):
            ask("u")


# --- peek -------------------------------------------------------------------------------------------------------------


def test_items_are_looked_at_without_being_drawn(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t")))
    data = {"x": np.arange(8.0).reshape(4, 2), "y": [np.arange(8, dtype=np.int32).reshape(4, 2, 1)]}
    keys = client.insert_batch(data, {"t": [2.0, 9.0, 0.5, 3.0]})
    highest = client.peek("t", highest=2)
    assert [item.info.key for item in highest] == [keys[1], keys[3]]
    assert [item.info.priority for item in highest] == [9.0, 3.0]
    assert highest[0].data["x"].tolist() == [2.0, 3.0]
    assert highest[1].data["y"][0].tolist() == [[6], [7]]
    assert highest[-1].info[:3] == (keys[3], 3.0, 0)
    assert [type(word) for word in highest[0].info] == [int, float, int, float]
    assert highest[0].info.age_s >= 0
    assert [item.info.key for item in client.peek("t", lowest=1)] == [keys[2]]
    assert [item.info.key for item in client.peek("t", newest=3)] == keys[:0:-1].tolist()
    assert [item.info.key for item in client.peek("t", oldest=1024)] == keys.tolist()
    assert client.server_info()["t"].rate_limiter_info["samples"] == 0
    client.sample_batch("t", 10)
    drawn = sum(item.info.times_sampled for item in client.peek("t", oldest=4))
    assert drawn == 10


def test_a_peek_by_key_tells_which_keys_are_gone(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", 3000)))
    keys = client.insert_batch(np.arange(3000)[:, None], {"t": 1.0})
    client.mutate_priorities("t", deletes=keys[5:7])
    asked = np.concatenate((keys[::-1], keys[:2], np.array([10**12], np.uint64)))
    found = client.peek("t", keys=asked)
    wanted = np.delete(keys, [5, 6])[::-1]
    assert [item.info.key for item in found] == wanted.tolist()
    assert [int(item.data[0]) for item in found] == (wanted - keys[0]).tolist()
    assert sorted(found.missing.tolist()) == sorted([*keys[5:7].tolist(), 10**12])
    assert len(client.peek("t", keys=[])) == 0
    assert client.peek("t", keys=[int(keys[0]), keys[1]])[1].info.key == keys[1]


def test_items_too_large_for_one_reply_are_asked_for_again_by_key(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    noise = np.random.default_rng(0).integers(0, 256, (3, 1, 33 << 20), np.uint8)
    keys = client.insert_batch(noise, {"t": 1.0})
    assert len(client.peek("t", oldest=3)) == 2, "with the second it reaches 64 MiB"
    found = client.peek("t", keys=keys)
    assert [item.info.key for item in found] == keys.tolist()
    assert all(np.array_equal(item.data, data) for item, data in zip(found, noise, strict=True))


def test_a_peek_takes_one_way_of_asking(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    for asked in ({}, {"newest": 1, "oldest": 1}, {"keys": [1], "newest": 1}, {"newest": 0}, {"lowest": True}):
        with pytest.raises(errors.DataError):
            client.peek("t", **asked)
    for keys in ([-1], ["a"], [[1]], [1.5]):
        with pytest.raises(errors.DataError, match="keys"):
            client.peek("t", keys=keys)
    with pytest.raises(errors.LimitExceededError, match="1024"):
        client.peek("t", newest=1025)
    assert len(client.peek("t", newest=1024)) == 0


# --- set, pause, resume -----------------------------------------------------------------------------------------------


def test_settings_of_a_live_table_change_and_are_told(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t")))
    before, after, *_ = client.set("t", max_size=np.int64(7), priority_exponent=0.5, max_diff=9)
    assert (before["max_size"], before["priority_exponent"], before["max_diff"]) == (100, 1.0, None)
    assert (after["max_size"], after["priority_exponent"], after["max_diff"]) == (7, 0.5, 9.0)
    assert client.set("t", max_diff=None).after["max_diff"] is None
    client.insert_batch(np.zeros((10, 1)), {"t": 1.0})
    info = client.server_info()["t"]
    assert (info.current_size, info.max_size, info.evictions, info.evicted_unsampled) == (7, 7, 3, 3)


def test_every_setting_that_a_table_tells_can_be_set(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t")))
    settings = client.set("t").after
    assert client.set("t", **settings).after == settings
    assert client.set("t", max_bytes=10_000, when_full="reject").after == {
        **settings,
        "max_bytes": 10_000,
        "when_full": "reject",
    }


def test_what_a_changed_limit_takes_and_what_still_holds_inserts_is_told(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2)))
    client.insert_batch(np.zeros((2, 1)), {"q": 1.0})
    larger = client.set("q", max_size=10)
    assert (larger.removed, "max_diff still holds inserts at 2" in larger.hint) == (0, True)
    assert client.set("q", max_diff=10)[2:] == (0, "")
    smaller = client.set("q", max_size=1)
    assert (smaller.removed, "items leave undrawn" in smaller.hint) == (1, True)
    assert client.set("q", max_diff=1)[2:] == (0, "")
    assert client.set("q", paused_samples=True)[2:] == (0, "")


def test_a_refused_set_changes_nothing(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t"), uniform("u")))
    before = client.set("t").after
    for changes in (
        {"max_sise": 3},
        {"max_size": 0},
        {"max_size": 2.5},
        {"max_size": None},
        {"max_size": True},
        {"max_size": 1 << 70},
        {"max_size": "7"},
        {"samples_per_insert": math.nan},
        {"max_diff": math.inf},
        {"min_diff": 3, "max_diff": 2},
        {"priority_exponent": -1},
        {"paused_inserts": "all"},
        {"paused_samples": 5},
        {"paused_samples": None},
    ):
        with pytest.raises(ValueError) as refused:
            client.set("t", **{"max_times_sampled": 5, **changes})
        assert isinstance(refused.value, errors.DataError)
        assert client.set("t") == (before, before, 0, ""), changes
    with pytest.raises(errors.DataError, match="max_size is an integer of at least 1, not -3"):
        client.set("t", max_size=-3)
    with pytest.raises(errors.DataError) as refused:
        client.set("u", priority_exponent=1.0)
    assert "priority_exponent" not in refused.value.detail["settings"]


def test_sides_are_paused_and_resumed_one_by_one_or_together(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    assert paused_of(client.pause("t", "sample")) == (False, True)
    assert paused_of(client.pause("t", "insert")) == (True, True)
    assert paused_of(client.resume("t", "sample")) == (True, False)
    with pytest.raises(errors.DeadlineExceededError):
        client.insert(1, {"t": 1.0}, timeout_ms=50)
    assert client.why("t").verdict == "paused"
    assert "paused: insert" in str(client.why("t"))
    assert paused_of(client.resume("t")) == (False, False)
    until(lambda: client.server_info()["t"].current_size == 1)
    assert paused_of(client.pause("t")) == (True, True)
    with pytest.raises(errors.DeadlineExceededError) as late:
        client.sample_batch("t", 1, timeout_ms=50)
    assert (late.value.detail["blocked_by"], late.value.detail["who_must_act"]) == ("paused", "operator")
    with pytest.raises(errors.DataError, match="sides"):
        client.pause("t", "samples")


def paused_of(result: SetResult) -> tuple[bool, bool]:
    """Whether inserts and samples are held back after a change."""
    return result.after["paused_inserts"], result.after["paused_samples"]


def test_a_pause_of_one_side_is_one_request(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.why("t")  # The connection has said hello.
    before = client.info()["counters"]["requests"]
    client.pause("t", "insert")
    client.resume("t", "insert")
    assert client.info()["counters"]["requests"] == before + 3


def test_operators_who_pause_opposite_sides_at_once_do_not_undo_each_other(serve: Any, client_of: Any) -> None:
    server = serve(uniform("t"))
    both = threading.Barrier(2)

    def operate(client: Client, side: str) -> list[tuple[bool, bool]]:
        seen = []
        for call in (client.pause, client.resume) * 20:
            both.wait(timeout=60)
            call("t", side)
            both.wait(timeout=60)
            seen.append(paused_of(client.set("t")))
        return seen

    with ThreadPoolExecutor(2) as threads:
        operators = [threads.submit(operate, client_of(server), side) for side in ("insert", "sample")]
    assert [operator.result() for operator in operators] == [[(True, True), (False, False)] * 20] * 2


# --- the recipe of the README and of protocol.md §7.1 -----------------------------------------------------------------


def test_a_table_is_preloaded_past_its_limiter(serve: Any, client_of: Any) -> None:
    client = client_of(serve(band("t", -10.0, 10.0)))
    with pytest.raises(errors.DeadlineExceededError):
        client.insert_batch(np.zeros((6, 1)), {"t": 1.0}, timeout_ms=50)
    client.reset("t")
    until(lambda: client.server_info()["t"].current_size == 1)  # What waited came in with the reset.
    before = client.set("t", max_diff=None, paused_samples=True).before
    client.insert_batch(np.zeros((500, 1)), {"t": 1.0}, timeout_ms=None)
    shift = 500 * before["samples_per_insert"]
    client.set("t", min_diff=before["min_diff"] + shift, max_diff=before["max_diff"] + shift, paused_samples=False)
    why = client.why("t")
    assert (why.verdict, why.size, why.limiter["cursor"]) == ("flowing", 501, 2.0 + shift)
    # As before the preload: (10 - 2) / 2 inserts pass, and from there 20 samples.
    client.insert_batch(np.zeros((4, 1)), {"t": 1.0})
    with pytest.raises(errors.DeadlineExceededError):
        client.insert(0.0, {"t": 1.0}, timeout_ms=50)
    assert len(client.sample_batch("t", 20)) == 20


# --- the largest priority ---------------------------------------------------------------------------------------------


def test_new_items_enter_with_the_largest_priority_there_is(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t"), prioritized("u")))

    def newest(table: str) -> float:
        (item,) = client.peek(table, newest=1)
        return float(item.info.priority)

    client.insert(0, {"t": "max"})
    assert newest("t") == 1.0, "an empty table"
    keys = client.insert_batch(np.zeros((3, 1), np.int64), {"t": [0.5, 7.0, 2.0], "u": 3.0})["t"]
    client.insert_batch(np.zeros((2, 1), np.int64), {"t": "max", "u": "max"})
    assert (newest("t"), newest("u")) == (7.0, 3.0)
    client.mutate_priorities("t", {int(key): 0.25 for key in keys})
    client.mutate_priorities("t", {item.info.key: 0.25 for item in client.peek("t", highest=3)})
    client.insert(0, {"t": "max", "u": 0.5})
    assert (newest("t"), newest("u")) == (0.25, 0.5)
    assert client.server_info()["u"].max_priority == 3.0


def test_writers_make_items_of_the_largest_priority_beside_others(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t")))
    client.insert(np.float32(0.0), {"t": 4.0})
    with client.trajectory_writer(2) as writer:
        writer.append({"x": np.float32(1.0)})
        writer.create_item("t", 0.5, {"x": writer.history["x"][:]})
        writer.create_item("t", "max", {"x": writer.history["x"][:]})
    with client.writer(2) as legacy:
        legacy.append({"x": np.float32(1.0)})
        legacy.create_item("t", 1, "max")
    assert [item.info.priority for item in client.peek("t", oldest=9)] == [4.0, 0.5, 4.0, 4.0]
    pattern = structured.pattern_from_transform({"x": np.float32(0)}, lambda x: {"x": x["x"][-1:]})
    config = structured.create_config(pattern, "t", priority=structured.constant_priority_fn("max"))
    with client.structured_writer([config]) as patterned:
        patterned.append({"x": np.float32(2.0)})
    assert client.peek("t", newest=1)[0].info.priority == 4.0
    items = [VectorItem("t", 1, priority="max"), VectorItem("t", 1, priority=0.5)]
    with client.vector_writer(2, items, observations=[]) as vectorised:
        vectorised.append({"x": np.zeros(2, np.float32)}, np.zeros(2, np.bool_))
    assert sorted(item.info.priority for item in client.peek("t", newest=4)) == [0.5, 0.5, 4.0, 4.0]


def test_a_priority_that_is_neither_a_number_nor_the_largest_is_refused(serve: Any, client_of: Any) -> None:
    client = client_of(serve(prioritized("t")))
    for bad in ("maximum", "MAX", [1.0, 2.0]):
        with pytest.raises(errors.DataError):
            client.insert(0, {"t": bad})
    for bad in (math.nan, math.inf, -1.0):
        with pytest.raises(errors.PriorityError):
            client.insert(0, {"t": bad})
        with pytest.raises(errors.PriorityError), client.trajectory_writer(1) as writer:
            writer.append(0)
            writer.create_item("t", bad, writer.history[:])
    with pytest.raises(errors.DataError):
        client.mutate_priorities("t", {1: "max"})
