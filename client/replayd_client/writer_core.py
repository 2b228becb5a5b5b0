"""What all writers share: their steps and a `Sender` behind one lock, and the rules of when something leaves.

Items leave when a message is full or a moment has passed; a chunk that an item waits for is cut when it does not fill.
The client's pacer does that in the background. A full window makes the caller wait, never the memory grow.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from replayd_client.errors import (
    ClosedError,
    ConnectionLostError,
    DataError,
    DeadlineExceededError,
    LimitExceededError,
    ReplaydError,
)
from replayd_client.insert_message import Receipt
from replayd_client.item_handle import ItemHandle
from replayd_client.outbox import FULL, Outbox
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_integer
from replayd_client.sender import Sender, deadline_after
from replayd_client.writer_report import WriterReport

log = logging.getLogger("replayd_client")

FLUSH_AFTER_S = 0.02
"""An item whose chunks are finished leaves after this time at the latest."""
CUT_AFTER_S = 1.0
"""A chunk that an item waits for is finished after this time, however short."""
BUSY_RETRY_S = 0.005
"""When the background looks again at a writer that its own thread is using."""
CLOSE_TIMEOUT_MS = 10_000
"""How long a closed client, or a writer that nobody holds any more, waits for acknowledgements."""
EXIT_TIMEOUT_MS = 1_000
"""How long a writer, or all writers at the end of the process, may hold up somebody who is on the way out. And how long
after their deadline writers that close together go on asking the server why, which answers at once if it can."""


T = TypeVar("T")


class WriterCore:
    """The shared half of a writer. Every method takes the lock; the pacer takes it only if it is free."""

    def __init__(
        self,
        pool: ConnectionPool,
        pacer: Pacer,
        outbox: Outbox,
        *,
        max_in_flight_items: int | None,
        timeout_ms: float | None,
    ) -> None:
        self._outbox = outbox
        self._pacer = pacer
        deadline_after(timeout_ms)  # A wrong one is told now, not when a call has to wait.
        self._timeout_ms = timeout_ms
        self._lock = threading.RLock()
        self._sender = Sender(pool, max_in_flight_items)
        self._refusals = self._sender.stream.refusals
        self._due = 0.0
        self._standing = 0
        """Of the outbox, after the last call or tick."""
        self._is_foreign = False
        self._closed = False
        self._closer: int | None = None
        """The thread that wants to close: what another one waits for in a call ends then, and gives the lock up."""
        self._abandoned_at: float | None = None
        _CORES.add(self)
        pacer.add(self)

    # What a writer's user does.

    def call(self, what: str, do: Callable[..., T], *arguments: Any) -> T:
        """Let `do` add steps and items to the log, once there is room. Raises DeadlineExceededError if there is none in
        time, and then nothing was done."""
        # Not `with`, which takes 0.6 µs here and this 0.3; it is called twice a step. What it asks before it calls is
        # what as a rule makes the calls needless.
        self._lock.acquire()
        try:
            if self._closed or self._refusals or self._is_foreign:
                self._enter()
            if self._standing & FULL:
                self._make_room(what)
            try:
                return do(*arguments)
            finally:
                # What is added to others like it leaves with them, or is due after them.
                if self._outbox.standing != self._standing:
                    self._moved()
        finally:
            self._lock.release()

    def report(self) -> WriterReport:
        with self._lock:
            return self._outbox.report()

    @property
    def policy_version(self) -> int:
        return self._outbox.policy_version

    def act_by(self, policy_version: int) -> None:
        """This version acts in the steps that come next: they share no chunk with those before."""
        with self._lock:
            self._enter()
            if policy_version != self._outbox.policy_version:
                self._outbox.cut()
                self._outbox.policy_version = policy_version
                self._moved()

    def flush(self, block_until_num_items: int, timeout_ms: float | Literal["own"] | None) -> None:
        most, deadline = checked_integer("block_until_num_items", block_until_num_items, 0), self._deadline(timeout_ms)
        with self._lock:
            self._enter()
            self._flush("flush", most, deadline)

    def wait_until(
        self,
        is_done: Callable[[], bool],
        what: str,
        timeout_ms: float | Literal["own"] | None,
        check_ready: Callable[[], None],
    ) -> None:
        """Send what there is, and wait for something that its answers bring about; `check_ready` raises if they never
        will."""
        deadline = self._deadline(timeout_ms)
        with self._lock:
            self._sender.check_process()
            if is_done():
                return
            if self._closed:
                raise ClosedError("the writer is closed")
            self._outbox.cut()
            check_ready()

            def is_over() -> bool:
                self._ship()
                return is_done()

            self._wait(is_over, deadline, what)

    def told(self, refusal: Receipt) -> None:
        """The caller knows of this refusal; no later call raises it."""
        with self._lock:
            if refusal in self._refusals:
                self._refusals.remove(refusal)

    def end_episode(
        self,
        what: str,
        finish: Callable[[], None],
        begin: Callable[[], None],
        timeout_ms: float | Literal["own"] | None,
    ) -> None:
        """Let `finish` make the episode's last items, flush, and let the next one begin, unless the flush failed. The
        call is named `what`."""
        deadline = self._deadline(timeout_ms)
        with self._lock:
            self._enter()
            finish()
            self._flush(what, 0, deadline)
            begin()

    def close(self, timeout_ms: float | Literal["own"] | None) -> ReplaydError | None:
        """Flush, then give lease and connection up. Returns the error if items are not acknowledged in time.

        Another thread that waits in a call gets ClosedError at once. Raises what the server refused.
        """
        return self.close_by(self._deadline(timeout_ms), explain=True)

    def close_by(self, deadline: float | None, *, explain: bool) -> ReplaydError | None:
        """As `close`. To `explain` is to ask the server why, which takes time that somebody on the way out has not."""
        self._closer = threading.get_ident()
        with self._lock:
            if self._closed or not self._sender.is_ours:
                self._closed = True
                return None
            try:
                self._outbox.close_step()
                state = "The writer is closed; what was not acknowledged may or may not arrive."
                self._flush("close", 0, deadline, explain=explain, state=state)
            except (ClosedError, DeadlineExceededError, ConnectionLostError) as error:
                return error
            except LimitExceededError as error:
                # What was refused for good is raised; what was only put off may or may not arrive.
                if "put_off_s" not in error.detail:
                    raise
                return error
            finally:
                self._shut()
        return None

    def close_quietly(self, timeout_ms: float | None) -> None:
        """Close where nobody could take an error: it is told in the log."""
        close_together([self], deadline_after(timeout_ms), explain=False)

    def hasten(self) -> None:
        """Begin to close: send what there is, and let the background go on with that until `close_by`."""
        self._closer = threading.get_ident()
        with self._lock:
            if self._closed or not self._sender.is_ours:
                return
            self._outbox.close_step()
            self._outbox.cut()
            self._ship()
        self._pacer.wake(self, 0.0)

    def abandon(self) -> None:
        """The user's writer is gone: the background sends what is there, and then closes."""
        if not self._closed and self._sender.is_ours:
            self._abandoned_at = time.monotonic()
            self._pacer.wake(self, 0.0)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def open_items(self) -> int:
        """Items that are not acknowledged."""
        return self._outbox.items + self._sender.stream.unacknowledged_items

    # What the pacer does.

    def tick(self, now: float) -> float:
        if not self._lock.acquire(blocking=False):
            return now + BUSY_RETRY_S
        try:
            return self._tick(now)
        finally:
            self._lock.release()

    def _tick(self, now: float) -> float:
        if self._closed:
            return math.inf
        steps = self._outbox
        if self._abandoned_at is not None:
            steps.close_step()
            steps.cut()
            self._ship()
        waiting = steps.waiting_since()
        if waiting is not None and now >= waiting + CUT_AFTER_S:
            steps.cut()
        ready = steps.ready_since()
        if ready is not None and now >= ready + FLUSH_AFTER_S:
            self._ship()
        self._sender.carry(0.0)
        if self._abandoned_at is not None:
            overdue = now >= self._abandoned_at + CLOSE_TIMEOUT_MS / 1000
            if overdue or not self.open_items:
                if self.open_items:
                    log.warning("a writer that nobody closed ends with %d items not acknowledged", self.open_items)
                self._shut()
                return math.inf
        self._standing = self._outbox.standing
        self._due = max(min(self._sender.next_tick(now), self._items_due()), now + BUSY_RETRY_S)
        return self._due

    # Inside the lock.

    def _enter(self) -> None:
        """What every call begins with: the writer must be usable, and what was refused since is told."""
        if self._closed or self._refusals or self._is_foreign:
            self._sender.check_process()
            if self._closed:
                raise ClosedError("the writer is closed")
            self._raise_refusals()

    def _raise_refusals(self) -> None:
        if self._refusals:
            count = sum(receipt.items for receipt in self._refusals)
            error = self._refusals[0].error
            assert error is not None, "a refusal has an error"
            which = "1 item that was" if count == 1 else f"{count} items that were"
            self._refusals.clear()
            raise type(error)(
                f"the server refused {which} created earlier: {error}",
                detail={**error.detail, "refused_items": count},
                code=error.code,
            )

    def _make_room(self, what: str) -> None:
        """Ship what is full; if it cannot leave, wait."""
        self._ship()
        if self._outbox.standing & FULL:
            state = "Nothing was added; what was before goes on being delivered, exactly once."
            self._wait(self._shipped, deadline_after(self._timeout_ms), what, state=state)

    def _shipped(self) -> bool:
        self._ship()
        return not self._outbox.standing & FULL

    def _ship(self) -> None:
        steps, sender = self._outbox, self._sender
        while steps.ready_items and sender.stream.has_room:
            message = steps.take_message()
            assert message is not None, "an item is ready"
            receipt = sender.put(message.chunks, message.items, message.keep_from)
            ItemHandle.shipped(message.handles, receipt)

    def _moved(self) -> None:
        """There is something new to be done: ship what is full, and let the pacer know when the rest is due."""
        if self._outbox.standing & FULL:
            self._ship()
        self._standing = self._outbox.standing
        due = self._items_due()
        if due < self._due:
            self._due = due
            self._pacer.wake(self, due)

    def _items_due(self) -> float:
        ready, waiting = self._outbox.ready_since(), self._outbox.waiting_since()
        due = math.inf
        if ready is not None and self._sender.stream.has_room:
            due = ready + FLUSH_AFTER_S
        if waiting is not None:
            due = min(due, waiting + CUT_AFTER_S)
        return due

    def _flush(self, what: str, most: int, deadline: float | None, *, explain: bool = True, state: str = "") -> None:
        if self._outbox.waiting_items > most:
            self._outbox.cut()
            if self._outbox.waiting_items > most:
                raise open_step_error()

        def is_flushed() -> bool:
            self._ship()
            return self.open_items <= most

        self._wait(is_flushed, deadline, what, explain=explain, state=state)
        self._raise_refusals()

    def _wait(
        self, until: Callable[[], bool], deadline: float | None, what: str, *, explain: bool = True, state: str = ""
    ) -> None:
        """As `Sender.wait`, and raises ClosedError when another thread wants to close.

        The other errors tell of all items that are not acknowledged, of which the sender knows those it has, and what
        becomes of them; `state` says more of that.
        """

        def is_over() -> bool:
            if self._closer is not None and self._closer != threading.get_ident():
                raise ClosedError(f"{what}: the writer was closed by another thread")
            return until()

        try:
            self._sender.wait(is_over, deadline, what, explain=explain)
        except (DeadlineExceededError, ConnectionLostError, LimitExceededError) as error:
            count = self.open_items
            text, state = str(error), state or "This writer goes on delivering them, exactly once."
            if isinstance(error, ConnectionLostError):
                text = f"{what}: {count} item{'s' if count != 1 else ''} not acknowledged: {text}"
            elif self._outbox.items:
                text = f"{text} Not sent yet: {self._outbox.items} more."
            detail = {**error.detail, "unacknowledged_items": count}
            raise type(error)(f"{text} {state}".rstrip(), detail=detail, code=error.code) from error.__cause__

    def _deadline(self, timeout_ms: float | Literal["own"] | None) -> float | None:
        """Of a call that was given this time; "own" is the writer's."""
        is_own = isinstance(timeout_ms, str) and timeout_ms == "own"
        return deadline_after(self._timeout_ms if is_own else timeout_ms)  # type: ignore[arg-type]

    def _shut(self) -> None:
        self._closed = True
        self._pacer.discard(self)
        self._sender.close()

    def forget(self) -> None:
        """In a forked child: the writer stays the parent's."""
        self._is_foreign = True
        self._lock = threading.RLock()
        self._sender.forget()


def close_together(cores: Iterable[WriterCore], deadline: float | None, *, explain: bool) -> list[ReplaydError]:
    """Close these writers by one deadline. Returns what the server refused; the log tells that too, what was not
    acknowledged in time, and with `explain` why."""
    closing = list(cores)
    refusals: list[ReplaydError] = []
    # While one of them is waited for, the background brings in what is said to the others.
    for core in closing:
        core.hasten()
    for core in closing:
        asks = explain and (deadline is None or time.monotonic() < deadline + EXIT_TIMEOUT_MS / 1000)
        try:
            error = core.close_by(deadline, explain=asks)
        except ReplaydError as refusal:
            refusals.append(refusal)
            log.warning("a writer was closed: %s", refusal)
        else:
            if error is not None:
                log.warning("a writer was closed with %d items not acknowledged: %s", core.open_items, error)
    return refusals


def open_step_error() -> DataError:
    return DataError("an item shows a step that is still open; append to it with partial_step=False first")


_CORES: weakref.WeakSet[WriterCore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for core in list(_CORES):
        core.forget()


def _at_exit() -> None:
    close_together(_CORES, deadline_after(EXIT_TIMEOUT_MS), explain=False)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
