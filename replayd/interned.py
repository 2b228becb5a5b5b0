"""Interned values: schemas and templates stored once, named by small integers and counted by their holders.

Owns the counts. Knows nothing of what the values mean; a `blob` identifies each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from replayd.messages import Int64s
from replayd.slots import all_true
from replayd.state import Later, State, packed, unpacked


class HasBlob(Protocol):
    """A value that is identified by bytes."""

    @property
    def blob(self) -> bytes:
        """Its identity."""
        ...


T = TypeVar("T", bound=HasBlob)


class Interned(Generic[T]):
    """Value ⇄ id. An id whose last holder let go is free for another value."""

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._values: list[T | None] = []
        self._holders: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, id: int) -> T:
        value = self._values[id]
        assert value is not None, f"id {id} was freed and is still in use"
        return value

    def hold(self, value: T, holders: int) -> int:
        """Add that many holders to a value, storing it if it is new; its id."""
        id = self._ids.get(value.blob)
        if id is None:
            id = self._store(value)
        self._holders[id] += holders
        return id

    def hold_again(self, ids: NDArray[np.integer[Any]]) -> None:
        """One holder more for each entry; these ids are held already."""
        for id, count in zip(*(part.tolist() for part in np.unique(ids, return_counts=True)), strict=True):
            self._holders[id] += count

    def release(self, ids: NDArray[np.integer[Any]]) -> None:
        """Take one holder away for each entry."""
        if len(ids) == 0:
            return
        first = int(ids[0])
        # Nearly always a whole batch shares one value.
        if len(ids) == 1 or all_true(ids == first):
            self._release(first, len(ids))
            return
        distinct, counts = np.unique(ids, return_counts=True)
        for id, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self._release(id, count)

    def dump(self) -> State:
        """The values by their ids; how many hold each follows from the holders."""
        values = list(self._values)
        return {
            "blobs": Later(lambda: packed([b"" if value is None else value.blob for value in values])),
            "free": list(self._free),
        }

    def load(self, state: State, make: Callable[[bytes], T], ids: Int64s) -> None:
        """`make` gives the value of a blob; `ids` are all holdings there are, one entry each."""
        blobs = unpacked(state["blobs"])
        free = set(state["free"])
        self._free = list(state["free"])
        self._values = [None if id in free else make(blob) for id, blob in enumerate(blobs)]
        self._holders = np.bincount(ids, minlength=len(blobs)).tolist() if len(ids) else [0] * len(blobs)
        self._ids = {blob: id for id, blob in enumerate(blobs) if id not in free}
        for id in self._ids.copy().values():
            # Its holders did not come back.
            self._release(id, 0)

    def validate(self, ids: Int64s) -> None:
        """`ids` are all holdings there are, one entry each."""
        counts = np.bincount(ids, minlength=len(self._values)).tolist() if len(ids) else [0] * len(self._values)
        assert counts == self._holders, f"holders {self._holders} are not the holdings {counts}"
        live = {value.blob: id for id, value in enumerate(self._values) if value is not None}
        assert live == self._ids, "index and values disagree"
        assert all((count == 0) == (self._values[id] is None) for id, count in enumerate(counts)), "kept without holder"

    def _store(self, value: T) -> int:
        if self._free:
            id = self._free.pop()
            self._values[id] = value
        else:
            id = len(self._values)
            self._values.append(value)
            self._holders.append(0)
        self._ids[value.blob] = id
        return id

    def _release(self, id: int, count: int) -> None:
        self._holders[id] -= count
        assert self._holders[id] >= 0, f"id {id} released more often than held"
        if self._holders[id] == 0:
            del self._ids[self[id].blob]
            self._values[id] = None
            self._free.append(id)
