"""Inserting whole batches and waiting until they are there: streams that calls use one after the other.

`batch_messages` makes the messages. The arrays are sent from where they lie, so a call that ends early sees to it that
nothing reads them any more.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from replayd_client.batch_messages import BatchMessages
from replayd_client.batch_rows import Rows
from replayd_client.codecs import WriterCodec, check_writer_codec
from replayd_client.columns import Schema
from replayd_client.errors import ConnectionLostError, DeadlineExceededError, ReplaydError
from replayd_client.insert_message import Receipt
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.sender import Sender
from replayd_client.signatures import TableDirectory

BUSY_RETRY_S = 0.05


class BatchSender:
    """An insert stream for batches of one schema and codec, used by one call at a time; the pacer looks after what a
    call left behind."""

    def __init__(self, pool: ConnectionPool, pacer: Pacer, schema: Schema, codec: WriterCodec) -> None:
        self._sender = Sender(pool)
        self._pacer = pacer
        self._lock = threading.Lock()
        self._messages = BatchMessages(schema, codec)

    @property
    def is_idle(self) -> bool:
        """Whether everything has been acknowledged."""
        return not self._sender.stream.unacknowledged_messages

    def accepts(self, schema: Schema, codec: WriterCodec) -> bool:
        """Whether data of this schema may go on this stream, stored so: schemas of a stream extend each other."""
        return self._messages.schema == schema and self._messages.codec == codec

    def insert(
        self, rows: Rows, priorities: dict[str, NDArray[np.float64]], deadline: float | None
    ) -> dict[str, NDArray[np.uint64]]:
        """Send a batch and wait until it is in the tables; the keys, u64[B] for each table.

        Raises DeadlineExceededError, ConnectionLostError and the server's error if it refused some; each says what
        became of how many trajectories, see `_with_fate`.
        """
        started = time.monotonic()
        with self._lock:
            receipts: list[Receipt] = []
            stream = self._sender.stream
            try:
                # Before anything is encoded: the first time that can take longer than a short deadline allows, and a
                # server that nobody has talked to yet must not pass for one that is gone.
                self._sender.open(deadline, "insert")
                for part in self._messages.parts(rows, len(priorities)):
                    self._sender.wait(lambda: stream.has_room, deadline, "insert", since=started)
                    chunks, items = self._messages.message(rows, priorities, part, may_lend=True)
                    receipts.append(self._sender.put(chunks, items, chunks.end))
                self._sender.wait(lambda: all(receipt.done for receipt in receipts), deadline, "insert", since=started)
            except ReplaydError as error:
                # What has not left yet never will: whoever tries again must not insert it twice.
                count = stream.withdraw(receipts)
                sent = receipts[: len(receipts) - count]
                raise _with_fate(error, rows.count, sent, len(priorities)) from error.__cause__
            finally:
                stream.refusals.clear()
                if not self.is_idle:
                    # What is still on its way must not change with the caller's arrays.
                    self._sender.own_payloads()
                    self._pacer.add(self)
            refusal = next((receipt.error for receipt in receipts if receipt.error is not None), None)
            if refusal is not None:
                raise _with_fate(refusal, rows.count, receipts, len(priorities))
            return self._keys(receipts, list(priorities))

    def tick(self, now: float) -> float:
        if not self._lock.acquire(blocking=False):
            return now + BUSY_RETRY_S
        try:
            self._sender.carry(0.0)
            self._sender.stream.refusals.clear()
            if self.is_idle:
                self._pacer.discard(self)
                return math.inf
            return self._sender.next_tick(now)
        finally:
            self._lock.release()

    def close(self) -> None:
        self._pacer.discard(self)
        with self._lock:
            self._sender.close()

    def forget(self) -> None:
        """In a forked child: leave the parent's socket alone."""
        self._sender.forget()

    def _keys(self, receipts: list[Receipt], tables: list[str]) -> dict[str, NDArray[np.uint64]]:
        parts: dict[str, list[NDArray[np.uint64]]] = {table: [] for table in tables}
        for receipt in receipts:
            assert receipt.first_key is not None, "an acknowledged message with items has keys"
            n = receipt.items // len(tables)
            for number, table in enumerate(tables):
                first = receipt.first_key + number * n
                parts[table].append(np.arange(first, first + n, dtype=np.uint64))
        return {table: np.concatenate(keys) for table, keys in parts.items()}


