"""A live server from the outside: what it says, who waits at a table and why, settings, items removed, checkpoints.

Owns what these calls return, and their text for people. Nothing here inserts, draws or waits for a limiter. It must not
know numpy, nor import what does: commands that ask for a few words start with it. Items are looked at in `peeking`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from replayd_client.arguments import checked_table
from replayd_client.errors import BadRequestError, DataError
from replayd_client.messages import CheckpointReply, InfoReply, ResetReply, SetReply, WaitingSide, WhyReply
from replayd_client.pool import ConnectionPool
from replayd_client.wire import encode_checkpoint, encode_info, encode_reset, encode_set, encode_why

PAUSES = {"insert": "paused_inserts", "sample": "paused_samples"}
"""The setting that holds back each side."""
CHECKPOINT_TIMEOUT_MS = 600_000
"""Default deadline of a checkpoint: a disk takes minutes for what a machine holds in memory."""


class Why(NamedTuple):
    """Who waits at a table for what, and whether that can end by itself. `str()` tells it to people."""

    table: str
    verdict: str
    """`flowing`, `samples_wait`, `inserts_wait`, `deadlock` or `paused`."""
    advice: str
    waiting: tuple[WaitingSide, ...]
    """The sides on which somebody waits."""
    paused: tuple[str, ...]
    """The sides that an operator holds back."""
    size: int
    max_size: int
    limiter: Mapping[str, Any]
    """The limiter's settings, counters and cursor; what is unlimited is absent."""

    def __str__(self) -> str:
        lines = [f"table {self.table!r}: {self.verdict.replace('_', ' ')}; {self.advice}"]
        lines += [f"  {_side_text(side)}" for side in self.waiting]
        if self.paused:
            lines.append(f"  paused: {', '.join(self.paused)}")
        lines.append(f"  {self.size} of at most {self.max_size} items; {_limiter_text(self.limiter)}")
        return "\n".join(lines)


class SetResult(NamedTuple):
    """Every setting of the table before and after; None is unlimited."""

    before: dict[str, Any]
    after: dict[str, Any]
    removed: int
    """Items that left at once, since the new limits allow no more."""
    hint: str
    """What one may not have meant, for people; empty where there is nothing to say."""


class Checkpointed(NamedTuple):
    """A checkpoint that is on the server's disk."""

    path: str
    """The directory of the store, on the machine `host`."""
    host: str
    generation: int
    """Number of the checkpoint."""
    duration_s: float
    held_ms: float
    """How long requests had to wait for it."""
    items: int
    """Items of all tables, which it has."""
    chunks: int
    """Chunks that were written; the others were there already."""
    nbytes: int
    """Bytes that were written, the index included."""
    size_bytes: int
    """Size of the store."""


def checkpoint(pool: ConnectionPool, deadline: float | None) -> Checkpointed:
    reply = pool.call("checkpoint", encode_checkpoint, deadline)
    assert isinstance(reply, CheckpointReply), "checkpoint is answered by checkpoint"
    return Checkpointed(**{name: getattr(reply, name) for name in Checkpointed._fields})


def why(pool: ConnectionPool, table: str, deadline: float | None) -> Why:
    checked_table(table)
    reply = pool.call("why", lambda request_id: encode_why(request_id, table), deadline)
    assert isinstance(reply, WhyReply), "why is answered by why"
    return Why(
        reply.table,
        reply.verdict,
        reply.advice,
        reply.waiting,
        reply.paused,
        reply.size,
        reply.max_size,
        reply.limiter,
    )


def info(pool: ConnectionPool, deadline: float | None) -> Mapping[str, Any]:
    """All that the server says of itself."""
    reply = pool.call("info", encode_info, deadline)
    assert isinstance(reply, InfoReply), "info is answered by info"
    return {key: value for key, value in reply.fields.items() if key not in ("v", "op", "id")}


def reset(pool: ConnectionPool, table: str, deadline: float | None) -> int:
    """Remove all items; return how many there were."""
    checked_table(table)
    reply = pool.call("reset", lambda request_id: encode_reset(request_id, table), deadline)
    assert isinstance(reply, ResetReply), "reset is answered by reset"
    return reply.removed


def change(pool: ConnectionPool, table: str, settings: Mapping[str, Any], deadline: float | None) -> SetResult:
    """Change settings, all or none. Raises DataError for one that there is not or a value that makes no sense."""
    checked_table(table)
    changes = {name: _plain(name, value) for name, value in settings.items()}
    try:
        reply = pool.call("set", lambda request_id: encode_set(request_id, table, changes), deadline)
    except BadRequestError as error:
        raise DataError(str(error), detail=error.detail) from None
    assert isinstance(reply, SetReply), "set is answered by set"
    return SetResult(reply.before, reply.after, reply.removed, reply.hint)


def pause(pool: ConnectionPool, table: str, sides: Sequence[str], deadline: float | None) -> SetResult:
    """Hold back these sides (none: both); the others stay as they are."""
    return change(pool, table, dict.fromkeys(_pauses(sides), True), deadline)


def resume(pool: ConnectionPool, table: str, sides: Sequence[str], deadline: float | None) -> SetResult:
    """Let these sides (none: both) go on; the others stay as they are."""
    return change(pool, table, dict.fromkeys(_pauses(sides), False), deadline)


def _plain(name: str, value: Any) -> Any:
    """A setting's value as the wire has it."""
    if value is None or isinstance(value, float | str):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    raise DataError(f"setting {name} is a number, a bool, a word, or None where it may be unlimited, not {value!r}")


def _pauses(sides: Sequence[str]) -> Iterator[str]:
    """The settings of these sides (none: both)."""
    for side in sides or PAUSES:
        if not isinstance(side, str) or side not in PAUSES:
            raise DataError(f"sides are {' and '.join(map(repr, PAUSES))}, not {side!r}")
        yield PAUSES[side]


def _side_text(side: WaitingSide) -> str:
    requests = _count(side.requests, f"{side.side} request")
    who = f": {', '.join(side.who)}{', …' if side.peers > len(side.who) else ''}" if side.who else ""
    of_whom = f"{_count(side.items, 'item')}, {_count(side.peers, 'peer')}{who}"
    return f"{requests} ({of_whom}), the oldest for {side.waited_s:.1f} s: {side.why}"


def _limiter_text(limiter: Mapping[str, Any]) -> str:
    words = ("cursor", "min_diff", "max_diff", "samples_per_insert", "min_size_to_sample")
    return ", ".join(f"{word} {limiter[word]:g}" for word in words if word in limiter)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
