"""Leases: what streams hold for their writers is bounded, and ends with the writer, whatever waits meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from replayd.leases import Leases
from replayd.limits import ALL_LEASED_BYTES, LEASED_BYTES, MESSAGE_BYTES, PEER_LEASED_BYTES, Limit
from replayd.messages import Hello, Why
from replayd.service import Service
from replayd.table import Table
from tests.unit.test_service import ask, error, info, sample
from tests.unit.writer import StreamWriter, fifo, service


def bounded(of_peer: int, of_all: int, *tables: Table) -> Service:
    made = service(*(tables or (fifo(),)), lease_s=10.0)
    made.streams.leases = Leases(Limit("all_leased_bytes", of_all, ""), Limit("peer_leased_bytes", of_peer, ""))
    return made


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [False, True], ids=["after_others", "first_of_its_stream"])
def test_what_a_dead_writer_kept_is_freed_though_its_insert_is_parked(made: list[Service], is_first: bool) -> None:
    made.append(s := service(Table.queue("t", 1), fifo("u"), lease_s=60.0))
    ask(s, StreamWriter(b"o" * 16).insert([b"o"], [(0, 1)]), now=30.0)
    writer = StreamWriter()
    if not is_first:
        ask(s, writer.insert([b"applied"], [(0, 1)], table="u"), now=30.0)
    ask(s, writer.insert([bytes(1000), b"shown"], [(writer.next_chunk + 1, 1)]), now=30.0)
    assert info(s)["chunks"]["orphan_bytes"] == 1000
    assert s.tick(89.0) == 90.0
    s.tick(90.0)
    assert info(s)["chunks"]["orphan_bytes"] == 0
    assert s.capacity.transit_bytes == len(b"shown"), "what the parked item shows stays"
    assert len(s.streams) == 0
    # Whoever comes back is told to begin anew, and what waits goes in once.
    assert error(ask(s, writer.insert([b"next"]), now=91.0)).code == "unknown_stream"
    ask(s, sample(), "learner", now=92.0)
    assert s.tables["t"].size == 1
    [*_, (_, again)] = ask(s, replace(writer.insert(), seq=int(not is_first)), now=93.0)
    assert again.fields["duplicate"]


def test_messages_that_wait_are_known_however_many_streams_have_ended_since(
    made: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replayd.streams.STREAMS_REMEMBERED", Limit("streams_remembered", 9, ""))
    made.append(s := service(Table.queue("t", 1), fifo("u"), lease_s=10.0))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    writer = StreamWriter(b"p" * 16)
    parked = writer.insert([b"b"], [(0, 1)])
    ask(s, parked)
    for n in range(20):
        ask(s, StreamWriter(n.to_bytes(16, "big")).insert([b"c"]), None)
    s.tick(20.0)
    assert ask(s, parked, "again", now=21.0) == []
    assert {peer for peer, _ in ask(s, sample(), "learner", now=22.0)} == {"learner", "peer", "again"}
    [(_, again)] = ask(s, parked, now=23.0)
    assert again.fields["duplicate"]


def test_streams_that_ended_with_a_message_parked_count_as_open_ones(
    made: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.append(s := service(Table.queue("t", 1), lease_s=10.0))
    ask(s, StreamWriter(bytes(16)).insert([b"a"], [(0, 1)]))
    for n in (1, 2, 3):
        ask(s, StreamWriter(bytes([n]) * 16).insert([b"a"], [(0, 1)]), None)
    s.tick(20.0)
    monkeypatch.setattr("replayd.streams.STREAMS", Limit("streams", 3, ""))
    refused = error(ask(s, StreamWriter(b"x" * 16).insert([b"a"]), now=21.0))
    assert (refused.code, refused.detail["limit"]) == ("limit_exceeded", "streams")


# --- how much ---------------------------------------------------------------------------------------------------------


def test_one_peer_holds_its_share_however_many_streams_it_has(made: list[Service]) -> None:
    made.append(s := bounded(1000, 5000))
    answers = [ask(s, StreamWriter(bytes([n]) * 16).insert([bytes(100)]), "greedy") for n in range(300 // 4)]
    refused = [reply for [(_, reply)] in answers[10:]]
    assert info(s)["chunks"]["orphan_bytes"] == 1000
    assert {(each.code, each.detail["limit"], each.detail["value"]) for each in refused} == {
        ("limit_exceeded", "peer_leased_bytes", 1000)
    }
    assert len(s.streams) == 10, "a refused message opens nothing"
    # Others have their own, and what keeps nothing is always taken.
    assert ask(s, StreamWriter(b"o" * 16).insert([bytes(1000)]), "other")[0][1].op == "insert"
    for peer in ("greedy", "new"):
        ask(s, StreamWriter(peer.encode().rjust(16)).insert([bytes(900)], [(0, 1)], keep_from=1), peer)
    assert s.tables["t"].size == 2


def test_all_together_hold_no_more_than_is_allowed(made: list[Service]) -> None:
    made.append(s := bounded(1000, 2500))
    peers: list[str | None] = ["a", "b", "c", None]
    answers = [ask(s, StreamWriter(bytes([n]) * 16).insert([bytes(900)]), peer) for n, peer in enumerate(peers)]
    assert error(answers[2]).detail["limit"] == "all_leased_bytes"
    assert (s.streams.leases.nbytes, s.counters.pushes_refused) == (1800, 1)
    # What a dead peer held is free for others when its lease ends.
    s.tick(10.0)
    assert s.streams.leases.nbytes == 0
    assert ask(s, StreamWriter(b"d" * 16).insert([bytes(900)]), "c", 11.0)[0][1].op == "insert"


def test_what_a_stream_holds_goes_over_to_the_connection_that_writes_it_now(made: list[Service]) -> None:
    made.append(s := bounded(1000, 5000))
    writer = StreamWriter()
    ask(s, writer.insert([bytes(400), bytes(400)]), "old")
    other = StreamWriter(b"o" * 16)
    ask(s, other.insert([bytes(300)]), "new")
    refused = writer.insert([bytes(100)])
    assert error(ask(s, refused, "new")).detail == {"limit": "peer_leased_bytes", "value": 1000, "got": 1200}
    # It lets go of one with the same message, and holds less than before.
    ask(s, replace(refused, keep_from=1), "new")
    assert (s.streams.leases.of("old"), s.streams.leases.of("new")) == (0, 800)
    ask(s, writer.insert([], [(1, 2)], keep_from=3), "old")
    assert (s.streams.leases.of("old"), s.streams.leases.of("new")) == (0, 300)


def test_leases_are_counted_right_whatever_streams_do(made: list[Service]) -> None:
    rng = random.Random(5)
    made.append(s := bounded(800, 1500, fifo("t", max_size=5), Table.queue("q", 3)))
    writers: dict[bytes, StreamWriter] = {}
    refused = 0
    for step in range(400):
        id = bytes([rng.randrange(8)]) * 16
        writer = writers.setdefault(id, StreamWriter(id))
        before = (writer.seq, writer.next_chunk)
        chunks = [bytes(rng.randrange(1, 400)) for _ in range(rng.randrange(4))]
        keep_from = rng.choice([None, writer.next_chunk, writer.next_chunk + len(chunks)])
        items = [(writer.next_chunk, 1)] if chunks and rng.random() < 0.5 else []
        request = writer.insert(chunks, items, table=rng.choice("tq"), keep_from=keep_from, id=step)
        if s.handle(rng.choice(["a", "b", None]), "insert", request, step / 10) is not None:
            refused += 1
            writer.seq, writer.next_chunk = before
            if s.streams.get(id) is None:
                del writers[id]
        if rng.random() < 0.1:
            s.handle("learner", "sample", sample(step, 2, table=rng.choice("tq")), step / 10)
        s.tick(step / 10)
        s.drain()
        if step % 10 == 0:
            s.validate()
    assert 20 < refused < 300
    s.tick(1000.0)
    assert (s.streams.leases.nbytes, len(s.streams)) == (0, 0)


@pytest.mark.parametrize("max_bytes", [None, 1, 1 << 20, 1 << 30, 1 << 32, 1 << 36])
def test_a_server_tells_the_bounds_that_follow_from_its_max_bytes(max_bytes: int | None) -> None:
    s = Service([fifo()], server_id=b"s" * 16, version="test", seed=1, started_at=0.0, max_bytes=max_bytes)
    [(_, reply)] = ask(s, Hello(1, ""))
    of_peer, of_all = (reply.fields["limits"][name] for name in ("peer_leased_bytes", "all_leased_bytes"))
    assert of_all == (16 << 30 if max_bytes is None else max(512 << 20, max_bytes // 2))
    assert of_peer == min(4 << 30, of_all)
    assert of_peer >= MESSAGE_BYTES.value, "what one message brings can always be kept"


def test_two_who_keep_all_they_may_keep_nobody_out(made: list[Service]) -> None:
    made.append(s := bounded(1000, 2000))
    held = dict.fromkeys(["hog", "other hog"], 1000)
    streams = {peer: StreamWriter(peer.encode().rjust(16)) for peer in held}
    for peer, writer in streams.items():
        assert ask(s, writer.insert([bytes(1000)]), peer)[0][1].op == "insert"
    # Whoever comes grows to an equal share, step by step, and not beyond.
    for peers in range(3, 9):
        name, share = f"late {peers}", 2000 // peers
        writer = StreamWriter(name.encode().rjust(16))
        held[name] = 0
        room = min(share, 4000 - s.streams.leases.nbytes)
        for _ in range(room // 50):
            assert ask(s, writer.insert([bytes(50)]), name)[0][1].op == "insert"
            held[name] += 50
        refused = error(ask(s, writer.insert([bytes(51)]), name, 5.0))
        assert (refused.code, refused.detail["limit"]) == ("limit_exceeded", "all_leased_bytes")
        assert "raise max_bytes, keep shorter trajectories, or run fewer writers" in refused.message
        assert s.streams.leases.of(name) == held[name]
    assert 3950 < sum(held.values()) == s.streams.leases.nbytes <= 4000, "never more than twice the bound"
    leases = info(s)["leases"]
    assert leases == {"bytes": sum(held.values()), "max_bytes": 2000, "refused": 6}


def test_who_asks_why_inserts_wait_is_told_that_writers_keep_too_much_while_it_is_so(made: list[Service]) -> None:
    made.append(s := bounded(1000, 1000))
    ask(s, StreamWriter().insert([bytes(900)]), "one", 1.0)
    ask(s, StreamWriter(b"o" * 16).insert([bytes(900)]), "other", 2.0)

    def told(now: float) -> tuple[str, str]:
        [(_, reply)] = ask(s, Why(1, "t"), now=now)
        return reply.fields["verdict"], reply.fields["advice"]

    verdict, advice = told(3.0)
    assert verdict == "inserts_wait"
    assert "writers keep 900 bytes for items to come, of 1000 at most" in advice
    assert told(13.0)[0] == "flowing"


def test_who_pushes_has_an_equal_share_with_all_who_do(made: list[Service]) -> None:
    made.append(s := bounded(1000, 1000))
    ask(s, StreamWriter().insert([bytes(1000)]), "hog")
    for n in range(8):
        ask(s, StreamWriter(bytes([n]) * 16).insert([bytes(100)]), None)
    assert (s.streams.leases.of(None), s.counters.pushes_refused, info(s)["leases"]["refused"]) == (500, 3, 3)
    # What keeps nothing is always taken.
    ask(s, StreamWriter(b"k" * 16).insert([bytes(900)], [(0, 1)], keep_from=1), None)
    assert s.tables["t"].size == 1


def test_honest_writers_fit_their_bounds() -> None:
    # A process of 200 environments with all its streams on one connection: the last 1000 steps of each, of 84 × 84 grey
    # pixels as they compress at the worst, and of 16 KiB as they are.
    for step_bytes in (int(84 * 84 * 0.074), 16 << 10):
        assert PEER_LEASED_BYTES.value > 200 * 1000 * step_bytes
    # 16 writers whose episodes of 1 GiB have no item yet: the largest there may be.
    assert 16 * LEASED_BYTES.value <= ALL_LEASED_BYTES.value
    # With a max_bytes: a writer of the Python client has a connection of its own, so each is a peer, and a VectorWriter
    # one stream for all its environments; other clients may have all streams on one connection.
    within = Leases.within(8 << 30)
    process = 200 * 1000 * (16 << 10)
    assert process <= within.of_all.value, "200 writers"
    assert process <= within.of_peer.value, "200 streams of one connection"
    assert LEASED_BYTES.value <= within.of_peer.value, "a VectorWriter, as much as one stream may"
    for max_bytes in (1 << 20, 1 << 30, 8 << 30, 1 << 36):
        bounds = Leases.within(max_bytes)
        assert 200 * 1000 * int(84 * 84 * 0.074) <= min(bounds.of_peer.value, LEASED_BYTES.value), (
            "the same of grey pixels"
        )
