"""A network of connections that delay, cut and repeat, behind the part of pyzmq's interface that a connection uses.

As TCP and libzmq do it: a connection keeps the order of its messages and loses none while it lives; a socket connects
once; what is on its way when a connection is cut arrives up to some message and no further.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import zmq

from tests.sim.world import Process, World

Frames = list[bytes]

_SAMPLE = b"\xa2op\xa6sample"
_numbers = itertools.count()
"""Of sockets: the world does not depend on them."""


class Faults:
    """What may befall messages. All is well while `rest`."""

    def __init__(self, slowest_s: float, repeats: float) -> None:
        self.slowest_s = slowest_s
        """Delays are up to this, most of them far below."""
        self.repeats = repeats
        """The chance that an insert arrives twice, as by a proxy that lost track."""
        self.rest = False


class Network:
    """One server's addresses. The server sets `accept` and `accept_pushed` while it listens: (connection, frames) of
    what arrives at either; and `left`, which is told of each connection that its client closed in order.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.accept: Callable[[Link, Frames], None] | None = None
        self.accept_pushed: Callable[[Link, Frames], None] | None = None
        self.left: Callable[[Link], None] = lambda link: None
        self.links: list[Link] = []
        self._names = itertools.count(1)

    def connect(self, socket: Dealer | Pusher) -> None:
        """Try now, unless the socket is closed."""
        if socket.closed:
            return
        if self.accept is None:
            socket.refused()
            return
        link = Link(self, socket, next(self._names))
        self.links.append(link)
        socket.connected(link)

    def cut(self, link: Link) -> None:
        """Both ends lose the connection."""
        if not link.alive:
            return
        link.end()
        self.links.remove(link)
        link.socket.lost()

    def cut_all(self) -> None:
        """The server is gone, and nobody listens."""
        self.accept = self.accept_pushed = None
        for link in list(self.links):
            self.cut(link)

    def delay_s(self) -> float:
        random = self.world.random
        if self.faults.rest:
            return 0.001
        return random.uniform(0.0, self.faults.slowest_s) if random.random() < 0.1 else random.uniform(0.0, 0.002)


class Link:
    """One connection: two queues in order."""

    def __init__(self, network: Network, socket: Dealer | Pusher, number: int) -> None:
        self.peer = (b"peer-%d" % number,)
        self.socket = socket
        self.alive = True
        self._network = network
        self._arrive_at = {"server": 0.0, "client": 0.0}
        self._closing = False

    def to_server(self, frames: Frames) -> None:
        """What the client's socket sends."""
        random, faults = self._network.world.random, self._network.faults
        twice = not faults.rest and random.random() < faults.repeats and b"\xa6insert" in frames[0]
        for _ in range(2 if twice else 1):
            self._send("server", lambda: self._arrive(frames))

    def _arrive(self, frames: Frames) -> None:
        network = self._network
        accept = network.accept_pushed if isinstance(self.socket, Pusher) else network.accept
        if accept is not None:
            accept(self, frames)

    def to_client(self, frames: Frames) -> None:
        """What the server sends; the socket may be closed by the time that it arrives."""
        assert isinstance(self.socket, Dealer), "nobody answers who pushes"
        socket = self.socket
        self._send("client", lambda: socket.arrived(frames))

    def close(self, *, in_order: bool) -> None:
        """The client is done: what it sent still arrives, and nothing comes back."""

        def gone() -> None:
            if self.alive:
                self.end()
                self._network.links.remove(self)
                if in_order:
                    self._network.left(self)

        self._send("server", gone)

    def end(self) -> None:
        """What has not arrived never will."""
        self.alive = False

    def _send(self, side: str, arrive: Callable[[], object]) -> None:
        world = self._network.world
        self._arrive_at[side] = max(self._arrive_at[side], world.now + self._network.delay_s())
        world.at(self._arrive_at[side], lambda: self.alive and arrive())


