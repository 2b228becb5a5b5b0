"""What becomes of a socket's attempts to reach a server, as libzmq tells it event by event, in words for people.

Owns the story of one address, over all sockets that are opened to it. Knows nothing of messages and sessions.
"""

from __future__ import annotations

import struct
from typing import Any

import zmq

from replayd_client.errors import AccessDeniedError
from replayd_client.keys import KEY_FILE_VARIABLE, Keys

_LOST = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
EVENTS = _LOST | zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
"""Those that `Handshake.take` wants to hear of."""

_NO_ANSWER = "no answer"
_NO_HELLO = "connected, but no answer to hello"
_NOBODY = "nothing accepts a connection"
_NO_ZEROMQ = "what listens there does not speak ZeroMQ"
_NO_ROUTER = "something answers there, but does not speak as a ROUTER"
"""libzmq ends a handshake with a socket of another kind by hanging up, and says no more of it."""

HANG_UPS = 3
"""In a handshake with keys, which are no accident any more: a server that stops or starts hangs up once. libzmq does so
with whoever does not know the server's key, and says nothing."""

_KEY_REFUSED = 400
"""What the gate of a replayd answers for a key that it does not know."""


class Handshake:
    """`keys` are those that this side shows, if it has any."""

    def __init__(self, address: str, keys: Keys | None) -> None:
        self.attempts = 0
        """Since there last was a session."""
        self.trouble = _NO_ANSWER
        """What holds the session up."""
        self.denied: AccessDeniedError | None = None
        """Why trying on is of no use, as long as nobody changes something about keys."""
        self._address = address
        self._keys = keys
        self._connected = self._shook_hands = False
        self._hang_ups = 0
        """In handshakes, since there last was a session."""

    def began(self) -> None:
        """Another socket is being connected."""
        self.attempts += 1
        self._connected = self._shook_hands = False
        self.denied = None

    def greeted(self) -> None:
        """There is a session."""
        self.attempts = self._hang_ups = 0

    @property
    def is_connected(self) -> bool:
        """Whether the present socket's attempt has reached something."""
        return self._connected

    @property
    def is_without_answer(self) -> bool:
        """Whether nobody has been heard there at all."""
        return self.trouble in (_NO_ANSWER, _NOBODY)

    def text(self, waited_s: float) -> str:
        """What the trouble is, for people."""
        attempts = f"{self.attempts} attempt{'s' if self.attempts != 1 else ''}"
        trouble = f"{self.trouble} (waited {waited_s:.1f} s, {attempts})"
        if self.trouble == _NO_ROUTER:
            return f"no port for clients at {self._address}: {trouble}. Is this the ingest port?"
        return f"no replayd at {self._address}: {trouble}. Is replayd running there, and is this its port for clients?"

    def take(self, message: list[bytes]) -> bool:
        """Take what a socket's monitor tells; return whether the connection was lost."""
        event, value = struct.unpack_from("=hi", message[0])
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._deny(
                f"the key of {self._keys.name!r} is not known there (code {value}): it was revoked, or the server has "
                "not read its allow-list again; `replayd keys list` and `systemctl reload replayd` at the server"
                if self._keys is not None and value == _KEY_REFUSED
                else f"the server lets nobody in without a key that it knows (code {value})"
            )
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            self._deny_mechanism()
        elif event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
            if self._shook_hands:
                self.trouble = "the connection was lost"
            elif self.trouble != _NO_ZEROMQ and self.denied is None:
                self.trouble = _NO_ROUTER
                self._hang_ups += 1
                if self._hang_ups % HANG_UPS == 0:
                    self._ask_why()
        elif event == zmq.EVENT_CLOSED:
            self.trouble = _NOBODY
        elif event & _LOST:
            self.trouble = _NO_ZEROMQ
        elif event == zmq.EVENT_CONNECTED:
            self._connected = True
            # What could not shake hands before is about to fail again.
            if self.trouble not in (_NO_ROUTER, _NO_ZEROMQ):
                self.trouble = _NO_HELLO
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._shook_hands = True
            self.trouble = _NO_HELLO
        return bool(event & _LOST)

    def show(self, dealer: zmq.Socket[Any]) -> None:
        """Give a socket the keys, before it is connected."""
        if self._keys is not None:
            dealer.curve_publickey = self._keys.public.encode()
            dealer.curve_secretkey = self._keys.secret.encode()
            dealer.curve_serverkey = self._keys.server.encode()

    def _ask_why(self) -> None:
        """A mechanism that differs is as often told as a mere hang-up: what the server announces tells them apart."""
        from replayd_client.diagnosis import announced_mechanism

        announced = announced_mechanism(self._address)
        if announced is not None and (announced == "CURVE") != (self._keys is not None):
            self._deny_mechanism()
        elif announced is not None and self._keys is not None:
            self._deny(
                f"it hangs up whenever {self._keys.name!r} shows its key: the server's own key, which the key file has "
                "too, is another one by now (`replayd keys generate` there makes a new file), or this is not its port "
                "for clients"
            )

    def _deny_mechanism(self) -> None:
        self._deny(
            "the server wants a key, and this client shows none: Client(address, key_file=…), or "
            f"{KEY_FILE_VARIABLE} in the environment; `replayd keys generate` at the server makes one"
            if self._keys is None
            else f"this client shows the key of {self._keys.name!r}, and the server takes no keys"
        )

    def _deny(self, why: str) -> None:
        self.trouble = why
        self.denied = AccessDeniedError(f"not let in at {self._address}: {why}", detail={"address": self._address})
