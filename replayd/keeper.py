"""The keeper of a daemon's store: from opening it, through restoring and checkpoints, to the last one.

Owns the order of these, and the files of a store that is put aside. The loop calls `turn`; nothing here has a socket.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from replayd.checkpoints import Checkpoints
from replayd.errors import LastCheckpointFailed, Loading, StoreUnreadable
from replayd.restoring import Progress, RestoreRules, restore
from replayd.service import Service
from replayd.store import MAP_BYTES, Store, put_aside
from replayd.store_format import blosc2
from replayd.store_writer import StoreWriter

log = logging.getLogger("replayd")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where a daemon's store is, and what is done with it."""

    path: Path
    checkpoint_interval_s: float = 0.0
    """0: no checkpoint unless somebody asks."""
    checkpoint_on_stop: bool = True
    rules: RestoreRules = field(default_factory=RestoreRules)
    allow_empty: bool = False
    """Begin with an empty store where there is one that cannot be read; that one is put aside."""
    map_bytes: int = MAP_BYTES
    """Of the store's map at first."""


class Keeper:
    """`wake` must end the loop's wait; it is called from other threads."""

    def __init__(self, options: StoreOptions, service: Service, wake: Callable[[], None]) -> None:
        self._options = options
        self._service = service
        self._wake = wake
        self._progress = Progress()
        self._began = time.monotonic()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._checkpoints: Checkpoints | None = None
        self._writer: StoreWriter | None = None
        self._is_last = False

    # --- restoring ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the store, restore what is in it, and be ready for checkpoints.

        Raises StoreError and its kinds; nothing is left open then.
        """
        self._began = time.monotonic()
        blosc2()
        store = self._open()
        try:
            blocks = restore(store, self._service, self._options.rules, self._progress, time.monotonic())
        except BaseException:
            store.close()
            raise
        durability = self._service.durability
        durability.path, durability.host = str(self._options.path.resolve()), socket.gethostname()
        durability.size_bytes = store.size_bytes
        self._writer = StoreWriter(store, blocks, self._wake)
        self._checkpoints = Checkpoints(
            self._service, self._writer, self._options.checkpoint_interval_s, time.monotonic, time.monotonic()
        )

    def begin_loading(self) -> None:
        """`load` on a thread of its own. The service must not be used until `is_loading` is over."""
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._load, name="replayd-loading", daemon=True)
        self._thread.start()

    @property
    def is_loaded(self) -> bool:
        """Whether `load` has been done."""
        return self._checkpoints is not None

    @property
    def is_loading(self) -> bool:
        """Raises what ended the loading, if it failed."""
        if self._thread is None:
            return False
        if self._thread.is_alive():
            return True
        self._thread = None
        if self._fault is not None:
            raise self._fault
        return False

    def loading(self) -> Loading:
        """What to answer meanwhile."""
        progress, elapsed_s = self._progress, time.monotonic() - self._began
        return Loading(
            f"the server is reading its store: {self.loading_text()}",
            phase=progress.phase,
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
            elapsed_s=elapsed_s,
        )

    def loading_text(self) -> str:
        """How far it is, for people."""
        progress = self._progress
        return (
            f"{progress.phase}, {progress.done_bytes / 1e6:.0f} of {progress.total_bytes / 1e6:.0f} MB, "
            f"for {time.monotonic() - self._began:.0f} s"
        )

    def give_up_loading(self) -> None:
        """The server stops before it was loaded."""
        self._progress.is_cancelled = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _load(self) -> None:
        try:
            self.load()
        except BaseException as fault:
            self._fault = fault
        finally:
            self._wake()

    def _open(self) -> Store:
        path = self._options.path
        try:
            return Store(path, self._options.map_bytes)
        except StoreUnreadable as error:
            if not self._options.allow_empty:
                raise StoreUnreadable(
                    f"{error}; `replayd restore FROM` brings back a copy, --allow-empty begins anew and puts this aside"
                ) from error
            aside = put_aside(path)
            log.error("%s; it is put aside in %s, and the server begins empty", error, aside)
            return Store(path, self._options.map_bytes)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float | None:
        """Once a turn of the loop; when the next one is due, None if something must happen first."""
        return None if self._checkpoints is None else self._checkpoints.turn(now)

    def begin_last(self, now: float) -> None:
        """The service has stopped. Then `turn` until `is_done`."""
        assert self._checkpoints is not None, "a store is loaded before it is left"
        if self._options.checkpoint_on_stop:
            self._checkpoints.stop_with_one_more(now)
            self._is_last = True
        else:
            self._checkpoints.refuse_askers()

    @property
    def is_done(self) -> bool:
        """Whether no checkpoint is under way."""
        return self._checkpoints is None or self._checkpoints.is_idle

    def close(self) -> None:
        """Let go of the store. Raises LastCheckpointFailed if the last checkpoint is not on the disk."""
        if self._writer is None:
            return
        checkpoints, writer = self._checkpoints, self._writer
        assert checkpoints is not None, "a writer serves checkpoints"
        self._writer = None
        checkpoints.refuse_askers()
        writer.close()
        error = self._service.durability.last_error
        if self._is_last and (error is not None or not checkpoints.is_idle):
            raise LastCheckpointFailed(
                f"the last checkpoint is not on the disk ({error or 'it was cut short'}); what "
                f"{self._options.path} has is older"
            )
