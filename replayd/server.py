"""The daemon: sockets, clock and signals around one Service. The only module that has any of them.

The loop is `run`: poll until something is due, take what has arrived, let the service work, send what it answers. It
never blocks in a send and never sleeps longer than the next deadline.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import zmq

from replayd import __version__
from replayd.errors import BindError, Fault, PeerError
from replayd.fault_log import FaultLog
from replayd.insert_reader import cut_large
from replayd.limits import FRAME_BYTES, LEASE_S, REPLY_BYTES
from replayd.messages import Insert, Peer, Request
from replayd.service import Service
from replayd.table import Table
from replayd.wire import Undecodable, decode, encode

log = logging.getLogger("replayd")

MESSAGES_PER_TURN = 100
"""Messages taken from one socket before replies are sent, fewer when those are large: bounds how long a busy peer
delays the others' replies, and how much waits in memory."""

LINGER_MS = 1000
"""Time for the last replies to leave at the end."""

_ROUTER_OPTIONS: Mapping[int, int] = {
    # Without it libzmq drops replies to a full or vanished peer and says nothing.
    zmq.ROUTER_MANDATORY: 1,
    # Twice what a peer may have open (window_messages + parked_samples), so a peer that reads never meets it.
    zmq.SNDHWM: 256,
    zmq.RCVHWM: 100,
    # A peer that lost power is noticed, and its queue freed, within 15 s. Not on PULL: left unread it hears no answers.
    zmq.HEARTBEAT_IVL: 5000,
    zmq.HEARTBEAT_TIMEOUT: 15000,
}
_COMMON_OPTIONS: Mapping[int, int] = {
    zmq.LINGER: LINGER_MS,
    zmq.MAXMSGSIZE: FRAME_BYTES.value,
    zmq.BACKLOG: 1024,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.TCP_KEEPALIVE: 1,
}


