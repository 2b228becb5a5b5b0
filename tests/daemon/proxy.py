"""A TCP proxy that cuts connections after so many bytes of the server, so that answers are lost, or freezes them."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator

_FREEZE, _CLOSE = b"f", b"c"


class CuttingProxy:
    """Forwards connections to `target`. Each takes the next of `budgets`: what the server sends beyond so many bytes is
    lost and ends it. When there are no more budgets connections live on."""

    def __init__(self, target: tuple[str, int], budgets: Iterator[int]) -> None:
        self.cuts = 0
        self._target = target
        self._budgets = budgets
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._peer: dict[socket.socket, socket.socket] = {}
        self._left: dict[socket.socket, int | None] = {}
        self._frozen: list[socket.socket] = []
        self._has_frozen = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def freeze(self) -> None:
        """What is connected now is silent from here on, as if the other machine had lost its power: nothing is read of
        either side, and nothing ends. Connections that are made later live."""
        self._has_frozen.clear()
        self._waker.send(_FREEZE)
        self._has_frozen.wait()

    def close(self) -> None:
        self._waker.send(_CLOSE)
        self._thread.join()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._wake and self._wake.recv(1) == _FREEZE:
                    for alive in self._peer:
                        self._selector.unregister(alive)
                    self._frozen += self._peer
                    self._peer.clear()
                    self._left.clear()
                    self._has_frozen.set()
                elif ready is self._wake:
                    for open_socket in [*self._peer, *self._frozen, self._listener, self._wake, self._waker]:
                        open_socket.close()
                    self._selector.close()
                    return
                elif ready is self._listener:
                    self._accept()
                elif ready in self._peer:
                    self._forward(ready)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ)
        self._left[server] = next(self._budgets, None)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        left = self._left.get(source)
        if data and left is not None:
            if len(data) > left:
                self.cuts += 1
                data = b""
            else:
                self._left[source] = left - len(data)
        sink = self._peer[source]
        try:
            if data:
                sink.sendall(data)
                return
        except OSError:
            pass
        for end in (source, sink):
            self._selector.unregister(end)
            self._peer.pop(end)
            self._left.pop(end, None)
            end.close()
