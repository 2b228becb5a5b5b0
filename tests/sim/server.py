"""The server of the simulation: the real Service, behind both halves of its codec, with the real keeper of its store.

It does what the loop of `replayd.server` does, in turns of the world's time, and it crashes: then what its disk has is
all there is.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

import replayd.arena
import replayd.checkpoints
import replayd.journal_format
import replayd.keeper
import replayd.store_writer
import replayd.table
from replayd.errors import Fault, PeerError, StoreError
from replayd.items import first_key_at
from replayd.journal import Journal, JournalOptions, Mode
from replayd.keeper import Keeper, StoreOptions
from replayd.limits import PENDING_INSERTS
from replayd.messages import Peer, Reply, Sampled
from replayd.reception import Reception
from replayd.restoring import RestoreRules
from replayd.service import Service
from replayd.table import Table
from replayd.wire import encode
from tests.sim.disk import Disk, PowerCut, Writer
from tests.sim.history import History
from tests.sim.network import Frames, Link, Network, Pusher, joined
from tests.sim.world import World

TURN_S = 0.0005
"""What a turn of the loop takes at most, as a rule."""
SLOW_TURN_S = 1.0
MESSAGES_A_TURN = 20
PENDING_AT_MOST = 4
"""Items parked at a table from which on what is pushed is left unread."""
PROVEN_EACH = 16
"""Turns from one proof of all counts to the next."""
BEGAN_NS = 1_800_000_000 * 10**9
"""When the world began, in nanoseconds since 1970: keys are counted from the time of a server's start."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is set up."""

    mode: Mode
    """The journal's, as `interval_s` and `journal_max_bytes`."""
    interval_s: float
    journal_max_bytes: int
    checkpoint_interval_s: float
    lease_s: float
    max_bytes: int | None
    """Of all tables together."""
    part_bytes: int
    """What a checkpoint hands over in a turn, and what is written in one transaction: small, so that there are many."""


