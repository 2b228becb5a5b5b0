"""A live table from the outside: who waits there and why, items looked at without drawing them, settings changed, all
items removed.

Owns what these calls return, and their text for people. Nothing here inserts, draws or waits for a limiter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_integer, checked_table
from replayd_client.connection import Encoder
from replayd_client.errors import BadRequestError, DataError, ProtocolError
from replayd_client.messages import (
    CheckpointReply,
    InfoReply,
    PeekReply,
    Reply,
    ResetReply,
    SetReply,
    WaitingSide,
    WhyReply,
)
from replayd_client.pool import ConnectionPool
from replayd_client.structure import Structure
from replayd_client.updates import keys_of
from replayd_client.wire import encode_checkpoint, encode_info, encode_peek, encode_reset, encode_set, encode_why

PAUSES = {"insert": "paused_inserts", "sample": "paused_samples"}
"""The setting that holds back each side."""
CHECKPOINT_TIMEOUT_MS = 600_000
"""Default deadline of a checkpoint: a disk takes minutes for what a machine holds in memory."""
PEEK_KEYS = 1024
"""Keys of one peek; more go in several."""


@dataclass(frozen=True, slots=True)
class Why:
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


class PeekInfo(NamedTuple):
    """What the server says of an item that was looked at."""

    key: int
    priority: float
    times_sampled: int
    """Draws of the item so far; this look is none."""
    age_s: float
    """Seconds since it entered the table."""


class PeekedItem(NamedTuple):
    """An item that was looked at: what the server says of it, and its trajectory."""

    info: PeekInfo
    data: Any
    """The trajectory: a nest of arrays [T, …], or […] where a column is squeezed."""


@dataclass(frozen=True, slots=True, eq=False)
class Peeked(Sequence[PeekedItem]):
    """The items that were found, in the order asked for."""

    items: tuple[PeekedItem, ...]
    missing: NDArray[np.uint64]
    """Keys asked for that are not in the table."""

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> PeekedItem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PeekedItem, ...]: ...
    def __getitem__(self, index: int | slice) -> PeekedItem | tuple[PeekedItem, ...]:
        return self.items[index]


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
    reply = _call(pool, "checkpoint", encode_checkpoint, deadline)
    assert isinstance(reply, CheckpointReply), "checkpoint is answered by checkpoint"
    return Checkpointed(**{name: getattr(reply, name) for name in Checkpointed._fields})


def why(pool: ConnectionPool, table: str, deadline: float | None) -> Why:
    reply = _call(pool, "why", lambda request_id: encode_why(request_id, table), deadline)
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


def peek(
    pool: ConnectionPool, table: str, keys: Any, orders: Mapping[str, int | None], deadline: float | None
) -> Peeked:
    """By `keys` or in one of the orders, whichever is not None. Raises DataError if that is not exactly one."""
    asked = {order: n for order, n in orders.items() if n is not None}
    if len(asked) + (keys is not None) != 1:
        raise DataError(f"a peek takes exactly one of keys, {', '.join(orders)}")
    if keys is not None:
        return peek_keys(pool, table, keys_of(keys), deadline)
    ((order, n),) = asked.items()
    return peek_first(pool, table, order, checked_integer(order, n, 1), deadline)


def peek_keys(pool: ConnectionPool, table: str, keys: NDArray[np.uint64], deadline: float | None) -> Peeked:
    """The items of these keys, each once however often it is named."""
    todo = keys[np.sort(np.unique(keys, return_index=True)[1])]
    items: list[PeekedItem] = []
    missing = [keys[:0]]
    while len(todo):
        part = todo[:PEEK_KEYS]
        reply = _peek(pool, table, "oldest", 1, part, deadline)
        items += _items(reply)
        missing.append(reply.missing)
        # What does not fit into one reply is left out, and asked for again.
        unanswered = part[~np.isin(part, np.concatenate((reply.shown.keys, reply.missing)))]
        if len(unanswered) == len(part):
            raise ProtocolError("a peek was answered with none of its keys")
        todo = np.concatenate((unanswered, todo[PEEK_KEYS:]))
    return Peeked(tuple(items), np.concatenate(missing))


def peek_first(pool: ConnectionPool, table: str, order: str, n: int, deadline: float | None) -> Peeked:
    """The first n items in an order: oldest, newest, highest or lowest."""
    reply = _peek(pool, table, order, n, np.zeros(0, np.uint64), deadline)
    return Peeked(tuple(_items(reply)), reply.missing)


def info(pool: ConnectionPool, deadline: float | None) -> Mapping[str, Any]:
    """All that the server says of itself."""
    reply = _call(pool, "info", encode_info, deadline)
    assert isinstance(reply, InfoReply), "info is answered by info"
    return {key: value for key, value in reply.fields.items() if key not in ("v", "op", "id")}


def reset(pool: ConnectionPool, table: str, deadline: float | None) -> int:
    """Remove all items; return how many there were."""
    reply = _call(pool, "reset", lambda request_id: encode_reset(request_id, table), deadline)
    assert isinstance(reply, ResetReply), "reset is answered by reset"
    return reply.removed


def change(pool: ConnectionPool, table: str, settings: Mapping[str, Any], deadline: float | None) -> SetResult:
    """Change settings, all or none. Raises DataError for one that there is not or a value that makes no sense."""
    checked_table(table)
    changes = {name: _plain(name, value) for name, value in settings.items()}
    try:
        reply = _call(pool, "set", lambda request_id: encode_set(request_id, table, changes), deadline)
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


def _call(pool: ConnectionPool, what: str, encode: Encoder, deadline: float | None) -> Reply:
    with pool.connection() as connection:
        return connection.call(what, encode, deadline)


def _peek(
    pool: ConnectionPool, table: str, order: str, n: int, keys: NDArray[np.uint64], deadline: float | None
) -> PeekReply:
    reply = _call(pool, "peek", lambda request_id: encode_peek(request_id, table, order, n, keys), deadline)
    assert isinstance(reply, PeekReply), "peek is answered by peek"
    return reply


def _items(reply: PeekReply) -> Iterator[PeekedItem]:
    # Imported here, so that importing the package stays light.
    from replayd_client.item_windows import ItemWindows

    shown = reply.shown
    words = (shown.keys, shown.priorities, shown.times_sampled, reply.ages_s)
    infos = map(PeekInfo._make, zip(*(column.tolist() for column in words), strict=True))
    for info, (paths, arrays) in zip(infos, ItemWindows(shown), strict=True):
        yield PeekedItem(info, Structure.from_paths(paths).rebuild(arrays))


def _plain(name: str, value: Any) -> Any:
    """A setting's value as the wire has it."""
    if isinstance(value, np.generic):
        value = value.item()
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
