"""Each rule that the simulation looks after, broken: some seed must notice, soon, and say so in words that fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import replayd.journal
import replayd.restoring
from replayd.checkpoints import Checkpoints
from replayd.chunks import ChunkStore
from replayd.errors import PeerError
from replayd.items import Keys
from replayd.journal import Journal
from replayd.messages import Failed, Result
from replayd.rate_limiters import RateLimiter
from replayd.service import Service
from replayd.table import Table
from replayd_client.interruptible import InterruptibleConnection
from tests.sim.disk import Disk
from tests.sim.simulation import Simulation

SEEDS = 240
"""Within which a broken rule must be noticed."""
Patch = pytest.MonkeyPatch


def each_nth(n: int) -> Callable[[], bool]:
    """True each n-th time."""
    turns = itertools.cycle([False] * (n - 1) + [True])
    return lambda: next(turns)


def instead(patch: Patch, owner: Any, name: str, work: Callable[..., Any]) -> None:
    """Have `work` done, which is given what was there before it."""
    before = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **named: work(before, *arguments, **named))


# --- while it lives ---------------------------------------------------------------------------------------------------


def lose_an_item(patch: Patch) -> None:
    """With all counts right."""
    is_due = each_nth(100)

    def tick(before: Any, service: Service, now: float) -> Any:
        table = service.tables["ledger"]
        if is_due() and table.size > 5:
            table._remove(table.items.in_order()[-1:])
        return before(service, now)

    instead(patch, Service, "tick", tick)


def apply_a_resend_again(patch: Patch) -> None:
    numbers = itertools.count()

    def acknowledge(before: Any, service: Service, peer: Any, request: Any, ticket: Any, now: float) -> None:
        before(service, peer, request, ticket, now)
        with suppress(PeerError):
            anew = replace(request, stream=next(numbers).to_bytes(16, "little"), seq=0)
            for table in service._intake.accept(None, anew, now)[1]:
                service._pump(table, now)

    instead(patch, Service, "_acknowledge_again", acknowledge)


def answer_twice(patch: Patch) -> None:
    is_due = each_nth(50)

    def drain(before: Any, service: Service, are_read: bool = True) -> Any:
        replies = before(service, are_read)
        return replies + replies[:1] if is_due() else replies

    instead(patch, Service, "drain", drain)


def never_answer(patch: Patch) -> None:
    is_due = each_nth(5)

    def drain(before: Any, service: Service, are_read: bool = True) -> Any:
        replies = before(service, are_read)
        return [each for each in replies if not (isinstance(each[1], Failed) and each[1].op == "sample" and is_due())]

    instead(patch, Service, "drain", drain)


def give_a_sample_again(patch: Patch) -> None:
    last: dict[str, Any] = {}
    is_due = each_nth(5)

    def serve(before: Any, service: Service, drawn: Any) -> None:
        name = service.tables["queue"].name if drawn.reply.shown.keys.size and is_queue(service, drawn) else ""
        if name and name in last and is_due():
            drawn = replace(drawn, reply=replace(drawn.reply, shown=last[name]))
        if name:
            last[name] = drawn.reply.shown
        before(service, drawn)

    def is_queue(service: Service, drawn: Any) -> bool:
        # What the queue has given is not there any more.
        return all(
            (table.items.find(drawn.reply.shown.keys) < 0).all()
            for table in service.tables.values()
            if table.name != "queue"
        )

    instead(patch, Service, "_serve", serve)


def leak_chunks(patch: Patch) -> None:
    is_due = each_nth(20)
    instead(patch, ChunkStore, "release", lambda before, chunks, slots: None if is_due() else before(chunks, slots))


def let_all_inserts_pass(patch: Patch) -> None:
    """And no sample, so that it matters soon."""
    patch.setattr(RateLimiter, "insertable", lambda limiter, n: n)
    patch.setattr(RateLimiter, "sampleable", lambda limiter, n: 0)


def let_all_samples_pass(patch: Patch) -> None:
    patch.setattr(RateLimiter, "sampleable", lambda limiter, n: n if limiter.size else 0)


# --- over a crash -----------------------------------------------------------------------------------------------------


def forget_in_the_journal(op: str) -> Callable[[Patch], None]:
    def forget(patch: Patch) -> None:
        patch.setattr(replayd.journal, "RECORDED", replayd.journal.RECORDED - {op})

    forget.__name__ = f"forget_{op}_in_the_journal"
    return forget


def acknowledge_early(patch: Patch) -> None:
    patch.setattr(replayd.journal, "PROMISES", frozenset())


def write_less_than_is_said(patch: Patch) -> None:
    """The journal's last value of a transaction is not there."""
    instead(patch, Disk, "add_entries", lambda before, disk, values: before(disk, values[:-1]))


def never_hand_over(patch: Patch) -> None:
    """The journal keeps what it should write each interval."""
    patch.setattr(Journal, "turn", lambda journal, now: None)


def be_younger_than_true(patch: Patch) -> None:
    patch.setattr(Journal, "age_s", lambda journal, now: 0.0)


def keep_an_old_index(patch: Patch) -> None:
    """A checkpoint counts as written, and what it replaces is still there."""

    def write(before: Any, disk: Disk, state: Any, **named: Any) -> Any:
        return before(disk, state if disk.head is None else disk.read_index(), **named)

    instead(patch, Disk, "write_index", write)


