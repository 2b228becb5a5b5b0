"""A thread that draws ahead of its consumers, over a connection of its own, and decodes what it drew.

It draws only while it has credit: what was drawn and not yet taken never exceeds the plan. It knows nothing of what its
results are: they are made by a function that it is given.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from replayd_client.array_messages import SampleReply
from replayd_client.connection import Call
from replayd_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    ForkedClientError,
    NeverGrantableError,
    ReplaydError,
)
from replayd_client.interruptible import Interrupted, InterruptibleConnection
from replayd_client.lookahead import Lookahead, PrefetchBatches
from replayd_client.sampling import encode_draw, sampled_batch, with_wait

if TYPE_CHECKING:
    from replayd_client.batches import SampledBatch

log = logging.getLogger("replayd_client")

WAIT_S = 3.0
"""Longest wait of one request at the server. Should the reader go meanwhile, the server may still grant that request,
to nobody, so it is short."""
GRACE_S = 2.0
"""Time beyond a consumer's patience for an answer to arrive, or for a lost connection to come back."""
WARN_AFTER_S = 5.0
"""A consumer that waits is named in the log after this time, and each time that has doubled."""
ITEMS_PER_REQUEST = 4096
"""Items asked for at once, at most, where small batches are drawn ahead: a request costs the server 0.4 ms and the
decoding of its answer 0.5 ms, however few items it has. An item of 400 bytes takes both sides 1.8 µs in requests for
4096, 2.5 in those for 1024, and 5.7 in those for 256."""
EXIT_S = 5.0
"""Longest wait for the threads at the end of the process: one may be decoding."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to draw: batches of `batch_size` items, and how far ahead. None is without limit, or for ever."""

    table: str
    batch_size: int
    min_batch_size: int | None
    """None: `batch_size`, or what the table can grant at once if that is less."""
    prefetch_batches: PrefetchBatches
    """Batches drawn and not taken, at most; 0 draws only while somebody waits for a batch; "auto": see `Lookahead`."""
    timeout_s: float | None = None
    """Longest wait of a consumer for a batch."""
    max_batches: int | None = None
    max_items: int | None = None


@dataclass(frozen=True, slots=True)
class DatasetEnd:
    """Why there are no more batches."""

    reason: Literal["complete", "deadline", "closed", "error"]
    """"complete": as many as were asked for. "deadline": a consumer waited its time; `error` has the limiter's numbers
    and who must act. "closed": by `close`, or with its client. "error": raised in the consumers."""
    error: BaseException | None = None

    def __str__(self) -> str:
        return self.reason if self.error is None else f"{self.reason}: {self.error}"


