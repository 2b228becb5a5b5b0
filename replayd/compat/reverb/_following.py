"""Items of a writer that outlives its server: their priorities go to the next one as that one stores them.

What a server left unanswered its successor on the port is sent, and that one's table of the same name may have other
selectors, so that it stores priorities in another way. Knows streams, and nothing of steps.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from replayd.compat.reverb._directory import Directory, Tables
from replayd_client import ItemHandle
from replayd_client import TrajectoryWriter as ReplaydWriter
from replayd_client.errors import ReplaydError
from replayd_client.stream import InsertStream


class Follower:
    """Makes the items of one writer, and keeps their priorities right until they are acknowledged."""

    def __init__(self, writer: ReplaydWriter, directory: Directory) -> None:
        self._core = weakref.ref(writer._core)
        self._directory = directory
        self._tables: Tables | None = None
        """Of the server for which the priorities of all items are that have not been acknowledged."""
        stream = writer._core._sender.stream
        stream.on_session = self._on_session  # type: ignore[method-assign]

    def create_item(self, writer: ReplaydWriter, table: str, priority: float, trajectory: Any) -> ItemHandle:
        """An item with a priority as it was given. Raises as the writer's method does, and ValueError for a priority
        that the table does not take."""
        core = writer._core
        with core._lock:
            # What waits for room may meet another server: afterwards nothing is sent before the item is made.
            core.call("create_item", lambda: None)
            self._follow(self._directory.newest())
            assert self._tables is not None, "whoever follows knows what tables there are"
            facts = self._tables.facts.get(table)
            return writer.create_item(table, priority if facts is None else facts.stored_one(priority), trajectory)

    def _on_session(self, server_id: bytes, window_messages: int, window_bytes: int) -> None:
        """As the stream's own, which it calls."""
        core = self._core()
        assert core is not None, "a session begins while somebody uses the writer"
        if self._tables is not None and self._tables.server_id != server_id:
            try:
                tables = self._directory.tables_of(server_id)
            except ReplaydError:
                tables = None
            if tables is None:
                # It is gone again, and nothing may be sent to the one that comes before that has said what it has.
                core._sender._connection.renew()
                return
            self._follow(tables)
        InsertStream.on_session(core._sender.stream, server_id, window_messages, window_bytes)

    def _follow(self, tables: Tables) -> None:
        """Let the priorities of all items be as the server of these tables stores them."""
        before, self._tables = self._tables, tables
        if before is None or before.server_id == tables.server_id:
            return
        core = self._core()
        assert core is not None, "the writer is in use"
        with core._lock:
            waiting = core.log._items
            for place, item in enumerate(waiting):
                [stored] = tables.restored(item.handle.table, [item.priority], before).tolist()
                waiting[place] = item._replace(priority=stored)
            for message in core._sender.stream._open.values():
                items = message.items
                if items is None:
                    continue
                table_of = np.zeros(len(items), np.int64) if items.table_of is None else np.asarray(items.table_of)
                stored = np.array(items.priority, np.float64)
                for number, table in enumerate(items.tables):
                    mine = table_of == number
                    stored[mine] = tables.restored(table, stored[mine], before)
                items.priority = stored
