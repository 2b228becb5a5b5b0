"""The watch over the loop: how long its turns take, what the process has, who is connected; and bulletins of it all.

Owns when to look, and what the service manager is told of it. The loop calls `begin` and `end` in each turn, which cost
next to nothing but once a second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time

from replayd.board import INTERVAL_S, Board
from replayd.connections import Connections, FailedHandshake
from replayd.fault_log import FaultLog
from replayd.filling import Forecasts
from replayd.notify import Manager
from replayd.process import address_space_bytes, limit_bytes, most_open_files, open_files, resident_bytes
from replayd.service import Service

SLOW_TURN_S = 1.0
"""A turn of the loop that is worth a line in the log: somebody waited as long for an answer."""


class Watch:
    """Over one service. `board` None: nobody looks at bulletins, so none are made. A `manager` needs them."""

    def __init__(
        self,
        service: Service,
        connections: Connections,
        lines: FaultLog,
        board: Board | None,
        manager: Manager | None = None,
    ) -> None:
        self._service = service
        self._vitals = service.counters.vitals
        self._connections = connections
        self._lines = lines
        self._board = board
        self._manager = manager
        self._look_at = 0.0
        self._forecasts = Forecasts()
        self._vitals.pid = os.getpid()
        self._vitals.limit_bytes = limit_bytes()
        self._vitals.address_space_bytes = address_space_bytes()

    def tell(self, state: str, step: object = None) -> None:
        """Why requests are not served, for who looks at the board, and the manager; empty: they are.

        `step`: where what is waited for is, which is another one when that gets on.
        """
        now = time.monotonic()
        if self._board is not None:
            self._board.tell(state, step, now)
        if self._manager is not None:
            self._manager.tell(state, step, now)

    def reloading(self) -> contextlib.AbstractContextManager[None]:
        """While inside, settings are read again."""
        return contextlib.nullcontext() if self._manager is None else self._manager.reloading()

    def peers_changed(self) -> None:
        """Somebody connected or left."""
        self._connections.take()
        self._vitals.connections = len(self._connections)
        failed, self._connections.failed = self._connections.failed, []
        for each in failed:
            self._tell_of_handshake(each)

    def _tell_of_handshake(self, failed: FailedHandshake) -> None:
        counters = self._service.counters
        if failed.hung_up:
            counters.handshakes_abandoned += 1
        else:
            counters.connections_refused += 1
        # Where no keys are needed, who hangs up only looked whether the port is open.
        if failed.wants_keys or not failed.hung_up:
            text, level = handshake_text(failed)
            self._lines.say(text, kind=text, now=time.monotonic(), level=level, fields={"event": "handshake"})

    def begin(self, now: float) -> None:
        """A turn begins: the loop has what arrived, and has handled none of it."""
        if now >= self._look_at:
            self._look_at = now + INTERVAL_S
            self._vitals.resident_bytes = resident_bytes()
            self._vitals.open_files = open_files()
            # An operator can raise it while the process runs (prlimit).
            self._vitals.most_open_files = most_open_files()
            tables, has_store = self._service.tables.values(), self._service.durability.path is not None
            for name, text, is_bad in self._forecasts.due(tables, self._vitals.limit_bytes, has_store=has_store):
                level = logging.WARNING if is_bad else logging.INFO
                fields = {"event": "forecast", "table": name}
                self._lines.say(text, kind=f"forecast {name}", now=now, level=level, fields=fields)

    def end(self, began: float) -> float | None:
        """The turn that began then ends; when the next bulletin is due."""
        if self._board is not None and began >= self._board.due:
            self._board.publish(self._service.report(began, brief=True), began)
        ended = time.monotonic()
        self._vitals.turn(began, ended)
        if ended - began >= SLOW_TURN_S:
            self._lines.say(
                f"the loop took {ended - began:.1f} s for one turn, in which nobody was answered: send messages and "
                "batches of fewer items, or give it a machine that is less busy",
                kind="slow turn",
                now=ended,
                level=logging.WARNING,
            )
        if self._board is None:
            return None
        return min(self._board.due, self._manager.tick(ended, self._board.newest) if self._manager else math.inf)


def handshake_text(failed: FailedHandshake) -> tuple[str, int]:
    """What the log says of it, and how loud: whoever only looks whether a port is open is no fault."""
    what = f"a connection to {failed.endpoint} failed in the handshake: "
    if failed.hung_up:
        why = "the peer hung up, as who has no key does, and who only looks whether the port is open"
        return f"{what}{why}; `replayd keys generate` makes a key", logging.INFO
    if failed.wants_keys:
        why = "the peer has no key, or that of another server"
        return f"{what}{why}; give it a file that `replayd keys generate` made for this one", logging.WARNING
    why = "the peer has keys, and here are none"
    return f"{what}{why}; take them away from it (REPLAYD_KEY_FILE), or set `[access] keys` here", logging.WARNING
