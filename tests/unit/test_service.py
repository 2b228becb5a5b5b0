"""What the service promises each peer, one behaviour a test. Agreement with a naive model is in tests/model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from replayd import rate_limiters, selectors
from replayd.columns import Column, OutputColumn, Schema, Template
from replayd.limits import (
    LEASED_BYTES,
    MAX_WAIT_MS,
    PARKED_SAMPLES,
    PENDING_BYTES,
    PENDING_INSERTS,
    REPLY_BYTES,
    WINDOW_MESSAGES,
)
from replayd.messages import CloseStream, Failed, Hello, Info, Insert, Reset, Result, Sample, Sampled, Update, Why
from replayd.service import Service
from replayd.table import Table
from replayd_client.specs import TensorSpec
from tests.unit.writer import StreamWriter, fifo, payloads_of, service

NO_KEYS = np.zeros(0, np.uint64)


def ask(target: Service, request: Any, peer: str | None = "peer", now: float = 0.0) -> list[tuple[Any, Any]]:
    op = type(request).__name__.lower()
    target.handle(peer, op, request, now)
    return target.drain()


def sample(id: int = 1, n: int = 1, *, table: str = "t", min_n: int = 1, timeout_s: float = 10.0) -> Sample:
    return Sample(id, table, n, min_n, timeout_s)


def info(target: Service) -> dict[str, Any]:
    [(_, reply)] = ask(target, Info(0))
    fields: dict[str, Any] = reply.fields
    return fields


def error(replies: list[tuple[Any, Any]]) -> Failed:
    [(_, reply)] = replies
    assert isinstance(reply, Failed), reply
    return reply


# --- streams, chunks and leases ---------------------------------------------------------------------------------------


def test_a_silent_stream_is_closed_and_its_unreferenced_chunks_are_freed(made: list[Service]) -> None:
    made.append(s := service(fifo(), lease_s=10.0))
    ask(s, StreamWriter().insert([b"a", b"bc"[:1]], [(0, 1)]))
    assert info(s)["chunks"]["orphan_bytes"] == 1
    assert s.tick(9.0) == 10.0
    assert info(s)["chunks"]["orphan_bytes"] == 1
    s.tick(10.0)
    assert info(s)["chunks"] == {"count": 1, "bytes": 1, "orphan_bytes": 0, "added": 2, "bytes_added": 2}
    assert info(s)["streams"] == {"open": 0, "expired": 1}


def test_a_parked_message_is_known_when_the_lease_of_its_stream_has_ended(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1), lease_s=10.0))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    parked = writer.insert([], [(0, 1)])
    ask(s, parked)
    s.tick(100.0)
    assert info(s)["streams"] == {"open": 0, "expired": 1}
    assert ask(s, parked, "same writer, new connection", now=101.0) == []
    served = {peer for peer, _ in ask(s, sample(), "learner", now=102.0)}
    # The old connection may only be slow: whoever asked is answered.
    assert served == {"learner", "peer", "same writer, new connection"}
    assert s.tables["t"].size == 1
    [(_, again)] = ask(s, parked, now=103.0)
    assert (again.fields["first_key"], again.fields["duplicate"]) == (2, True)


def test_a_message_on_a_forgotten_stream_is_told_so(made: list[Service]) -> None:
    made.append(s := service(fifo(), lease_s=10.0))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"]))
    s.tick(11.0)
    assert error(ask(s, writer.insert([b"b"]))).code == "unknown_stream"


def test_what_was_applied_is_acknowledged_again_even_when_the_lease_has_ended(made: list[Service]) -> None:
    made.append(s := service(fifo(), lease_s=10.0))
    writer = StreamWriter()
    first, second = writer.insert([b"a"], [(0, 1)]), writer.insert([], [(0, 1)])
    ask(s, first)
    s.tick(11.0)
    [(_, reply)] = ask(s, first, now=12.0)
    assert (reply.fields["duplicate"], reply.fields["first_key"]) == (True, 1)
    assert error(ask(s, second, now=12.0)).code == "unknown_stream"
    assert s.tables["t"].size == 1


def test_keep_from_frees_what_no_item_holds_at_once(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    ask(s, writer.insert([b"a", b"b", b"c"], [(1, 1)]))
    ask(s, writer.insert(keep_from=3))
    assert info(s)["chunks"]["count"] == 1


def test_an_item_cannot_reach_a_chunk_given_up(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    ask(s, writer.insert([b"a", b"b"], keep_from=1))
    assert error(ask(s, writer.insert([b"c"], [(0, 2)]))).code == "missing_chunk"


def test_a_refused_insert_leaves_nothing_behind_and_spends_no_number(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"]))
    before = info(s)
    refused = error(ask(s, writer.insert([b"b"], [(1, 1)], table="elsewhere")))
    assert (refused.code, refused.detail["tables"]) == ("unknown_table", ["t"])
    after = info(s)
    assert {**after, "counters": None} == {**before, "counters": None}
    assert error(ask(s, writer.insert([b"c"]))).code == "sequence_gap"
    writer.seq, writer.next_chunk = 1, 1
    [(_, reply)] = ask(s, writer.insert([b"b"], [(1, 1)]))
    assert reply.fields["items"] == 1


def test_a_message_acknowledged_long_ago_is_not_applied_again(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    first = writer.insert([b"a"], [(0, 1)])
    ask(s, first)
    for _ in range(WINDOW_MESSAGES.value + 1):
        ask(s, writer.insert())
    assert error(ask(s, first)).code == "bad_request"
    assert s.tables["t"].size == 1


def test_chunks_of_a_window_stand_side_by_side_whatever_slots_they_have(made: list[Service]) -> None:
    made.append(s := service(fifo("t", 2), fifo("other")))
    one, two = StreamWriter(b"1" * 16), StreamWriter(b"2" * 16)
    # Slots are freed in an order that makes later chunks of one stream sit before earlier ones, mixed with another
    # stream's.
    ask(s, one.insert([b"a", b"b", b"c"], [(0, 1), (1, 1), (2, 1)], keep_from=3))
    ask(s, two.insert([b"p"], [(0, 1)]))
    ask(s, one.insert([b"d"], [(3, 1)]))
    ask(s, two.insert([b"q"], [(1, 1)]))
    ask(s, one.insert([b"e"]))
    ask(s, two.insert([b"r"]))
    ask(s, one.insert([b"f"], [(3, 3)], table="other"))
    ask(s, two.insert([b"s"], [(0, 4)], table="other"))
    ask(s, one.insert([], [(4, 2)], table="other"))
    s.tables["other"].sampler = selectors.Uniform()
    live = s.tables["other"].items.in_order()
    s.tables["other"].sampler.add(live, np.ones(len(live)))
    [(_, reply)] = ask(s, sample(n=50, table="other"))
    shown = set()
    for i in range(50):
        first, count = int(reply.shown.chunk[i]), int(reply.shown.chunks[i])
        shown.add((int(reply.shown.keys[i]), b"".join(payloads_of(reply.shown)[first : first + count])))
    assert {text for _, text in shown} == {b"def", b"pqrs", b"ef"}
    assert sorted(payloads_of(reply.shown)) == [b"d", b"e", b"f", b"p", b"q", b"r", b"s"]


def test_two_tables_share_the_chunks_they_show(made: list[Service]) -> None:
    made.append(s := service(fifo("t"), fifo("u")))
    writer = StreamWriter()
    ask(s, writer.insert([b"abc"], [(0, 1)]))
    ask(s, writer.insert([], [(0, 1)], table="u", keep_from=1))
    assert info(s)["chunks"]["bytes"] == 3
    ask(s, Reset(1, "t"))
    assert info(s)["chunks"]["bytes"] == 3
    ask(s, Reset(1, "u"))
    assert info(s)["chunks"]["bytes"] == 0


# --- limits of peers --------------------------------------------------------------------------------------------------


def test_a_peer_beyond_its_window_is_refused_and_others_are_not(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer, other = StreamWriter(), StreamWriter(b"o" * 16)
    ask(s, writer.insert([b"a"], [(0, 1)]))
    for _ in range(WINDOW_MESSAGES.value):
        assert ask(s, writer.insert([], [(0, 1)])) == []
    refused = error(ask(s, writer.insert()))
    assert (refused.code, refused.detail["limit"]) == ("limit_exceeded", "window_messages")
    assert ask(s, other.insert([b"b"], [(0, 1)]), "other") == []


def test_a_peer_may_leave_so_many_samples_unanswered_and_no_more(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    for i in range(PARKED_SAMPLES.value):
        assert ask(s, sample(i)) == []
    assert error(ask(s, sample(99))).detail["limit"] == "parked_samples"
    assert ask(s, sample(100), "other") == []


def test_a_congested_table_stops_pushes_until_it_drains(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"]), None)
    while s.wants_inserts:
        ask(s, writer.insert([], [(0, 1)] * 8192), None)
    assert s.tables["t"].pending_items >= PENDING_INSERTS.value
    while not s.wants_inserts:
        [(_, reply)] = ask(s, sample(n=1))
        assert isinstance(reply, Sampled)


def test_a_reply_ends_with_the_item_that_reaches_its_byte_limit_and_the_rest_is_not_counted_as_sampled(
    made: list[Service],
) -> None:
    made.append(s := service(Table.queue("t", 10)))
    big = bytes(REPLY_BYTES.value // 3)
    writer = StreamWriter()
    for i in range(6):
        ask(s, writer.insert([big], [(i, 1)], keep_from=i + 1))
    [(_, reply)] = ask(s, sample(n=6, min_n=6))
    assert len(reply.shown.keys) == 4, "three are a byte short of it"
    assert (s.tables["t"].size, s.tables["t"].limiter.samples) == (2, 4)


def test_one_item_larger_than_the_limit_is_still_sent(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    ask(s, StreamWriter().insert([bytes(REPLY_BYTES.value + 1)], [(0, 1)]))
    [(_, reply)] = ask(s, sample(n=5))
    assert len(reply.shown.keys) == 1


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_waiting_sample_is_served_by_the_insert_it_waits_for(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    assert ask(s, sample(7), "learner") == []
    replies = ask(s, StreamWriter().insert([b"a"], [(0, 1)]), "actor")
    assert [(peer, type(reply).__name__) for peer, reply in replies] == [("actor", "Result"), ("learner", "Sampled")]


def test_a_deadline_is_answered_with_the_numbers_of_the_limiter_and_who_must_act(made: list[Service]) -> None:
    made.append(s := service(fifo(rate_limiter=rate_limiters.MinSize(3))))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert ask(s, sample(1, timeout_s=2.0)) == []
    assert s.tick(1.0) == 2.0
    s.tick(2.0)
    failed = error(s.drain())
    assert failed.code == "timeout"
    assert failed.detail["blocked_by"] == "min_size_to_sample"
    assert failed.detail["who_must_act"] == "writers"
    assert failed.detail["limiter"]["min_size_to_sample"] == 3


def test_a_wait_longer_than_the_cap_ends_at_the_cap(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    ask(s, sample(1, timeout_s=1e9))
    assert s.tick(0.0) == MAX_WAIT_MS.value / 1000


def test_at_its_deadline_a_request_gets_what_there_is(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 8)))
    ask(s, sample(1, 4, min_n=4, timeout_s=2.0))
    ask(s, StreamWriter().insert([b"a", b"b"], [(0, 1), (1, 1)]))
    s.tick(2.0)
    [(_, reply)] = s.drain()
    assert len(reply.shown.keys) == 2


def test_what_no_insert_can_ever_make_possible_is_refused_at_once(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 4)))
    refused = error(ask(s, sample(1, 5, min_n=5)))
    assert (refused.code, refused.detail["largest"]) == ("never_grantable", 4)
    assert ask(s, sample(2, 5, min_n=4)) == []


def test_what_items_that_expire_can_never_give_is_refused_at_once(made: list[Service]) -> None:
    made.append(s := service(fifo(max_size=4, max_times_sampled=2, rate_limiter=rate_limiters.MinSize(3))))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)] * 4))
    # Eight draws, but the two items that must stay keep one each.
    refused = error(ask(s, sample(1, 8, min_n=7)))
    assert (refused.code, refused.detail["largest"]) == ("never_grantable", 6)
    ask(s, sample(2, 8, min_n=6))
    ask(s, StreamWriter(b"v" * 16).insert([b"b"], [(0, 1)] * 4), now=1.0)
    assert s.tables["t"].pending_samples == type(s.tables["t"].pending_samples)()


def test_those_who_wait_are_answered_when_the_server_stops(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1), fifo("u")))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    ask(s, writer.insert([], [(0, 1)], id=50), "actor")
    ask(s, sample(60, table="u"), "learner")
    s.stop()
    stopped = {(peer, reply.id, reply.code) for peer, reply in s.drain()}
    assert stopped == {("actor", 50, "shutting_down"), ("learner", 60, "shutting_down")}
    assert error(ask(s, Info(1))).code == "shutting_down"


def test_answered_deadlines_do_not_pile_up(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"]))
    for i in range(5000):
        ask(s, sample(i, timeout_s=60.0), "learner")
        ask(s, writer.insert([], [(0, 1)]))
        s.tick(0.0)
    assert len(s._deadlines) < 2000


def test_info_says_who_waits_for_what_and_since_when(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]), now=1.0)
    ask(s, writer.insert([], [(0, 1)] * 3), now=2.0)
    [(_, reply)] = ask(s, Info(1), now=7.0)
    [waits] = reply.fields["tables"][0]["waiting"]
    assert (waits["side"], waits["items"], waits["waited_s"], waits["blocked_by"]) == ("insert", 3, 5.0, "max_diff")
    assert "learners must sample" in waits["why"]


def test_info_and_why_name_those_who_wait_the_oldest_first(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1), fifo("u")))
    for peer, name in (("7", "actor 7"), ("8", "actor 8"), ("9", "learner")):
        ask(s, Hello(1, name), peer)
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]), "8")
    for peer in ("8", "nobody", "7", "8"):
        ask(s, writer.insert([], [(0, 1)]), peer)
    [waits] = info(s)["tables"][0]["waiting"]
    assert (waits["side"], waits["peers"], waits["who"]) == ("insert", 3, ["actor 8", "unnamed", "actor 7"])
    ask(s, sample(1, table="u"), "9")
    ask(s, sample(2, table="u"), "9")
    [(_, reply)] = ask(s, Why(1, "u"))
    assert [(side["side"], side["who"]) for side in reply.fields["waiting"]] == [("sample", ["learner"])]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, -0.001, 1e308, 1.1e90])
def test_a_bad_priority_refuses_the_whole_request(made: list[Service], bad: float) -> None:
    made.append(s := service(fifo()))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    keys = np.array([1, 2], np.uint64)
    refused = error(ask(s, Update(1, "t", keys, np.array([5.0, bad]), np.array([1], np.uint64))))
    assert (refused.code, refused.detail["keys"]) == ("bad_priority", [2])
    assert s.tables["t"].size == 1
    refused = error(ask(s, StreamWriter(b"x" * 16).insert([b"a"], [(0, 1)], priority=bad)))
    assert (refused.code, refused.detail["indices"]) == ("bad_priority", [0])


@pytest.mark.parametrize("good", [0.0, 5e-324, 1e90])
def test_the_extreme_priorities_are_legal(made: list[Service], good: float) -> None:
    made.append(s := service(fifo(sampler=selectors.Prioritized(3.0))))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)], priority=good))
    [(_, reply)] = ask(s, sample(n=3))
    assert reply.probabilities.tolist() == [1.0] * 3


def test_of_a_key_named_twice_the_last_priority_stands(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    keys = np.array([1, 1, 1], np.uint64)
    [(_, reply)] = ask(s, Update(1, "t", keys, np.array([3.0, 9.0, 4.0]), NO_KEYS))
    assert reply.fields["updated"] == 1
    [(_, reply)] = ask(s, sample())
    assert reply.shown.priorities.tolist() == [4.0]


@pytest.mark.parametrize("heap", [selectors.MaxHeap, selectors.MinHeap])
def test_items_of_one_update_count_as_updated_one_after_the_other(made: list[Service], heap: Any) -> None:
    made.append(s := service(fifo(sampler=heap(), max_times_sampled=1)))
    ask(s, StreamWriter().insert([b"a"] * 3, [(0, 1), (1, 1), (2, 1)]))
    keys = np.array([1, 3, 2, 1], np.uint64)
    ask(s, Update(1, "t", keys, np.full(4, 5.0), NO_KEYS))
    drawn = [ask(s, sample())[0][1].shown.keys.tolist() for _ in range(3)]
    assert drawn == [[3], [2], [1]]


def test_an_update_for_an_evicted_key_touches_no_other_item(made: list[Service]) -> None:
    made.append(s := service(fifo("t", 4)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    ask(s, writer.insert([b"b"] * 4, [(1, 1), (2, 1), (3, 1), (4, 1)]))
    [(_, reply)] = ask(s, Update(1, "t", np.array([1], np.uint64), np.array([1e6]), NO_KEYS))
    assert (reply.fields["updated"], reply.fields["missing"].tolist()) == (0, [1])
    assert s.tables["t"].items.priority[s.tables["t"].items.in_order()].tolist() == [1.0] * 4


def test_the_same_seed_and_requests_draw_the_same_items(made: list[Service]) -> None:
    keys = []
    for seed in (5, 5, 6):
        made.append(s := service(fifo(sampler=selectors.Prioritized(0.5), remover=selectors.Uniform()), seed=seed))
        writer = StreamWriter()
        for i in range(40):
            ask(s, writer.insert([b"a"], [(i, 1)], priority=float(i)))
        [(_, reply)] = ask(s, sample(n=64))
        keys.append(reply.shown.keys.tolist())
    assert keys[0] == keys[1] != keys[2]


# --- shapes -----------------------------------------------------------------------------------------------------------


TWO = Schema(b"two", (Column(("obs", "pos"), "float32", (3,)), Column(("action",), "int64", ())))


def with_signature(signature: Any) -> Service:
    return service(fifo(signature=signature))


def two(template: Template | None = None, count: int = 1) -> Insert:
    writer = StreamWriter()
    payloads = [bytes(10)] * count
    template = template or Template(b"")
    return writer.insert(payloads, [(0, count)], schema=TWO, template=template)


FITS = {"obs": {"pos": TensorSpec((None, 3), np.float32)}, "action": TensorSpec((1,), np.int64)}


def test_an_item_that_fits_the_signature_is_let_in(made: list[Service]) -> None:
    made.append(s := with_signature(FITS))
    [(_, reply)] = ask(s, two())
    assert isinstance(reply, Result)


@pytest.mark.parametrize(
    ("signature", "path", "expected", "got"),
    [
        ({**FITS, "obs": {"pos": TensorSpec((None, 4), np.float32)}}, "obs/pos", "float32[?, 4]", "float32[1, 3]"),
        ({**FITS, "obs": {"pos": TensorSpec((None, 3), np.float64)}}, "obs/pos", "float64[?, 3]", "float32[1, 3]"),
        ({**FITS, "action": TensorSpec((2,), np.int64)}, "action", "int64[2]", "int64[1]"),
        ({**FITS, "reward": TensorSpec((1,), np.int64)}, "reward", "int64[1]", "no such column"),
        ({"action": FITS["action"]}, "obs/pos", "no such column", "float32"),
    ],
)
def test_a_mismatch_names_the_path_what_was_expected_and_what_came(
    made: list[Service], signature: Any, path: str, expected: str, got: str
) -> None:
    made.append(s := with_signature(signature))
    refused = error(ask(s, two()))
    assert refused.code == "signature_mismatch"
    assert (refused.detail["path"], refused.detail["expected"], refused.detail["got"]) == (path, expected, got)


def test_a_signature_is_compared_with_what_the_template_shows(made: list[Service]) -> None:
    shows = Template(b"t", (OutputColumn(("a",), (1,), True, 1), OutputColumn(("b",), (0,), False, 2)), span=2, width=2)
    made.append(s := with_signature({"a": TensorSpec((), np.int64), "b": TensorSpec((2, 3), np.float32)}))
    [(_, reply)] = ask(s, two(shows, count=3))
    assert isinstance(reply, Result)
    made.append(s := with_signature({"a": TensorSpec((1,), np.int64), "b": TensorSpec((2, 3), np.float32)}))
    assert error(ask(s, two(shows, count=3))).detail["path"] == "a"


@pytest.mark.parametrize(
    "template",
    [
        Template(b"1", (OutputColumn(("a",), (2,), False, None),), span=1, width=3),
        Template(b"2", (OutputColumn(("a",), (0,), False, 9),), span=9, width=1),
        Template(b"3", (OutputColumn(("a",), (0,), True, None),), span=1, width=1),
    ],
    ids=["no such column", "rows beyond the window", "squeeze of many rows"],
)
def test_a_template_that_does_not_fit_its_window_is_refused(made: list[Service], template: Template) -> None:
    made.append(s := service(fifo()))
    assert error(ask(s, two(template, count=3))).code == "bad_request"


def test_columns_that_are_joined_must_be_alike_in_each_schema(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    joins = Template(b"t", (OutputColumn(("a",), (0, 2), False, 2),), span=1, width=3)
    alike = Schema(b"alike", (*TWO.columns, Column(("c",), TWO.columns[0].dtype, TWO.columns[0].shape)))
    other = Schema(b"other", (*TWO.columns, Column(("c",), "bool", ())))
    for stream, schema in ((b"1" * 16, alike), (b"2" * 16, other)):
        writer = StreamWriter(stream)
        [(_, reply)] = ask(s, writer.insert([b"a"], [(0, 1)], schema=schema, template=joins))
        if schema is alike:
            assert isinstance(reply, Result)
        else:
            refused = error([(None, reply)])
            assert refused.code == "bad_request"
            assert refused.detail["item"] == 0
            assert "bool[]" in refused.message


def test_a_schema_may_grow_but_not_change(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    wider = Schema(b"wider", (*TWO.columns, Column(("new",), "bool", ())))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], schema=TWO))
    [(_, reply)] = ask(s, writer.insert([b"b"], [(0, 2)], schema=wider))
    assert isinstance(reply, Result)
    assert error(ask(s, writer.insert([b"c"], schema=TWO))).code == "bad_request"


@pytest.mark.parametrize(
    "change",
    [
        {"offset": np.array([1])},
        {"length": np.array([2])},
        {"length": np.array([1]), "chunks": np.array([2]), "longest": 2},
    ],
    ids=["begins behind its first chunk", "ends behind its chunks", "does not reach its last chunk"],
)
def test_a_window_that_is_not_where_it_says_is_refused(made: list[Service], change: dict[str, Any]) -> None:
    made.append(s := service(fifo()))
    request = StreamWriter().insert([b"a", b"b"], [(0, 1)])
    assert request.items is not None
    request.items = replace(request.items, **change)
    assert error(ask(s, request)).code == "bad_request"


def test_columns_no_template_shows_are_not_sent(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    shows = Template(b"t", (OutputColumn(("a",), (1,), False, None),), span=1, width=2)
    request = two(shows)
    assert request.chunks is not None
    request.chunks.records = np.array([4, 6], np.uint64)
    request.chunks.body = [b"skipACTION"]
    request.chunks.nbytes = np.array([10])
    ask(s, request)
    [(_, reply)] = ask(s, sample())
    assert [*map(bytes, reply.shown.body)] == [b"ACTION"]
    assert reply.shown.records.tolist() == [4 << 40, 6]


def test_closing_an_unknown_stream_is_no_error(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    [(_, reply)] = ask(s, CloseStream(1, b"?" * 16))
    assert isinstance(reply, Result)


def test_a_push_is_never_answered_but_its_faults_are_counted(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    assert ask(s, writer.insert([b"a"], [(0, 1)]), None) == []
    assert ask(s, writer.insert([b"b"], [(1, 1)], table="elsewhere"), None) == []
    writer.seq += 3
    assert ask(s, writer.insert([b"c"], [(0, 1)]), None) == []
    counters = info(s)["counters"]
    assert (counters["pushes_refused"], counters["push_gaps"]) == (1, 1)
    assert s.tables["t"].size == 2


# --- tables as objects ------------------------------------------------------------------------------------------------


def test_a_replaced_table_is_new_and_like_the_old_one_but_for_the_changes(made: list[Service]) -> None:
    table = Table(
        "t",
        selectors.Prioritized(0.7),
        selectors.MinHeap(),
        max_size=5,
        rate_limiter=rate_limiters.SampleToInsertRatio(2.0, 3, 4.0),
        max_times_sampled=6,
        signature={"x": TensorSpec((1,), np.uint8)},
    )
    made.append(s := service(table, table.replace(name="u", max_size=9, sampler=selectors.Fifo())))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    other = s.tables["u"]
    assert (other.name, other.size, other.max_size, other.max_times_sampled) == ("u", 0, 9, 6)
    assert (other.sampler, other.remover) == (selectors.Fifo(), selectors.MinHeap())
    assert other.limiter.describe() == {**table.limiter.describe(), "inserts": 0, "cursor": 0.0, "size": 0}
    assert other.signature == table.signature


def test_a_table_says_what_its_limiter_would_let_pass(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 2)))
    table = s.tables["t"]
    assert (table.can_insert(2), table.can_insert(3), table.can_sample(1)) == (True, False, False)
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert (table.can_insert(1), table.can_insert(2), table.can_sample(1)) == (True, False, True)
    with pytest.raises(ValueError, match="at least 1"):
        table.can_sample(0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "string"),
        ({"sampler": selectors.Uniform}, r"did you mean Uniform\(\)"),
        ({"remover": "fifo"}, "remover must be a selector"),
        ({"rate_limiter": rate_limiters.MinSize}, "rate limiter object"),
        ({"max_size": 1.5}, "float"),
        ({"max_size": "10"}, "str"),
        ({"max_times_sampled": None}, "None"),
    ],
)
def test_a_wrong_object_is_refused_when_the_table_is_made(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {
        "name": "t",
        "sampler": selectors.Fifo(),
        "remover": selectors.Fifo(),
        "max_size": 1,
        "rate_limiter": rate_limiters.MinSize(1),
    }
    with pytest.raises(TypeError, match=said):
        Table(**{**arguments, **change})


def test_a_table_that_nothing_can_be_sampled_from_warns() -> None:
    with pytest.warns(UserWarning, match="nothing can ever be sampled"):
        fifo(max_size=3, rate_limiter=rate_limiters.MinSize(4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "control"),
        ({"max_size": 0}, "max_size"),
        ({"remover": "sampler"}, "two objects"),
        ({"rate_limiter": "used"}, "belongs to"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(change: dict[str, Any], said: str) -> None:
    used = rate_limiters.MinSize(1)
    used.attach("another")
    sampler = selectors.Fifo()
    objects = {"sampler": sampler, "used": used}
    arguments: dict[str, Any] = {
        "name": "t",
        "sampler": sampler,
        "remover": selectors.Fifo(),
        "max_size": 1,
        "rate_limiter": rate_limiters.MinSize(1),
    }
    arguments.update({key: objects.get(value, value) for key, value in change.items()})
    with pytest.raises(ValueError, match=said):
        Table(**arguments)


def test_items_may_enter_at_the_largest_priority_there_is(made: list[Service]) -> None:
    made.append(s := service(fifo(max_size=3)))
    writer = StreamWriter()

    def insert(count: int, priority: float, at_max: list[int]) -> None:
        request = writer.insert([b"a"] * count, [(writer.next_chunk + i, 1) for i in range(count)], priority=priority)
        assert request.items is not None
        request.items.at_max = np.array(at_max, bool)
        ask(s, request)

    def priorities() -> list[float]:
        live = s.tables["t"].items.in_order()
        values: list[float] = s.tables["t"].items.priority[live].tolist()
        return values

    insert(1, 0.0, [1])
    assert priorities() == [1.0]
    insert(2, 7.0, [0, 1])
    assert priorities() == [1.0, 7.0, 1.0]
    insert(1, 0.0, [1])
    assert priorities() == [7.0, 1.0, 7.0]
    insert(1, 0.5, [0])
    ask(s, Update(1, "t", np.array([4], np.uint64), np.array([2.0]), NO_KEYS))
    insert(1, 0.0, [1])
    assert priorities() == [2.0, 0.5, 2.0]


# --- what hostile and unlucky peers do --------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [[2**63], [2**64 - 1], [2**63, 5, 2**64 - 1], [0, 2**63, 2**63, 0]])
def test_episodes_may_have_any_number(made: list[Service], numbers: list[int]) -> None:
    made.append(s := service(fifo(max_size=2)))
    writer = StreamWriter()
    for number in [*numbers, 1]:
        request = writer.insert([b"a", b"b"], [(writer.next_chunk, 1), (writer.next_chunk + 1, 1)])
        assert request.chunks is not None
        request.chunks.episodes = np.array([number, number ^ 1], np.uint64)
        ask(s, request)
        s.validate()
    ask(s, Reset(1, "t"))
    assert info(s)["tables"][0]["episodes"] == 0


def test_episodes_are_counted_over_chunks_and_streams(made: list[Service]) -> None:
    made.append(s := service(fifo(max_size=3)))
    one, two = StreamWriter(b"1" * 16), StreamWriter(b"2" * 16)

    def insert(writer: StreamWriter, episodes: list[int]) -> tuple[int, int]:
        first = writer.next_chunk
        request = writer.insert([b"a"] * len(episodes), [(first + i, 1) for i in range(len(episodes))])
        assert request.chunks is not None
        request.chunks.episodes = np.array(episodes, np.uint64)
        request.keep_from = writer.next_chunk
        ask(s, request)
        [table] = info(s)["tables"]
        return table["episodes"], table["ended_episodes"]

    assert insert(one, [0, 0]) == (1, 0)
    assert insert(two, [0]) == (2, 0)
    assert insert(one, [0]) == (2, 0)
    assert insert(one, [1, 1]) == (2, 1)
    assert insert(one, [1]) == (1, 2)


def test_a_resend_of_a_parked_message_answers_everybody_who_asked(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    parked = writer.insert([], [(0, 1)])
    # The new connection is read before what still stood in the old one.
    assert ask(s, parked, "new") == []
    assert ask(s, parked, "old") == []
    assert sorted(peer for peer, reply in ask(s, sample(), "learner")) == ["learner", "new", "old"]


def test_resends_of_a_parked_message_count_against_the_window(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    parked = writer.insert([], [(0, 1)])
    answers = [ask(s, parked) for _ in range(WINDOW_MESSAGES.value + 5)]
    assert [len(answer) for answer in answers] == [0] * WINDOW_MESSAGES.value + [1] * 5
    assert error(answers[-1]).detail["limit"] == "window_messages"


def test_a_closed_streams_messages_are_acknowledged_again(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    first, parked = writer.insert([b"a"], [(0, 1)]), writer.insert([], [(0, 1)])
    ask(s, first)
    ask(s, parked)
    ask(s, CloseStream(9, writer.stream))
    [(_, again)] = ask(s, first)
    assert again.fields["duplicate"]
    assert ask(s, parked, "again") == []
    assert "again" in [peer for peer, _ in ask(s, sample(), "learner")]
    assert s.tables["t"].limiter.inserts == 2


def test_parked_messages_of_one_stream_do_not_slow_down_its_next(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"]), None)
    for _ in range(500):
        ask(s, writer.insert([], [(0, 1)]), None)
    [stream] = s.streams
    assert (len(stream.accepted), len(stream.overdue)) == (WINDOW_MESSAGES.value, 499 - WINDOW_MESSAGES.value)
    ask(s, Reset(1, "t"))
    for _ in range(500):
        ask(s, sample(n=64))
    assert (len(stream.overdue), stream.parked) == (0, 0)


def test_numbers_that_jump_leave_nothing_remembered(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    for _ in range(300):
        writer.seq += 7
        ask(s, writer.insert([b"a"]), None)
    [stream] = s.streams
    assert len(stream.accepted) <= WINDOW_MESSAGES.value


def test_a_stream_cannot_keep_more_than_its_share(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    writer = StreamWriter()
    request = writer.insert([bytes(1)])
    assert request.chunks is not None
    request.chunks.nbytes = np.array([LEASED_BYTES.value + 1])
    assert error(ask(s, request)).detail["limit"] == "leased_bytes"


def test_a_table_with_many_parked_bytes_stops_pushes(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 1)))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"], [(0, 1)]))
    request = writer.insert([], [(0, 1)])
    request.nbytes = PENDING_BYTES.value
    ask(s, request, None)
    assert not s.wants_inserts
    ask(s, sample(), "learner")
    assert s.wants_inserts


def test_a_table_that_could_not_be_served_can_be_served_later(made: list[Service]) -> None:
    taken, free = fifo("t"), fifo("u")
    made.append(service(taken))
    with pytest.raises(ValueError, match="already belong"):
        service(free, taken)
    made.append(service(free))