class Prefetcher(Generic[T]):
    """Draws by `plan` on a thread, which starts with the first `take`.

    `decode` makes the results, on that thread: it is given replies and the sizes of the batches which their items
    make. Where there is credit for several small batches they are one request, and the next request is on its way
    while the answer to the last one is decoded.
    """

    def __init__(
        self,
        plan: Plan,
        connect: Callable[[], InterruptibleConnection],
        decode: Callable[[list[SampledBatch], list[int]], Iterable[T]],
    ) -> None:
        self.plan = plan
        self.end: DatasetEnd | None = None
        """Set when nothing more will be drawn; what was drawn before can still be taken."""
        self._connect = connect
        self._decode = decode
        # Reentrant: a collected dataset stops its prefetcher from whatever its thread was doing.
        self._condition = threading.Condition(threading.RLock())
        self._ready: deque[T] = deque()
        self._waiting: dict[int, float] = {}
        """Consumers that wait, and since when."""
        self._tickets = itertools.count()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._connection: InterruptibleConnection | None = None
        self._is_forked = False
        self._traceback: TracebackType | None = None
        self._least = plan.min_batch_size or plan.batch_size
        self._batches = self._items = 0
        """Drawn and decoded, or being decoded."""
        self._decoding = 0
        """Batches that are."""
        self._carried: list[SampledBatch] = []
        """Items that were granted beyond the last whole batch, too few for another."""
        self._lookahead = Lookahead(plan.prefetch_batches)
        self._ahead: tuple[Call, int] | None = None
        """What was asked already, and for how many items."""
        self._arrived: list[tuple[SampledBatch, bool, bool]] = []
        """Replies of which the lookahead does not know yet, whether somebody waited for them, and whether they are all
        that was asked for."""
        self._warn_after = WARN_AFTER_S
        _PREFETCHERS.add(self)

    def take(self) -> T:
        """The next result. Raises StopIteration at an end, and what ended the thread if that was an error."""
        if self._is_forked:
            raise ForkedClientError("this dataset belongs to the parent process; make another one in this one")
        with self._condition:
            if self._thread is None and self.end is None:
                self._start()
            ticket = next(self._tickets)
            try:
                while not self._ready and self.end is None:
                    if ticket not in self._waiting:
                        self._waiting[ticket] = time.monotonic()
                        self._condition.notify_all()
                    self._condition.wait()
            finally:
                self._waiting.pop(ticket, None)
            if self._ready:
                result = self._ready.popleft()
                self._condition.notify_all()
                return result
            end = self.end
        assert end is not None, "a consumer waits until there is a result or an end"
        if end.reason == "error":
            assert end.error is not None, "an end by an error has the error"
            # Without this each raise, in whatever consumer, would add to the trace.
            raise end.error.with_traceback(self._traceback)
        raise StopIteration

    def stop(self) -> None:
        """Have the thread end, drop what nobody took, and release the consumers. Returns at once; may be called again,
        from any thread."""
        if self._is_forked:
            return
        with self._condition:
            self._stopping = True
            self._ready.clear()
            if self.end is None:
                self.end = DatasetEnd("closed")
            self._condition.notify_all()
            connection = self._connection
        if connection is not None:
            connection.interrupt()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread to end, after `stop`."""
        if self._thread is not None and not self._is_forked and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def forget(self) -> None:
        """In a forked child: the thread and the connection are the parent's."""
        self._is_forked = self._thread is not None
        self._ready = deque()
        self._waiting = {}
        # Another thread of the parent may have held it.
        self._condition = threading.Condition(threading.RLock())
        if self._connection is not None:
            self._connection.forget()

    # The thread.

    def _start(self) -> None:
        self._connection = self._connect()
        self._thread = threading.Thread(target=self._run, name=f"replayd-dataset-{self.plan.table}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: DatasetEnd
        try:
            self._draw_all()
            end = DatasetEnd("complete")
        except Interrupted:
            end = DatasetEnd("closed")
        except DeadlineExceededError as error:
            end = DatasetEnd("deadline" if _is_limited(error) else "error", error)
        except BaseException as error:  # Whatever it is, the consumers get it: they would wait for ever.
            end = DatasetEnd("error", error)
        with self._condition:
            if self.end is None:
                self.end = end
            self._traceback = None if end.error is None else end.error.__traceback__
            self._condition.notify_all()
        if end.reason == "deadline":
            log.info("the dataset of table %r ends: %s", self.plan.table, end.error)
        assert self._connection is not None, "the thread starts with a connection"
        self._connection.close()

    def _draw_all(self) -> None:
        from replayd_client.batches import split

        while not self._is_complete():
            self._wait_for_credit()
            parts = self._draw()
            sizes = self._sizes(sum(map(len, parts)))
            groups = split(parts, [sum(sizes)])
            parts, self._carried = groups[0], groups[1] if len(groups) > 1 else []
            self._batches += len(sizes)
            self._items += sum(sizes)
            self._decoding = len(sizes)
            self._ask_ahead()
            self._follow()
            # One by one: those before a faulty one are handed over.
            for result in self._decode(parts, sizes):
                with self._condition:
                    self._decoding -= 1
                    if not self._stopping:
                        self._ready.append(result)
                    self._condition.notify_all()
            del parts, groups, result

    def _is_complete(self) -> bool:
        plan = self.plan
        return (plan.max_batches is not None and self._batches >= plan.max_batches) or (
            plan.max_items is not None and self._items >= plan.max_items
        )

    def _wait_for_credit(self) -> None:
        with self._condition:
            while not self._stopping and self._credit() < self._worthwhile():
                self._condition.wait()
            if self._stopping:
                raise Interrupted

    def _credit(self) -> int:
        """Batches that may be drawn now."""
        drawn = len(self._ready) + self._decoding
        if self._lookahead.batches:
            return self._lookahead.batches - drawn
        return int(bool(self._waiting) and not drawn)

    def _worthwhile(self) -> int:
        """Batches for which there must be credit before more is asked for, and which are asked for at once: half of
        what may be ahead. So small batches are drawn several at a time, while the other half is decoded and taken."""
        return max(min(self._lookahead.batches // 2, ITEMS_PER_REQUEST // self.plan.batch_size), 1)

    def _sizes(self, items: int) -> list[int]:
        """The batches that so many items make; fewer than the least batch are kept for the next one."""
        size = self.plan.batch_size
        sizes = [size] * (items // size)
        rest = items - sum(sizes)
        # Without a whole batch there is what there is, at the deadline or at the end.
        if rest and (rest >= self._least or not sizes):
            sizes.append(rest)
        return sizes

    def _wanted(self, drawn: int) -> tuple[int, int]:
        """How many items to ask for when `drawn` are here, and how many of them at least; (0, 0) if enough are."""
        plan = self.plan
        # Not for all that there is credit for: then nothing could be asked ahead while that is decoded.
        with self._condition:
            batches = min(max(self._credit(), 1), self._worthwhile())
        if plan.max_batches is not None:
            batches = min(batches, plan.max_batches - self._batches)
        items = batches * plan.batch_size
        if plan.max_items is not None:
            items = min(items, plan.max_items - self._items)
        least = max(min(self._least, items) - drawn, 0)
        return (items - drawn, least) if least else (0, 0)

    def _draw(self) -> list[SampledBatch]:
        """The replies for at least one batch: a server may answer with less than was asked for, then the rest is asked
        for.

        Raises DeadlineExceededError or ConnectionLostError if a consumer has waited its time and there is nothing.
        """
        parts, self._carried = self._carried, []
        self._warn_after = WARN_AFTER_S
        while True:
            n, least = self._wanted(sum(map(len, parts)))
            if self._ahead is None and not n:
                return parts
            try:
                parts.append(self._ask(n, least))
            except NeverGrantableError as error:
                largest = error.detail.get("largest")
                if self.plan.min_batch_size is not None or not isinstance(largest, int) or not 1 <= largest < least:
                    raise
                self._least = largest
            except (DeadlineExceededError, ConnectionLostError) as error:
                waited_s = self._patience_ended(error)
                if waited_s is None:
                    continue
                if parts:
                    return parts  # At the deadline there is what there is, as from the server.
                raise self._told(error, waited_s) from None

    def _ask_ahead(self) -> None:
        """Send the next request, if there is credit for it beyond what is being decoded."""
        with self._condition:
            if self._stopping or self._credit() < self._worthwhile():
                return
        if not self._is_complete():
            n, least = self._wanted(sum(map(len, self._carried)))
            if n:
                self._ahead = self._request(n, least), n

    def _ask(self, n: int, min_n: int) -> SampledBatch:
        """Ask once, or take up what was asked ahead. Raises DeadlineExceededError, ConnectionLostError: nothing yet."""
        (call, asked), self._ahead = self._ahead or (self._request(n, min_n), n), None
        reply = call.answer()
        assert isinstance(reply, SampleReply), "sample is answered by sample"
        batch = sampled_batch(reply)
        with self._condition:
            is_awaited = bool(self._waiting) and not self._ready
        self._arrived.append((batch, is_awaited, len(batch) == asked))
        return batch

    def _follow(self) -> None:
        """Let the lookahead know what came. This checks the replies, for 0.4 ms in which the server can be at work."""
        size = self.plan.batch_size
        if self.plan.prefetch_batches == "auto":
            for batch, is_awaited, is_whole in self._arrived:
                batches, nbytes = len(batch) // size, batch.item_bytes * size
                self._lookahead.drawn(batches, nbytes, is_awaited=is_awaited, is_whole=is_whole)
        self._arrived.clear()

    def _request(self, n: int, min_n: int) -> Call:
        connection = self._connection
        assert connection is not None, "the thread starts with a connection"
        wait_until, give_up_at = self._deadlines()

        def encode(request_id: int) -> list[Any]:
            wait_ms = max(math.ceil((wait_until - time.monotonic()) * 1000), 0)
            return encode_draw(connection, request_id, self.plan.table, n, min_n, wait_ms)

        what = f"sample of table {self.plan.table!r}"
        return Call(connection, what, encode, give_up_at, on_wait=self._tell_of_silence)

    def _deadlines(self) -> tuple[float, float | None]:
        """How long the next request waits at the server, which is as long as the first consumer's patience; and when it
        is given up if there is only silence. The items of an answer that came later would be lost."""
        now = time.monotonic()
        timeout_s = self.plan.timeout_s
        if timeout_s is None:
            return now + WAIT_S, None
        with self._condition:
            patience_ends = min(self._waiting.values(), default=now) + timeout_s
        return max(min(now + WAIT_S, patience_ends), now), max(patience_ends, now) + GRACE_S

    def _patience_ended(self, error: ReplaydError) -> float | None:
        """Whether a consumer has waited for as long as the plan allows: how long, else None after a word in the log.

        While nobody waits for a batch, a request that was not granted is not repeated: what nobody wants now must not
        take its place among the requests of others.
        """
        with self._condition:
            while _is_limited(error) and not self._waiting and not self._stopping:
                self._condition.wait()
            if self._stopping:
                raise Interrupted
            since = min(self._waiting.values(), default=None)
        if since is None:
            return None
        waited_s = time.monotonic() - since
        if self.plan.timeout_s is not None and waited_s >= self.plan.timeout_s:
            return waited_s
        if _is_limited(error) and waited_s >= self._warn_after:
            self._warn_after = 2 * waited_s
            log.warning("a dataset has waited for a batch of table %r for %.0f s: %s", self.plan.table, waited_s, error)
        return None

    def _tell_of_silence(self, waited_s: float) -> None:
        log.warning("no answer to a sample of table %r for %.0f s: the server is busy", self.plan.table, waited_s)

    def _told(self, error: ReplaydError, waited_s: float) -> ReplaydError:
        if isinstance(error, DeadlineExceededError):
            return with_wait(error, self.plan.table, waited_s)
        return error


def _is_limited(error: ReplaydError) -> bool:
    """Whether this is the server's word that the limiter holds the request back, rather than silence."""
    return isinstance(error, DeadlineExceededError) and error.detail.get("blocked_by") is not None


_PREFETCHERS: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    prefetchers = list(_PREFETCHERS)
    for prefetcher in prefetchers:
        prefetcher.stop()
    for prefetcher in prefetchers:
        prefetcher.join(EXIT_S)


def _after_fork_in_child() -> None:
    for prefetcher in list(_PREFETCHERS):
        prefetcher.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
