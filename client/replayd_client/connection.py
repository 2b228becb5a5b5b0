"""One session with the server over one DEALER socket, used by one thread at a time.

A session begins with the answer to `hello`. When the connection is lost the socket is closed and replaced, and `hello`
is said again: a new session. Whoever sent something in an older session sends it again; `call` does so by itself. A
socket connects once. libzmq's thread serves all sockets of a process and stands still while the events of one of them
fill their queue: so a connection that nobody uses must not try on its own, however long the server is away.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from replayd_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    ReplaydError,
    UnsupportedVersionError,
)
from replayd_client.handshake import EVENTS, Handshake
from replayd_client.header import VERSION
from replayd_client.keys import Keys
from replayd_client.messages import Buffer, ErrorReply, HelloReply
from replayd_client.wire import Reply, decode_reply, encode_hello, encode_withdraw

DEFAULT_TIMEOUT_MS = 60_000
"""Deadline of every call that is not given one: nothing waits for ever unless it was told to."""
CONNECT_S = 1.0
"""What a call gives a missing session at least, whatever its deadline: that says how long to wait for an answer."""
LINGER_MS = 1000
"""How long a closed socket goes on sending: a process must be able to end."""
HIGH_WATER_MESSAGES = 1000
"""Messages queued in a socket at most; the stream's window and the one call at a time keep far below it."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 15_000
"""libzmq's own pings: without them a peer whose machine vanished is never noticed."""
ATTEMPT_S = 5.0
"""What a socket has to connect. libzmq says nothing of a name that does not resolve, or of a machine that is silent."""
NEVER_MS = (1 << 31) - 1
"""After which libzmq connects again by itself: 24 days, the longest there is. With -1, for never, it drops what the
other side sent last, and nobody has read, when that ends the connection."""
REOPEN_S = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Pauses before a socket is replaced that was lost before it had a session; the last one is repeated."""
PUT_OFF_S = 0.25
"""Pause before a request goes again which a server put off that is starting or stopping."""
WARN_AFTER_S = 5.0
"""A server that does not answer is named in the log after this time, and each time that has doubled."""
COPY_BELOW_BYTES = 64 * 1024
"""Frames from this size on are sent without a copy: see `equal_chunks.OWN_FRAME_BYTES` for what that costs."""

_READABLE = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)

Encoder = Callable[[int], list[Buffer]]
"""Encodes a request under the request id given to it."""


class Connection:
    """A connection to the server at `address`, opened at the first use. Not safe for threads: see `ConnectionPool`."""

    def __init__(self, address: str, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None = None) -> None:
        self.address = address
        self.hello: HelloReply | None = None
        """What the server said last, whether or not there is a session now."""
        self.session = 0
        """Number of the present or last session."""
        self._context = context
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._ids = itertools.count(1)
        self._hello_id = 0
        self._ready = False
        self._reopen_at = self._opened_at = 0.0
        self._failures = 0
        self._asked: int | None = None
        """The request that a call sent in this session and has no answer to."""
        self._handshake = Handshake(address, keys)
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether there is a session."""
        return self._ready

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Hand a message to the socket. False: there is no session, or the socket is full; try again after `pump`."""
        if not self._ready or self._socket is None:
            return False
        return self._send(self._socket, frames)

    def pump(self, timeout_s: float) -> list[Reply]:
        """Do what there is to do; return as soon as there are replies or the session changed, else after `timeout_s`.

        Raises ProtocolError for bytes that are no reply, AccessDeniedError where keys are wrong or missing, and what
        the server answered to `hello` if that was an error; the connection may be used again afterwards.
        """
        assert not self._closed, "a closed connection is used"
        deadline = time.monotonic() + timeout_s
        before = (self.session, self._ready)
        while True:
            now = time.monotonic()
            if self._socket is None and now >= self._reopen_at:
                self._open()
            lost = self._read_monitor() or self._attempt_ends() <= now
            replies = self._receive()
            if lost:
                self._replace(now)
                if self._handshake.denied is not None:
                    raise self._handshake.denied
            if replies or (self.session, self._ready) != before or now >= deadline:
                return replies
            wait_s = min(deadline, self._attempt_ends()) - now
            if self._socket is None:
                wait_s = min(wait_s, max(self._reopen_at - now, 0.0))
            if self._poller.sockets:
                # A wait of at most a minute keeps libzmq's milliseconds in range whatever the deadline.
                self._poller.poll(int(min(wait_s, 60.0) * 1000) + 1)
            else:
                # A poll of nothing returns at once: to wait so for a server that is away took a whole core.
                time.sleep(wait_s)

    def call(
        self,
        what: str,
        encode: Encoder,
        deadline: float | None,
        *,
        grace_s: float = 0.0,
        on_wait: Callable[[float], None] | None = None,
    ) -> Reply:
        """Send a request and return its answer; send it again in each new session, until the deadline (monotonic).

        An answer that the server gives at the deadline may come `grace_s` later. `on_wait` is called with the seconds
        waited, first after WARN_AFTER_S, while there is a session but no answer.

        Raises the error that the server answered, ConnectionLostError when there was no session at the deadline, and
        DeadlineExceededError when there was one but no answer.
        """
        return Call(self, what, encode, deadline, grace_s=grace_s, on_wait=on_wait).answer()

    def open_session(self, deadline: float | None) -> HelloReply:
        """Return what the server said in `hello`, after waiting for a session if there was none yet."""
        if self.hello is None:
            self.call("hello", lambda request_id: encode_hello(request_id, _client_name(os.getpid())), deadline)
        assert self.hello is not None, "a call is answered within a session, which begins with hello"
        return self.hello

    def most(self, limit: str, most: int) -> int:
        """`most`, or the server's limit of this name if that is less and the server is known."""
        return most if self.hello is None else min(most, self.hello.limits.get(limit, most))

    def renew(self) -> None:
        """Give the session up and what is queued in the socket with it; `pump` begins another."""
        self._replace(time.monotonic())

    def withdraw(self, wait_s: float = 0.0) -> None:
        """Take back what was asked and is not answered, or a sample that waits would be drawn for nobody.

        Returns when the server has done so, after `wait_s` at most.
        """
        asked, self._asked = self._asked, None
        if asked is None or not self._ready:
            return
        request_id = self.next_id()
        is_sent, deadline = self.send(encode_withdraw(request_id)), time.monotonic() + wait_s
        while is_sent and self._ready and (left_s := deadline - time.monotonic()) > 0:
            if any(reply.id == request_id for reply in self.pump(left_s)):
                return

    def unreachable(self, waited_s: float) -> ConnectionLostError:
        """The error to raise when there is no session at a deadline."""
        detail = {"address": self.address, "waited_s": round(waited_s, 3), "attempts": self._handshake.attempts}
        # Asked for the error alone: a name server that is away takes its time.
        from replayd_client.diagnosis import name_fault

        fault = name_fault(self.address) if self._handshake.is_without_answer else None
        text = fault or self._handshake.text(waited_s)
        if CONNECT_S <= waited_s < 2 * CONNECT_S:
            text += f" A call has {CONNECT_S:g} s to connect, whatever its deadline."
        return ConnectionLostError(text, detail=detail)

    def close(self) -> None:
        """Close the socket; messages handed to it go on being sent for LINGER_MS at most."""
        self._closed = True
        self._close_socket(LINGER_MS)

    def __del__(self) -> None:
        # Without a word: whoever waited for something would hold a reference.
        if not getattr(self, "_closed", True):
            self.close()

    def forget(self) -> None:
        """Drop everything untouched: in a forked child the sockets belong to the parent."""
        _INHERITED.append((self._context, self._socket, self._monitor, self._poller))
        self._closed = True
        self._socket = self._monitor = None

    # Replies.

    def _receive(self) -> list[Reply]:
        replies: list[Reply] = []
        while self._socket is not None and int(self._socket.getsockopt(zmq.EVENTS)) & _READABLE:
            try:
                reply = decode_reply(_received(self._socket))
            except ProtocolError as error:
                self._handshake.trouble = f"something that does not speak replayd's protocol answers ({error})"
                self._replace(time.monotonic())
                raise
            if reply.id == self._hello_id and not self._ready:
                self._greeted(reply)
            else:
                replies.append(reply)
        return replies

    def _greeted(self, reply: Reply) -> None:
        if isinstance(reply, HelloReply):
            if VERSION not in reply.versions:
                self._replace(time.monotonic())
                raise UnsupportedVersionError(
                    f"{self.address} speaks versions {list(reply.versions)} of the protocol, this client {VERSION}",
                    detail={"versions": list(reply.versions)},
                )
            self.hello = reply
            self.session += 1
            self._ready = True
            self._failures = 0
            self._handshake.greeted()
            return
        error = reply.error if isinstance(reply, ErrorReply) else ProtocolError("hello was not answered by hello")
        self._handshake.trouble = str(error)
        self._replace(time.monotonic())
        if error.code not in ("shutting_down", "loading", "not_durable"):
            raise error

    # The socket.

    def _open(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = LINGER_MS
        socket.sndhwm = socket.rcvhwm = HIGH_WATER_MESSAGES
        socket.reconnect_ivl = NEVER_MS
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
        socket.copy_threshold = COPY_BELOW_BYTES
        # With IPv6 on, libzmq takes the first address a name has: for localhost that is ::1, where few servers listen.
        socket.ipv6 = "[" in self.address
        self._monitor = socket.get_monitor_socket(int(EVENTS), f"inproc://replayd-monitor-{next(_MONITORS)}")
        self._socket = socket
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(socket, zmq.POLLIN)
        self._handshake.show(socket)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            self._close_socket(0)
            raise ConnectionLostError(f"{self.address} is no address to connect to: {error}") from error
        self._handshake.began()
        self._opened_at = time.monotonic()
        self._hello_id = self.next_id()
        self._send(socket, encode_hello(self._hello_id, _client_name(os.getpid())))

    def _send(self, socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> bool:
        try:
            # As `send_multipart` does, without its look at each frame and the enumeration's arithmetic.
            for frame in frames[:-1]:
                socket.send(frame, _MORE, copy=False)
            socket.send(frames[-1], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def _attempt_ends(self) -> float:
        """When a socket that is not connected by then is replaced."""
        is_trying = self._socket is not None and not self._handshake.is_connected
        return self._opened_at + ATTEMPT_S if is_trying else math.inf

    def _read_monitor(self) -> bool:
        """Read what happened to the socket; return whether the connection was lost."""
        lost = False
        while self._monitor is not None and int(self._monitor.getsockopt(zmq.EVENTS)) & _READABLE:
            lost |= self._handshake.take(self._monitor.recv_multipart(zmq.NOBLOCK))
        return lost

    def _replace(self, now: float) -> None:
        """Close the socket; `pump` opens another, at once if this one had a session."""
        self._reopen_at = now
        if not self._ready:
            self._reopen_at += REOPEN_S[min(self._failures, len(REOPEN_S) - 1)]
            self._failures += 1
        self._ready = False
        self._asked = None
        # What is still queued in the socket will be sent again in the next session.
        self._close_socket(0)

    def _close_socket(self, linger_ms: int) -> None:
        if self._socket is None or self._monitor is None:
            return
        self._poller.unregister(self._monitor)
        self._poller.unregister(self._socket)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
        self._socket = self._monitor = None

    # Words.

    def _overdue(self, what: str, waited_s: float, put_off: ReplaydError | None) -> ReplaydError:
        if put_off is not None:
            return self._put_off(put_off, what, waited_s)
        if not self._ready:
            return self.unreachable(waited_s)
        return DeadlineExceededError(f"{what}: no answer from {self.address} within {waited_s:.1f} s")

    def _put_off(self, error: ReplaydError, what: str, waited_s: float) -> ReplaydError:
        """The last word of a server that is starting or stopping, with what it was asked and where."""
        return type(error)(
            f"{what}: {self.address} does not serve now: {error} (waited {waited_s:.1f} s)",
            detail={**error.detail, "address": self.address, "waited_s": round(waited_s, 3)},
            code=error.code,
        )


class Call:
    """A request on its way: sent when it is made, if there is a session, and again in each new one. See
    `Connection.call`. One at a time on a connection."""

    __slots__ = ("_connection", "_deadline", "_encode", "_grace_s", "_id", "_on_wait", "_sent_in", "_started", "_what")

    def __init__(
        self,
        connection: Connection,
        what: str,
        encode: Encoder,
        deadline: float | None,
        *,
        grace_s: float = 0.0,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self._connection = connection
        self._what = what
        self._encode = encode
        self._deadline = deadline
        self._grace_s = grace_s
        self._on_wait = on_wait
        self._id = connection.next_id()
        self._started = time.monotonic()
        self._sent_in = -1
        self._send()

    def answer(self) -> Reply:
        """Wait for the answer, and return or raise it."""
        try:
            return self._answer()
        except BaseException:  # Ctrl-C as well: the request may be a sample that waits.
            self._connection.withdraw()
            raise

    def _answer(self) -> Reply:
        connection, started, deadline = self._connection, self._started, self._deadline
        send_at = 0.0
        put_off: ReplaydError | None = None
        warn_at = started + WARN_AFTER_S
        while True:
            now = time.monotonic()
            if now >= send_at:
                self._send()
            if deadline is None:
                until = math.inf
            else:
                until = deadline + self._grace_s if connection.ready else max(deadline, started + CONNECT_S)
            if now >= until:
                raise connection._overdue(self._what, now - started, put_off)
            if now >= warn_at:
                if not connection.ready:
                    _warn("%s: %s", self._what, connection._handshake.text(now - started))
                elif self._on_wait is not None:
                    self._on_wait(now - started)
                warn_at = now + (now - started)
            until = min(until, warn_at)
            if self._sent_in != connection.session and send_at > now:
                until = min(until, send_at)
            for reply in connection.pump(max(until - now, 0.0)):
                if reply.id != self._id:
                    continue  # An answer to a request that was given up.
                connection._asked = None
                if not isinstance(reply, ErrorReply):
                    if isinstance(reply, HelloReply):
                        connection.hello = reply
                    return reply
                if reply.error.code not in ("shutting_down", "loading", "not_durable"):
                    raise reply.error
                put_off = reply.error
                self._sent_in, send_at = -1, time.monotonic() + PUT_OFF_S

    def _send(self) -> None:
        connection = self._connection
        if connection.ready and self._sent_in != connection.session and connection.send(self._encode(self._id)):
            self._sent_in, connection._asked = connection.session, self._id


def _warn(text: str, *arguments: object) -> None:
    """Log this. Few have anything to log, and `logging` takes a tenth of what a command may take to start."""
    import logging

    logging.getLogger("replayd_client").warning(text, *arguments)


def _received(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """The frames of the next message.

    As `recv_multipart` does, without asking the socket for an option behind each frame: with that a frame took 5 µs
    longer, and a payload of 40 kB is a frame.
    """
    frames = [socket.recv(_NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOBLOCK, copy=False))
    return frames


_MONITORS = itertools.count()
_INHERITED: list[Any] = []
"""Sockets of the parent, kept in a forked child so that nothing ever closes them there."""


@functools.cache
def _client_name(pid: int) -> str:
    """What people find this process by: its program, number and machine."""
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else "python"
    name = f"{program[:60]} {pid}@{os.uname().nodename[:50]}"
    # A file may be called anything; a name is at most 128 bytes without control characters (protocol.md §4).
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name)