def _with_fate(error: ReplaydError, count: int, sent: Sequence[Receipt], tables: int) -> ReplaydError:
    """The error that ended an insert of `count` trajectories, with what became of them: in its words, and as numbers in
    its detail, which add up to `count`.

    `trajectories_acknowledged` are in their tables, `trajectories_refused` are not. `trajectories_open` were sent and
    not answered: they may have been applied, and if not will be, exactly once and as long as the client is open, since
    their stream goes on with them. `trajectories_not_sent` never will be. What is inserted again is to be of the last
    and of the refused alone.
    """
    acknowledged = sum(receipt.items for receipt in sent if receipt.done and receipt.error is None) // tables
    refused = sum(receipt.items for receipt in sent if receipt.error is not None) // tables
    unanswered = sum(receipt.items for receipt in sent if not receipt.done) // tables
    fate = {
        "trajectories_acknowledged": acknowledged,
        "trajectories_refused": refused,
        "trajectories_open": unanswered,
        "trajectories_not_sent": count - acknowledged - refused - unanswered,
    }
    words = (
        "in their tables",
        "refused",
        "sent and may or may not have been applied (this client goes on delivering them exactly once, so they must not "
        "be inserted again)",
        "not sent and will not be",
    )
    told = ", ".join(f"{number} {word}" for number, word in zip(fate.values(), words, strict=True) if number)
    text = str(error) if str(error).endswith((".", "?")) else f"{error}."
    return type(error)(f"{text} Trajectories: {told}.", detail={**error.detail, **fate}, code=error.code)


class BatchSenders:
    """The batch senders of a client: a call gets one that no other call and no held-back items are using."""

    MOST = 16
    """Streams with items that a limiter holds back: beyond them a call waits on one of these."""

    def __init__(self, pool: ConnectionPool, pacer: Pacer, directory: TableDirectory) -> None:
        self._pool = pool
        self._pacer = pacer
        self._directory = directory
        self._lock = threading.Lock()
        self._free: list[BatchSender] = []
        self._closed = False

    def insert(
        self, rows: Rows, priorities: dict[str, NDArray[np.float64]], codec: WriterCodec, deadline: float | None
    ) -> dict[str, NDArray[np.uint64]]:
        """As `BatchSender.insert`. Raises SignatureError and UnknownTableError, and DataError for an unknown codec."""
        check_writer_codec(codec)
        try:
            for table in priorities:
                self._directory.check(table, rows.shown, deadline)
        except (DeadlineExceededError, ConnectionLostError) as error:
            raise _with_fate(error, rows.count, (), len(priorities)) from error.__cause__
        sender = self._take(rows.schema, codec)
        try:
            return sender.insert(rows, priorities, deadline)
        finally:
            self._give_back(sender)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for sender in free:
            sender.close()

    def forget(self) -> None:
        """In a forked child: the streams are the parent's."""
        for sender in self._free:
            sender.forget()
        self._lock = threading.Lock()
        self._free = []

    def _take(self, schema: Schema, codec: WriterCodec) -> BatchSender:
        with self._lock:
            fitting = [sender for sender in self._free if sender.accepts(schema, codec)]
            chosen = next((sender for sender in reversed(fitting) if sender.is_idle), None)
            if chosen is None and len(fitting) >= self.MOST:
                chosen = fitting[0]
            if chosen is not None:
                self._free.remove(chosen)
                return chosen
        return BatchSender(self._pool, self._pacer, schema, codec)

    def _give_back(self, sender: BatchSender) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(sender)
                # Streams of schemas that are not used any more give way, oldest first, unless something is held back.
                surplus = [old for old in self._free[: -self.MOST] if old.is_idle]
                self._free = [kept for kept in self._free if kept not in surplus]
            else:
                surplus = [sender]
        for old in surplus:
            old.close()
