"""The gate: which connections are let in, by CURVE keys, and as whom each message comes.

Owns the ZAP socket (ZeroMQ RFC 27), which the loop answers itself: libzmq asks there before a connection is made.
Whoever has been let in is known in each of its messages, and what it may do is looked up anew each time: a key that is
revoked is good for nothing from then on.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from replayd.access import Holder, read_allowed
from replayd.errors import Forbidden
from replayd.key_files import read_server_secret

log = logging.getLogger("replayd")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"replayd"
REFUSALS_TOLD = 1024
"""Keys and addresses of which a refusal is remembered, so that a peer which tries again and again is told of once."""


class Gate:
    """`secret_file` is the server's, `allowed_file` says who else has keys. Raises AccessError."""

    def __init__(self, context: zmq.Context[Any], secret_file: Path, allowed_file: Path) -> None:
        self._secret = read_server_secret(secret_file)
        self._allowed_file = allowed_file
        self._holders = read_allowed(allowed_file)
        self._told: set[str] = set()
        self.refused = 0
        """Connections that were not let in."""
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP_ENDPOINT)

    @property
    def holders(self) -> int:
        """How many have a key."""
        return len(self._holders)

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """Let only holders of keys connect to a socket that is not bound yet."""
        socket.curve_server = True
        socket.curve_secretkey = self._secret.encode()
        socket.zap_domain = ZAP_DOMAIN

    def reload(self) -> None:
        """Read again who has keys. Raises AccessError; then those from before go on being good."""
        self._holders = read_allowed(self._allowed_file)
        self._told.clear()

    def answer(self) -> None:
        """Answer all connections that ask to be let in."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self.socket.send_multipart(self._answer(self.socket.recv_multipart()))

    def holder(self, frame: Any) -> Holder | Forbidden:
        """Who sent this frame, or why nobody who may send anything did."""
        key = frame.get("User-Id")
        holder = self._holders.get(key)
        return holder or Forbidden("the key of this connection has been revoked", needed=[])

    def close(self) -> None:
        self.socket.close(0)

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain, address, _, mechanism, *credentials = [*request, *[b""] * 7][: max(len(request), 7)]
        key = ""
        if domain == ZAP_DOMAIN and mechanism == b"CURVE" and len(credentials[0]) == 32:
            key = z85.encode(credentials[0]).decode()
        if key in self._holders:
            return [version, number, b"200", b"OK", key.encode(), b""]
        self.refused += 1
        self._tell(address.decode(errors="replace"), key)
        return [version, number, b"400", b"unknown key", b"", b""]

    def _tell(self, address: str, key: str) -> None:
        if len(self._told) < REFUSALS_TOLD and f"{address} {key}" not in self._told:
            self._told.add(f"{address} {key}")
            log.warning(
                "refused a connection from %s: %s; `replayd keys generate` makes a key that is known here",
                address,
                f"nobody in {self._allowed_file} has the key {key}" if key else "it has no key",
            )
