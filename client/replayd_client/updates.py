"""Priority updates: new priorities and deletions, in requests of a bounded number of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replayd_client.arguments import checked_table
from replayd_client.array_messages import PRIORITY_MAX, UpdateReply
from replayd_client.array_wire import encode_update
from replayd_client.batch_rows import priorities_of, priority_numbers
from replayd_client.connection import Connection, Encoder
from replayd_client.errors import DataError
from replayd_client.pool import ConnectionPool

UPDATE_KEYS = 131_072
"""Keys of one update request, unless the server's limit `updates` is less; more go in several."""


_NO_KEYS = np.zeros(0, np.uint64)
_KEY_TYPES = frozenset((int, np.uint64))
_PRIORITY_TYPES = frozenset((float, int, np.float64, np.float32))


class MutateResult(NamedTuple):
    """What became of an update: counts, and the keys that were not in the table (u64[])."""

    updated: int
    deleted: int
    missing: NDArray[np.uint64]


def mutate(
    pool: ConnectionPool,
    table: str,
    updates: Mapping[int, float] | tuple[Any, Any] | None,
    deletes: Sequence[int] | NDArray[Any] | None,
    deadline: float | None,
) -> MutateResult:
    """Delete items, then set priorities. Raises DataError and PriorityError before anything is sent, so a bad value
    never leaves an update of several requests half done."""
    keys, priorities = _updates(checked_table(table), updates)
    doomed = _NO_KEYS if deletes is None else keys_of(deletes)
    with pool.connection() as connection:
        connection.open_session(deadline)
        most = connection.most("updates", UPDATE_KEYS)
        if len(keys) + len(doomed) <= most:
            reply = _ask(connection, _encode_update(table, keys, priorities, doomed), deadline)
            return MutateResult(reply.updated, reply.deleted, np.sort(reply.missing))
        keys, priorities, doomed = _each_once(keys, priorities, doomed)
        updated = deleted = 0
        missing: list[NDArray[np.uint64]] = []
        for start in range(0, len(keys) + len(doomed), most):
            # Deletes come first: of both in one row, those of this request.
            delete_part = doomed[start : start + most]
            low, high = (max(at - len(doomed), 0) for at in (start, start + most))
            reply = _ask(connection, _encode_update(table, keys[low:high], priorities[low:high], delete_part), deadline)
            updated += reply.updated
            deleted += reply.deleted
            missing.append(reply.missing)
    return MutateResult(updated, deleted, np.sort(np.concatenate(missing)))


def _ask(connection: Connection, encode: Encoder, deadline: float | None) -> UpdateReply:
    reply = connection.call("update", encode, deadline)
    assert isinstance(reply, UpdateReply), "update is answered by update"
    return reply


def keys_of(keys: Any) -> NDArray[np.uint64]:
    """Item keys as an array u64[n]. Raises DataError for anything that is no such keys."""
    if isinstance(keys, list | tuple) and keys and all(type(key) is int or isinstance(key, np.integer) for key in keys):
        # One by one, since numpy makes floats of numpy's unsigned integers beside Python's, and of those from 2^63 on
        # beside smaller ones.
        keys = [int(key) for key in keys]
        if min(keys) >= 0 and max(keys) < 1 << 64:
            return np.array(keys, np.uint64)
    try:
        array = np.asarray(keys)
    except ValueError:
        raise DataError("keys must be unsigned integers in one dimension, not of uneven lengths") from None
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.uint64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.dtype.kind == "i" and array.min() < 0):
        raise DataError(f"keys must be unsigned integers in one dimension, got {array.dtype.name}{list(array.shape)}")
    return array.astype(np.uint64)


def _updates(
    table: str, updates: Mapping[int, float] | tuple[Any, Any] | None
) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    if updates is None:
        return keys_of(()), np.zeros(0, np.float64)
    if isinstance(updates, tuple) and len(updates) == 2 and _are_in_order(*updates):
        return updates
    if isinstance(updates, Mapping):
        plain = _of_plain_numbers(updates)
        if plain is not None:
            return plain
        keys, values = keys_of(list(updates)), list(updates.values())
    elif isinstance(updates, tuple) and len(updates) == 2:
        keys, values = keys_of(updates[0]), updates[1]
    else:
        raise DataError("updates must be a dict of priorities by key, or a tuple (keys, priorities)")
    return keys, priorities_of({table: _numbers(table, values, len(keys))}, len(keys))[table]


def _of_plain_numbers(updates: Mapping[int, float]) -> tuple[NDArray[np.uint64], NDArray[np.float64]] | None:
    """The arrays of a dict of numbers as nearly all are: 65 µs for 256, and 140 to look at anything at all. None: there
    may be a fault, and another look must tell."""
    values = updates.values()
    if not _KEY_TYPES.issuperset(map(type, updates)) or not _PRIORITY_TYPES.issuperset(map(type, values)):
        return None
    # Before numpy 2 a negative one becomes another key.
    if not updates or min(updates) < 0:
        return None
    try:
        keys = np.fromiter(updates, np.uint64, len(updates))
        priorities = np.fromiter(values, np.float64, len(updates))
    except OverflowError:
        return None
    return (keys, priorities) if _are_in_order(keys, priorities) else None


def _are_in_order(keys: Any, priorities: Any) -> bool:
    """Whether these are arrays as they are sent, as a learner has them: 8 µs, and 35 to look at anything at all."""
    if type(keys) is not np.ndarray or type(priorities) is not np.ndarray:
        return False
    if keys.dtype != np.uint64 or priorities.dtype != np.float64:
        return False
    if keys.ndim != 1 or keys.shape != priorities.shape or not len(keys):
        return False
    # False for NaN as well.
    return bool(priorities.min() >= 0 and priorities.max() <= PRIORITY_MAX)


def _numbers(table: str, values: Any, count: int) -> NDArray[Any]:
    """Numbers [count], or a single one for all keys."""
    array = priority_numbers(table, values)
    if array.shape not in ((), (count,)):
        raise DataError(
            f"table {table!r}: there are {count} keys, so priorities must be one number or [{count}], "
            f"got {list(array.shape)}"
        )
    return array


def _each_once(
    keys: NDArray[np.uint64], priorities: NDArray[np.float64], doomed: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.uint64]]:
    """Every key once, in the order of keys: several requests then mean what a single one would.

    Of a key that is named again the last priority stands, and one that is both updated and deleted is deleted. In two
    requests the second would count it twice, or miss what the first has deleted.
    """
    doomed = np.unique(doomed)
    # `unique` finds the first of equal keys, which is the last one from behind.
    keys, at = np.unique(keys[::-1], return_index=True)
    stays = ~np.isin(keys, doomed)
    return keys[stays], priorities[::-1][at][stays], doomed


def _encode_update(table: str, keys: Any, priorities: Any, deletes: Any) -> Encoder:
    return lambda request_id: encode_update(request_id, table, keys, priorities, deletes)
