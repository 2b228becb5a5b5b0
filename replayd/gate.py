"""The gate: which connections are let in, by CURVE keys, and as whom each message comes.

Owns the ZAP socket (ZeroMQ RFC 27), which the loop answers itself: libzmq asks there before a connection is made.
Whoever has been let in is known in each of its messages, and what it may do is looked up anew each time: a key that is
revoked is good for nothing from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from replayd.access import ALLOWED_FILE, AccessError, Holder, read_allowed
from replayd.errors import PeerError
from replayd.key_files import SERVER_FILE, read_server_secret
from replayd.limits import STREAMS
from replayd.messages import Peer

log = logging.getLogger("replayd")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"replayd"
PEERS_KNOWN = STREAMS.value
"""Of more than so many connections at a time those that have long sent nothing get no reply."""

_UNKNOWN = Holder("", "", ())
"""Who has sent nothing for long, and is not remembered."""


class Gate:
    """`keys` is a directory that `replayd keys` has made; `tell` takes a text for each connection that is refused.

    Raises AccessError.
    """

    def __init__(self, context: zmq.Context[Any], keys: Path, tell: Callable[[str], None]) -> None:
        self._secret = read_server_secret(keys / SERVER_FILE)
        self._allowed_file = keys / ALLOWED_FILE
        self._holders = read_allowed(self._allowed_file)
        self._revoked: dict[str, Holder] = {}
        """Those who had keys before, without roles: their connections are still open."""
        self._tell = tell
        self._key_of: dict[Peer, str] = {}
        """Of those who have sent something, the last PEERS_KNOWN of them."""
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
        before = self._holders
        try:
            self._holders = read_allowed(self._allowed_file)
        except AccessError as error:
            log.error("the keys of before stay good, for the list of now cannot be read: %s; mend it, and HUP", error)
            return
        self._revoked |= {key: replace(holder, roles=()) for key, holder in before.items()}
        log.info("%d peers may come in", len(self._holders))

    def answer(self) -> None:
        """Answer all connections that ask to be let in."""
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self.socket.send_multipart(self._answer(self.socket.recv_multipart()))

    def holder(self, peer: Peer, frame: Any) -> Holder:
        """Who sent this frame; somebody who may do nothing, if that key is good no more."""
        key = frame.get("User-Id")
        if peer is not None:
            self._key_of[peer] = key
            if len(self._key_of) > PEERS_KNOWN:
                del self._key_of[next(iter(self._key_of))]
        return self._holders.get(key) or self._revoked.get(key, _UNKNOWN)

    def refusal_of_reply(self, peer: Peer, op: str) -> PeerError | None:
        """Why a reply must not go to this peer, whose key has been revoked since it asked; None if it may."""
        key = self._key_of.get(peer, "")
        return None if key in self._holders else self._revoked.get(key, _UNKNOWN).refusal(op)

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
        who = address.decode(errors="replace")
        why = f"nobody in {self._allowed_file} has the key {key}" if key else "it has no key"
        self._tell(f"refused a connection from {who}: {why}; `replayd keys generate` makes a key that is known here")
        return [version, number, b"400", b"unknown key", b"", b""]
