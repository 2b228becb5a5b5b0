"""Why there is no session at an address, where libzmq does not say: names that do not resolve, mechanisms that differ.

Asks with Python's own sockets. Nobody needs it who is answered, so it is imported when there is something to find out.
"""

from __future__ import annotations

import contextlib
import socket

ANNOUNCED_S = 1.0
"""How long a socket may take to say what it is."""
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03"
"""Signature and major version of ZMTP."""
_MECHANISM = slice(12, 32)
"""Where it stands in a greeting."""


def name_fault(address: str) -> str | None:
    """What is wrong with the name of the host in a tcp address; None if it resolves."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp":
        return None
    try:
        socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"no replayd at {address}: the name {host!r} does not resolve ({error})"
    return None


def announced_mechanism(address: str) -> str | None:
    """The security mechanism of the ZeroMQ socket at an endpoint, `NULL` or `CURVE`; None if it does not say.

    The first part of the greeting of ZMTP (RFC 23) is sent, which names no mechanism to take offence at, and theirs is
    read. Takes ANNOUNCED_S at most.
    """
    scheme, _, rest = address.partition("://")
    greeting = b""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) if scheme == "ipc" else _tcp(rest) as peer:
        peer.settimeout(ANNOUNCED_S)
        if scheme == "ipc":
            peer.connect(rest)
        peer.sendall(_GREETING)
        while len(greeting) < _MECHANISM.stop and (part := peer.recv(_MECHANISM.stop - len(greeting))):
            greeting += part
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace") or None


def _tcp(rest: str) -> socket.socket:
    host, _, port = rest.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), ANNOUNCED_S)