class Server:
    """Serves `network`. `on_crash` is called when it has crashed by itself: the power went amid a transaction."""

    def __init__(
        self,
        world: World,
        network: Network,
        make_tables: Callable[[], list[Table]],
        options: Options,
        on_crash: Callable[[], None],
    ) -> None:
        self.crashes = 0
        self.met: Counter[str] = Counter()
        """What came about in its lives, so that one may see that something did."""
        self.service: Service
        self.disk = Disk(world.random)
        self.options = options
        self.history = History(make_tables(), sync=options.mode == "sync", is_bounded=options.max_bytes is not None)
        self._turns = 0
        self._world = world
        self._network = network
        self._make_tables = make_tables
        self._on_crash = on_crash
        self._store = StoreOptions(
            Path("simulated"),
            checkpoint_interval_s=options.checkpoint_interval_s,
            # What `set` had made larger is as it was after a crash.
            rules=RestoreRules(shrink_tables=True),
            journal=JournalOptions(options.mode, options.interval_s, options.journal_max_bytes),
        )
        self._life = 0
        """Number of the present one; odd while it serves."""

    @property
    def is_up(self) -> bool:
        return self._life % 2 == 1

    def start(self) -> None:
        """Begin with what is on the disk, and listen; unless the power goes meanwhile."""
        assert not self.is_up
        world = self._world
        self._life += 1
        self._inbox: deque[tuple[Link, Frames]] = deque()
        self._pushed: deque[tuple[Link, Frames]] = deque()
        self._links: dict[Peer, Link] = {}
        self._left: set[Peer] = set()
        """Peers that closed their connections in order: they had taken back what was not answered."""
        self.asked: Counter[tuple[Peer, int]] = Counter()
        """Messages that were taken in this life, by peer and request id."""
        self.answers: Counter[tuple[Peer, int]] = Counter()
        """Replies that left, likewise."""
        self._turn_planned = False
        self.service = Service(
            self._make_tables(),
            server_id=world.random.randbytes(16),
            version="0",
            seed=world.random.getrandbits(32),
            lease_s=self.options.lease_s,
            started_at=world.now,
            max_bytes=self.options.max_bytes,
            first_key=first_key_at(BEGAN_NS + int(world.now * 1e9)),
        )
        self._reception = Reception(self.service, zmq.Frame, self._hear_of_fault)
        self._keeper = _Keeper(self.disk, self._store, self.service, self._plan_turn)
        clock, failures = self.disk.clock, self.disk.failures
        try:
            self._keeper.load()
        except StoreError as error:
            raise AssertionError(f"a server does not begin: {error}") from error
        except PowerCut:
            if self.disk.clock != clock:
                # What it had restored is on the disk as its own.
                self.history.recover(self.service, world.now, clock)
            self.met["crash while it began"] += 1
            self._life += 1
            self.crashes += 1
            self._on_crash()
            return
        self.history.recover(self.service, world.now, clock)
        self._failures = failures
        self._keeper.writer.at_once = False
        self._recorder = _Recorder(self._keeper.journal)
        self._reception.recorder = self._recorder
        self._network.accept, self._network.accept_pushed = self._accept, self._accept_pushed
        self._network.left = lambda link: self._left.add(link.peer)
        self._plan_turn()

    def crash(self) -> None:
        """kill -9, or the power."""
        now, options = self._world.now, self.options
        self._keeper.writer.crash()
        report = self.service.durability.report(now)["store"]
        # What it has said of itself is a promise too.
        age_s = report.get("durable_age_s", math.inf)
        if options.mode != "off" and self.disk.failures == self._failures and report["journal"]["state"] == "whole":
            # One turn hands over what is due, and a later one hears that it is on the disk: either may come late.
            late_s = 2 * SLOW_TURN_S + options.interval_s / 2 + self.disk.slowest_job_s
            assert age_s <= late_s, f"the last {age_s} s are lost, and no more than {late_s} may be"
        self.history.crash(now - age_s)
        self.note_life()
        self._check_answers()
        self._life += 1
        self.crashes += 1
        self._network.cut_all()

    def _crash_by_itself(self) -> None:
        self.met["crash amid a transaction"] += 1
        self.crash()
        self._on_crash()

    def note_life(self) -> None:
        """This life is over, or all of them."""
        service, journal = self.service, self._keeper.journal
        durability, counters = service.durability, service.counters
        self.met["checkpoint"] += durability.checkpoints
        self.met["failed checkpoint"] += durability.failures
        self.met["failed journal"] += 0 if journal is None else journal.failures
        self.met["replayed request"] += durability.replayed or 0
        self.met["expired stream"] += service.streams.expired
        self.met["duplicate"] += counters.duplicates
        self.met["refused request"] += counters.refused
        if self.options.max_bytes is not None:
            self.met["eviction for the server"] += sum(table.evictions for table in service.tables.values())
        self.met["eviction"] += sum(table.evictions for table in service.tables.values())
        waited = [table.blocked.seconds(self._world.now)["insert"] for table in service.tables.values()]
        self.met["insert that waited"] += sum(any(seconds.values()) for seconds in waited)

    def _check_answers(self) -> None:
        for request, count in self.answers.items():
            assert count <= self.asked[request], f"{request} was asked {self.asked[request]} times, answered {count}"

    def check_all_answered(self) -> None:
        """Nothing is under way any more."""
        self._check_answers()
        assert not (self._pushed and self._wants_pushed), "what was pushed is left unread, and nothing is in its way"
        parked = itertools.chain(*(table.pending_inserts for table in self.service.tables.values()))
        if not any(pending.ticket.askers for pending in parked):
            assert self.asked == self.answers, f"without an answer: {self.asked - self.answers}"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let `replayd` live in this world, in small parts."""
        with pytest.MonkeyPatch.context() as patch:
            clock = _Clock(self._world)
            for name, module in list(sys.modules.items()):
                if name.split(".")[0] == "replayd" and getattr(module, "time", None) is time:
                    patch.setattr(module, "time", clock)
            make = partial(Writer, self._world, self._crash_by_itself)
            patch.setattr(replayd.keeper, "StoreWriter", make)
            patch.setattr(replayd.checkpoints, "CHUNKS_A_TURN", self.options.part_bytes // 100)
            patch.setattr(replayd.store_writer, "TRANSACTION_BYTES", self.options.part_bytes)
            patch.setattr(replayd.journal_format, "VALUE_BYTES", self.options.part_bytes)
            patch.setattr(replayd.store_writer, "DROPPED_AT_ONCE", 2)
            patch.setattr(replayd.arena, "SLAB_BYTES", 1 << 14)
            patch.setattr(replayd.table, "PENDING_INSERTS", replace(PENDING_INSERTS, value=PENDING_AT_MOST))
            yield

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _accept(self, link: Link, frames: Frames) -> None:
        self._links[link.peer] = link
        self._inbox.append((link, frames))
        self._plan_turn()

    def _accept_pushed(self, link: Link, frames: Frames) -> None:
        self._pushed.append((link, frames))
        self._plan_turn()

    @property
    def _wants_pushed(self) -> bool:
        """As the loop of `replayd.server` decides it."""
        return self.service.wants_inserts and not self._keeper.is_behind and self._keeper.wants_inserts

    def _take_pushed(self, now: float) -> list[tuple[Peer, dict[str, Any]]]:
        taken = []
        for _ in range(min(len(self._pushed), MESSAGES_A_TURN)):
            link, frames = self._pushed.popleft()
            assert isinstance(link.socket, Pusher)
            link.socket.was_read(link)
            taken.append((None, msgpack.unpackb(frames[0])))
            self._reception.take(None, [zmq.Frame(frame) for frame in frames], now)
            if not self.service.wants_inserts:
                break
        self._reception.settle(now)
        self.met["pushed message"] += len(taken)
        return taken

    def _hear_of_fault(self, fault: Fault, now: float) -> None:
        """Nobody else hears of what becomes of a pushed message."""
        assert fault.error.code == "table_full", f"a pushed message was refused: {fault.error}"
        self.met["pushed message without room"] += 1

    def _plan_turn(self) -> None:
        if self.is_up and not self._turn_planned:
            self._turn_planned = True
            random, life = self._world.random, self._life
            slow = not self._network.faults.rest and random.random() < 0.01
            self._world.after(random.uniform(0, SLOW_TURN_S if slow else TURN_S), lambda: self._turn(life))

    def _turn(self, life: int) -> None:
        if self._life != life:
            return
        self._turn_planned = False
        now = self._world.now
        taken: list[tuple[Peer, dict[str, Any]]] = []
        present = {link.peer for link, _ in self._inbox}
        # All that they had sent was taken in an earlier turn.
        gone = self._left - present
        # Decided before other requests of this turn may park more.
        wants_pushed = bool(self._pushed) and self._wants_pushed
        for table in self.service.tables.values() if wants_pushed else ():
            parked = sum(len(pending) for pending in table.pending_inserts)
            assert parked < PENDING_AT_MOST, f"what is pushed is taken, and {parked} items wait at {table.name}"
        for _ in range(0 if self._keeper.is_behind else min(len(self._inbox), MESSAGES_A_TURN)):
            link, frames = self._inbox.popleft()
            header = msgpack.unpackb(frames[0])
            taken.append((link.peer, header))
            self.asked[link.peer, header["id"]] += 1
            self.met[header["op"]] += 1
            self._reception.take(link.peer, [zmq.Frame(frame) for frame in frames], now)
        self._reception.settle(now)
        if wants_pushed:
            taken += self._take_pushed(now)
        elif self._pushed:
            self.met["pushed message left unread"] += 1
        due = [self._reception.end_turn(now), self._keeper.turn(now)]
        replies = self.service.drain()
        self._check_that_nobody_draws_for(gone, replies)
        self.history.turn(now, taken, replies, self.service.tables.values(), self._recorder.take_pushed())
        self._turns += 1
        if self._turns % PROVEN_EACH == 0:
            self.service.validate()
            if self._keeper.journal is not None:
                self._keeper.journal.validate()
            self.met["proof amid work"] += 1
        for peer, reply in self._keeper.released(replies):
            self.history.sent(peer, reply)
            link = self._links.get(peer)
            if link is not None:
                self.answers[peer, reply.id] += 1
                if link.alive:
                    link.to_client(joined(encode(reply)))
        if self._inbox or (self._pushed and self._wants_pushed):
            self._plan_turn()
        for at in due:
            if at is not None:
                self._world.at(at, lambda: self._plan_turn() if self._life == life else None)

    def _check_that_nobody_draws_for(self, gone: set[Peer], replies: Sequence[tuple[Peer, Reply]]) -> None:
        for peer, reply in replies:
            assert not (isinstance(reply, Sampled) and peer in gone), "items were drawn for a peer that had left"
        for table in self.service.tables.values():
            for request in table.pending_samples:
                assert request.peer not in gone, f"a sample of {table.name} waits for a peer that has left"


class _Recorder:
    """The journal, if there is one, and which pushed messages it was told of: those that were accepted."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._pushed: set[tuple[bytes, int]] = set()

    def record(self, peer: Peer, op: str, frames: Any, now: float, *, goes_on: bool) -> None:
        if peer is None:
            header = msgpack.unpackb(bytes(frames[0]))
            self._pushed.add((header["stream"], header["seq"]))
        if self._journal is not None:
            self._journal.record(peer, op, frames, now, goes_on=goes_on)

    def refusal(self, op: str) -> PeerError | None:
        return None if self._journal is None else self._journal.refusal(op)

    def record_read(self, peer: Peer, nbytes: int, replies: int) -> None:
        if self._journal is not None:
            self._journal.record_read(peer, nbytes, replies)

    def end_turn(self, now: float, *, is_due: bool) -> None:
        if self._journal is not None:
            self._journal.end_turn(now, is_due=is_due)

    def take_pushed(self) -> set[tuple[bytes, int]]:
        """Stream and number of each since the last time."""
        pushed, self._pushed = self._pushed, set()
        return pushed


class _Keeper(Keeper):
    """On the disk of the simulation."""

    def __init__(self, disk: Disk, options: StoreOptions, service: Service, wake: Callable[[], None]) -> None:
        super().__init__(options, service, wake)
        self._disk = disk

    def _open(self) -> Disk:  # type: ignore[override]
        return self._disk

    @property
    def writer(self) -> Writer:
        assert isinstance(self._writer, Writer)
        return self._writer


class _Clock:
    """The module `time`. Nothing happens on other clocks than the loop's."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def time(self) -> float:
        return self._world.now
