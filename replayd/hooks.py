"""Hooks: calling a table's extensions, and keeping their faults and wishes apart from the table.

Owns the wishes until the service carries them out, with the holds on the chunks they need. A hook is foreign code:
whatever it raises ends here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.admission import check_priorities
from replayd.chunks import ChunkStore
from replayd.columns import Template
from replayd.errors import Fault, LimitExceeded, PeerError
from replayd.interned import Interned
from replayd.items import NOT_FOUND, Items
from replayd.limits import WISH_ROUNDS
from replayd.messages import Float64s, Int64s, Uint64s
from replayd.table_arguments import HOOKS

NEIGHBOUR_REACH = 128
"""Items before and behind, in order of insertion, among which neighbours of the same stream are looked for."""


@dataclass(frozen=True, slots=True)
class ItemsView:
    """n items that a hook is told of; one entry an item, or a draw. Copies: a hook may keep and change them."""

    keys: Uint64s
    priorities: Float64s
    times_sampled: Int64s

    def copy(self) -> ItemsView:
        """The same with arrays of its own."""
        return ItemsView(self.keys.copy(), self.priorities.copy(), self.times_sampled.copy())


@dataclass(slots=True)
class SetPriorities:
    """Keys of items, one entry each, and the priorities they are to have."""

    keys: Uint64s
    priorities: Float64s


@dataclass(slots=True)
class Copy:
    """Views to be inserted into another table; their chunks and templates are held."""

    to: str
    priority: Float64s
    chunk: Int64s
    chunks: Int64s
    offset: Int64s
    length: Int64s
    template: Int64s

    def __len__(self) -> int:
        return len(self.priority)


Wish = SetPriorities | Copy


class TableAccess:
    """What an extension may see and wish of its table."""

    def __init__(self, table: str, items: Items, chunks: ChunkStore, templates: Interned[Template]) -> None:
        self.table = table
        self._items = items
        self._chunks = chunks
        self._templates = templates
        self._wishes: list[Wish] = []

    def __len__(self) -> int:
        return len(self._items)

    def priorities(self, keys: Uint64s) -> Float64s:
        """Priority of each item; NaN for one that is not there."""
        slots = self._items.find(keys)
        return np.where(slots == NOT_FOUND, np.nan, self._items.priority[slots])

    def neighbours(self, keys: Uint64s, distance: int) -> NDArray[np.uint64]:
        """Keys [n, 2 · distance] of the items inserted just before and just behind each of these by the same stream.

        The farthest one before comes first, then in order of insertion; 0 where there is none within NEIGHBOUR_REACH.
        Raises ValueError for a `distance` outside 1 to NEIGHBOUR_REACH: no neighbour is farther; TypeError for one that
        is no integer.
        """
        distance = index(distance)
        if not 1 <= distance <= NEIGHBOUR_REACH:
            raise ValueError(f"distance must be between 1 and {NEIGHBOUR_REACH}, got {distance}")
        slots = self._items.find(keys)
        found = np.zeros((len(keys), 2 * distance), np.uint64)
        here = slots != NOT_FOUND
        if not here.any():
            return found
        stream = self._chunks.stream[self._items.chunk]
        before, behind = self._items.around(keys[here], NEIGHBOUR_REACH)
        own = stream[slots[here]][:, None]
        rows = np.flatnonzero(here)
        for side, first, step in ((before, distance, -1), (behind, distance - 1, 1)):
            same = (side != NOT_FOUND) & (stream[side] == own)
            rank = np.cumsum(same, axis=1)
            row, place = np.nonzero(same & (rank <= distance))
            found[rows[row], first + step * rank[row, place]] = self._items.key[side[row, place]]
        return found

    def set_priorities(self, keys: Any, priorities: Any) -> None:
        """Wish for these priorities, arrays [n] or what numpy makes one of.

        Keys that are gone by then are passed over; of a key named twice the last priority stands. Raises BadPriority,
        and ValueError for anything that is not two such arrays.
        """
        wanted, values = _pairs(keys, priorities)
        self._wishes.append(SetPriorities(wanted, values))

    def copy_to(self, table: str, keys: Any, priorities: Any) -> None:
        """Wish for items of `table` that show what these show. Raises as `set_priorities` does."""
        if not isinstance(table, str):
            raise ValueError(f"a table is named by a string, got {table!r}")
        wanted, values = _pairs(keys, priorities)
        slots = self._items.find(wanted)
        here = slots != NOT_FOUND
        slots = slots[here]
        if len(slots) == 0:
            return
        items = self._items
        copy = Copy(
            table,
            values[here],
            items.chunk[slots],
            items.chunks[slots].astype(np.int64),
            items.offset[slots].astype(np.int64),
            items.length[slots].astype(np.int64),
            items.template[slots].astype(np.int64),
        )
        # The items may leave before the wish is carried out.
        self._chunks.hold(self._chunks.windows(copy.chunk, copy.chunks))
        self._templates.hold_again(copy.template)
        self._wishes.append(copy)

    def let_go(self, copy: Copy) -> None:
        """The wish is not carried out: give up its holds."""
        self._chunks.release(self._chunks.windows(copy.chunk, copy.chunks))
        self._templates.release(copy.template)

    @property
    def has_wishes(self) -> bool:
        """Whether something is wished for that has not been taken."""
        return bool(self._wishes)

    def take_wishes(self) -> list[Wish]:
        """The wishes since they were last taken, in order; whoever takes a Copy answers for its holds."""
        wishes, self._wishes = self._wishes, []
        return wishes


class Hooks:
    """The extensions of one table."""

    def __init__(self, access: TableAccess, extensions: Sequence[Any]) -> None:
        self.access = access
        self.faults = 0
        self._untold: list[Fault] = []
        self._listeners = {name: [each for each in extensions if hasattr(each, name)] for name in HOOKS}

    def wants(self, hook: str) -> bool:
        """Whether an extension has this hook: what nobody hears need not be gathered."""
        return bool(self._listeners[hook])

    def call(self, hook: str, *arguments: ItemsView) -> None:
        """Tell all extensions that have this hook, in order, each with views of its own; what one raises is a fault."""
        for extension in self._listeners[hook]:
            try:
                getattr(extension, hook)(self.access, *(view.copy() for view in arguments))
            except BaseException as error:  # Foreign code: whatever it raises is its own fault, and not the table's.
                self.fault(f"{hook} of extension {type(extension).__name__}", error)

    def drop_wishes(self) -> None:
        """Give up what is still wished after as many rounds as there may be."""
        for wish in self.access.take_wishes():
            rounds = LimitExceeded(f"more than {WISH_ROUNDS.value} rounds of wishes", limit=WISH_ROUNDS.name)
            self.fault("a wish", rounds)
            if isinstance(wish, Copy):
                self.access.let_go(wish)

    def fault(self, what: str, error: BaseException) -> None:
        """Count that `what` failed, and keep the story for the log. What foreign code raises is told by its type."""
        self.faults += 1
        kind = "" if isinstance(error, PeerError) else f" with {type(error).__name__}"
        table = self.access.table
        advice = "the table goes on without it: mend the extension, or take it out of the table's settings"
        self._untold.append(Fault(f"table {table}: {what} failed{kind}", error, advice, table))

    def take_untold(self) -> list[Fault]:
        """The faults since they were last taken."""
        untold, self._untold = self._untold, []
        return untold


def _pairs(keys: Any, priorities: Any) -> tuple[Uint64s, Float64s]:
    """Keys [n] and priorities [n] as new arrays, whatever foreign code handed over; raises if they are none."""
    wanted, values = np.asarray(keys), np.asarray(priorities)
    if wanted.dtype.kind not in "iu" or values.dtype.kind not in "iuf":
        raise ValueError(f"keys must be integers and priorities numbers, got {wanted.dtype} and {values.dtype}")
    if wanted.ndim != 1 or wanted.shape != values.shape:
        raise ValueError(f"keys and priorities must be two arrays [n], got shapes {wanted.shape} and {values.shape}")
    wanted, values = wanted.astype(np.uint64), values.astype(np.float64)
    check_priorities(values, wanted)
    return wanted, values
