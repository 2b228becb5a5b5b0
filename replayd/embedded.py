"""The daemon inside the calling process: the same loop on a thread, for tests and single-machine runs.

Owns the thread and what ended it. Knows the daemon only as something to run and to stop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from replayd.journal import JournalOptions, Mode
from replayd.keeper import StoreOptions
from replayd.limits import CHECKPOINT_INTERVAL_S
from replayd.restoring import RestoreRules
from replayd.server import Daemon
from replayd.table import Table

if TYPE_CHECKING:
    from replayd_client import Client


class Server:
    """Serve `tables` until `stop`.

    `port` None picks a free one. With a `seed` the same requests draw the same items, and keys of items begin at 1;
    without one they begin where no server before this one had any. Only loopback is listened to;
    `replayd serve` can listen elsewhere. With a `data_dir` the server begins with what is in the store there, and
    writes checkpoints: every `checkpoint_interval_s` seconds (0: never), when `Client.checkpoint` asks for one, and, if
    `checkpoint_on_stop`, at the end. `max_bytes`: the most that all tables may hold together, None for no limit; each
    table's `when_full` says what happens then. A context manager; `stop` may be called more than once.

    A start that would lose something of the store is refused unless that is said to be meant, as by the options of
    `replayd serve` that are called alike: `shrink_tables` lets items go that are beyond the tables' limits,
    `drop_removed_tables` those of tables that are not given any more, `allow_empty` puts a store aside that cannot be
    read. `strict` refuses a store of which a part is damaged; `reset_limiter` lets restored limiters count anew.

    Raises ValueError for no tables, two of one name, a port that is none or such an option without a store, BindError
    if the port is taken, StoreError and its kinds (`replayd.errors`) if the store cannot be used.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        port: int | None = None,
        seed: int | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S,
        checkpoint_on_stop: bool = True,
        journal: Mode = "off",
        max_bytes: int | None = None,
        strict: bool = False,
        allow_empty: bool = False,
        reset_limiter: bool = False,
        drop_removed_tables: bool = False,
        shrink_tables: bool = False,
    ) -> None:
        if isinstance(tables, Table):
            raise TypeError("a server takes a list of tables, got one table")
        if port is not None and not 0 <= port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {port}")
        self._tables = list(tables)
        rules, kept = RestoreRules(strict, reset_limiter, drop_removed_tables, shrink_tables), JournalOptions(journal)
        store = None
        if data_dir is not None:
            path, interval_s = Path(data_dir), checkpoint_interval_s
            store = StoreOptions(path, interval_s, checkpoint_on_stop, rules, allow_empty, kept)
        elif allow_empty or rules != RestoreRules():
            raise ValueError(
                "strict, allow_empty, reset_limiter, drop_removed_tables and shrink_tables are about a store: give "
                "data_dir too"
            )
        listen = f"tcp://127.0.0.1:{0 if port is None else port}"
        self._daemon = Daemon(self._tables, listen, seed=seed, store=store, max_bytes=max_bytes)
        self._daemon.bind()
        try:
            self._daemon.load()
        except BaseException:
            self._daemon.abandon()
            raise
        self.address = self._daemon.router_address
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="replayd", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The TCP port of 127.0.0.1 on which it serves: the one asked for, or the free one that was picked."""
        return int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        """End the loop; those who wait are answered `shutting_down`, and a store gets its last checkpoint.

        Raises what ended it, if it failed by itself, and LastCheckpointFailed.
        """
        self._daemon.stop()
        self.wait()

    def wait(self) -> None:
        """Return when the server has stopped; KeyboardInterrupt stops it and is raised again."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._daemon.stop()
            self._thread.join()
            raise
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    def localhost_client(self) -> Client:
        """A client of this server."""
        from replayd_client import Client

        return Client(self.address)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Server(tables=[{', '.join(table.name for table in self._tables)}], port={self.port})"

    def _serve(self) -> None:
        try:
            self._daemon.run(stop_on_signals=False)
        except BaseException as fault:
            self._fault = fault
