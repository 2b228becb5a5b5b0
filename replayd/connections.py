"""Connections: how many peers are connected to the daemon's sockets, and who failed to, by libzmq's own events.

Owns the monitor sockets. Whoever polls must take their events soon: libzmq's I/O thread waits when too many are unread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import zmq

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
"""Whom the gate refuses is told of by the gate."""
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED

_EVENT = struct.Struct("=Hi")
"""What zmq_socket_monitor(3) says of an event before its endpoint: which it is, and its value. `zmq.utils.monitor` has
a reader of it as well, but imports asyncio for that, which was 30 ms of every start of the daemon."""


@dataclass(frozen=True, slots=True)
class FailedHandshake:
    """A connection that did not come to be, before anybody was asked who may come in."""

    endpoint: str
    """Where it was tried."""
    wants_keys: bool
    """Whether one needs a key there."""
    hung_up: bool
    """The other side ended it, without a word: whoever only looks whether a port is open, or a peer of which libzmq
    noticed first that only one side has keys. Else this side did: for that, or for the key of another server."""


class Connections:
    """The open connections of the sockets that are watched; their number is its length."""

    def __init__(self) -> None:
        self._watched: list[zmq.Socket[Any]] = []
        self.monitors: list[zmq.Socket[Any]] = []
        self.failed: list[FailedHandshake] = []
        """Those since somebody took them away."""
        self._wants_keys: list[bool] = []
        self._open: list[set[int]] = []
        """Descriptors of the connections of each socket."""

    def __len__(self) -> int:
        return sum(map(len, self._open))

    def watch(self, socket: zmq.Socket[Any]) -> None:
        """Count connections of this socket, which is guarded if it will be, and not bound yet."""
        self.monitors.append(socket.get_monitor_socket(_EVENTS))
        self._watched.append(socket)
        self._wants_keys.append(bool(socket.getsockopt(zmq.CURVE_SERVER)))
        self._open.append(set())

    def take(self) -> None:
        """Take all events that wait."""
        for monitor, descriptors, wants_keys in zip(self.monitors, self._open, self._wants_keys, strict=True):
            while monitor.poll(0):
                packed, endpoint = monitor.recv_multipart()
                event, value = _EVENT.unpack(packed)
                # The endpoint of all events is the listening one; a descriptor names a connection as long as it lasts.
                if event == zmq.EVENT_ACCEPTED:
                    descriptors.add(value)
                elif event == zmq.EVENT_DISCONNECTED:
                    descriptors.discard(value)
                else:
                    hung_up = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                    self.failed.append(FailedHandshake(endpoint.decode(), wants_keys, hung_up))

    def close(self) -> None:
        """Watch no more; to be called before the sockets are closed."""
        for socket, monitor in zip(self._watched, self.monitors, strict=True):
            socket.disable_monitor()
            monitor.close(linger=0)
