"""Reception: messages on their way into the service, as they come in or as a journal has them.

Owns what is done before a request is handled: reading it, refusing what cannot be read or comes too often, joining
small inserts. What was
accepted is told to the recorder, in the order in which it was, so that it can be repeated. Knows no socket, no disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from replayd.errors import Fault, LimitExceeded, PeerError
from replayd.header import Frames
from replayd.insert_forms import InsertForm, InsertForms, read_alike
from replayd.insert_reader import cut_large
from replayd.insert_runs import is_joinable, read_run
from replayd.messages import Buffer, Insert, Peer, Set
from replayd.pace import Pace
from replayd.service import Service
from replayd.wire import Undecodable, Unread, decode_unread, encode_set, read

FORMS_LEARNED = 4
"""Forms of headers learned in one turn, which takes 20 µs for each."""


class Asker(Protocol):
    """Who sent a message, and may not ask for everything."""

    def refusal(self, op: str) -> PeerError | None:
        """Why a request of this op is not for them; None if it is."""


class Recorder(Protocol):
    """Who keeps what changes the state."""

    def refusal(self, op: str) -> PeerError | None:
        """Why a request of this op must not be taken now; None if it may."""

    def record(self, peer: Peer, op: str, frames: Frames, now: float, *, goes_on: bool) -> None:
        """A message was accepted. `goes_on`: it was taken together with the one before it."""

    def record_read(self, peer: Peer, nbytes: int, replies: int) -> None:
        """A peer has read so much of what it was sent, which counts at the next end of a turn."""

    def end_turn(self, now: float, *, is_due: bool) -> None:
        """Time has passed. `is_due`: something was to be done by then."""


class Handler(Protocol):
    """Who takes requests that the daemon itself has."""

    def handle(self, peer: Peer, op: str, request: Set, now: float) -> PeerError | None:
        """As `Service.handle`."""


class Reception:
    """Of one service. `own` copies a payload into a buffer of its own; `tell` takes faults that no peer hears of.

    `origin` says of a message where it came from, for the log.
    """

    def __init__(
        self,
        service: Service,
        own: Callable[[memoryview], Buffer],
        tell: Callable[[Fault, float], None],
        recorder: Recorder | None = None,
        origin: Callable[[Frames], str] = lambda frames: "somewhere",
    ) -> None:
        self._service = service
        self._own = own
        self._tell = tell
        self._origin = origin
        self.recorder = recorder
        self.guard: Callable[[str], PeerError | None] | None = None
        """Of an op why it must not be taken now, whatever the recorder says."""
        self._pace = Pace()
        """Of what comes in; what was recorded is repeated at any."""
        self._joined: list[tuple[Peer, Frames, Unread]] = []
        """Small inserts of this turn, not handled yet."""
        self._alike: list[tuple[Peer, InsertForm, Frames, Asker | None]] = []
        """The same, while there is nothing else: not even read, since their headers look like those of before."""
        self._forms = InsertForms()
        self._due: float | None = -math.inf

    def take(self, peer: Peer, frames: Frames, now: float, asker: Asker | None = None) -> None:
        """Handle a message, or let a small insert wait for others of this turn. `asker`: whose it is, where not
        everybody may ask for everything."""
        if self._pace.unheard and self._is_unheard(peer, now):
            return
        form = self._forms.of(frames)
        if form is None or self._joined or not self._is_alike(form, peer, asker):
            self._part_alike(now)
            self._take_unlike(peer, frames, now, asker)
        else:
            self._alike.append((peer, form, frames, asker))

    def settle(self, now: float) -> None:
        """The small inserts that came one behind the other, all at once if they allow it."""
        if len(self._alike) > 1 and self._settle_alike(now):
            return
        is_misread = len(self._alike) > 1
        self._part_alike(now)
        joined, self._joined = self._joined, []
        if len(joined) > 1 and self._refusal("insert") is None:
            run = read_run([(peer, message.id, message.header, message.body) for peer, _, message in joined])
            if run is not None and self._service.handle_run(run, now):
                self._record_run([(peer, frames) for peer, frames, _ in joined], now)
                self._learn(joined, anew=is_misread)
                return
        for peer, frames, message in joined:
            self._handle(peer, frames, message, now)

    def handle(self, peer: Peer, op: str, request: Set, now: float) -> PeerError | None:
        """Handle a wish of the daemon's own as if a peer had sent it."""
        error = self._service.handle(peer, op, request, now)
        if error is None and self.recorder is not None:
            self.recorder.record((b"daemon",), op, encode_set(request), now, goes_on=False)
        return error

    def read(self, peer: Peer, nbytes: int, replies: int = 1) -> None:
        """A peer has read so many replies, with so much payload, or will never."""
        self._service.read(peer, nbytes, replies)
        if self.recorder is not None:
            self.recorder.record_read(peer, nbytes, replies)

    def end_turn(self, now: float) -> float | None:
        """Let the service do what is due; when the next thing will be, None if there is nothing."""
        is_due = self._due is not None and self._due <= now
        self._due = self._service.tick(now)
        if self.recorder is not None:
            self.recorder.end_turn(now, is_due=is_due)
        return self._due

    def repeat(self, messages: Sequence[tuple[Peer, Frames]], now: float) -> int:
        """Handle what was recorded as taken together; how many of these messages are refused now."""
        unread = [(peer, read(frames, pushed=peer is None)) for peer, frames in messages]
        if len(unread) > 1:
            run = read_run([(peer, message.id, message.header, message.body) for peer, message in unread])
            if run is not None and self._service.handle_run(run, now):
                return 0
        return sum(self._accept(peer, message, now) is not None for peer, message in unread)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _is_alike(self, form: InsertForm, peer: Peer, asker: Asker | None) -> bool:
        """Whether an insert of this form may wait among the others that have not been read."""
        if peer is not None and not form.has_id:
            return False
        if self._alike and form.kind != self._alike[0][1].kind:
            return False
        return asker is None or asker.refusal("insert") is None

    def _settle_alike(self, now: float) -> bool:
        """Read and handle those that wait unread; False if they must be read one by one."""
        alike = self._alike
        if self._refusal("insert") is not None:
            return False
        run = read_alike([(peer, form, frames) for peer, form, frames, _ in alike])
        if run is None or not self._service.handle_run(run, now):
            return False
        self._alike = []
        self._record_run([(peer, frames) for peer, _, frames, _ in alike], now)
        return True

    def _part_alike(self, now: float) -> None:
        """Those that wait unread are read one by one, since something came that is not like them."""
        alike, self._alike = self._alike, []
        for peer, _, frames, asker in alike:
            self._take_unlike(peer, frames, now, asker)

    def _record_run(self, messages: Sequence[tuple[Peer, Frames]], now: float) -> None:
        if self.recorder is not None:
            for n, (peer, frames) in enumerate(messages):
                self.recorder.record(peer, "insert", frames, now, goes_on=n > 0)

    def _learn(self, joined: Sequence[tuple[Peer, Frames, Unread]], anew: bool) -> None:
        """Know the forms of these from now on; `anew`: what is known of them may be wrong."""
        new: dict[int, tuple[Frames, Unread]] = {}
        for _, frames, message in joined:
            if anew or self._forms.of(frames) is None:
                new[len(frames[0])] = frames, message
        for frames, message in list(new.values())[:FORMS_LEARNED]:
            self._forms.learn(frames[0], message.header)

    # --- one message --------------------------------------------------------------------------------------------------

    def _take_unlike(self, peer: Peer, frames: Frames, now: float, asker: Asker | None) -> None:
        try:
            message = read(frames, pushed=peer is None)
        except Undecodable as fault:
            self._take_unreadable(peer, frames, fault, now)
            return
        forbidden = None if asker is None else asker.refusal(message.op)
        if forbidden is not None:
            self._refuse(peer, frames, Undecodable(forbidden, message.op, message.id), now)
            return
        try:
            self._pace.check(peer, message.op, now)
        except LimitExceeded as error:
            self._refuse(peer, frames, Undecodable(error, message.op, message.id), now)
            return
        if message.op == "insert" and is_joinable(message.header, message.body):
            self._joined.append((peer, frames, message))
            return
        # What was sent before is done before.
        self.settle(now)
        self._handle(peer, frames, message, now)

    def _handle(self, peer: Peer, frames: Frames, message: Unread, now: float) -> None:
        error = self._refusal(message.op)
        if error is not None:
            self._service.refuse(peer, message.op, message.id, error)
        else:
            try:
                error = self._accept(peer, message, now)
            except Undecodable as fault:
                self._refuse(peer, frames, fault, now)
                return
            if error is None and self.recorder is not None:
                self.recorder.record(peer, message.op, frames, now, goes_on=False)
        if error is not None and peer is None:
            self._tell_of_push(frames, error, now)

    def _take_unreadable(self, peer: Peer, frames: Frames, fault: Undecodable, now: float) -> None:
        self._service.counters.unreadable += 1
        self._refuse(peer, frames, fault, now)
        # All who push are one peer here: the others among them would not be heard either.
        if peer is not None and self._pace.take_unreadable(peer, now):
            advice = (
                f"whoever sends it from {self._origin(frames)} speaks another protocol: end it, or give it another port"
            )
            self._tell(Fault("a peer floods the server with what cannot be read", fault.error, advice), now)

    def _is_unheard(self, peer: Peer, now: float) -> bool:
        """Refuse a message unread if it is of a peer that is not heard now."""
        try:
            self._pace.check_unheard(peer, now)
        except LimitExceeded as error:
            self._service.counters.unreadable += 1
            self._service.refuse(peer, "", 0, error)
            return True
        return False

    def _accept(self, peer: Peer, message: Unread, now: float) -> PeerError | None:
        op, request = decode_unread(message)
        if isinstance(request, Insert) and request.chunks is not None:
            cut_large(request.chunks, self._own)
        return self._service.handle(peer, op, request, now)

    def _refusal(self, op: str) -> PeerError | None:
        error = None if self.guard is None else self.guard(op)
        return self.recorder.refusal(op) if error is None and self.recorder is not None else error

    def _refuse(self, peer: Peer, frames: Frames, fault: Undecodable, now: float) -> None:
        self._service.refuse(peer, fault.op, fault.id, fault.error)
        if peer is None:
            self._tell_of_push(frames, fault.error, now)

    def _tell_of_push(self, frames: Frames, error: PeerError, now: float) -> None:
        origin = self._origin(frames)
        advice = (
            f"it came from {origin}, and nobody answers who pushes: look for the peer, or let it insert as a DEALER"
        )
        self._tell(Fault(f"refused a pushed message: {error.code}", error, advice), now)
