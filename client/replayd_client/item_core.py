"""The core of writers whose items are windows over a `ChunkLog`: makes and checks them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from replayd_client.arguments import checked_table
from replayd_client.chunk_length import checked_chunk_length
from replayd_client.chunk_log import MESSAGE_ITEMS, ChunkLog
from replayd_client.codecs import WriterCodec
from replayd_client.item_handle import ItemHandle
from replayd_client.pacer import Pacer
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_flag
from replayd_client.sender import deadline_after
from replayd_client.signatures import TableDirectory, checked_priority
from replayd_client.windows import Window
from replayd_client.writer_core import WriterCore, open_step_error


class ItemCore(WriterCore):
    """A writer's core whose steps are a `ChunkLog`. With `validate_items` items are compared with what the server said
    of its tables."""

    def __init__(
        self,
        pool: ConnectionPool,
        pacer: Pacer,
        directory: TableDirectory,
        keep_rows: int,
        chunk_length: int | Literal["auto"],
        codec: WriterCodec,
        timeout_ms: float | None,
        max_in_flight_items: int | None,
        validate_items: bool,
    ) -> None:
        length = checked_chunk_length(chunk_length, keep_rows)
        message_items = MESSAGE_ITEMS if max_in_flight_items is None else max_in_flight_items
        self.log = ChunkLog(keep_rows, length, message_items, codec)
        self._directory = directory
        self._validate_items = validate_items
        super().__init__(pool, pacer, self.log, max_in_flight_items=max_in_flight_items, timeout_ms=timeout_ms)

    def create_item(self, table: str, priority: Any, window: Window) -> ItemHandle:
        if type(table) is not str:
            checked_table(table)
        return self.call("create_item", self.add_item, table, checked_priority(priority), window)

    def add_item(self, table: str, priority: float, window: Window) -> ItemHandle:
        """Inside a call: an item of this window as of now. Raises SignatureError and UnknownTableError, if items are
        checked."""
        # The directory knows that too, by a hash of all that is shown, which takes longer than the rest of this.
        if self._validate_items and window.fits.get(table) != self._directory.version:
            self._directory.check(table, window.shown, deadline_after(self._timeout_ms))
            window.fits[table] = self._directory.version
        handle, log = ItemHandle(table, self.wait_for), self.log
        first, last = log.rows + window.first, log.rows + window.last
        log.add_item(handle, priority, first, last, window.template, time.monotonic())
        return handle

    def know_tables(self) -> None:
        """Inside a call, before a step whose items make themselves: without a server nothing is added, rather than the
        step without its items."""
        if self._validate_items and not self._directory.is_known:
            self._directory.hello(deadline_after(self._timeout_ms))

    def wait_for(self, handle: ItemHandle, timeout_ms: float | Literal["own"] | None) -> None:
        """What `ItemHandle.wait` does while the item is not done."""

        def check_ready() -> None:
            if self.log.holds_back(handle):
                raise open_step_error()

        self.wait_until(lambda: handle.done, "wait", timeout_ms, check_ready)
        receipt = handle.receipt
        if receipt is not None and receipt.error is not None and receipt.items == 1:
            # Whoever waits is told now; the next call would tell of nothing else.
            self.told(receipt)

    def configure(self, keep_rows: int, max_chunk_length: int | None) -> None:
        self.call("configure", self.log.configure, keep_rows, max_chunk_length)

    def begin_episode(
        self,
        clear_buffers: bool,
        timeout_ms: float | Literal["own"] | None,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """End the episode, with what `finish` adds to it."""
        checked_flag("clear_buffers", clear_buffers)
        self.end_episode(
            "end_episode", finish or self.log.close_step, lambda: self.log.end_episode(clear_buffers), timeout_ms
        )
