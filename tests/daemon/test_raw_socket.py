"""Transcripts of the protocol with a real daemon, in plain pyzmq and msgpack after protocol.md alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq

from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import REPLY_S, DaemonProcess, Peer
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
    wait_until,
)

# One table for each test that needs an empty one: its name and its lines in the file.
TABLES = {
    "plain": "",
    "req": "",
    "pushed": "",
    "gaps": "",
    "windows": "",
    "columns": "",
    "large": "",
    "duplicates": "",
    "order of messages": "",
    "prioritized": 'sampler = { type = "prioritized", priority_exponent = 1.0 }',
    "heap": 'sampler = "max_heap"',
    "full queue": 'preset = "queue"\nmax_size = 1',
    "resent queue": 'preset = "queue"\nmax_size = 1',
    "short queue": 'preset = "queue"\nmax_size = 2',
    "reset queue": 'preset = "queue"\nmax_size = 1',
    "window queue": 'preset = "queue"\nmax_size = 1',
    "fair queue": 'preset = "queue"\nmax_size = 10',
    "three": 'preset = "queue"\nmax_size = 10',
    "what there is": 'preset = "queue"\nmax_size = 10',
    "pair": 'limiter = { type = "min_size", min_size_to_sample = 2 }',
    "crowd": 'limiter = { type = "min_size", min_size_to_sample = 2 }',
    "signed": 'signature = [{ path = ["x"], dtype = "float32", shape = [-1, 2] }]',
    "band": 'limiter = { type = "sample_to_insert_ratio", samples_per_insert = 2.0, min_size_to_sample = 3,'
    " error_buffer = [2.0, 10.0] }",
}


# --- hello, insert, sample --------------------------------------------------------------------------------------------


def test_hello_tells_versions_window_limits_and_tables(peer: Peer) -> None:
    hello = peer.ask("hello", client="transcript")
    assert {"v", "op", "id"} <= hello.keys()
    assert (hello["op"], hello["versions"], hello["codecs"]) == ("hello", [1], [0, 1, 2])
    assert len(hello["server_id"]) == 16
    assert hello["server"].startswith("replayd ")
    assert hello["window_messages"] >= 1
    assert hello["window_bytes"] == hello["limits"]["window_bytes"]
    assert hello["lease_ms"] == 60_000
    assert list(hello["tables"]) == list(TABLES)
    assert hello["tables"]["plain"] == {}
    assert hello["tables"]["signed"] == {"signature": [[["x"], "float32", [None, 2]]]}
    assert peer.ask("hello")["server_id"] == hello["server_id"]


def test_a_sample_brings_back_the_bytes_that_were_inserted(peer: Peer) -> None:
    stream = Stream()
    reply = insert(peer, stream.one("plain", 1.5))
    assert (reply["op"], reply["items"], reply["duplicate"]) == ("insert", 1, False)
    header, body = sample(peer, table="plain", n=1, timeout_ms=0)
    assert numbers(header, "keys", "<u8") == [reply["first_key"]]
    assert numbers(header, "priorities", "<f8") == [1.0]
    assert numbers(header, "probabilities", "<f8") == [1.0]
    assert numbers(header, "times_sampled", "<u4") == [1]
    assert numbers(header, "table_sizes", "<u8") == [1]
    assert numbers(header, "chunk", "<u4") == [0]
    assert numbers(header, "length", "<u4") == [1]
    assert numbers(header, "rows", "<u4") == [1]
    assert header["schemas"] == [SCHEMA]
    assert header["blobs"] == struct.pack("<IBBH", 8, 0, 0, 0)
    assert body == [rows(1.5)]
    assert not {"chunks", "offset", "templates", "template_of", "schema_of"} & header.keys(), "defaults are left out"


def test_a_window_spans_chunks_which_stand_side_by_side_in_the_reply(peer: Peer) -> None:
    stream = Stream()
    insert(peer, stream.message(rows(0, 1), rows(2)))
    insert(
        peer,
        stream.message(rows(3, 4, 5), tables=["windows"], chunk=u64(0), chunks=u32(3), offset=u32(1), length=u32(4)),
    )
    header, body = sample(peer, table="windows", n=1)
    [first], [chunks] = numbers(header, "chunk", "<u4"), numbers(header, "chunks", "<u4")
    [offset], [length] = numbers(header, "offset", "<u4"), numbers(header, "length", "<u4")
    counts = numbers(header, "rows", "<u4")
    assert counts[first : first + chunks] == [2, 1, 3]
    values = np.frombuffer(b"".join(body), "<f4").reshape(-1, 2)
    before = sum(counts[:first])
    assert values[before + offset : before + offset + length, 0].tolist() == [1, 2, 3, 4]


def test_columns_that_a_template_does_not_show_are_not_sent(peer: Peer) -> None:
    stream = Stream()
    schema = msgpack.packb([[["image"], "uint8", [1000]], [["action"], "int32", []]])
    template = msgpack.packb([[["last"], True, [[1, [1, 1, 1]]]]])
    insert(
        peer,
        (
            {
                "stream": stream.id, "seq": 0, "keep_from": 0, "first_chunk": 0, "rows": u32(2), "schemas": [schema],
                "blobs": struct.pack("<IBBHIBBH", 2000, 0, 0, 0, 8, 0, 0, 0), "tables": ["columns"], "chunk": u64(0),
                "length": u32(2), "priority": f64(1), "templates": [template],
            },
            [bytes(2000) + struct.pack("<2i", 7, 8)],
        ),
    )  # fmt: skip
    header, body = sample(peer, table="columns", n=1)
    assert header["templates"] == [template]
    assert header["blobs"] == struct.pack("<IBBHIBBH", 0, 0, 4, 0, 8, 0, 0, 0)
    assert body == [struct.pack("<2i", 7, 8)]


def test_large_payloads_travel_in_frames_of_their_own(peer: Peer) -> None:
    stream = Stream()
    payloads = [rows(*[value] * count) for value, count in ((1, 1), (2, 5000), (3, 5000), (4, 1))]
    fields, _ = stream.message(*payloads, tables=["large"], chunks=u32(4), length=u32(10002))
    insert(peer, (fields, [payloads[0] + payloads[1], payloads[2], payloads[3]]))
    header, body = sample(peer, table="large", n=1)
    assert numbers(header, "rows", "<u4") == [1, 5000, 5000, 1]
    assert body == payloads


def test_a_req_peer_is_served_like_a_dealer(server: DaemonProcess, zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    stream = Stream()
    with zmq_context.socket(zmq.REQ) as req:
        req.linger = 0
        req.rcvtimeo = int(REPLY_S * 1000)
        req.connect(server.address)

        def ask(op: str, body: Sequence[bytes] = (), **fields: Any) -> list[bytes]:
            req.send_multipart([msgpack.packb({"v": 1, "op": op, "id": 7, **fields}), *body])
            return req.recv_multipart()

        assert "req" in msgpack.unpackb(ask("hello")[0])["tables"]
        fields, body = stream.one("req", 2.5)
        assert msgpack.unpackb(ask("insert", body, **fields)[0])["items"] == 1
        header, payload = ask("sample", table="req", n=1)
        assert (msgpack.unpackb(header)["id"], payload) == (7, rows(2.5))
        [refused] = ask("sample", table="elsewhere", n=1)
        assert error(msgpack.unpackb(refused))[0] == "unknown_table"


# --- PUSH -------------------------------------------------------------------------------------------------------------


def push(peer: Peer, message: tuple[dict[str, Any], list[bytes]]) -> None:
    fields, body = message
    assert peer.push is not None
    peer.push.send_multipart([msgpack.packb({"v": 1, "op": "insert", **fields}), *body])


def test_what_is_pushed_can_be_sampled(peer: Peer) -> None:
    push(peer, Stream().one("pushed", 3.5))
    header, body = sample(peer, table="pushed", n=1, timeout_ms=30_000)
    assert numbers(header, "rows", "<u4") == [1]
    assert body == [rows(3.5)]


def test_gaps_between_pushed_messages_are_accepted_and_counted(peer: Peer) -> None:
    before = peer.ask("info")["counters"]["push_gaps"]
    stream = Stream()
    push(peer, stream.one("gaps", 0))
    stream.seq += 5
    push(peer, stream.one("gaps", 1))
    wait_until(peer, lambda info: sum(t["size"] for t in info["tables"] if t["name"] == "gaps") == 2)
    assert peer.ask("info")["counters"]["push_gaps"] == before + 1


# --- exactly once -----------------------------------------------------------------------------------------------------


def test_a_message_that_comes_again_is_acknowledged_again_and_has_no_effect(peer: Peer) -> None:
    stream = Stream()
    message = stream.one("duplicates", 1)
    first = insert(peer, message)
    again = insert(peer, message)
    assert (again["first_key"], again["items"], again["duplicate"]) == (first["first_key"], 1, True)
    assert table_info(peer, "duplicates")["size"] == 1
    after = insert(peer, stream.one("duplicates", 2))
    assert (after["first_key"], after["duplicate"]) == (first["first_key"] + 1, False)


def test_a_message_that_overtook_another_is_refused_until_that_one_has_come(peer: Peer) -> None:
    stream = Stream()
    messages = [stream.one("order of messages", value) for value in range(3)]
    assert insert(peer, messages[0])["items"] == 1
    assert error(insert(peer, messages[2])) == ("sequence_gap", {"expected": 1})
    assert insert(peer, messages[1])["items"] == 1
    assert insert(peer, messages[2])["items"] == 1
    assert table_info(peer, "order of messages")["size"] == 3


def test_a_stream_that_the_server_does_not_know_is_told_so(peer: Peer) -> None:
    stream = Stream(seq=5)
    assert error(insert(peer, stream.one("plain", 0))) == ("unknown_stream", {"stream": stream.id})
    assert error(peer.ask("keepalive", stream=stream.id)) == ("unknown_stream", {"stream": stream.id})
    assert "error" not in peer.ask("close_stream", stream=stream.id)


def test_a_refused_message_spends_no_number(peer: Peer) -> None:
    stream = Stream()
    fields, body = stream.message(rows(0), tables=["plain"])
    code, _ = error(insert(peer, ({**fields, "priority": f64(float("nan"))}, body)))
    assert code == "bad_priority"
    assert insert(peer, (fields, body))["duplicate"] is False


def test_a_parked_message_that_comes_again_is_acknowledged_to_the_new_connection(
    connect: ConnectPeer, server: DaemonProcess
) -> None:
    old, new = connect(server), connect(server)
    stream = Stream()
    insert(old, stream.one("resent queue", 0))
    message = stream.one("resent queue", 1)
    send_insert(old, message)
    wait_until(new, lambda info: waiting(info, "resent queue") == {"insert": 1})
    id = send_insert(new, message)
    assert nothing_has_come(new, by=old)
    learner = connect(server)
    sample(learner, table="resent queue", n=1)
    header, _ = new.receive()
    assert (header["id"], header["items"]) == (id, 1)
    assert table_info(learner, "resent queue")["size"] == 1
    sample(learner, table="resent queue", n=1)
    assert table_info(learner, "resent queue")["size"] == 0


# --- waiting ----------------------------------------------------------------------------------------------------------


def waiting(info: dict[str, Any], table: str) -> dict[str, int]:
    """Requests parked at the table, by side."""
    [found] = [entry for entry in info["tables"] if entry["name"] == table]
    return {entry["side"]: entry["requests"] for entry in found["waiting"]}


def test_an_insert_into_a_full_queue_is_acknowledged_after_a_sample(
    connect: ConnectPeer, server: DaemonProcess
) -> None:
    actor, learner = connect(server), connect(server)
    stream = Stream()
    insert(actor, stream.one("full queue", 0))
    id = send_insert(actor, stream.one("full queue", 1))
    assert nothing_has_come(actor, by=learner)
    [entry] = table_info(learner, "full queue")["waiting"]
    assert (entry["side"], entry["requests"], entry["items"], entry["blocked_by"]) == ("insert", 1, 1, "max_diff")
    _, body = sample(learner, table="full queue", n=1)
    assert body == [rows(0)]
    header, _ = actor.receive()
    assert (header["op"], header["id"], header["items"]) == ("insert", id, 1)


def test_a_batch_that_passes_in_part_is_acknowledged_when_all_of_it_is_in(
    connect: ConnectPeer, server: DaemonProcess
) -> None:
    actor, learner = connect(server), connect(server)
    payloads = [rows(value) for value in range(3)]
    id = send_insert(actor, Stream().message(*payloads, tables=["short queue"] * 3, chunk=u64(0, 1, 2)))
    wait_until(learner, lambda info: waiting(info, "short queue") == {"insert": 1})
    assert table_info(learner, "short queue")["size"] == 2
    assert nothing_has_come(actor, by=learner)
    assert sample(learner, table="short queue", n=1)[1] == [rows(0)]
    header, _ = actor.receive()
    assert (header["id"], header["items"]) == (id, 3)
    keys = numbers(sample(learner, table="short queue", n=2)[0], "keys", "<u8")
    assert keys == [header["first_key"] + 1, header["first_key"] + 2]


def test_a_sample_waits_for_the_least_it_asked_for(connect: ConnectPeer, server: DaemonProcess) -> None:
    actor, learner = connect(server), connect(server)
    stream = Stream()
    id = learner.send("sample", table="three", n=4, min_n=3)
    for value in range(2):
        insert(actor, stream.one("three", value))
    assert nothing_has_come(learner, by=actor)
    insert(actor, stream.one("three", 2))
    header, body = learner.receive()
    assert header["id"] == id
    assert b"".join(body) == rows(0, 1, 2)


def test_at_the_deadline_a_sample_gets_what_there_is(peer: Peer) -> None:
    stream = Stream()
    for value in range(2):
        insert(peer, stream.one("what there is", value))
    header, body = sample(peer, table="what there is", n=4, min_n=3, timeout_ms=1)
    assert len(numbers(header, "keys", "<u8")) == 2
    assert b"".join(body) == rows(0, 1)


def test_a_sample_that_got_nothing_is_told_why_and_who_must_act(peer: Peer) -> None:
    insert(peer, Stream().one("pair", 0))
    for timeout_ms in (0, 1):
        code, detail = error(sample(peer, table="pair", n=1, timeout_ms=timeout_ms)[0])
        assert code == "timeout"
        assert (detail["table"], detail["blocked_by"]) == ("pair", "min_size_to_sample")
        assert (detail["who_must_act"], detail["size"]) == ("writers", 1)
        limiter = detail["limiter"]
        assert (limiter["min_size_to_sample"], limiter["inserts"], limiter["samples"]) == (2, 1, 0)
        assert not {"min_diff", "max_diff"} & limiter.keys(), "what is unlimited is absent"


def test_a_sample_that_can_never_be_granted_is_refused_at_once(peer: Peer) -> None:
    code, detail = error(sample(peer, table="band", n=100, min_n=100)[0])
    assert code == "never_grantable"
    assert (detail["table"], detail["largest"]) == ("band", 8)
    assert detail["limiter"]["max_diff"] == 10.0


def test_the_numbers_of_the_example_of_rate_limiting_are_true(
    peer: Peer, connect: ConnectPeer, server: DaemonProcess
) -> None:
    """§7: samples_per_insert 2, min_size_to_sample 3, band [2, 10]."""
    actor = connect(server)
    stream = Stream()
    assert error(sample(peer, table="band", n=1, timeout_ms=0)[0])[1]["blocked_by"] == "min_size_to_sample"
    for value in range(5):
        insert(peer, stream.one("band", value))
    assert table_info(peer, "band")["limiter"]["cursor"] == 10
    id = send_insert(actor, stream.one("band", 5))
    assert waiting(wait_until(peer, lambda info: bool(waiting(info, "band"))), "band") == {"insert": 1}
    header, _ = sample(peer, table="band", n=1)
    assert len(numbers(header, "keys", "<u8")) == 1
    assert nothing_has_come(actor, by=peer)
    sample(peer, table="band", n=1)
    assert actor.receive()[0]["id"] == id
    header, _ = sample(peer, table="band", n=100)
    assert len(numbers(header, "keys", "<u8")) == 8
    assert error(sample(peer, table="band", n=1, timeout_ms=0)[0])[1]["blocked_by"] == "min_diff"


def test_learners_are_served_in_the_order_in_which_they_asked(connect: ConnectPeer, server: DaemonProcess) -> None:
    actor, first, second = (connect(server) for _ in range(3))
    first.send("sample", table="fair queue", n=2, min_n=2)
    wait_until(actor, lambda info: waiting(info, "fair queue") == {"sample": 1})
    second.send("sample", table="fair queue", n=1)
    wait_until(actor, lambda info: waiting(info, "fair queue") == {"sample": 2})
    stream = Stream()
    insert(actor, stream.one("fair queue", 0))
    assert nothing_has_come(second, by=actor), "one item would serve it, but another asked before"
    insert(actor, stream.one("fair queue", 1))
    assert b"".join(first.receive()[1]) == rows(0, 1)
    assert nothing_has_come(second, by=actor)
    insert(actor, stream.one("fair queue", 2))
    assert b"".join(second.receive()[1]) == rows(2)


def test_a_peer_may_leave_a_window_of_inserts_unanswered_and_no_more(
    connect: ConnectPeer, server: DaemonProcess
) -> None:
    actor, learner = connect(server), connect(server)
    window = actor.ask("hello")["window_messages"]
    stream = Stream()
    insert(actor, stream.one("window queue", 0))
    sent = [send_insert(actor, stream.one("window queue", value)) for value in range(1, window + 1)]
    code, detail = error(insert(actor, stream.one("window queue", -1)))
    assert (code, detail["limit"], detail["value"]) == ("limit_exceeded", "window_messages", window)
    for value in range(window):
        assert sample(learner, table="window queue", n=1)[1] == [rows(value)]
    assert [actor.receive()[0]["id"] for _ in sent] == sent


def test_a_peer_may_leave_a_number_of_samples_unanswered_and_no_more(
    connect: ConnectPeer, server: DaemonProcess
) -> None:
    learner, actor = connect(server), connect(server)
    most = learner.ask("hello")["limits"]["parked_samples"]
    sent = [learner.send("sample", table="crowd", n=1) for _ in range(most)]
    code, detail = error(sample(learner, table="crowd", n=1)[0])
    assert (code, detail["limit"]) == ("limit_exceeded", "parked_samples")
    stream = Stream()
    for value in range(2):
        insert(actor, stream.one("crowd", value))
    assert [learner.receive()[0]["id"] for _ in sent] == sent


# --- update and reset -------------------------------------------------------------------------------------------------


def test_an_update_sets_and_deletes_and_names_the_keys_that_were_missing(peer: Peer) -> None:
    stream = Stream()
    keys = [insert(peer, stream.one("heap", value))["first_key"] for value in range(3)]
    reply = peer.ask(
        "update",
        table="heap",
        keys=u64(keys[0], keys[1], 1 << 60, keys[2], keys[1]),
        priorities=f64(5, 1, 1, 9, 7),
        deletes=u64(keys[2], 1 << 61),
    )
    assert (reply["updated"], reply["deleted"]) == (2, 1)
    assert numbers(reply, "missing", "<u8") == [1 << 60, 1 << 61]
    header, _ = sample(peer, table="heap", n=1)
    assert numbers(header, "keys", "<u8") == [keys[1]], "of two priorities for one key the last one stands"
    assert numbers(header, "priorities", "<f8") == [7.0]
    assert numbers(header, "table_sizes", "<u8") == [2]


def test_one_bad_priority_refuses_the_whole_update(peer: Peer) -> None:
    stream = Stream()
    keys = [insert(peer, stream.one("prioritized", value))["first_key"] for value in range(2)]
    code, detail = error(
        peer.ask("update", table="prioritized", keys=u64(*keys), priorities=f64(3, -1), deletes=u64(keys[0]))
    )
    assert (code, detail) == ("bad_priority", {"keys": [keys[1]]})
    header, _ = sample(peer, table="prioritized", n=20)
    assert set(numbers(header, "priorities", "<f8")) == {1.0}
    assert set(numbers(header, "table_sizes", "<u8")) == {2}


def test_a_reset_lets_parked_inserts_pass(connect: ConnectPeer, server: DaemonProcess) -> None:
    actor, operator = connect(server), connect(server)
    stream = Stream()
    insert(actor, stream.one("reset queue", 0))
    id = send_insert(actor, stream.one("reset queue", 1))
    wait_until(operator, lambda info: waiting(info, "reset queue") == {"insert": 1})
    assert operator.ask("reset", table="reset queue")["removed"] == 1
    assert actor.receive()[0]["id"] == id
    limiter = table_info(operator, "reset queue")["limiter"]
    assert (limiter["inserts"], limiter["deletes"], limiter["samples"]) == (1, 0, 0)
    assert sample(operator, table="reset queue", n=1)[1] == [rows(1)]


def test_a_signature_refuses_what_does_not_fit_and_says_why(peer: Peer) -> None:
    stream = Stream()
    fields, body = stream.one("signed", 0)
    assert insert(peer, (fields, body))["items"] == 1
    other = Stream()
    fields, body = other.one("signed", 0)
    wide = {**fields, "schemas": [msgpack.packb([[["x"], "float64", []]])]}
    code, detail = error(insert(peer, (wide, body)))
    assert code == "signature_mismatch"
    assert detail == {"path": "x", "expected": "float32[?, 2]", "got": "float64[1]", "item": 0}


# --- who holds chunks -------------------------------------------------------------------------------------------------


def test_two_tables_share_the_chunks_of_their_items(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--table", "one", "--table", "two")
    peer, stream = connect(daemon), Stream()
    insert(peer, stream.message(rows(0), tables=["one", "two"]))
    chunks = peer.ask("info")["chunks"]
    assert (chunks["count"], chunks["bytes"], chunks["orphan_bytes"]) == (1, 8, 0)
    peer.ask("reset", table="one")
    assert peer.ask("info")["chunks"]["count"] == 1
    peer.ask("reset", table="two")
    assert peer.ask("info")["chunks"]["orphan_bytes"] == 8, "the stream may still refer to it"
    insert(peer, stream.message(keep_from=1))
    chunks = peer.ask("info")["chunks"]
    assert (chunks["count"], chunks["bytes"], chunks["orphan_bytes"]) == (0, 0, 0)
    assert (chunks["added"], chunks["bytes_added"]) == (1, 8)


def test_closing_a_stream_frees_what_no_item_holds(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--table", "queue,preset=queue,max_size=1")
    actor, other = connect(daemon), connect(daemon)
    stream = Stream()
    insert(actor, stream.message(rows(0), rows(1), tables=["queue"]))
    id = send_insert(actor, stream.message(rows(2), tables=["queue"]))
    wait_until(other, lambda info: waiting(info, "queue") == {"insert": 1})
    assert other.ask("info")["chunks"]["orphan_bytes"] == 8
    other.ask("close_stream", stream=stream.id)
    info = other.ask("info")
    assert (info["streams"]["open"], info["chunks"]["orphan_bytes"], info["chunks"]["bytes"]) == (0, 0, 16)
    assert sample(other, table="queue", n=1)[1] == [rows(0)]
    assert actor.receive()[0]["id"] == id, "parked inserts outlive their stream"
    assert sample(other, table="queue", n=1)[1] == [rows(2)]
    assert other.ask("info")["chunks"]["count"] == 0


def test_a_silent_stream_loses_its_lease_and_its_chunks(
    start_daemon: StartDaemon, connect: ConnectPeer, tmp_path: Path
) -> None:
    config = tmp_path / "short.toml"
    config.write_text('[server]\nlease = "100ms"\n[[table]]\nname = "t"\n')
    peer = connect(start_daemon("--config", str(config)))
    assert peer.ask("hello")["lease_ms"] == 100
    stream = Stream()
    insert(peer, stream.message(rows(0)))
    info = wait_until(peer, lambda info: info["streams"]["open"] == 0)
    assert info["streams"]["expired"] == 1
    assert (info["chunks"]["count"], info["chunks"]["orphan_bytes"], info["chunks"]["bytes"]) == (0, 0, 0)
    assert error(insert(peer, stream.message(rows(1))))[0] == "unknown_stream"
