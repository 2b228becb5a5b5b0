"""A connection whose user may wait in `call` or `pump` without end: another thread can interrupt it, for good."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence

import zmq

from replayd_client.connection import Connection
from replayd_client.errors import ReplaydError
from replayd_client.keys import Keys
from replayd_client.messages import Buffer
from replayd_client.pool import ZmqContext
from replayd_client.wire import Reply

log = logging.getLogger("replayd_client")

WITHDRAW_S = 1.0
"""Longest wait at the end for a server to take a sample back."""


class Interrupted(Exception):
    """Raised out of every use after `interrupt`."""


class InterruptibleConnection(Connection):
    """A connection for one thread, which any other thread may interrupt."""

    def __init__(self, address: str, context: ZmqContext, keys: Keys | None) -> None:
        super().__init__(address, context, keys)
        self._lock = threading.Lock()
        self._is_interrupted = False
        # A byte that is never read: from then on the poll in `pump` returns at once.
        self._waker, self._bell = socket.socketpair()
        self._poller.register(self._bell, zmq.POLLIN)

    def interrupt(self) -> None:
        """Make the present and every later use raise Interrupted. May be called again."""
        # The lock keeps the descriptor from being closed, and used for something else, under the send.
        with self._lock:
            if not self._is_interrupted and self._waker.fileno() >= 0:
                self._is_interrupted = True
                self._waker.send(b"\0")

    def send(self, frames: Sequence[Buffer]) -> bool:
        if self._is_interrupted:
            raise Interrupted
        return super().send(frames)

    def withdraw(self, wait_s: float = 0.0) -> None:
        # Nothing is sent after an interruption; `close` does it.
        if not self._is_interrupted:
            super().withdraw(wait_s)

    def close(self) -> None:
        """Take back what waits at the server, and close. Who inserts afterwards inserts for others: so this waits for
        the server's word, WITHDRAW_S at most."""
        with self._lock:
            self._is_interrupted = False
            self._poller.unregister(self._bell)
            self._waker.close()
            self._bell.close()
        try:
            self.withdraw(WITHDRAW_S)
        except ReplaydError as error:
            log.info("a sample of %s could not be taken back: %s", self.address, error)
        super().close()

    def _receive(self) -> list[Reply]:
        if self._is_interrupted:
            raise Interrupted
        return super()._receive()
