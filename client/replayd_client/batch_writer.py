"""The batch writer: whole batches, one call each, which does not wait until the server has them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from replayd_client.batch_log import BatchLog
from replayd_client.batch_rows import priorities_of, rows_of_batch
from replayd_client.codecs import WriterCodec
from replayd_client.errors import ReplaydError
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.sender import deadline_after
from replayd_client.signatures import TableDirectory
from replayd_client.writer_core import WriterCore
from replayd_client.writer_life import WriterLife


class BatchWriter(WriterLife):
    """Inserts batches of trajectories as `Client.insert_batch` does, and goes on while they are on their way. Made by
    `Client.batch_writer`.

    Batches are copied and arrive in their order, small ones together, which may take a moment. A call waits only while
    as much is unacknowledged as a server lets a client leave so. Errors of the server are raised by the next call. All
    batches have the columns of the first; their numbers of trajectories and of steps may differ. One thread at a time
    uses a writer; a context manager, which flushes and closes.
    """

    _made_by = "batch_writer"

    def __init__(
        self,
        pool: ConnectionPool,
        pacer: Pacer,
        directory: TableDirectory,
        codec: WriterCodec,
        timeout_ms: float | None,
    ) -> None:
        self._log = BatchLog(codec)
        self._directory = directory
        self._timeout_ms = timeout_ms
        self._core = WriterCore(pool, pacer, self._log, max_in_flight_items=None, timeout_ms=timeout_ms)

    @property
    def core(self) -> WriterCore:
        """For its client, which closes it at the end."""
        return self._core

    def insert(self, data: Any, priorities: Mapping[str, Any]) -> None:
        """Insert B trajectories of T steps, a nest of arrays [B, T, …], as B items of each table.

        `priorities` gives each table a number, an array [B] or "max", as for `Client.insert_batch`.

        Raises DataError, PriorityError, UnknownTableError and SignatureError, and nothing was added then. Raises
        DeadlineExceededError when there is no room in time (the message says who must act), ConnectionLostError without
        a server, and the server's refusal of what was inserted earlier; of the batch `trajectories_open` in the error's
        detail were added and go on being delivered, and `trajectories_not_sent` were not.
        """
        rows = rows_of_batch(data)
        checked = priorities_of(priorities, rows.count)
        for table in checked:
            self._directory.check(table, rows.shown, deadline_after(self._timeout_ms))
        added = 0
        try:
            for part in self._core.call("insert", self._log.begin, rows, checked):
                self._core.call("insert", self._log.add, rows, checked, part, time.monotonic())
                added = part.stop
        except ReplaydError as error:
            detail = {**error.detail, "trajectories_open": added, "trajectories_not_sent": rows.count - added}
            text = f"{error} Of this batch {added} trajectories had been added." if added else str(error)
            raise type(error)(text, detail=detail, code=error.code) from error.__cause__

    def flush(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Send what there is and wait until all of it is acknowledged. Deadline and errors as of
        `TrajectoryWriter.flush`."""
        self._core.flush(0, timeout_ms)