class Host:
    """One process's machine, in place of a zmq context. When it is `down` its sockets are gone without a word."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.down = False
        self.sockets: list[Dealer | Pusher] = []
        # Samples, by the socket's identity and the request's id.
        self.samples_asked: set[tuple[int, int]] = set()
        self.samples_got: list[tuple[tuple[int, int], list[int]]] = []
        """Those that were answered, with the keys that came."""
        self.samples_given_up: set[tuple[int, int]] = set()
        """Left to whoever works on this machine."""

    def socket(self, kind: int) -> Dealer:
        assert kind == zmq.DEALER
        socket = Dealer(self)
        self.sockets.append(socket)
        return socket

    def fail(self) -> None:
        """The process is killed, and its kernel closes its connections."""
        self.down = True
        for socket in list(self.sockets):
            socket.close(0)


class _Readable:
    """What can be polled."""

    def __init__(self) -> None:
        self.pollers: set[Poller] = set()
        self.inbox: deque[list[Any]] = deque()

    def getsockopt(self, option: int) -> int:
        assert option == zmq.EVENTS
        return int(zmq.POLLIN) if self.inbox else 0

    def recv_multipart(self, flags: int, copy: bool = True) -> list[Any]:
        return self.inbox.popleft()

    def recv(self, flags: int, copy: bool = True) -> Any:
        """The next frame of the first message."""
        message = self.inbox[0]
        frame = message.pop(0)
        frame.more = bool(message)
        if not message:
            self.inbox.popleft()
        return frame

    def put(self, message: list[Any]) -> None:
        self.inbox.append(message)
        for poller in self.pollers:
            poller.wake()


class Monitor(_Readable):
    """The events of a socket."""

    def close(self, linger: int = 0) -> None:
        self.inbox.clear()


class Dealer(_Readable):
    """A client's socket. Whatever attribute else is set on it says nothing here."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.closed = False
        self._host = host
        self._number = next(_numbers)
        self._monitor: Monitor | None = None
        self._link: Link | None = None
        self._queue: list[Frames] = []
        self._parts: Frames = []

    def get_monitor_socket(self, events: int, address: str) -> Monitor:
        self._monitor = Monitor()
        return self._monitor

    def disable_monitor(self) -> None:
        self._monitor = None

    def connect(self, address: str) -> None:
        network = self._host.network
        network.world.after(network.delay_s(), lambda: network.connect(self))

    def send(self, frame: Any, flags: int = 0, copy: bool = True) -> None:
        self._parts.append(bytes(frame))
        if flags & zmq.SNDMORE:
            return
        frames, self._parts = self._parts, []
        if self._host.down:
            return
        if _SAMPLE in frames[0]:
            self._host.samples_asked.add((self._number, msgpack.unpackb(frames[0])["id"]))
        if self._link is None:
            self._queue.append(frames)
        else:
            self._link.to_server(frames)

    def close(self, linger: int = 0) -> None:
        if self.closed:
            return
        self.closed = True
        self._host.sockets.remove(self)
        if self._link is not None:
            # A client that gives a connection up, or is killed, leaves it no time.
            self._link.close(in_order=linger > 0)

    # What the network does.

    def refused(self) -> None:
        self.tell(zmq.EVENT_CLOSED)

    def tell(self, event: int) -> None:
        """To the monitor, as libzmq packs it."""
        if self._monitor is not None:
            self._monitor.put([struct.pack("=hi", event, 0), b"tcp://simulated"])

    def connected(self, link: Link) -> None:
        self._link = link
        self.tell(zmq.EVENT_CONNECTED)
        self.tell(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        for frames in self._queue:
            link.to_server(frames)
        self._queue = []

    def lost(self) -> None:
        self._link = None
        self.tell(zmq.EVENT_DISCONNECTED)

    def arrived(self, frames: Frames) -> None:
        if not self.closed:
            if _SAMPLE in frames[0] and (keys := (header := msgpack.unpackb(frames[0])).get("keys")) is not None:
                asked = self._number, header["id"]
                self._host.samples_got.append((asked, memoryview(keys).cast("Q").tolist()))
            self.put([zmq.Frame(frame) for frame in frames])


class Pusher:
    """A PUSH socket: it connects again by itself, and what was on its way when a connection ended is lost."""

    HIGH_WATER = 6
    """Messages on their way at most: what a server leaves unread comes to stand before it."""
    RECONNECT_S = 0.1

    def __init__(self, host: Host) -> None:
        self.closed = False
        self._host = host
        self._link: Link | None = None
        self._queue: list[Frames] = []
        self._unread = 0
        host.sockets.append(self)
        self.refused()

    def send(self, frames: Frames) -> bool:
        """False if there is no room for it now."""
        if self._host.down or len(self._queue) + self._unread >= self.HIGH_WATER:
            return False
        if self._link is None:
            self._queue.append(frames)
        else:
            self._unread += 1
            self._link.to_server(frames)
        return True

    def close(self, linger: int = 0) -> None:
        """What was sent still arrives."""
        self.closed = True
        self._host.sockets.remove(self)
        if self._link is not None:
            self._link.close(in_order=linger > 0)

    # What the network does.

    def refused(self) -> None:
        network = self._host.network
        network.world.after(self.RECONNECT_S + network.delay_s(), lambda: network.connect(self))

    def connected(self, link: Link) -> None:
        self._link, queue, self._queue = link, self._queue, []
        for frames in queue:
            assert self.send(frames), "as many are on their way as were queued"

    def lost(self) -> None:
        self._link, self._unread = None, 0
        self.refused()

    def was_read(self, link: Link) -> None:
        """By the server, which has room for another."""
        if link is self._link:
            self._unread = max(0, self._unread - 1)


class Bell(_Readable):
    """One end of a `socket.socketpair`, which is polled; the other end's bytes are never read."""

    def close(self) -> None:
        self.inbox.clear()


class Waker:
    """The other end."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._closed = False

    def fileno(self) -> int:
        return -1 if self._closed else 0

    def send(self, data: bytes) -> None:
        self._bell.put([data])

    def close(self) -> None:
        self._closed = True


class Sockets:
    """The module `socket`, as far as `replayd_client.interruptible` uses it."""

    def socketpair(self) -> tuple[Waker, Bell]:
        bell = Bell()
        return Waker(bell), bell


class Poller:
    """zmq.Poller for the sockets above, which waits in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sockets: list[_Readable] = []
        self._waiter: Process | None = None

    def register(self, socket: _Readable, flags: int) -> None:
        self.sockets.append(socket)
        socket.pollers.add(self)

    def unregister(self, socket: _Readable) -> None:
        # Twice for what a thread was closing when it was killed, and is closed again when it is collected.
        if socket in self.sockets:
            self.sockets.remove(socket)
        socket.pollers.discard(self)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[Any, int]]:
        until = math.inf if timeout_ms is None else self._world.now + timeout_ms / 1000
        if not any(socket.inbox for socket in self.sockets) and self._world.now < until:
            self._waiter = self._world.running
            self._world.wait(until)
            self._waiter = None
        return [(socket, int(zmq.POLLIN)) for socket in self.sockets if socket.inbox]

    def wake(self) -> None:
        """Something has arrived."""
        if self._waiter is not None:
            self._waiter.wake()


class Zmq:
    """The module, as far as `replayd_client.connection` uses it, with pollers of the simulation."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Poller(self) -> Poller:  # noqa: N802
        return Poller(self._world)

    def __getattr__(self, name: str) -> Any:
        return getattr(zmq, name)


def joined(frames: Sequence[Any]) -> Frames:
    """Frames of a reply as bytes, as they travel."""
    return [bytes(frame) for frame in frames]
