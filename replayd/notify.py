"""The service manager, told how the daemon is: sd_notify(3) over a datagram socket, for systemd and what speaks as it.

Owns its words and when each is due. The loop alone calls it, so that nobody is told that a stuck loop is alive. Must
not know how tables work: what `systemctl status` shows is made of the board's bulletins.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Iterator, MutableMapping

from replayd.board import PATIENCE_S, STOPPING, Bulletin
from replayd.wording import count, duration, short, size_text

log = logging.getLogger("replayd")

STATUS_INTERVAL_S = 5.0
"""Between two lines for `systemctl status`, while requests are served."""

EXTEND_S = 30
"""How long the manager is asked to be patient, again and again while loading or saving gets on."""

EXTEND_INTERVAL_S = 5.0
"""Between two of these: a machine that is held up for 25 s costs no daemon its store. No more are sent when nothing has
got on for PATIENCE_S: a disk that hangs must not keep a start or a stop for ever.
"""

SEND_S = 0.5
"""The longest that one message may hold up the loop."""

RATE_POINTS = 5
"""Seconds of history that a rate is taken over."""


_NOWHERE = object()
"""A step that nothing is at."""


class Manager:
    """Who started this process and waits to hear of it. `watchdog_s`: it wants a sign of life that often; 0: none."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_S)
        self._address = b"\0" + os.fsencode(address[1:]) if address.startswith("@") else os.fsencode(address)
        self._ping_s = watchdog_s / 2 if watchdog_s else math.inf
        self._ping_at = 0.0 if watchdog_s else math.inf
        self._state = "starting"
        self._status = ""
        self._status_at = 0.0
        self._extend_at = 0.0
        self._step: object = _NOWHERE
        self._advanced_at = 0.0
        self._is_heard = True

    # --- called by the loop -------------------------------------------------------------------------------------------

    def tell(self, state: str, step: object, now: float) -> None:
        """Why requests are not served; empty: they are, from now on. `step`: where what is waited for is."""
        before, self._state = self._state, state
        self._see(step, now, begins=state != before and state in ("", STOPPING))
        if state in ("", STOPPING):
            if state != before:
                self._status, self._status_at, self._extend_at = state or "serving", now, now
                self._send("STOPPING=1" if state else "READY=1", f"STATUS={self._status}")
        elif now >= self._status_at:
            self._status_at = now + STATUS_INTERVAL_S
            self._show(state)
        self._ask_for_patience(now)

    def tick(self, now: float, bulletin: Bulletin | None) -> float:
        """A turn of the loop ends: give the sign of life and what else is due. When the next thing will be."""
        if now >= self._ping_at:
            self._ping_at = now + self._ping_s
            self._send("WATCHDOG=1")
        if bulletin is not None and now >= self._status_at:
            self._status_at = now + STATUS_INTERVAL_S
            self._show(stopping_text(bulletin, self._state) if self._state else status_text(bulletin))
        if self._state == STOPPING and bulletin is not None:
            self._see(_step_of(bulletin), now, begins=False)
        self._ask_for_patience(now)
        return min(
            self._ping_at,
            math.inf if bulletin is None else self._status_at,
            self._extend_at if self._is_waited_for(now) else math.inf,
        )

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """While inside, settings are read again. One message has both, as the manager wants it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self._send("READY=1")

    def close(self) -> None:
        """Tell it nothing more."""
        self._socket.close()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _show(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._send(f"STATUS={' '.join(status.split())}")

    def _see(self, step: object, now: float, *, begins: bool) -> None:
        """What is waited for is here by now."""
        if begins or step != self._step:
            self._step, self._advanced_at = step, now

    def _is_waited_for(self, now: float) -> bool:
        """Whether something goes on that is worth the wait."""
        return bool(self._state) and now - self._advanced_at < PATIENCE_S

    def _ask_for_patience(self, now: float) -> None:
        if self._is_waited_for(now) and now >= self._extend_at:
            self._extend_at = now + EXTEND_INTERVAL_S
            self._send(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1_000_000}")

    def _send(self, *lines: str) -> None:
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if self._is_heard:
                log.warning(
                    "the service manager does not take %s (%s): if it says that the start or the watchdog timed out, "
                    "see that NOTIFY_SOCKET is the one it made, and that the unit has Type=notify",
                    lines[0],
                    error,
                    extra={"event": "notify"},
                )
            self._is_heard = False
        else:
            self._is_heard = True


def manager_of(environment: MutableMapping[str, str]) -> Manager | None:
    """The manager that this environment names, if one does. Its variables are taken out, for they are not meant for
    children."""
    address = environment.pop("NOTIFY_SOCKET", "")
    watchdog_us = environment.pop("WATCHDOG_USEC", "")
    watched = environment.pop("WATCHDOG_PID", "")
    if len(address) < 2 or address[0] not in "/@":
        return None
    is_watched = watchdog_us.isdecimal() and watched in ("", str(os.getpid()))
    return Manager(address, int(watchdog_us) / 1e6 if is_watched else 0.0)


# --- what `systemctl status` shows ------------------------------------------------------------------------------------


def status_text(bulletin: Bulletin) -> str:
    """One line: tables, bytes, connections, rates, and for each table which side waits and why."""
    report = bulletin.report
    items = sum(table["size"] for table in report["tables"])
    inserts, samples = _rates(bulletin)
    parts = [
        f"{count(len(report['tables']), 'table')}, {count(items, 'item')}, {size_text(report['chunks']['bytes'])}, "
        f"{count(report['peers']['connected'], 'connection')}, {short(inserts)} inserts/s, {short(samples)} samples/s"
    ]
    parts += [
        f"{table['name']}: {side['side']}s wait ({side['requests']}, for {duration(side['waited_s'])}): {side['why']}"
        for table in report["tables"]
        for side in table["waiting"]
    ]
    store = report.get("store", {})
    if waits := store.get("inserts_wait"):
        parts.append(f"inserts wait: {waits}")
    if error := store.get("last_error"):
        parts.append(f"the last checkpoint failed: {error}")
    return "; ".join(parts)


def stopping_text(bulletin: Bulletin, state: str) -> str:
    """The state, and how far the last checkpoint is if one is written."""
    running = bulletin.report.get("store", {}).get("running")
    if running is None:
        return state
    return (
        f"{state}: the last checkpoint, {running['phase']}, {running['chunks']} of {running['chunks_total']} chunks, "
        f"for {duration(running['elapsed_s'])}"
    )


def _step_of(bulletin: Bulletin) -> object:
    """How far the daemon's last checkpoint is, or what it writes before."""
    store = bulletin.report.get("store", {})
    running = store.get("running")
    if running is not None:
        return running["phase"], running["chunks"], running["bytes"]
    return store.get("checkpoints"), store.get("journal", {}).get("pending_bytes")


def _rates(bulletin: Bulletin) -> tuple[float, float]:
    """Inserts and samples a second of all tables, over the last points of the history."""
    first, last = bulletin.history[-RATE_POINTS - 1 :][0], bulletin.history[-1]
    elapsed_s = last.at_s - first.at_s
    if elapsed_s <= 0:
        return 0.0, 0.0

    def rate(name: str) -> float:
        was, is_now = (sum(getattr(table, name) for table in point.tables) for point in (first, last))
        # A table that was reset counts anew.
        return max(0.0, float(is_now - was)) / elapsed_s

    return rate("inserts"), rate("samples")
