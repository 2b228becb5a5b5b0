"""The journal of a service: after a crash all of it is repeated, and the state is exactly what it was."""

from __future__ import annotations

import logging
import math
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from replayd import rate_limiters, selectors
from replayd.backlog import STUCK_S
from replayd.blobs import parse_schema
from replayd.errors import StoreError, StoreUnreadable
from replayd.extensions import InsertOnSample
from replayd.journal import Journal, JournalOptions
from replayd.journal_format import REQUEST, TIME_PASSED, TOGETHER, VALUE_BYTES, Entries, count_of, pack, unpack
from replayd.keeper import Keeper, StoreOptions
from replayd.limits import UNREAD_REPLIES, WAITING_BYTES
from replayd.messages import Checkpoint, Failed, KeepAlive, Peeked, Result, Sampled, Set
from replayd.parked_samples import forget_peers
from replayd.reception import Reception
from replayd.replaying import _chain
from replayd.restoring import KEYS_SKIPPED, RestoreRules
from replayd.service import Service
from replayd.settings import change_settings, settings_of
from replayd.store import Store
from replayd.store_format import Damaged
from replayd.table import Table
from replayd.wire import encode
from replayd.wording import count
from tests.model.essence import differences, essence
from tests.model.wire_traffic import WireTraffic, encoded, give
from tests.unit.kept import DEADLINE_S
from tests.unit.writer import StreamWriter, fifo
from tests.unit.writer import service as service_of

SYNC = JournalOptions("sync")
KINDS = ("Uniform", "Fifo", "Lifo", "MinHeap", "MaxHeap", "Prioritized")