class Daemon:
    """One service behind a ROUTER and, if `ingest` is given, a PULL socket.

    `listen` and `ingest` are ZeroMQ endpoints; port 0 or `*` picks a free one. `seed` None draws one from the system.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        listen: str,
        ingest: str | None = None,
        seed: int | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._tables = tables
        self._seed = secrets.randbits(64) if seed is None else seed
        self._lease_s = lease_s
        self._listen = listen
        self._ingest = ingest
        self._stop_asked = False
        self._reload_asked = False
        self._faults = FaultLog()
        # Written by `stop` and by the signal machinery: a signal handler alone does not end pyzmq's poll.
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)

    # --- life ---------------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Open the sockets, then take the tables.

        Raises BindError that names the address and the reason, ValueError for tables that cannot be served.
        """
        self._context = zmq.Context()
        try:
            self._router = _bound(self._context, zmq.ROUTER, self._listen, _ROUTER_OPTIONS)
            self._pull = _bound(self._context, zmq.PULL, self._ingest, {zmq.RCVHWM: 100}) if self._ingest else None
            self.service = Service(
                self._tables,
                server_id=secrets.token_bytes(16),
                version=__version__,
                seed=self._seed,
                lease_s=self._lease_s,
                started_at=time.monotonic(),
            )
        except (BindError, ValueError):
            self._context.destroy(linger=0)
            for end in (self._wake_read, self._wake_write):
                end.close()
            raise

    @property
    def router_address(self) -> str:
        return _address(self._router)

    @property
    def ingest_address(self) -> str | None:
        return _address(self._pull) if self._pull else None

    def run(self, stop_on_signals: bool = True) -> None:
        """Serve until `stop` is called or (if asked) SIGTERM or SIGINT comes; then answer those who wait.

        SIGHUP, by which other daemons read their settings again, is ignored with a word in the log.
        """
        with self._signals() if stop_on_signals else contextlib.nullcontext():
            try:
                self._loop()
                self._say_goodbye()
            except Exception:
                log.exception("the daemon fails; those who wait are told, then it ends")
                # The state may be broken: the first fault is the one to tell of.
                with contextlib.suppress(Exception):
                    self._say_goodbye()
                raise
            finally:
                self._close()

    def stop(self) -> None:
        """End `run`; safe from any thread and from signal handlers."""
        self._stop_asked = True
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"\0")

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        reads_pull = False
        due: float | None = None
        while not self._stop_asked:
            if self._pull and self.service.wants_inserts != reads_pull:
                reads_pull = not reads_pull
                poller.register(self._pull, zmq.POLLIN) if reads_pull else poller.unregister(self._pull)
            wait_ms = None if due is None else int(max(0.0, due - time.monotonic()) * 1000) + 1
            ready = dict(poller.poll(wait_ms))
            now = time.monotonic()
            if self._router in ready:
                self._take_requests(now)
            if self._pull and self._pull in ready:
                self._take_pushes(now)
            if self._wake_read.fileno() in ready:
                self._wake_read.recv(4096)
            if self._reload_asked:
                self._reload_asked = False
                log.warning("SIGHUP is ignored: settings are read at start alone; `replayd set` changes many live")
            due = self.service.tick(now)
            self._send_replies()
            self._write_log(now)
            count_due = self._faults.tick(now)
            due = min((at for at in (due, count_due) if at is not None), default=None)

    def _write_log(self, now: float) -> None:
        while self.service.notices:
            log.info("%s", self.service.notices.pop(0))
        while self.service.faults:
            self._faults.tell(self.service.faults.pop(0), now)

    def _say_goodbye(self) -> None:
        self.service.stop()
        self._send_replies()
        now = time.monotonic()
        self._write_log(now)
        self._faults.close(now)

    def _take_requests(self, now: float) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if self.service.outbox_bytes >= REPLY_BYTES.value:
                return
            try:
                frames = _received(self._router)
            except zmq.Again:
                return
            # A REQ peer puts an empty frame before its message and wants it back.
            envelope = 2 if len(frames) > 1 and len(frames[1]) == 0 else 1
            peer: Peer = tuple(bytes(frame) for frame in frames[:envelope])
            try:
                op, request = _decoded(frames[envelope:])
            except Undecodable as fault:
                self.service.refuse(peer, fault.op, fault.id, fault.error)
                continue
            self.service.handle(peer, op, request, now)

    def _take_pushes(self, now: float) -> None:
        assert self._pull is not None
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = _received(self._pull)
            except zmq.Again:
                return
            fault: PeerError | None
            try:
                op, request = _decoded(frames, pushed=True)
            except Undecodable as undecodable:
                self.service.refuse(None, undecodable.op, undecodable.id, undecodable.error)
                fault = undecodable.error
            else:
                fault = self.service.handle(None, op, request, now)
            if fault is not None:
                self._faults.tell(Fault(f"refused a pushed message: {fault.code}", fault), now)
            if not self.service.wants_inserts:
                return

    def _send_replies(self) -> None:
        for peer, reply in self.service.drain():
            assert isinstance(peer, tuple)
            try:
                self._router.send_multipart([*peer, *encode(reply)], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                # The peer has more replies unread than it may have requests open.
                self.service.counters.replies_dropped += 1
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                self.service.counters.replies_to_the_gone += 1

    # --- signals and sockets ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self._stop_asked = True

        def ask_to_reload(number: int, frame: FrameType | None) -> None:
            self._reload_asked = True

        handlers = {signal.SIGTERM: ask_to_stop, signal.SIGINT: ask_to_stop, signal.SIGHUP: ask_to_reload}
        old_fd = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, old_handler in old.items():
                signal.signal(number, old_handler)
            signal.set_wakeup_fd(old_fd)

    def _close(self) -> None:
        self._router.close()
        if self._pull:
            self._pull.close()
        self._context.term()
        self._wake_read.close()
        self._wake_write.close()


def _received(socket: zmq.Socket[Any]) -> list[Any]:
    """The frames of the next message. Raises zmq.Again if there is none.

    Each frame tells whether another follows: `recv_multipart` asks the socket for that, which doubles the time a frame
    takes (4.7 µs against 2.1).
    """
    frames: list[Any] = [socket.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(copy=False))
    return frames


def _decoded(frames: list[Any], pushed: bool = False) -> tuple[str, Request]:
    """The request in these frames, and its op; large payloads each in a frame of their own. Raises Undecodable."""
    op, request = decode(frames, pushed=pushed)
    if isinstance(request, Insert) and request.chunks is not None:
        cut_large(request.chunks, _own_frame)
    return op, request


def _own_frame(payload: memoryview) -> zmq.Frame:
    """A copy in libzmq's memory: such a frame is sent again without copying, which halves the time of a sample of 40 kB
    (11 µs against 35 for bytes)."""
    frame = zmq.Frame(payload, copy=True)
    # pyzmq keeps what a frame was made of, and through it all that came in the same message.
    payload.release()
    return frame


def _bound(context: zmq.Context[Any], kind: int, endpoint: str, options: Mapping[int, int]) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    for option, value in (*_COMMON_OPTIONS.items(), *options.items()):
        socket.setsockopt(option, value)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise BindError(f"cannot bind {endpoint}: {os.strerror(error.errno or 0)}") from error
    return socket


def _address(socket: zmq.Socket[Any]) -> str:
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()
