"""Connections: how many peers are connected to the daemon's sockets, by libzmq's own events.

Owns the monitor sockets. Whoever polls must take their events soon: libzmq's I/O thread waits when too many are unread.
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class Connections:
    """The open connections of the sockets that are watched; their number is its length."""

    def __init__(self) -> None:
        self._watched: list[zmq.Socket[Any]] = []
        self.monitors: list[zmq.Socket[Any]] = []
        self._open: list[set[int]] = []
        """Descriptors of the connections of each socket."""

    def __len__(self) -> int:
        return sum(map(len, self._open))

    def watch(self, socket: zmq.Socket[Any]) -> None:
        """Count connections of this socket, which is not bound yet."""
        self.monitors.append(socket.get_monitor_socket(_EVENTS))
        self._watched.append(socket)
        self._open.append(set())

    def take(self) -> None:
        """Take all events that wait."""
        for monitor, descriptors in zip(self.monitors, self._open, strict=True):
            while monitor.poll(0):
                event = recv_monitor_message(monitor)
                # The endpoint of both events is the listening one; a descriptor names a connection as long as it lasts.
                if event["event"] == zmq.EVENT_ACCEPTED:
                    descriptors.add(event["value"])
                else:
                    descriptors.discard(event["value"])

    def close(self) -> None:
        """Watch no more; to be called before the sockets are closed."""
        for socket, monitor in zip(self._watched, self.monitors, strict=True):
            socket.disable_monitor()
            monitor.close(linger=0)