class Journaled:
    """A service with a store and a journal. Leaving it ends it without a checkpoint, as a crash does."""

    def __init__(
        self,
        directory: Path,
        tables: list[Table],
        journal: JournalOptions = SYNC,
        max_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.service: Service = service_of(*tables, seed=1, lease_s=50.0)
        self.service.capacity.max_bytes = max_bytes
        self.woken = threading.Event()
        self.keeper = Keeper(StoreOptions(directory, journal=journal, **options), self.service, self.woken.set)
        self.keeper.load()
        self.restored_at = time.monotonic()
        self.reception = Reception(self.service, bytes, lambda fault, now: None, self.keeper.journal)
        self.sent: list[Any] = []
        self.unread: list[tuple[Any, int]] = []
        self.drained: list[Any] = []
        """All that was answered, whether it may be sent or not."""

    @property
    def journal(self) -> Journal:
        assert self.keeper.journal is not None
        return self.keeper.journal

    def turn(self, now: float) -> None:
        """What a loop does after it has taken requests."""
        self.keeper.turn(now)
        replies = self.service.drain(are_read=False)
        self.drained += replies
        self.unread += [(peer, reply.shown.nbytes) for peer, reply in replies if isinstance(reply, Sampled | Peeked)]
        self.sent += self.keeper.released(replies)
        if self.keeper.journal is not None:
            self.keeper.journal.validate()

    def read(self, n: int) -> None:
        """Peers read the oldest n replies that they have not read."""
        read, self.unread = self.unread[:n], self.unread[n:]
        for peer, nbytes in read:
            self.reception.read(peer, nbytes)

    def checkpoint(self, now: float) -> None:
        self.service.handle(("op",), "checkpoint", Checkpoint(1), now)

    def settle(self, now: float) -> None:
        """Wait until nothing is on its way to the disk."""
        self.settle_until(lambda: self.keeper.is_done and not self.service.durability.askers, now)

    def settle_until(self, condition: Callable[[], bool], now: float | None = None) -> None:
        """Turns without requests."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.turn(time.monotonic() if now is None else now)
            if condition():
                return
            assert time.monotonic() < deadline, "what was waited for did not come"
            self.woken.wait(0.05)
            self.woken.clear()

    def __enter__(self) -> Journaled:
        return self

    def __exit__(self, *exception: object) -> None:
        self.keeper.close()


def tables_of(seed: int) -> list[Table]:
    """Any two tables, the same for the same seed."""
    draw = random.Random(seed)

    def selector() -> selectors.Selector:
        kind = draw.choice(KINDS)
        return selectors.Prioritized(0.7) if kind == "Prioritized" else getattr(selectors, kind)()

    return [
        Table(
            name,
            selector(),
            selector(),
            draw.randint(5, 30),
            rate_limiters.RateLimiter(
                draw.choice([0.5, 1.0, 2.0]),
                draw.randint(1, 4),
                draw.choice([None, -3.0, 0.0]),
                draw.choice([None, None, 6.5, 20.0]),
            ),
            draw.choice([0, 0, 1, 3]),
            extensions=(InsertOnSample("b"),) if name == "a" and draw.random() < 0.3 else (),
        )
        for name in ("a", "b")
    ]


def as_restarted(service: Service, configured: dict[str, dict[str, Any]], now: float) -> None:
    """What a restart does to a state beside losing nothing of it."""
    forget_peers(service)
    for name, table in service.tables.items():
        now_is = settings_of(table)
        change_settings(table, {n: value for n, value in configured[name].items() if now_is[n] != value})
        service._pump(table, now)
    service._keys.take(KEYS_SKIPPED)
    service.streams.renew(now)
    service.drain()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 8, 11, 12, 14, 16, 18, 19])
def test_a_service_that_crashed_goes_on_as_if_nothing_had_been(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few that samples often wait until their peer has read.
    monkeypatch.setattr("replayd.quotas.UNREAD_REPLIES", replace(UNREAD_REPLIES, value=3))
    # Keys do not depend on how long it was away.
    monkeypatch.setattr("replayd.restoring.KEYS_A_SECOND", 0)
    rules, traffic = random.Random(seed), WireTraffic(seed, time.monotonic())
    with ExitStack() as running:
        live = running.enter_context(Journaled(tmp_path, tables_of(seed)))
        configured = {name: settings_of(table) for name, table in live.service.tables.items()}
        for _ in range(3):
            traffic.now = max(traffic.now, time.monotonic())
            for _ in range(rules.choice([10, 60])):
                if rules.random() < 0.3:
                    live.read(rules.randint(1, 4))
                traffic.turn(live.reception, live.service)
                if rules.random() < 0.05:
                    live.checkpoint(traffic.now)
                live.turn(traffic.now)
                if rules.random() < 0.2:
                    live.settle(traffic.now)
            running.close()
            as_restarted(live.service, configured, traffic.now)
            # Settings that were changed live may have let more in than the configuration does.
            rules_of_start = RestoreRules(shrink_tables=True)
            again = running.enter_context(Journaled(tmp_path, tables_of(seed), rules=rules_of_start))
            again.service.validate()
            assert differences(essence(again.service), essence(live.service)) == []
            # And what is asked from now on is answered alike.
            shift_s = again.restored_at - traffic.now
            live.reception.recorder = None
            traffic.connection += 1
            for _ in range(10):
                sent = traffic.turn(live.reception, live.service)
                expected = [(peer, encode(reply)) for peer, reply in live.service.drain()]
                give(again.reception, sent, traffic.now + shift_s)
                again.turn(traffic.now + shift_s)
                # Both have read all, and one of them writes it down.
                again.read(len(again.unread))
                answers, again.drained = again.drained, []
                assert [(peer, encode(reply)) for peer, reply in answers] == expected
            assert differences(essence(again.service), essence(live.service)) == []
            live = again
            traffic.now += shift_s


# --- what a crash, a disk and time can do to it -----------------------------------------------------------------------


def inserted(writer: StreamWriter, n: int = 1, size: int = 50) -> list[bytes]:
    """The frames of an insert of so many items."""
    first = writer.next_chunk
    payloads = [f"{first + i}".encode().ljust(size) for i in range(n)]
    schema = parse_schema(msgpack.packb([[["x"], "uint8", [size]]]))
    windows = [(first + i, 1) for i in range(n)]
    frames = encoded(writer.insert(payloads, windows, schema=schema, keep_from=first + n))
    assert frames is not None
    return frames


def ask(live: Journaled, *messages: list[bytes], peer: bytes = b"peer") -> None:
    """A turn of a loop with these."""
    now = time.monotonic()
    give(live.reception, [((peer,), frames) for frames in messages], now)
    live.turn(now)


def contents(service: Service) -> list[int]:
    items = service.tables["t"].items
    rows = service.chunks.rows_of(items.chunk[items.in_order()].astype(np.int64))
    return [int(number) for number in b"".join(map(bytes, service.chunks.body_of(rows))).split()]


def test_entries_are_read_as_they_were_written() -> None:
    entries = Entries(3, 7)
    entries.add(1.5, REQUEST, (b"peer", b""), [b"header", memoryview(b"body")])
    entries.add(1.5, TOGETHER, None, [b"pushed"])
    entries.add(2.0, TIME_PASSED, None, ())
    entries.sum, entries.wall_s = 99, 1e9
    [(number, value)] = pack(entries)
    read = unpack(value)
    assert (number, read.sum, read.wall_s, count_of(value)) == (7, 99, 1e9, 3)
    assert [(e.now, e.kind, e.peer, e.frames) for e in read.entries] == [
        (1.5, REQUEST, (b"peer", b""), [b"header", b"body"]),
        (1.5, TOGETHER, None, [b"pushed"]),
        (2.0, TIME_PASSED, None, []),
    ]
    for n in range(0, len(value), 7):
        with pytest.raises(Damaged):
            unpack(value[:n] + bytes([value[n] ^ 1]) + value[n + 1 :])


def test_large_turns_stand_in_several_values_which_follow_each_other() -> None:
    entries = Entries(0, 1)
    for n in range(5):
        entries.add(1.0, REQUEST, (b"p",), [bytes([n]) * (VALUE_BYTES // 2 - 100)])
    values = list(pack(entries))
    assert [number for number, _ in values] == [1, 3, 5]
    read = [entry.frames[0][0] for _, value in values for entry in unpack(value).entries]
    assert read == list(range(5))


def test_a_crash_between_a_checkpoint_and_the_trimming_of_the_journal_is_harmless(tmp_path: Path) -> None:
    writer = StreamWriter()
    with Journaled(tmp_path, [fifo()]) as live:
        ask(live, inserted(writer, 5))
        live.settle(time.monotonic())
        assert live.keeper._writer is not None
        live.keeper._writer.store.drop_entries = lambda before, at_most: False  # type: ignore[method-assign]
        live.checkpoint(time.monotonic())
        live.settle(time.monotonic())
        ask(live, inserted(writer, 5))
        live.settle(time.monotonic())
    with Journaled(tmp_path, [fifo()]) as again:
        assert contents(again.service) == list(range(10))
        assert again.service.durability.replayed == 1


def test_a_resend_after_a_crash_is_acknowledged_again_and_not_applied(tmp_path: Path) -> None:
    writer = StreamWriter()
    frames = inserted(writer, 5)
    with Journaled(tmp_path, [fifo()]) as live:
        ask(live, frames)
        live.settle(time.monotonic())
        [(_, first)] = live.sent
    with Journaled(tmp_path, [fifo()]) as again:
        ask(again, frames, peer=b"another")
        again.settle(time.monotonic())
        [(_, second)] = again.sent
        assert isinstance(first, Result)
        assert isinstance(second, Result)
        assert second.fields == {**first.fields, "duplicate": True}
        assert contents(again.service) == list(range(5))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
    "cut off": lambda value: value[:20],
    "more entries": lambda value: value[:8] + bytes([value[8] + 1]) + value[9:],
    "fewer entries": lambda value: value[:8] + bytes([value[8] - 1]) + value[9:],
    "endless": lambda value: value[:11] + b"\x7f" + value[12:],
}


@pytest.fixture(scope="module")
def four_inserts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose journal has four values, of an insert each."""
    directory, writer = tmp_path_factory.mktemp("journal") / "store", StreamWriter()
    with Journaled(directory, [fifo()]) as live:
        for _ in range(4):
            ask(live, inserted(writer))
            live.settle(time.monotonic())
    return directory


def test_what_is_too_far_behind_a_damaged_value_is_none_of_its_journal() -> None:
    entries = Entries(0, 10)
    for _ in range(3):
        entries.add(0.0, TIME_PASSED, None, ())
    [(first, value)] = pack(entries)
    for name, damage in DAMAGES.items():
        for behind in (13, 1 << 20):
            values = [(first, memoryview(damage(value))), (behind, memoryview(value))]
            assert len(list(_chain(values, first))) == (1 if behind > 13 and name != "cut off" else 2), name


@pytest.mark.parametrize("damaged", range(1, 16), ids="{:04b}".format)
def test_behind_a_damaged_value_nothing_is_replayed_and_all_before_it_is(
    tmp_path: Path, four_inserts: Path, caplog: pytest.LogCaptureFixture, damaged: int
) -> None:
    which = [n for n in range(4) if damaged >> n & 1]
    # A value has its insert, and that time has passed; one that tells nothing counts as one if it is the last.
    lost = {name: 4 - which[0] + len(which) for name in DAMAGES}
    for name in DAMAGES.keys() - {"a byte"}:
        lost[name] -= which[-1] == 3
    for name, damage in DAMAGES.items():
        directory = tmp_path / name
        shutil.copytree(four_inserts, directory)
        with Store(directory) as store:
            values = [(number, bytes(value)) for number, value in store.entries(0)]
            assert len(values) == 4
            with store._env.begin(write=True, db=store._db["journal"]) as txn:
                for number, value in (values[n] for n in which):
                    txn.put(number.to_bytes(8, sys.byteorder), damage(value))
        with pytest.raises(
            StoreUnreadable, match=rf"damaged behind {2 * which[0]} entries .*, {count(lost[name], 'request')}, is lost"
        ):
            Journaled(directory, [fifo()], rules=RestoreRules(strict=True))
        caplog.clear()
        with Journaled(directory, [fifo()]) as again:
            assert contents(again.service) == list(range(which[0]))
            [told] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert f"the rest, {count(lost[name], 'request')}, is lost" in told
            store_fields = again.service.durability.report(time.monotonic())["store"]
            assert [store_fields[f"lost_{name}"] for name in ("items", "chunks", "requests")] == [0, 0, lost[name]]
            assert store_fields["replayed_requests"] == which[0]
            ask(again, inserted(StreamWriter(b"another".ljust(16))))
            again.settle(time.monotonic())
        with Journaled(directory, [fifo()], rules=RestoreRules(strict=True)) as mended:
            assert mended.service.durability.replayed == 1


def test_what_cannot_be_written_is_not_acknowledged_until_a_checkpoint_has_it(tmp_path: Path) -> None:
    writer = StreamWriter()

    def fail(*arguments: Any, **settings: Any) -> Any:
        raise StoreError("no space left")

    with Journaled(tmp_path, [fifo()]) as live:
        assert live.keeper._writer is not None
        store = live.keeper._writer.store
        ask(live, inserted(writer))
        live.settle(time.monotonic())
        assert [reply.op for _, reply in live.sent] == ["insert"]
        live.sent.clear()
        real = store.add_entries, store.write_index
        store.add_entries = store.write_index = fail  # type: ignore[method-assign]
        # The peer's answers keep their order, others' go out at once.
        ask(live, inserted(writer), encoded(KeepAlive(7, writer.stream)) or [])
        ask(live, encoded(KeepAlive(8, writer.stream)) or [], peer=b"other")
        assert [reply.id for _, reply in live.sent] == [8]
        live.settle_until(lambda: live.journal.failures == 1 and live.service.durability.failures > 0)
        assert [(type(reply), reply.id) for _, reply in live.sent] == [(Result, 8), (Result, 7)]
        ask(live, inserted(writer))
        [(_, refused)] = live.sent[2:]
        assert isinstance(refused, Failed)
        assert (refused.code, refused.detail) == ("not_durable", {"reason": "no space left"})
        assert not live.keeper.wants_inserts
        store.add_entries, store.write_index = real  # type: ignore[method-assign]
        live.journal._retry_at = 0.0
        live.settle_until(lambda: live.journal.report(0.0)["state"] == "whole")
        live.turn(time.monotonic())
        assert [reply.op for _, reply in live.sent[3:]] == ["insert"]
        assert live.journal.last_error is None
        writer.seq, writer.next_chunk = writer.seq - 1, writer.next_chunk - 1
        ask(live, inserted(writer))
        live.settle(time.monotonic())
    with Journaled(tmp_path, [fifo()]) as again:
        assert contents(again.service) == [0, 1, 2]


def test_while_the_disk_is_behind_nothing_more_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.backlog.WAITING_BYTES", 10_000)
    with Journaled(tmp_path, [fifo()], JournalOptions("interval", 1000.0)) as live:
        ask(live, inserted(StreamWriter(), 10, 2000))
        assert live.keeper.is_behind
        assert live.journal.age_s(time.monotonic()) > 0
        live.journal.flush()
        live.settle(time.monotonic())
        assert not live.keeper.is_behind
        assert live.journal.age_s(time.monotonic()) == 0


def test_behind_a_broken_journal_inserts_alone_wait_for_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayd.checkpoints.Checkpoints.rescued_bytes", WAITING_BYTES + 1)
    with Journaled(tmp_path, [fifo()], JournalOptions("interval", 1000.0)) as live:
        for is_whole in (True, False):
            if not is_whole:
                live.journal._break("made up")
                live.journal._retry_at = math.inf
            now = time.monotonic()
            for after_s in (0.0, STUCK_S):
                live.keeper.turn(now + after_s)
            assert live.keeper.is_behind is is_whole
            assert "wait for the disk" in live.service.report(now)["store"]["inserts_wait"]
            assert live.keeper.wants_inserts is is_whole
            assert live.keeper.refusal("sample") is None
            assert (live.keeper.refusal("insert") is None) is is_whole


def test_settings_that_the_daemon_itself_changes_are_repeated_too(tmp_path: Path) -> None:
    writer = StreamWriter()
    with Journaled(tmp_path, [fifo()]) as live:
        ask(live, inserted(writer, 5))
        assert live.reception.handle((), "set", Set(0, "t", {"max_size": 2}), time.monotonic()) is None
        ask(live)
        live.settle(time.monotonic())
    with Journaled(tmp_path, [fifo()]) as again:
        assert contents(again.service) == [3, 4]
        assert again.service.tables["t"].max_size == 1000


@pytest.mark.parametrize("share", [0.01, 0.49, 0.51, 1.0])
def test_a_commit_begins_each_half_of_the_interval(tmp_path: Path, share: float) -> None:
    with Journaled(tmp_path, [fifo()], JournalOptions("interval", 1000.0)) as live:
        live.settle(time.monotonic())
        commits = live.journal.commits
        ask(live, inserted(StreamWriter()))
        due = live.journal.turn(time.monotonic() + share * 1000.0)
        if share < 1 / 2:
            assert due is not None
            assert not live.journal.is_settled
        else:
            live.settle(time.monotonic())
            assert live.journal.commits == commits + 1
