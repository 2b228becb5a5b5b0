"""Wishes: what a table's extensions asked for, carried out when the request at hand is done.

Checks a wish as a peer's request would be checked; one that cannot be carried out is a fault of its extension. Owns
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.errors import PeerError, UnknownTable
from replayd.hooks import Copy, SetPriorities
from replayd.interned import Interned
from replayd.items import Keys
from replayd.limits import PENDING_INSERTS
from replayd.pending import PendingInsert
from replayd.signature import check_signature
from replayd.streams import Ticket
from replayd.table import Table


def carry_out_wishes(
    table: Table,
    tables: Mapping[str, Table],
    chunks: ChunkStore,
    templates: Interned[Template],
    keys: Keys,
    now: float,
) -> list[Table]:
    """Carry out a table's wishes; the tables where something was parked."""
    touched = []
    for wish in table.hooks.access.take_wishes():
        if isinstance(wish, SetPriorities):
            table.set_priorities(wish.keys, wish.priorities)
            continue
        try:
            target = _target(wish, tables, chunks, templates)
        except PeerError as error:
            table.hooks.fault(f"a copy to {wish.to}", error)
            table.hooks.access.let_go(wish)
            continue
        _park(wish, target, keys.take(len(wish)), now)
        touched.append(target)
    return touched


def _target(copy: Copy, tables: Mapping[str, Table], chunks: ChunkStore, templates: Interned[Template]) -> Table:
    """The table a copy goes to; raises what a writer would be told who inserted it there."""
    target = tables.get(copy.to)
    if target is None:
        raise UnknownTable(f"there is no table {copy.to!r}", table=copy.to, tables=list(tables))
    PENDING_INSERTS.check(target.pending_items + len(copy))
    target.capacity.check_windows(target.name, copy.chunk, copy.chunks)
    if target.signature is not None:
        pairs = np.stack((chunks.schema[copy.chunk].astype(np.int64), copy.template), axis=1)
        for schema, template in np.unique(pairs, axis=0).tolist():
            lengths = copy.length[(pairs == (schema, template)).all(axis=1)]
            check_signature(target.name, target.signature, chunks.schemas[schema], templates[template], lengths)
    return target


def _park(copy: Copy, target: Table, first_key: int, now: float) -> None:
    """The copy's holds become the parked insert's."""
    n = len(copy)
    ticket = Ticket(first_key, n, nbytes=0, waiting=n, askers=[], seq=-1, stream=None)
    keys = np.arange(first_key, first_key + n, dtype=np.uint64)
    view = (copy.chunk, copy.chunks, copy.offset, copy.length, copy.template)
    target.park_insert(PendingInsert(ticket, keys, copy.priority, *view, since=now))
