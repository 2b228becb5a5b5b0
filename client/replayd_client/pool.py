"""The connections of one client: each is lent to one thread at a time, and none outlives a fork.

Owns the process's ZeroMQ context. Knows nothing of operations, and must not know numpy: see `wire`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from replayd_client.connection import Connection, Encoder
from replayd_client.errors import ClosedError, DataError
from replayd_client.keys import Keys
from replayd_client.wire import Reply

IDLE_CONNECTIONS = 16
"""Connections kept open while nobody uses them; more threads than this open and close their own."""
MAX_SOCKETS = 65_535
"""libzmq's bound on sockets of a context, three for a connection; the process's file limit comes first."""

ZmqContext = zmq.Context[zmq.Socket[bytes]]


class ConnectionPool:
    """Connections to one address, opened as threads ask for them. Safe for threads; starts afresh in a forked child."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self.address = address
        self.keys = keys
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._lent: set[Connection] = set()
        self._closed = False
        _POOLS.add(self)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection for the length of a block. Raises ClosedError after `close`."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def call(self, what: str, encode: Encoder, deadline: float | None) -> Reply:
        """Send a request on one of them and return its answer: see `Connection.call`."""
        with self.connection() as connection:
            return connection.call(what, encode, deadline)

    def dedicated(self) -> Connection:
        """A connection of its own for a writer, which closes it."""
        self._check_open()
        return Connection(self.address, zmq_context(), self.keys)

    def close(self) -> None:
        """Close what is idle now and what is lent when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the client is closed")

    def _take(self) -> Connection:
        with self._lock:
            self._check_open()
            connection = self._idle.pop() if self._idle else Connection(self.address, zmq_context(), self.keys)
            self._lent.add(connection)
            return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection not in self._lent:
                return  # Lent before a fork: it is the parent's.
            self._lent.remove(connection)
            if not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _forget(self) -> None:
        """In a forked child: the parent's connections are dropped untouched, and its locks with them."""
        for connection in (*self._idle, *self._lent):
            connection.forget()
        self._lock = threading.Lock()
        self._idle = []
        self._lent = set()


def endpoint_of(address: str) -> str:
    """The ZeroMQ endpoint of an address as people write it. Raises DataError for what is none."""
    if not isinstance(address, str) or not address:
        raise DataError(f"a server address is a string such as 'localhost:7077', not {address!r}")
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "tcp", address
    if scheme == "ipc" and rest:
        return address
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not port.isdecimal():
        raise DataError(f"{address!r} is neither 'host:port', 'tcp://host:port' nor 'ipc://path'")
    if not 1 <= int(port) <= 65_535:
        raise DataError(f"the port of {address!r} must be 1 to 65535")
    return f"tcp://{rest}"


def zmq_context() -> ZmqContext:
    """The context of this process, made at the first use."""
    global _context
    with _context_lock:
        if _context is None:
            _context = zmq.Context()
            _context.max_sockets = MAX_SOCKETS
        return _context


_context: ZmqContext | None = None
_context_lock = threading.Lock()
_inherited_contexts: list[ZmqContext] = []
_POOLS: weakref.WeakSet[ConnectionPool] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    global _context, _context_lock
    _context_lock = threading.Lock()
    if _context is not None:
        # Kept, so that nothing ends it here: its threads live in the parent.
        _inherited_contexts.append(_context)
        _context = None
    for pool in list(_POOLS):
        pool._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
