"""An insert stream on a connection of its own: the socket half of a writer.

`InsertStream` decides what goes; this hands it to the connection, brings the answers back, and waits where a caller
must. Used under its owner's lock. Knows nothing of steps and chunks.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from replayd_client.arguments import checked_timeout
from replayd_client.array_messages import ChunkBatch, InsertReply, ItemBatch
from replayd_client.connection import CONNECT_S, WARN_AFTER_S
from replayd_client.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    ForkedClientError,
    LimitExceededError,
    ReplaydError,
    UnsupportedVersionError,
)
from replayd_client.insert_message import Receipt
from replayd_client.messages import ErrorReply, InfoReply
from replayd_client.pool import ConnectionPool
from replayd_client.server_info import blocked_inserts, limiters_of
from replayd_client.stream import InsertStream
from replayd_client.wire import encode_close_stream, encode_info, encode_keepalive

log = logging.getLogger("replayd_client")

POLL_S = 0.02
"""How soon the background looks for answers after something was sent."""
POLL_MAX_S = 0.25
"""The longest it leaves answers unread while some are due."""
RELEASE_S = 0.02
"""Time given to libzmq to tell that it has sent what it was lent."""
EXPLAIN_S = 2.0
"""Time given to the server to say why an insert waits."""


class Sender:
    """Sends one writer's messages, exactly once in effect."""

    def __init__(self, pool: ConnectionPool, max_items: int | None = None) -> None:
        self.stream = InsertStream(lambda: os.urandom(16), max_items=max_items)
        self._pool = pool
        self._connection = pool.dedicated()
        self._session = 0
        self._poll_s = POLL_S
        self._fault: ReplaydError | None = None
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked off since."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        if not self.is_ours:
            raise ForkedClientError("this writer belongs to the parent process; open a new one in this one")

    def open(self, deadline: float | None, what: str) -> None:
        """Wait for a session if there is none; for a missing one CONNECT_S at least, whatever the deadline.

        Raises ConnectionLostError.
        """
        if deadline is not None:
            deadline = max(deadline, time.monotonic() + CONNECT_S)
        self.wait(lambda: self._in_session, deadline, what)

    def put(self, chunks: ChunkBatch | None, items: ItemBatch | None, keep_from: int) -> Receipt:
        """Take a message over and send what may go. Wait for room first: `wait(has_room, …)`."""
        receipt = self.stream.put(chunks, items, keep_from)
        self._poll_s = POLL_S
        self.carry(0.0)
        return receipt

    def carry(self, timeout_s: float) -> None:
        """Bring answers in and messages out; wait up to `timeout_s` for something to come."""
        try:
            replies = self._connection.pump(timeout_s)
        except ReplaydError as error:
            # The connection replaces itself; the stream loses nothing. Who waits is told when that lasts.
            self._fault = error
            return
        if self._connection.ready and self._connection.session != self._session:
            hello = self._connection.hello
            assert hello is not None, "a session begins with hello"
            self._session = self._connection.session
            self._fault = None
            self.stream.on_session(hello.server_id, hello.window_messages, hello.window_bytes)
        now = time.monotonic()
        for reply in replies:
            if isinstance(reply, InsertReply) or (isinstance(reply, ErrorReply) and reply.op == "insert"):
                self.stream.on_reply(reply, now)
        if not self._in_session:
            return
        while (transmission := self.stream.next_transmission(now)) is not None:
            request_id = self._connection.next_id()
            if not self._connection.send(transmission.frames(request_id)):
                break
            self.stream.sent(transmission, request_id, now)
        for stream in self.stream.keepalives(now, self._lease_s):
            self._connection.send(encode_keepalive(self._connection.next_id(), stream))

    def next_tick(self, now: float) -> float:
        """When `carry` is due again in the background."""
        if self.stream.unacknowledged_messages or self.stream.waits_for_sending:
            # Answers are read soon while they come, and less often while a limiter holds them back.
            self._poll_s = min(self._poll_s * 1.5, POLL_MAX_S)
            return now + self._poll_s
        if self.stream.stream_to_close is None:
            return math.inf
        return max(self.stream.keepalive_at(self._lease_s), now + POLL_S)

    def wait(
        self,
        until: Callable[[], bool],
        deadline: float | None,
        what: str,
        *,
        explain: bool = True,
        since: float | None = None,
    ) -> None:
        """Carry until the condition holds, once at least: who comes late has not looked what there is.

        Raises at the deadline: ConnectionLostError if there is no session, LimitExceededError if the server puts
        messages off since all writers keep too much, else DeadlineExceededError with what it says holds the items back.
        They tell how long was waited `since` the caller began, by default now.
        """
        started = time.monotonic() if since is None else since
        warn_at = time.monotonic() + WARN_AFTER_S
        carried = False
        while not until():
            now = time.monotonic()
            if isinstance(self._fault, UnsupportedVersionError | AccessDeniedError):
                raise self._fault
            if carried and deadline is not None and now >= deadline:
                raise self._overdue(what, now - started, explain)
            if now >= warn_at:
                log.warning("%s", self._overdue(what, now - started, explain))
                warn_at = now + (now - started)
            until_s = warn_at if deadline is None else min(deadline, warn_at)
            if self.stream.retry_at > now:
                until_s = min(until_s, self.stream.retry_at)
            if self.stream.stream_to_close is not None:
                until_s = min(until_s, max(self.stream.keepalive_at(self._lease_s), now + POLL_S))
            # Another thread may have made the condition raise.
            until_s = min(until_s, now + POLL_MAX_S)
            self.carry(max(until_s - now, 0.0))
            carried = True

    def own_payloads(self) -> None:
        """Let nothing that is on its way read memory which a caller lent any more."""
        lent = self.stream.own_payloads()
        # What the server has is read by nobody, and as a rule that is all of it. A server that does not read leaves the
        # rest in the socket: in a new session it is sent again, from the copy.
        if not _gone(lent, RELEASE_S):
            self._connection.renew()
            if not _gone(lent, WARN_AFTER_S):
                log.error("libzmq still holds arrays that were being inserted; they must not be written to yet")

    def close(self) -> None:
        """Give the lease up and close the connection. What was not acknowledged may or may not arrive."""
        stream = self.stream.stream_to_close
        if stream is not None and self._connection.ready:
            self._connection.send(encode_close_stream(self._connection.next_id(), stream))
        self._connection.close()

    def forget(self) -> None:
        """In a forked child: leave the parent's socket alone."""
        self._connection.forget()

    @property
    def _in_session(self) -> bool:
        """Whether there is a session, and the stream knows of it."""
        return self._connection.ready and self._connection.session == self._session

    @property
    def _lease_s(self) -> float:
        hello = self._connection.hello
        return math.inf if hello is None else max(hello.lease_ms, 1000) / 1000

    def _overdue(self, what: str, waited_s: float, explain: bool) -> ReplaydError:
        if not self._connection.ready:
            error = self._connection.unreachable(waited_s)
            error.__cause__ = self._fault
            return error
        count = self.stream.unacknowledged_items
        story = f"{what}: {count} item{'s' if count != 1 else ''} not acknowledged after {waited_s:.1f} s."
        told = {"waited_s": round(waited_s, 3), "unacknowledged_items": count}
        if self.stream.put_off is not None and self.stream.put_off[0].detail.get("limit") == "all_leased_bytes":
            reason, since = self.stream.put_off
            put_off_s = time.monotonic() - since
            return LimitExceededError(
                f"{story} The server has put them off for {put_off_s:.1f} s: {reason}.",
                detail={**reason.detail, **told, "put_off_s": round(put_off_s, 3)},
            )
        text, detail = self._why() if explain else ("", {})
        return DeadlineExceededError(f"{story} {text}".rstrip(), detail={**told, **detail})

    def _why(self) -> tuple[str, dict[str, object]]:
        """What the server says that items wait for, in words and in its limiters' numbers."""
        with contextlib.suppress(ReplaydError), self._pool.connection() as connection:
            reply = connection.call("info", encode_info, time.monotonic() + EXPLAIN_S)
            assert isinstance(reply, InfoReply), "info is answered by info"
            blocked = blocked_inserts(reply.fields, self.stream.unacknowledged_tables)
            if blocked:
                reasons = {table: str(entry.get("why")) for table, entry in blocked.items()}
                first = next(iter(blocked.values()))
                return "; ".join(f"table {table!r}: {why}" for table, why in reasons.items()) + ".", {
                    "blocked_by": first.get("blocked_by"),
                    "who_must_act": first.get("who_must_act"),
                    "tables": reasons,
                    "limiters": limiters_of(reply.fields, reasons),
                }
            return "No table holds them back; the server is busy or they are still on their way.", {}
        return "The server does not say why.", {}


def _gone(references: list[weakref.ref[Any]], timeout_s: float) -> bool:
    """Whether these are dead, after waiting for the thread that pyzmq frees memory with."""
    deadline = time.monotonic() + timeout_s
    while any(reference() is not None for reference in references):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def deadline_after(timeout_ms: float | None) -> float | None:
    """The time (monotonic) of a deadline; None is for ever. Raises DataError for what is no number from 0 on."""
    timeout_ms = checked_timeout(timeout_ms)
    if timeout_ms is None:
        return None
    return time.monotonic() + timeout_ms / 1000
