"""Items of a live table looked at without drawing them: nothing is counted, nothing changes.

Owns the calls and what they return. How a trajectory comes out of its chunks is the business of `item_windows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_table
from replayd_client.array_messages import PeekReply
from replayd_client.array_wire import encode_peek
from replayd_client.errors import DataError, ProtocolError
from replayd_client.item_windows import ItemWindows
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_integer
from replayd_client.structure import Structure
from replayd_client.updates import keys_of

PEEK_KEYS = 1024
"""Keys of one peek; more go in several."""


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


def peek(
    pool: ConnectionPool, table: str, keys: Any, orders: Mapping[str, int | None], deadline: float | None
) -> Peeked:
    """By `keys` or in one of the orders, whichever is not None. Raises DataError if that is not exactly one."""
    checked_table(table)
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


def _peek(
    pool: ConnectionPool, table: str, order: str, n: int, keys: NDArray[np.uint64], deadline: float | None
) -> PeekReply:
    reply = pool.call("peek", lambda request_id: encode_peek(request_id, table, order, n, keys), deadline)
    assert isinstance(reply, PeekReply), "peek is answered by peek"
    return reply


def _items(reply: PeekReply) -> Iterator[PeekedItem]:
    shown = reply.shown
    words = (shown.keys, shown.priorities, shown.times_sampled, reply.ages_s)
    infos = map(PeekInfo._make, zip(*(column.tolist() for column in words), strict=True))
    for info, (paths, arrays) in zip(infos, ItemWindows(shown), strict=True):
        yield PeekedItem(info, Structure.from_paths(paths).rebuild(arrays))