def restore_all_but_one(patch: Patch) -> None:
    def load(before: Any, service: Service, *arguments: Any, **named: Any) -> Any:
        losses = before(service, *arguments, **named)
        table = service.tables["ledger"]
        table._remove(table.items.in_order()[:1])
        return losses

    instead(patch, replayd.restoring, "load_service", load)


def give_keys_again(patch: Patch) -> None:
    """After a crash they go on where the last checkpoint was."""
    patch.setattr(replayd.restoring, "KEYS_SKIPPED", 0)
    patch.setattr(replayd.restoring, "KEYS_A_SECOND", 0)
    patch.setattr(Keys, "skip_to", lambda keys, key: None)


def answer_checkpoints_early(patch: Patch) -> None:
    """When they begin, and the disk is slow."""

    def make(before: Any, disk: Disk, chance: Any) -> None:
        before(disk, chance)
        disk.slow_down(2.0)

    instead(patch, Disk, "__init__", make)

    def freeze(before: Any, checkpoints: Checkpoints, running: Any, *arguments: Any) -> None:
        before(checkpoints, running, *arguments)
        service = checkpoints._service
        if service.durability.last is not None:
            for peer, id in running.askers:
                service.reply(peer, Result("checkpoint", id, service.durability.answer(service.durability.last)))
            running.askers.clear()

    instead(patch, Checkpoints, "_freeze", freeze)


# --- those who push, and those who read ahead ------------------------------------------------------------------------


def apply_a_pushed_message_twice(patch: Patch) -> None:
    is_due = each_nth(2)

    def handle(before: Any, service: Service, peer: Any, op: str, request: Any, now: float) -> Any:
        if peer is None and is_due():
            before(service, peer, op, replace(request, stream=request.stream[::-1]), now)
        return before(service, peer, op, request, now)

    instead(patch, Service, "handle", handle)


def forget_what_was_pushed_in_the_journal(patch: Patch) -> None:
    def record(before: Any, journal: Journal, peer: Any, *arguments: Any, **named: Any) -> None:
        if peer is not None:
            before(journal, peer, *arguments, **named)

    instead(patch, Journal, "record", record)


def take_what_is_pushed_for_a_full_table(patch: Patch) -> None:
    patch.setattr(Table, "is_congested", False)


def take_what_is_pushed_and_cannot_be_kept(patch: Patch) -> None:
    patch.setattr(Journal, "wants_inserts", True)


def leave_without_a_word(patch: Patch) -> None:
    """A dataset does not take back what it has asked for."""
    patch.setattr(InterruptibleConnection, "withdraw", lambda connection, wait_s=0.0: None)


def take_nothing_back(patch: Patch) -> None:
    """The server only says so."""

    def withdraw(service: Service, peer: Any, request: Any, now: float) -> None:
        service.reply(peer, Result("withdraw", request.id))

    patch.setattr(Service, "_withdraw", withdraw)


BROKEN = [
    (lose_an_item, None, "items are lost"),
    (apply_a_resend_again, None, "items and|inserted twice|were given|the queue gave|was drawn"),
    (answer_twice, None, "answered|was drawn|drawn with"),
    (never_answer, None, "without an answer"),
    (give_a_sample_again, None, "the queue gave|what came was not"),
    (apply_a_pushed_message_twice, "pushed", "items are lost|items and"),
    (forget_what_was_pushed_in_the_journal, "sync", "ledger|queue|band|turns were promised"),
    (take_what_is_pushed_for_a_full_table, "pushed", "is taken, and"),
    (take_what_is_pushed_and_cannot_be_kept, "pushed and not kept", "a pushed message was refused"),
    (leave_without_a_word, None, "has left|had left"),
    (take_nothing_back, None, "has left|had left"),
    (leak_chunks, None, "reference counts|partition the capacity"),
    (let_all_inserts_pass, None, "more was inserted than the band lets"),
    (let_all_samples_pass, None, "more was sampled than the band lets"),
    *(
        (forget_in_the_journal(op), "sync", "ledger|queue|band|turns were promised")
        for op in ("insert", "update", "sample", "reset")
    ),
    (acknowledge_early, "sync", "turns were promised"),
    (write_less_than_is_said, "sync", "turns were promised"),
    (write_less_than_is_said, "interval", "turns were promised"),
    (never_hand_over, "interval", "may be"),
    (be_younger_than_true, "interval", "turns were promised"),
    (give_keys_again, "off", "are given anew"),
    (answer_checkpoints_early, "off", "turns were promised"),
    (keep_an_old_index, "off", "turns were promised"),
    (restore_all_but_one, "off", "ledger"),
]


def seeds_of(where: str | None) -> Iterator[Simulation]:
    """Worlds in which something can go wrong with this mode of the journal, or with what is pushed."""
    for seed in range(SEEDS):
        simulation = Simulation(seed)
        mode, pushes = simulation.server.options.mode, simulation.traffic.pushes
        conditions = {
            None: True,
            mode: simulation.crashes,
            "pushed": pushes,
            "pushed and not kept": pushes and mode == "sync" and simulation.disk_fails,
        }
        if conditions.get(where):
            yield simulation


@pytest.mark.parametrize(
    ("break_a_rule", "where", "words"),
    BROKEN,
    ids=[f"{work.__name__} {where or ''}".strip().replace("_", " ") for work, where, _ in BROKEN],
)
def test_a_broken_rule_is_noticed(break_a_rule: Callable[[Patch], None], where: str | None, words: str) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match=words):
        break_a_rule(patch)
        for simulation in seeds_of(where):
            simulation.run()
