"""The sockets of the daemon: how they are made, and where they turn out to be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import zmq

from replayd.connections import Connections
from replayd.errors import BindError
from replayd.limits import FRAME_BYTES

LINGER_MS = 1000
"""Time for the last replies to leave at the end."""

_OPTIONS: Mapping[int, Mapping[int, int]] = {
    zmq.ROUTER: {
        # Without it libzmq drops replies to a full or vanished peer and says nothing.
        zmq.ROUTER_MANDATORY: 1,
        # Twice what a peer may have open (window_messages + parked_samples), so a peer that reads never meets it.
        zmq.SNDHWM: 256,
        zmq.RCVHWM: 100,
        # A peer that lost power is noticed, and its queue freed, within 15 s. Not on PULL: left unread it hears no
        # answers.
        zmq.HEARTBEAT_IVL: 5000,
        zmq.HEARTBEAT_TIMEOUT: 15000,
    },
    zmq.PULL: {zmq.RCVHWM: 100},
}
_COMMON_OPTIONS: Mapping[int, int] = {
    zmq.LINGER: LINGER_MS,
    zmq.MAXMSGSIZE: FRAME_BYTES.value,
    zmq.BACKLOG: 1024,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.TCP_KEEPALIVE: 1,
}


def bound(context: zmq.Context[Any], kind: int, endpoint: str, connections: Connections) -> zmq.Socket[Any]:
    """A socket of this kind at an endpoint, its connections counted. Raises BindError."""
    socket: zmq.Socket[Any] = context.socket(kind)
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    for option, value in (*_COMMON_OPTIONS.items(), *_OPTIONS[kind].items()):
        socket.setsockopt(option, value)
    connections.watch(socket)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise BindError(f"cannot bind {endpoint}: {os.strerror(error.errno or 0)}") from error
    return socket


def address_of(socket: zmq.Socket[Any]) -> str:
    """The endpoint of a bound socket, with its real port."""
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()
