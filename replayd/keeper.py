"""The keeper of a daemon's store: from opening it, through restoring and checkpoints, to the last one.

Owns the order of these, and the files of a store that is put aside. The loop calls `turn`; nothing here has a socket.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from replayd.backlog import Backlog
from replayd.checkpoints import Checkpoints
from replayd.errors import LastCheckpointFailed, Loading, NotDurable, PeerError, StoreUnreadable
from replayd.journal import Journal, JournalOptions
from replayd.loading import TOLD_S, begun
from replayd.messages import Peer, Reply
from replayd.restoring import RestoreRules, restore
from replayd.service import Service
from replayd.store import MAP_BYTES, Store
from replayd.store_files import put_aside
from replayd.store_format import blosc2
from replayd.store_writer import Committed, StoreWriter

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
    journal: JournalOptions = field(default_factory=JournalOptions)
    map_bytes: int = MAP_BYTES
    """Of the store's map at first."""


class Keeper:
    """`wake` must end the loop's wait; it is called from other threads."""

    def __init__(self, options: StoreOptions, service: Service, wake: Callable[[], None]) -> None:
        self._options = options
        self._service = service
        self._wake = wake
        self.progress = begun(time.monotonic)
        """Of loading."""
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        self._checkpoints: Checkpoints | None = None
        self._writer: StoreWriter | None = None
        self._is_last = self._is_ending = False
        self._woken = threading.Event()
        self._backlog = Backlog(str(options.path))
        self.journal: Journal | None = None
        """Once it is loaded, if one is kept."""

    # --- restoring ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the store, restore what is in it, and be ready for checkpoints.

        Raises StoreError and its kinds; nothing is left open then.
        """
        blosc2()
        store = self._open()
        try:
            blocks = restore(store, self._service, self._options.rules, self.progress, time.monotonic())
        except BaseException:
            store.close()
            raise
        durability = self._service.durability
        durability.path, durability.host = str(self._options.path.resolve()), socket.gethostname()
        durability.size_bytes, durability.began_at = store.size_bytes, self.progress.began_at
        writer = self._writer = StoreWriter(store, blocks, self._writer_tells)
        # A number is left out: what is recorded from now on does not go on from what there may be.
        journal = Journal(self._options.journal, self._service, writer.post_entries, store.next_entry() + 1)
        interval_s = self._options.checkpoint_interval_s
        checkpoints = Checkpoints(self._service, writer, journal, interval_s, time.monotonic, time.monotonic())
        if journal.is_on:
            self.progress.phase = "checkpoint"
            try:
                self._begin_journal(checkpoints)
            except BaseException:
                self._writer = None
                writer.close()
                raise
            self.journal = journal
        self._checkpoints = checkpoints

    def begin_loading(self) -> None:
        """`load` on a thread of its own. The service must not be used until `is_loading` is over."""
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

    def load_and_tell(self) -> None:
        """`load`, with how far it is in the log, for who has nothing else to do meanwhile."""
        self.begin_loading()
        try:
            while (thread := self._thread) is not None and self.is_loading:
                thread.join(TOLD_S)
                self.progress.tell()
        except BaseException:
            self.give_up_loading()
            raise

    @property
    def step(self) -> tuple[object, ...]:
        """How far loading is: another one whenever it gets on."""
        running = self._service.durability.running
        written = () if running is None else (running.phase, running.chunks, running.nbytes)
        return self.progress.phase, self.progress.done_bytes, self.progress.items, *written

    def loading(self) -> Loading:
        """What to answer meanwhile."""
        return Loading(f"the server is reading its store: {self.progress.text()}", **self.progress.report())

    def give_up_loading(self) -> None:
        """The server stops before it was loaded."""
        self.progress.is_cancelled = True
        self._woken.set()
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
                    f"{error}; `replayd restore FROM` brings back a copy, --allow-empty "
                    "(`replayd.Server(…, allow_empty=True)`) begins anew and puts this aside"
                ) from error
            aside = put_aside(path)
            log.error(
                "%s; %sthe server begins empty: `replayd restore` brings back a copy",
                *(error, f"it is put aside in {aside}, and " if aside else ""),
            )
            return Store(path, self._options.map_bytes, begins_anew=True)

    def _begin_journal(self, checkpoints: Checkpoints) -> None:
        """Write the checkpoint that it goes on from. If the disk does not take it the server begins without.

        What the journal was before is removed while the server runs.
        """
        while True:
            self._woken.clear()
            self.progress.advance(0)  # Which raises if it is not wanted any more.
            due = checkpoints.turn(time.monotonic())
            if not checkpoints.is_under_way:
                return
            if due is None:
                self._woken.wait()

    def _writer_tells(self) -> None:
        self._woken.set()
        self._wake()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float | None:
        """Once a turn of the loop; when the next one is due, None if something must happen first."""
        if self._checkpoints is None:
            return None
        assert self._writer is not None, "checkpoints have a writer"
        journal_due = None
        if self.journal is not None:
            self._hear_of(self.journal, self._writer)
            journal_due = self.journal.turn(now)
        due = self._checkpoints.turn(now)
        backlog_due = self._look_at_backlog(self._checkpoints, now)
        return min((time for time in (due, journal_due, backlog_due) if time is not None), default=None)

    def _hear_of(self, journal: Journal, writer: StoreWriter) -> None:
        for event in writer.journal_events():
            if isinstance(event, Committed):
                journal.committed(event.epoch, event.stop)
            else:
                journal.failed(event.epoch, event.reason)

    def _look_at_backlog(self, checkpoints: Checkpoints, now: float) -> float | None:
        backlog, journal = self._backlog, self.journal
        due = backlog.look(
            now,
            checkpoints.rescued_bytes,
            0 if journal is None else journal.waiting_bytes,
            is_recorded=journal is not None and journal.records,
        )
        self._service.durability.wait(backlog.story, now)
        return due

    def refusal(self, op: str) -> PeerError | None:
        """Why a request must not be taken now. Only what needs memory has to wait for a disk that takes nothing."""
        if op == "insert" and self._backlog.holds_inserts:
            story = self._backlog.story
            return NotDurable(f"too much waits for the server's disk: {story}", reason=story)
        return None

    def released(self, replies: Sequence[tuple[Peer, Reply]]) -> Sequence[tuple[Peer, Reply]]:
        """Which replies may be sent: these, and those that were held back before, but for what is not durable yet."""
        return replies if self.journal is None else self.journal.released(replies)

    @property
    def wants_inserts(self) -> bool:
        """Whether inserts could be kept; what is pushed is left unread otherwise."""
        return not self._backlog.holds_inserts and (self.journal is None or self.journal.wants_inserts)

    @property
    def is_behind(self) -> bool:
        """Requests are to be left unread: until the disk has caught up, or for the turn that copies the index."""
        is_copying = self._checkpoints is not None and self._checkpoints.wants_a_turn
        return is_copying or self._backlog.holds_all

    def begin_last(self, now: float) -> None:
        """The service has stopped. Then `turn` until `is_done`."""
        assert self._checkpoints is not None, "a store is loaded before it is left"
        self._is_ending = True
        if self.journal is not None:
            self.journal.flush()
        if self._options.checkpoint_on_stop:
            self._checkpoints.stop_with_one_more(now)
            self._is_last = True
        else:
            self._checkpoints.refuse_askers()

    @property
    def is_done(self) -> bool:
        """Whether no checkpoint is under way, and nothing on its way into the journal."""
        is_idle = self._checkpoints is None or self._checkpoints.is_idle
        return is_idle and (self.journal is None or self.journal.is_settled)

    def close(self) -> None:
        """Let go of the store. Raises LastCheckpointFailed if what it was told to keep is not on the disk."""
        if self._writer is None:
            return
        checkpoints, writer = self._checkpoints, self._writer
        assert checkpoints is not None, "a writer serves checkpoints"
        self._writer = None
        checkpoints.refuse_askers()
        writer.close()
        if not writer.has_told:
            # It may have failed, or have ended what was under way, since it was heard last.
            checkpoints.hear(time.monotonic())
        if self.journal is not None:
            self._hear_of(self.journal, writer)
        if self._is_ending:
            self._check_end(checkpoints, "the disk does not answer" if writer.is_alive else None)

    def _check_end(self, checkpoints: Checkpoints, disk: str | None) -> None:
        """Raise LastCheckpointFailed; `disk`: what is known of it besides."""
        path, error = self._options.path, self._service.durability.last_error or disk
        if self._is_last and (self._service.durability.last_error or checkpoints.is_under_way):
            raise LastCheckpointFailed(
                f"the last checkpoint is not on the disk ({error or 'a second signal cut it short'}): what "
                f"{path} has is older, and the next start begins with it"
                + (": see to the disk before" if error else ". A stop takes as long as its checkpoint: let it")
            )
        if not self._is_last and self.journal is not None and not self.journal.is_durable:
            error = self.journal.last_error or error
            raise LastCheckpointFailed(
                f"the end of the journal is not on the disk ({error or 'a second signal cut it short'}), and there is "
                f"no checkpoint on a stop (`checkpoint_on_stop`): the next start begins with what {path} has"
                + (": see to the disk before" if error else "")
            )
