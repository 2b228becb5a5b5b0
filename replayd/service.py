"""The service: names → tables and streams, requests → handlers, deadlines, the outbox.

Everything that happens to the state happens through `handle` and `tick`; replies leave through `drain`. Time is handed
in. Owns peers' open requests. Knows no bytes of the wire, no sockets, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replayd.accounts import Accounts
from replayd.admission import check_priorities
from replayd.capacity import ServerCapacity
from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.deadlines import Deadlines, PendingHere
from replayd.durability import Durability
from replayd.errors import BadRequest, Fault, PeerError, ShuttingDown, Withdrawn
from replayd.intake import Intake, table_named
from replayd.interned import Interned
from replayd.items import FIRST_KEY, Keys
from replayd.leases import Leases
from replayd.limits import LEASE_S, MAX_WAIT_MS, SAMPLES, UPDATES, WISH_ROUNDS
from replayd.messages import (
    Checkpoint,
    CloseStream,
    Failed,
    Hello,
    Info,
    Insert,
    InsertRun,
    KeepAlive,
    Peek,
    Peeked,
    Peer,
    Reply,
    Request,
    Reset,
    Result,
    Sample,
    Sampled,
    Set,
    Update,
    Why,
    Withdraw,
)
from replayd.peeking import peek
from replayd.peer_names import PeerNames
from replayd.pending import Applied, Drawn, HeldBack, Outcome, PendingSample
from replayd.quotas import Quotas
from replayd.reports import Counters, report, report_hello
from replayd.service_proof import prove_service
from replayd.settings import change_live
from replayd.streams import Streams, Ticket
from replayd.table import Table
from replayd.table_arguments import check_tables_together
from replayd.waiting import timeout, timeout_unread, why
from replayd.wishes import carry_out_wishes


class Service:
    """The whole daemon but its sockets. Deterministic: the same requests at the same times give the same replies.

    Keys of items rise from `first_key` on, which whoever starts it chooses so that no server before it drew them.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        server_id: bytes,
        version: str,
        seed: int | Sequence[int],
        started_at: float,
        lease_s: float = LEASE_S,
        shard: int = 0,
        max_bytes: int | None = None,
        first_key: int = FIRST_KEY,
    ) -> None:
        check_tables_together(tables)
        self.server_id = server_id
        self.version = version
        self.started_at = started_at
        self.counters = Counters()
        self.notices: list[str] = []
        """What an operator should read in the log; the shell takes them."""
        self.faults: list[Fault] = []
        """What extensions did wrong, for the log; the shell takes them too, and limits how often it tells."""
        self.chunks = ChunkStore()
        self.streams = Streams(self.chunks, lease_s, Leases.within(max_bytes))
        self.templates: Interned[Template] = Interned()
        self.capacity = ServerCapacity(self.chunks, max_bytes)
        self.tables = {table.name: table for table in tables}
        for table, entropy in zip(tables, np.random.SeedSequence(seed).spawn(len(tables)), strict=True):
            table.bind(self.chunks, self.templates, np.random.Generator(np.random.PCG64(entropy)), self.capacity)
        self._keys = Keys(shard, first_key)
        self._accounts = Accounts()
        self._quotas: Quotas[PendingHere] = Quotas()
        self._intake = Intake(
            self.tables, self.chunks, self.streams, self.templates, self._keys, self._accounts, self.counters
        )
        self._deadlines = Deadlines()
        self._names = PeerNames()
        self._outbox: list[tuple[Peer, Reply]] = []
        self.outbox_bytes = 0
        """Payload of the samples that wait to be drained."""
        self.durability = Durability()
        self._stopping = False
        self._handlers: dict[type[Request], Callable[[Peer, Any, float], None]] = {
            Hello: self._hello,
            Insert: self._insert,
            Sample: self._sample,
            Withdraw: self._withdraw,
            Update: self._update,
            Reset: self._reset,
            Info: self._info,
            Why: self._why,
            Peek: self._peek,
            Set: self._set,
            KeepAlive: self._keepalive,
            CloseStream: self._close_stream,
            Checkpoint: lambda peer, request, now: self.durability.ask(peer, request.id),
        }

    # --- entrance, clock, exit ----------------------------------------------------------------------------------------

    def handle(self, peer: Peer, op: str, request: Request, now: float) -> PeerError | None:
        """Take one request; its reply, and any that it sets free, wait in the outbox.

        Returns the error it was refused with, None if it was not.
        """
        self.counters.requests += 1
        try:
            if self._stopping:
                raise ShuttingDown("the server is stopping")
            self._handlers[type(request)](peer, request, now)
        except PeerError as error:
            self.refuse(peer, op, request.id, error)
            return error
        return None

    def handle_run(self, run: InsertRun, now: float) -> bool:
        """Take inserts that came one behind the other, all at once; False if each must be handled by itself.

        The replies are those to each message, in order; nothing has happened if it is False.
        """
        accepted = None if self._stopping else self._intake.accept_run(run, now)
        if accepted is None:
            return False
        self.counters.requests += len(run)
        if accepted.is_in:
            for peer, id, ticket in zip(run.peers, run.ids, accepted.tickets, strict=True):
                if peer is not None:
                    self._outbox.append((peer, Result("insert", id, ticket.acknowledgement(duplicate=False))))
        else:
            for ticket in accepted.tickets:
                if ticket.items == 0:
                    self._acknowledge(ticket)
        for table in accepted.tables:
            self._pump(table, now)
        return True

    def refuse(self, peer: Peer, op: str, id: int, error: PeerError) -> None:
        """Answer a request with an error; a PUSH peer hears nothing, so it is counted."""
        if peer is None:
            self.counters.pushes_refused += 1
            return
        self.counters.refused += 1
        self._outbox.append((peer, Failed(op, id, error.code, error.message, error.detail)))

    def reply(self, peer: Peer, reply: Reply) -> None:
        """Answer what the shell has done."""
        self._outbox.append((peer, reply))

    def tick(self, now: float) -> float | None:
        """Do what is due; the time of the next thing that will be, None if there is nothing."""
        # In the order in which they were asked for, whichever peer has read first.
        for request, table in sorted(self._quotas.take_ready(), key=lambda each: each[0].since):
            request.is_held = False
            table.pending_samples.append(request)
            self._pump(table, now)
        while (due := self._deadlines.take_due(now)) is not None:
            self._expire(*due, now)
            self._pump(due[1], now)
        deadline = self._deadlines.next(sum(len(table.pending_samples) for table in self.tables.values()))
        lease_due = self.streams.expire(now, self.wants_inserts)
        return min((time for time in (lease_due, deadline) if time is not None), default=None)

    def drain(self, are_read: bool = True) -> list[tuple[Peer, Reply]]:
        """The replies since the last drain, in order. Unless `are_read`, say `read` of each that has payload."""
        outbox, self._outbox = self._outbox, []
        self.outbox_bytes = 0
        if are_read:
            for peer, reply in outbox:
                if isinstance(reply, Sampled | Peeked):
                    self.read(peer, reply.shown.nbytes)
        return outbox

    def read(self, peer: Peer, nbytes: int, replies: int = 1) -> None:
        """A peer has read so many replies to samples and peeks, with so much payload, or will never; then `tick`."""
        self._quotas.read(peer, nbytes, replies)
        self._forget_if_idle(peer)

    @property
    def holds_back(self) -> bool:
        """Whether samples wait until their peers have read."""
        return self._quotas.holds

    def stop(self) -> None:
        """Answer everyone who waits with `shutting_down`; nothing is accepted any more."""
        self._stopping = True
        error = ShuttingDown("the server is stopping")
        for request, _ in self.give_up_samples(None):
            self.refuse(request.peer, "sample", request.id, error)
        for table in self.tables.values():
            for ticket in {id(p.ticket): p.ticket for p in table.pending_inserts}.values():
                for peer, asked in ticket.askers:
                    self._accounts.close_insert(peer, ticket.nbytes)
                    self.refuse(peer, "insert", asked, error)
                ticket.askers.clear()

    def give_up_samples(self, peer: Peer) -> list[PendingHere]:
        """Forget the samples of this peer that wait, None: of all, at tables and until their peers have read."""
        given_up = [each for each in self._quotas.held if peer is None or each[0].peer == peer]
        for request, table in given_up:
            self._quotas.let_go(request.peer, (request, table))
            request.is_held = False
        for table in self.tables.values():
            given_up += [(request, table) for request in table.give_up_samples(peer)]
        for request, _ in given_up:
            self._answered(request)
        return given_up

    def report(self, now: float, brief: bool = False) -> dict[str, Any]:
        """What `info` says, in values that nothing changes later; if brief, at a bounded cost."""
        parts = (self.chunks, self.streams, self._accounts, self._quotas, self.counters, self.capacity, self._names)
        return {
            "server_id": self.server_id,
            "server": f"replayd {self.version}",
            "uptime_s": now - self.started_at,
            **report(list(self.tables.values()), *parts, now, brief),
            **self.durability.report(now),
        }

    @property
    def wants_inserts(self) -> bool:
        """False: leave the PULL socket unread, the network does the waiting."""
        return not any(table.is_congested for table in self.tables.values())

    # --- handlers -----------------------------------------------------------------------------------------------------

    def _hello(self, peer: Peer, request: Hello, now: float) -> None:
        self._names.greet(peer, request.client)
        fields = report_hello(self.server_id, self.version, self.streams, self.tables.values())
        self._outbox.append((peer, Result("hello", request.id, fields)))

    def _insert(self, peer: Peer, request: Insert, now: float) -> None:
        ticket = self.streams.accepted(request.stream, request.seq)
        if ticket is not None:
            self._acknowledge_again(peer, request, ticket, now)
            return
        ticket, tables = self._intake.accept(peer, request, now)
        if ticket.items == 0:
            self._acknowledge(ticket)
        for table in tables:
            self._pump(table, now)

    def _sample(self, peer: Peer, request: Sample, now: float) -> None:
        table = table_named(request.table, self.tables)
        SAMPLES.check(request.n)
        if not 1 <= request.min_n <= request.n:
            raise BadRequest(f"min_n must be between 1 and n, got min_n {request.min_n} and n {request.n}")
        self._accounts.check_sample(peer)
        wait_s = min(request.timeout_s, MAX_WAIT_MS.value / 1000)
        pending = PendingSample(peer, request.id, request.n, request.min_n, now, now + wait_s)
        table.park_sample(pending)
        self._accounts.open_sample(peer)
        pending.quota = self._quotas.of(peer)
        self._pump(table, now)
        if not pending.answered:
            self._deadlines.add(pending, table)

    def _withdraw(self, peer: Peer, request: Withdraw, now: float) -> None:
        given_up = [] if peer is None else self.give_up_samples(peer)
        for sample, _ in given_up:
            self.refuse(peer, "sample", sample.id, Withdrawn("the peer took this sample back"))
        self._outbox.append((peer, Result("withdraw", request.id)))
        for table in {table.name: table for _, table in given_up}.values():
            self._pump(table, now)

    def _update(self, peer: Peer, request: Update, now: float) -> None:
        table = table_named(request.table, self.tables)
        UPDATES.check(len(request.keys) + len(request.deletes))
        check_priorities(request.priorities, request.keys)
        updated, deleted, missing = table.update(request.keys, request.priorities, request.deletes)
        self.counters.priority_updates += updated
        fields = {"updated": updated, "deleted": deleted, "missing": missing}
        self._outbox.append((peer, Result("update", request.id, fields)))
        self._pump(table, now)

    def _reset(self, peer: Peer, request: Reset, now: float) -> None:
        table = table_named(request.table, self.tables)
        self._outbox.append((peer, Result("reset", request.id, {"removed": table.reset()})))
        self._pump(table, now)

    def _info(self, peer: Peer, request: Info, now: float) -> None:
        self._outbox.append((peer, Result("info", request.id, self.report(now))))

    def _why(self, peer: Peer, request: Why, now: float) -> None:
        fields = why(table_named(request.table, self.tables), self._names, now)
        waits = self.durability.waits or self.streams.leases.tell(now)
        if waits is not None and fields["waiting"]:
            fields["advice"] = f"{waits}; {fields['advice']}"
        elif waits is not None:
            fields |= {"verdict": "inserts_wait", "advice": waits}
        self._outbox.append((peer, Result("why", request.id, fields)))

    def _peek(self, peer: Peer, request: Peek, now: float) -> None:
        table = table_named(request.table, self.tables)
        self._quotas.check(peer)
        shown, ages_s, missing = peek(table, request.order, request.n, request.keys, now)
        self._quotas.of(peer).add(shown.nbytes)
        self._outbox.append((peer, Peeked(request.id, shown, ages_s, missing)))

    def _set(self, peer: Peer, request: Set, now: float) -> None:
        table = table_named(request.table, self.tables)
        fields, told = change_live(table, request.changes)
        if told:
            self.notices.append(f"table {table.name}: {told}")
        self._outbox.append((peer, Result("set", request.id, fields)))
        self._pump(table, now)

    def _keepalive(self, peer: Peer, request: KeepAlive, now: float) -> None:
        self.streams.heard(self.streams.opened(request.stream), now)
        self._outbox.append((peer, Result("keepalive", request.id)))

    def _close_stream(self, peer: Peer, request: CloseStream, now: float) -> None:
        stream = self.streams.get(request.stream)
        if stream is not None:
            self.streams.close(stream)
        self._outbox.append((peer, Result("close_stream", request.id)))

    # --- inserts ------------------------------------------------------------------------------------------------------

    def _acknowledge(self, ticket: Ticket) -> None:
        for peer, id in ticket.askers:
            self._outbox.append((peer, Result("insert", id, ticket.acknowledgement(duplicate=False))))
            self._accounts.close_insert(peer, ticket.nbytes)
        ticket.askers.clear()

    def _acknowledge_again(self, peer: Peer, request: Insert, ticket: Ticket, now: float) -> None:
        """A resend: the answer is the same, now or when the parked message is through."""
        if peer is not None and ticket.waiting:
            # An earlier connection may be gone or only slow: whoever asked is answered.
            self._accounts.check_insert(peer, ticket.nbytes)
            ticket.askers.append((peer, request.id))
            self._accounts.open_insert(peer, ticket.nbytes)
        elif peer is not None:
            self._outbox.append((peer, Result("insert", request.id, ticket.acknowledgement(duplicate=True))))
        self.counters.duplicates += 1
        stream = self.streams.get(request.stream)
        if stream is not None:
            self.streams.heard(stream, now)

    # --- progress -----------------------------------------------------------------------------------------------------

    def _pump(self, table: Table, now: float) -> None:
        """Let a table move, carry out what its extensions wished meanwhile, and so on with the tables that touches."""
        touched = [table]
        for _ in range(WISH_ROUNDS.value):
            wishful: list[Table] = []
            for each in self._move(touched, now):
                if each.hooks.access.has_wishes:
                    wishful += carry_out_wishes(each, self.tables, self.chunks, self.templates, self._keys, now)
                self.faults += each.hooks.take_untold()
            touched = list(dict.fromkeys(wishful))
            if not touched:
                return
        # Extensions that set each other off would never come to rest.
        self._move(touched, now)
        for each in self.tables.values():
            each.hooks.drop_wishes()
            self.faults += each.hooks.take_untold()

    def _move(self, tables: list[Table], now: float) -> list[Table]:
        """Pump these tables, and those that they took items from or made room for; all that were pumped."""
        todo, moved = list(tables), dict.fromkeys(tables)
        while todo:
            table = todo.pop(0)
            was_congested = table.is_congested
            self._settle(table.pump(now))
            if was_congested and not table.is_congested:
                self.streams.unread_until = now
            stirred = [self.tables[name] for name in self.capacity.take_stirred()]
            todo += [each for each in stirred if each not in todo]
            moved.update(dict.fromkeys(stirred))
        return list(moved)

    def _settle(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Applied):
                outcome.ticket.waiting -= outcome.items
                if outcome.ticket.waiting == 0:
                    if outcome.ticket.stream is not None:
                        self.streams.settle(outcome.ticket.stream, outcome.ticket)
                    self._acknowledge(outcome.ticket)
            elif isinstance(outcome, HeldBack):
                outcome.request.is_held = True
                self._quotas.hold(outcome.request.peer, (outcome.request, self.tables[outcome.table]))
            else:
                self._serve(outcome)

    def _serve(self, drawn: Drawn) -> None:
        self._answered(drawn.request)
        self.outbox_bytes += drawn.reply.shown.nbytes
        self._outbox.append((drawn.request.peer, drawn.reply))

    def _expire(self, request: PendingSample, table: Table, now: float) -> None:
        if request.is_held:
            request.is_held = False
            self._quotas.let_go(request.peer, (request, table))
            self._answered(request)
            self.refuse(request.peer, "sample", request.id, timeout_unread(table))
            return
        was_first = table.pending_samples[0] is request
        reply = table.expire(request, now)
        if reply is not None:
            self._serve(Drawn(request, reply))
            return
        self._answered(request)
        self.refuse(request.peer, "sample", request.id, timeout(table, was_first))

    def _answered(self, request: PendingSample) -> None:
        request.answered = True
        self._accounts.close_sample(request.peer)
        self._forget_if_idle(request.peer)

    def _forget_if_idle(self, peer: Peer) -> None:
        if not self._accounts.samples_of(peer):
            self._quotas.forget(peer)

    def validate(self) -> None:
        """Re-derive every count from what holds it; assertion errors tell the story."""
        prove_service(self)
