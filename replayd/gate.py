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

from replayd.access import AccessError, Holder, read_allowed
from replayd.key_files import ALLOWED_FILE, SERVER_FILE, read_server_secret

log = logging.getLogger("replayd")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"replayd"
REFUSALS_TOLD = 1024
"""Keys and addresses of which a refusal is remembered, so that a peer which tries again and again is told of once."""


_REVOKED = Holder("whose key was revoked", "", ())


class Gate:
    """`keys` is a directory that `replayd keys` has made. Raises AccessError."""

    def __init__(self, context: zmq.Context[Any], keys: Path) -> None:
        self._secret = read_server_secret(keys / SERVER_FILE)
        self._allowed_file = keys / ALLOWED_FILE
        self._holders = read_allowed(self._allowed_file)
        self._told: set[str] = set()
        self.refused = 0
        """Connections that were not let in."""
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP_ENDPOINT)

    def guard(self, socket: zmq.Socket[Any]) -> None:
        """Let only holders of keys connect to a socket that is not bound yet."""
        socket.curve_server = True
        socket.curve_secretkey = self._secret.encode()
        socket.zap_domain = ZAP_DOMAIN

    def reload(self) -> None:
        """Read again who has keys. If that cannot be read, those from before go on being good, and the log says so."""
        try:
            self._holders = read_allowed(self._allowed_file)
        except AccessError as error:
            log.error("the keys of before stay good, for the list of now cannot be read: %s; mend it, and HUP", error)
            return
        self._told.clear()
        log.info("%d peers may come in", len(self._holders))

    def answer(self) -> None:
        """Answer all connections that ask to be let in."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self.socket.send_multipart(self._answer(self.socket.recv_multipart()))

    def holder(self, frame: Any) -> Holder:
        """Who sent this frame; somebody who may do nothing, if that key is good no more."""
        return self._holders.get(frame.get("User-Id"), _REVOKED)

    def close(self) -> None:
        """Nobody is let in any more."""
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
