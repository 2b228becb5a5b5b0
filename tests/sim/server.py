"""The server of the simulation: the real Service behind both halves of its codec, on a disk that outlives it.

It takes what has arrived in turns, as the loop does, and it crashes. What it writes to its disk is there once some time
has passed, and not before: a crash takes the rest. Recovery is the last checkpoint, and what the journal has since.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import zmq

from replayd.blobs import parse_schema, parse_template
from replayd.errors import PeerError
from replayd.handover import SavedChunks
from replayd.messages import Peer
from replayd.reception import Reception
from replayd.restoring import KEYS_SKIPPED
from replayd.service import Service
from replayd.snapshots import dump_service, load_service
from replayd.state import frozen, settled
from replayd.table import Table
from replayd.wire import encode
from tests.sim.network import Frames, Link, Network, joined
from tests.sim.world import World

TURN_S = 0.0005
"""What a turn of the loop takes at most, as a rule."""
COMMIT_S = 0.02
"""What a commit takes at most."""
Answer = tuple[Peer, int, Frames]
MODES = ("off", "interval", "sync")


@dataclass(slots=True)
class Record:
    """What the journal has of a message, or of time passing (`op` empty)."""

    peer: Peer
    op: str
    frames: Frames
    now: float
    goes_on: bool = False


@dataclass(slots=True)
class Disk:
    """What a crash leaves."""

    state: Any = None
    chunks: list[SavedChunks] = field(default_factory=list)
    journal: list[Record] = field(default_factory=list)
    """Since the checkpoint."""


class Server:
    """Serves `network`. `mode` is the journal's: see the configuration's `[store] journal`."""

    def __init__(
        self, world: World, network: Network, make_tables: Callable[[], list[Table]], mode: str, interval_s: float
    ) -> None:
        self.disk = Disk()
        self.crashes = 0
        self.service: Service
        self._world = world
        self._network = network
        self._make_tables = make_tables
        self._mode = mode
        self._interval_s = interval_s
        self._up = 0
        """Number of the present life; odd while it serves."""
        self.start()

    @property
    def is_up(self) -> bool:
        return self._up % 2 == 1

    def start(self) -> None:
        """Begin with what is on the disk, and listen."""
        assert not self.is_up
        world = self._world
        self._up += 1
        self._inbox: deque[tuple[Link, Frames]] = deque()
        self._links: dict[Peer, Link] = {}
        self.asked: Counter[tuple[Peer, int]] = Counter()
        """Messages that were taken in this life, by peer and request id."""
        self.answers: Counter[tuple[Peer, int]] = Counter()
        """Replies that left, likewise."""
        self._turn_planned = False
        self._tick_at: float | None = None
        self._written: list[Record] = []
        """What the journal does not have on the disk yet."""
        self._held: deque[tuple[int, list[Answer]]] = deque()
        """Replies that wait for so many records to be on the disk."""
        self._records = self._durable = 0
        self._committing = False
        self.service = Service(
            self._make_tables(),
            server_id=world.random.randbytes(16),
            version="0",
            seed=world.random.getrandbits(32),
            started_at=world.now,
        )
        self._reception = Reception(self.service, zmq.Frame, lambda fault, now: None)
        self._recover()
        if self._mode != "off":
            self._reception.recorder = self
            if self.disk.state is None:
                # What the journal begins from: above all, who the server is.
                self.disk.state = settled(frozen(dump_service(self.service, world.now), np.copy))
        self._network.accept = self._accept
        self._plan_tick()

    def crash(self) -> None:
        """kill -9, or the power."""
        if self._mode == "interval":
            oldest = min((record.now for record in self._written), default=self._world.now)
            assert oldest >= self._world.now - self._interval_s - COMMIT_S, "more than the interval is lost"
        self._up += 1
        self.crashes += 1
        self._network.cut_all()

    def checkpoint(self) -> None:
        """Take the state of this moment; it is on the disk after a while, if there is no crash before."""
        service, life = self.service, self._up
        handover = service.chunks.handover
        if handover.under_way or self._committing:
            return
        state = frozen(dump_service(service, self._world.now), np.copy)
        todo = np.flatnonzero(handover.begin())
        first = self._records
        fresh: list[SavedChunks] = []

        def hand_over(todo: Any) -> None:
            if self._up != life:
                return
            fresh.extend([*handover.take_rescued(), handover.take(handover.still_wanted(todo[:16]))])
            if len(todo) > 16:
                self._world.after(self._world.random.uniform(0, TURN_S), lambda: hand_over(todo[16:]))
                return
            handover.end()
            self._world.after(self._world.random.uniform(0, 5 * COMMIT_S), write)

        def write() -> None:
            if self._up == life:
                # One transaction: the index, its chunks, and the journal without what the index has.
                self._commit()
                already = len(self.disk.journal) - (self._records - first)
                self.disk = Disk(settled(state), [*self.disk.chunks, *_kept(fresh)], self.disk.journal[already:])

        hand_over(todo)

    # --- recorder -----------------------------------------------------------------------------------------------------

    def refusal(self, op: str) -> PeerError | None:
        return None

    def record(self, peer: Peer, op: str, frames: Any, now: float, *, goes_on: bool) -> None:
        self._write(Record(peer, op, joined(frames), now, goes_on))

    def end_turn(self, now: float, *, is_due: bool) -> None:
        if is_due:
            self._write(Record(None, "", [], now))

    def _write(self, record: Record) -> None:
        self._written.append(record)
        self._records += 1

    def _commit(self) -> None:
        self.disk.journal += self._written
        self._written = []
        self._durable = self._records
        while self._held and self._held[0][0] <= self._durable:
            self._send(self._held.popleft()[1])

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _accept(self, link: Link, frames: Frames) -> None:
        self._links[link.peer] = link
        self._inbox.append((link, frames))
        self._plan_turn()

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            random, life = self._world.random, self._up
            slow = not self._network.faults.rest and random.random() < 0.01
            self._world.after(random.uniform(0, 1.0 if slow else TURN_S), lambda: self._turn(life))

    def _turn(self, life: int) -> None:
        if self._up != life:
            return
        self._turn_planned = False
        now = self._world.now
        for _ in range(min(len(self._inbox), 20)):
            link, frames = self._inbox.popleft()
            self.asked[link.peer, msgpack.unpackb(frames[0])["id"]] += 1
            self._reception.take(link.peer, [zmq.Frame(frame) for frame in frames], now)
        self._reception.settle(now)
        self._tick_at = self._reception.end_turn(now)
        replies = [(peer, reply.id, joined(encode(reply))) for peer, reply in self.service.drain()]
        if self._mode == "sync" and self._written:
            self._held.append((self._records, replies))
        elif self._held:
            self._held.append((self._held[-1][0], replies))
        else:
            self._send(replies)
        if self._written and not self._committing:
            self._committing = True
            interval_s = self._interval_s if self._mode == "interval" else 0.0
            self._world.after(interval_s + self._world.random.uniform(0, COMMIT_S), lambda: self._committed(life))
        if self._inbox:
            self._plan_turn()
        self._plan_tick()

    def _committed(self, life: int) -> None:
        if self._up == life:
            self._committing = False
            self._commit()

    def _plan_tick(self) -> None:
        at, life = self._tick_at, self._up
        if at is not None:
            self._world.at(at, lambda: self._plan_turn() if self._up == life and self._tick_at == at else None)

    def _send(self, replies: Sequence[Answer]) -> None:
        for peer, id, frames in replies:
            self.answers[peer, id] += 1
            link = self._links.get(peer)
            if link is not None and link.alive:
                link.to_client(frames)

    # --- recovery -----------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        disk = self.disk
        if disk.state is not None:
            saved = copy.deepcopy(disk.state)
            losses = load_service(self.service, saved, disk.chunks, self._world.now, parse_schema, parse_template)
            assert (losses.chunks, losses.items) == (0, {}), f"the checkpoint is not whole: {losses}"
        group: list[Record] = []
        for record in disk.journal:
            if not record.goes_on:
                self._repeat(group)
                group = []
            group.append(record)
        self._repeat(group)
        for table in self.service.tables.values():
            # Who waited is gone, and asks again.
            for request in table.give_up_samples():
                self.service._answered(request)
            for ticket in {id(pending.ticket): pending.ticket for pending in table.pending_inserts}.values():
                for peer, _ in ticket.askers:
                    self.service._accounts.close_insert(peer, ticket.nbytes)
                ticket.askers.clear()
        self.service.drain()
        if self._mode != "sync":
            keys = self.service._keys.dump()
            self.service._keys.load({**keys, "next": keys["next"] + KEYS_SKIPPED})
        self.service.streams.renew(self._world.now)
        self.service.validate()

    def _repeat(self, group: list[Record]) -> None:
        if not group:
            return
        if group[0].op == "":
            self._reception.end_turn(group[0].now)
            return
        messages = [(record.peer, [zmq.Frame(frame) for frame in record.frames]) for record in group]
        refused = self._reception.repeat(messages, group[0].now)
        assert refused == 0, "what was accepted is refused when it is repeated"


def _kept(saved: Sequence[SavedChunks]) -> list[SavedChunks]:
    """With payloads that are not the server's memory."""
    kept = []
    for chunks in saved:
        one = copy.copy(chunks)
        one.body = [b"".join(bytes(part) for part in chunks.body)]
        kept.append(one)
    return kept
