"""The server of the simulation: the real Service, behind both halves of its codec, with the real keeper of its store.

It does what the loop of `replayd.server` does, in turns of the world's time, and it crashes: then what its disk has is
all there is.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
import zmq

import replayd.keeper
from replayd.journal import JournalOptions, Mode
from replayd.keeper import Keeper, StoreOptions
from replayd.messages import Peer
from replayd.reception import Reception
from replayd.service import Service
from replayd.table import Table
from replayd.wire import encode
from tests.sim.disk import JOB_S, Disk, Writer
from tests.sim.network import Frames, Link, Network, joined
from tests.sim.world import World

TURN_S = 0.0005
"""What a turn of the loop takes at most, as a rule."""
SLOW_TURN_S = 1.0
MESSAGES_A_TURN = 20


class Server:
    """Serves `network`. `mode` and `interval_s` are the journal's."""

    def __init__(
        self, world: World, network: Network, make_tables: Callable[[], list[Table]], mode: Mode, interval_s: float
    ) -> None:
        self.crashes = 0
        self.service: Service
        self._world = world
        self._network = network
        self._make_tables = make_tables
        self._options = StoreOptions(Path("simulated"), journal=JournalOptions(mode, interval_s))
        self._disk = Disk()
        self._life = 0
        """Number of the present one; odd while it serves."""

    @property
    def is_up(self) -> bool:
        return self._life % 2 == 1

    def start(self) -> None:
        """Begin with what is on the disk, and listen."""
        assert not self.is_up
        world = self._world
        self._life += 1
        self._inbox: deque[tuple[Link, Frames]] = deque()
        self._links: dict[Peer, Link] = {}
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
            started_at=world.now,
        )
        self._reception = Reception(self.service, zmq.Frame, lambda fault, now: None)
        self._keeper = _Keeper(self._disk, self._options, self.service, self._plan_turn)
        self._keeper.load()
        self._keeper.writer.at_once = False
        self._reception.recorder = self._keeper.journal
        self._network.accept = self._accept
        self._plan_turn()

    def crash(self) -> None:
        """kill -9, or the power."""
        self._keeper.writer.crash()
        journal, mode = self._keeper.journal, self._options.journal
        if journal is not None and mode.mode == "interval":
            lost_s = journal.age_s(self._world.now)
            assert lost_s <= mode.interval_s + SLOW_TURN_S + 5 * JOB_S, f"{lost_s} s are lost"
        self._life += 1
        self.crashes += 1
        self._network.cut_all()

    def checkpoint(self) -> None:
        """As somebody asks for one that is gone when it is answered."""
        self.service.durability.ask((b"nobody",), 0)
        self._plan_turn()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let `replayd` live in this world."""
        with pytest.MonkeyPatch.context() as patch:
            clock = _Clock(self._world)
            for name, module in list(sys.modules.items()):
                if name.split(".")[0] == "replayd" and getattr(module, "time", None) is time:
                    patch.setattr(module, "time", clock)
            patch.setattr(replayd.keeper, "StoreWriter", lambda *arguments: Writer(self._world, *arguments))
            yield

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _accept(self, link: Link, frames: Frames) -> None:
        self._links[link.peer] = link
        self._inbox.append((link, frames))
        self._plan_turn()

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
        for _ in range(0 if self._keeper.is_behind else min(len(self._inbox), MESSAGES_A_TURN)):
            link, frames = self._inbox.popleft()
            self.asked[link.peer, msgpack.unpackb(frames[0])["id"]] += 1
            self._reception.take(link.peer, [zmq.Frame(frame) for frame in frames], now)
        self._reception.settle(now)
        due = [self._reception.end_turn(now), self._keeper.turn(now)]
        for peer, reply in self._keeper.released(self.service.drain()):
            link = self._links.get(peer)
            if link is not None:
                self.answers[peer, reply.id] += 1
                if link.alive:
                    link.to_client(joined(encode(reply)))
        if self._inbox:
            self._plan_turn()
        for at in due:
            if at is not None:
                self._world.at(at, lambda: self._plan_turn() if self._life == life else None)


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
