"""The daemon: sockets, clock and signals around one Service, and the store beside it.

The loop is `run`: poll until something is due, take what has arrived, let the service work, send what it answers. It
never blocks in a send and never sleeps longer than the next deadline.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import zmq

from replayd import __version__
from replayd.access import AccessError
from replayd.board import STOPPING, Board
from replayd.connections import Connections
from replayd.errors import BindError, StoreError
from replayd.fault_log import FaultLog
from replayd.gate import Gate
from replayd.heap import Trimmer
from replayd.items import FIRST_KEY, first_key_at
from replayd.keeper import Keeper, StoreOptions
from replayd.limits import LEASE_S, REPLY_BYTES
from replayd.loading import TOLD_S
from replayd.messages import Failed, Peeked, Peer, Reply, Sampled
from replayd.notify import Manager
from replayd.reception import Handler, Reception
from replayd.service import Service
from replayd.sockets import address_of, arrived, bound, origin, own_frame, received, send
from replayd.table import Table
from replayd.unread import Unread
from replayd.watch import Watch
from replayd.wire import Undecodable, encode, read

log = logging.getLogger("replayd")

MESSAGES_PER_TURN = 128
BYTES_PER_TURN = 1 << 20
"""Messages taken from one socket before replies are sent, and their bytes after which there is no further one: bounds
how long a busy peer delays the others' replies, and how much waits in memory. Without the second the longest turn
beside a checkpoint of a million items was 75 ms, with it 50, and the throughput the same."""


class Daemon:
    """One service behind a ROUTER and, if `ingest` is given, a PULL socket.

    `listen` and `ingest` are ZeroMQ endpoints; port 0 or `*` picks a free one. `seed` None draws one from the system,
    and keys of items begin where no server before this one had any; with a seed they begin at 1. `trimmer` holds down
    what the process keeps of freed memory. With a `store` the service begins with what is in it. On a `board` the loop
    puts a bulletin once a second, of which a `manager`, who started the process, is told. `fds` are sockets that it
    opened before, by the endpoints at which they listen. `max_bytes`: the most that all tables may hold (None: no
    limit). With a directory of `keys` nobody is let in without one.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        listen: str,
        ingest: str | None = None,
        seed: int | None = None,
        lease_s: float = LEASE_S,
        trimmer: Trimmer | None = None,
        store: StoreOptions | None = None,
        board: Board | None = None,
        reload: Callable[[Handler, float], None] | None = None,
        manager: Manager | None = None,
        fds: Mapping[str, int] | None = None,
        max_bytes: int | None = None,
        keys: Path | None = None,
    ) -> None:
        self._tables = tables
        self._keys = keys
        self._reload = reload
        self._max_bytes = max_bytes
        self._board = board
        self._manager = manager
        self._fds = fds or {}
        self._seed = seed
        self._lease_s = lease_s
        self._trimmer = trimmer
        self._listen = listen
        self._ingest = ingest
        self._store = store
        self._keeper: Keeper | None = None
        self._stop_asked = False
        self._stop_signals = 0
        self._reload_asked = False
        self._faults = FaultLog()
        # Written by `stop` and by the signal machinery: a signal handler alone does not end pyzmq's poll.
        self._wake_read, self._wake_write = socket.socketpair()
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)

    # --- life ---------------------------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Open the sockets, then take the tables.

        Raises BindError that names the address and the reason, ValueError for tables that cannot be served, AccessError
        for keys that cannot be read.
        """
        self._context = zmq.Context()
        self._connections = Connections()
        try:
            self._gate = Gate(self._context, self._keys, self._turned_away) if self._keys else None
            self._router = self._bound(zmq.ROUTER, self._listen)
            self._pull = self._bound(zmq.PULL, self._ingest) if self._ingest else None
            self.service = Service(
                self._tables,
                server_id=secrets.token_bytes(16),
                version=__version__,
                seed=secrets.randbits(64) if self._seed is None else self._seed,
                lease_s=self._lease_s,
                started_at=time.monotonic(),
                max_bytes=self._max_bytes,
                first_key=first_key_at(time.time_ns()) if self._seed is None else FIRST_KEY,
            )
            self._reception = Reception(self.service, own_frame, self._faults.tell, origin=origin)
            self._unread = Unread(self._reception.read)
            self._keeper = Keeper(self._store, self.service, self._wake) if self._store else None
            self._watch = Watch(self.service, self._connections, self._faults, self._board, self._manager)
        except (BindError, ValueError, AccessError):
            self.abandon()
            raise

    @property
    def router_address(self) -> str:
        """The endpoint of requests with its real port, once bound."""
        return address_of(self._router)

    @property
    def ingest_address(self) -> str | None:
        """The endpoint of PUSH inserts with its real port, once bound; None without one."""
        return address_of(self._pull) if self._pull else None

    def load(self) -> None:
        """Restore what is in the store, if there is one, before `run`; which else does it, answering `loading`.

        Raises StoreError and its kinds; call `abandon` then.
        """
        if self._keeper is not None:
            self._keeper.load_and_tell()

    def abandon(self) -> None:
        """Close what `bind` opened, if there will be no `run`."""
        self._context.destroy(linger=0)
        for end in (self._wake_read, self._wake_write):
            end.close()

    def run(self, stop_on_signals: bool = True) -> None:
        """Serve until `stop` is called or (if asked) SIGTERM or SIGINT comes; then answer those who wait.

        With a store, whoever asks before it is loaded is told so; at the end comes a last checkpoint, which a second
        signal cuts short. At SIGHUP `reload` is called, if there is one.

        Raises StoreError and its kinds if the store cannot be loaded, LastCheckpointFailed.
        """
        with self._signals() if stop_on_signals else contextlib.nullcontext():
            try:
                if self._keeper is None or self._load(self._keeper):
                    self._loop()
                    self._say_goodbye()
                    self._finish()
            except StoreError:
                raise
            except Exception:
                log.exception("the daemon fails, which belongs in a report; those who wait are told, then it ends")
                # The state may be broken: the first fault is the one to tell of.
                with contextlib.suppress(Exception):
                    self._say_goodbye()
                raise
            finally:
                self._close()

    def stop(self) -> None:
        """End `run`; safe from any thread and from signal handlers."""
        self._stop_asked = True
        self._wake()

    def read_settings_again(self) -> None:
        """Have `run` call `reload` and read the allow-list; safe from any thread and from signal handlers."""
        self._reload_asked = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_write.send(b"\0")

    # --- before and after the loop ------------------------------------------------------------------------------------

    def _load(self, keeper: Keeper) -> bool:
        """Restore on a thread and answer everyone `loading` meanwhile. False: the daemon is to stop."""
        if keeper.is_loaded:
            return True
        keeper.begin_loading()
        poller = self._poller()
        while keeper.is_loading:
            self._watch.tell(f"loading: {keeper.progress.text()}", keeper.step)
            keeper.progress.tell()
            if self._stop_asked:
                keeper.give_up_loading()
                return False
            ready = dict(poller.poll(round(TOLD_S * 1000)))
            self._take_signs(ready)
            if self._router in ready:
                self._refuse_all(keeper)
        return True

    def _refuse_all(self, keeper: Keeper) -> None:
        error = keeper.loading()
        for peer, frames in arrived(self._router, MESSAGES_PER_TURN):
            try:
                message = read(frames)
            except Undecodable as fault:
                self._send(peer, Failed(fault.op, fault.id, fault.error.code, fault.error.message, fault.error.detail))
            else:
                self._send(peer, Failed(message.op, message.id, error.code, error.message, error.detail))

    def _finish(self) -> None:
        """The last checkpoint. Who asks meanwhile is told that the server is stopping."""
        keeper = self._keeper
        if keeper is None:
            return
        signals = self._stop_signals
        keeper.begin_last(time.monotonic())
        poller = self._poller()
        while True:
            now = time.monotonic()
            self._watch.begin(now)
            due = keeper.turn(now)
            self._send_replies()
            due = _first(due, self._watch.end(now))
            if keeper.is_done:
                break
            if self._stop_signals > signals:
                log.warning("told to stop again, so there is no last checkpoint: leave it the time, to lose nothing")
                break
            ready = dict(poller.poll(_wait_ms(due)))
            self._take_signs(ready)
            if self._router in ready:
                self._take_requests(time.monotonic())
        try:
            keeper.close()
        finally:
            self._send_replies()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        poller = self._poller()
        reads_router, reads_pull = True, False
        self._watch.tell("")
        due: float | None = 0.0  # The first turn waits for nothing: loading was woken for what was asked for before it.
        keeper = self._keeper
        self._reception.recorder = keeper.journal if keeper else None
        self._reception.guard = keeper.refusal if keeper else None
        while not self._stop_asked:
            is_behind = keeper is not None and keeper.is_behind
            reads_router = _listens(poller, self._router, reads_router, not is_behind)
            if self._pull:
                wanted = self.service.wants_inserts and not is_behind and (keeper is None or keeper.wants_inserts)
                reads_pull = _listens(poller, self._pull, reads_pull, wanted)
            ready = dict(poller.poll(_wait_ms(due)))
            now = time.monotonic()
            self._watch.begin(now)
            if self._router in ready:
                self._take_requests(now)
            if self._pull and self._pull in ready:
                self._take_pushes(now)
            self._take_signs(ready)
            if self._reload_asked:
                self._reload_asked = False
                with self._watch.reloading():
                    if self._gate:
                        self._gate.reload()
                    if self._reload:
                        self._reload(self._reception, now)
                    elif not self._gate:
                        log.warning("SIGHUP changes no settings: there is no file of them; `replayd set` changes many")
            self._unread.look(now)
            due = self._reception.end_turn(now)
            keeper_due = keeper.turn(now) if keeper else None
            self._send_replies()
            self._write_log(now)
            trim_due = self._trimmer.tick(now, self.service.chunks.bytes_in_use) if self._trimmer else None
            unread_due = self._unread.due(now, self.service.holds_back)
            due = _first(due, keeper_due, self._faults.tick(now), trim_due, unread_due, self._watch.end(now))

    def _write_log(self, now: float) -> None:
        while self.service.notices:
            notice = self.service.notices.pop(0)
            kind = notice.partition(":")[0]
            self._faults.say(
                notice, kind=kind, now=now, fields={"event": "setting", "table": kind.removeprefix("table ")}
            )
        while self.service.faults:
            self._faults.tell(self.service.faults.pop(0), now)

    def _say_goodbye(self) -> None:
        self._watch.tell(STOPPING)
        self.service.stop()
        self._send_replies()
        now = time.monotonic()
        self._write_log(now)
        self._faults.close(now)

    def _take_requests(self, now: float) -> None:
        taken = 0
        for peer, frames in arrived(self._router, MESSAGES_PER_TURN):
            self._reception.take(peer, frames, now, self._gate.holder(peer, frames[-1]) if self._gate else None)
            taken += sum(map(len, frames))
            if taken >= BYTES_PER_TURN or self.service.outbox_bytes >= REPLY_BYTES.value:
                break
        self._reception.settle(now)

    def _take_pushes(self, now: float) -> None:
        assert self._pull is not None
        taken = 0
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = received(self._pull)
            except zmq.Again:
                break
            self._reception.take(None, frames, now, self._gate.holder(None, frames[-1]) if self._gate else None)
            taken += sum(map(len, frames))
            if taken >= BYTES_PER_TURN or not self.service.wants_inserts:
                break
        self._reception.settle(now)

    def _send_replies(self) -> None:
        replies = self.service.drain(are_read=False)
        for peer, reply in replies if self._keeper is None else self._keeper.released(replies):
            self._send(peer, reply)

    def _send(self, peer: Peer, reply: Reply) -> None:
        assert isinstance(peer, tuple)
        if peer == ():
            return  # The daemon's own request, see `reloading`.
        frames = encode(reply)
        if isinstance(reply, Sampled | Peeked):
            op = "sample" if isinstance(reply, Sampled) else "peek"
            if self._gate and (revoked := self._gate.refusal_of_reply(peer, op)):
                frames = encode(Failed(op, reply.id, revoked.code, revoked.message, revoked.detail))
            frames = self._unread.followed(peer, frames, reply.shown.nbytes, time.monotonic())
        try:
            send(self._router, [*peer, *frames])
        except zmq.Again:
            # The peer has more replies unread than it may have requests open.
            self.service.counters.replies_dropped += 1
            self._faults.say(
                "dropped a reply to a peer that does not read: see what holds it up, or let it ask for less at once",
                kind="dropped reply",
                now=time.monotonic(),
                level=logging.WARNING,
                fields={"peer": peer[0].hex()},
            )
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self.service.counters.replies_to_the_gone += 1

    def _turned_away(self, text: str) -> None:
        self.service.counters.connections_refused += 1
        self._faults.say(text, kind="refused connection", now=time.monotonic(), level=logging.WARNING)

    # --- signals and sockets ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self._stop_asked = True
            self._stop_signals += 1

        def ask_to_reload(number: int, frame: FrameType | None) -> None:
            self._reload_asked = True

        handlers = {signal.SIGTERM: ask_to_stop, signal.SIGINT: ask_to_stop, signal.SIGHUP: ask_to_reload}
        old_fd = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, old_handler in old.items():
                signal.signal(number, old_handler)
            signal.set_wakeup_fd(old_fd)

    def _bound(self, kind: int, endpoint: str) -> zmq.Socket[Any]:
        return bound(self._context, kind, endpoint, self._connections, self._gate, self._fds.get(endpoint))

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        for sign in (self._wake_read, *self._connections.monitors, *([self._gate.socket] if self._gate else [])):
            poller.register(sign, zmq.POLLIN)
        return poller

    def _take_signs(self, ready: Mapping[Any, int]) -> None:
        """Take what is no message: that somebody woke the loop, wants to be let in, came or went."""
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(4096)
        if self._gate and self._gate.socket in ready:
            self._gate.answer()
        if not ready.keys().isdisjoint(self._connections.monitors):
            self._watch.peers_changed()

    def _close(self) -> None:
        if self._keeper:
            self._keeper.close()
        self._connections.close()
        if self._gate:
            self._gate.close()
        self._router.close()
        if self._pull:
            self._pull.close()
        self._context.term()
        self._wake_read.close()
        self._wake_write.close()


def _listens(poller: zmq.Poller, socket: zmq.Socket[Any], listens: bool, wanted: bool) -> bool:
    """Begin or end to look at a socket, if that is wanted; what is the case afterwards."""
    if wanted and not listens:
        poller.register(socket, zmq.POLLIN)
    elif listens and not wanted:
        poller.unregister(socket)
    return wanted


def _first(*dues: float | None) -> float | None:
    return min([due for due in dues if due is not None], default=None)


def _wait_ms(due: float | None) -> int | None:
    return None if due is None else math.ceil(max(0.0, due - time.monotonic()) * 1000)
