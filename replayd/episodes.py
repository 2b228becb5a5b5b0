"""Episodes: small names for them, so that tables can count episodes with arrays.

An episode is a run of chunks of one stream with the same episode number. Owns which names are in use: one lives as long
as a chunk of its episode is stored. Knows neither tables nor items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replayd.messages import Int64s, Uint64s
from replayd.slots import Slots, count, distinct, grown
from replayd.state import State


@dataclass(slots=True)
class LastEpisode:
    """Where a stream's next chunk may go on: the number its writer gave, our name, and whose that name was."""

    number: int = 0
    name: int = 0
    serial: int = -1


class Episodes:
    """Names 0 … capacity − 1, counted by the chunks that are stored."""

    def __init__(self) -> None:
        self._slots = Slots()
        self._chunks = np.zeros(self._slots.capacity, np.int32)
        self._serial = np.full(self._slots.capacity, -1, np.int64)
        self._next_serial = 0

    def __len__(self) -> int:
        return self._slots.used

    @property
    def capacity(self) -> int:
        return self._slots.capacity

    def enter(self, numbers: Uint64s, last: LastEpisode) -> Int64s:
        """Names for consecutive new chunks of one stream; `last` is where it was, and is moved on."""
        begins = np.empty(len(numbers), np.bool_)
        begins[1:] = numbers[1:] != numbers[:-1]
        # The stream goes on with its last episode if that is still stored: its name may have been given away since.
        begins[0] = int(numbers[0]) != last.number or self._serial[last.name] != last.serial or last.serial < 0
        new = int(np.count_nonzero(begins))
        names = np.empty(new + 1, np.int64)
        names[0] = last.name
        if new:
            names[1:] = self._slots.take(new)
            if self._slots.capacity > len(self._chunks):
                self._chunks = grown(self._chunks, self._slots.capacity)
                self._serial = grown(self._serial, self._slots.capacity)
            self._serial[names[1:]] = np.arange(self._next_serial, self._next_serial + new)
            self._next_serial += new
        episodes = names[np.cumsum(begins)]
        count(self._chunks, episodes, 1)
        last.number, last.name = int(numbers[-1]), int(episodes[-1])
        last.serial = int(self._serial[last.name])
        return episodes

    def leave(self, episodes: Int64s) -> None:
        """Chunks of these episodes are freed, one entry a chunk."""
        count(self._chunks, episodes, -1)
        ended = episodes[self._chunks[episodes] == 0]
        if len(ended):
            ended = distinct(ended)
            self._serial[ended] = -1
            self._slots.give_back(ended)

    def dump(self) -> State:
        return {
            "slots": self._slots.dump(),
            "serial": self._serial[: self._slots.high_water()],
            "next_serial": self._next_serial,
        }

    def load(self, state: State, episodes: Int64s) -> None:
        """`episodes`: one entry for each stored chunk."""
        self._slots.load(state["slots"])
        self._chunks = np.zeros(self._slots.capacity, np.int32)
        self._serial = np.full(self._slots.capacity, -1, np.int64)
        self._serial[: len(state["serial"])] = state["serial"]
        self._next_serial = state["next_serial"]
        np.add.at(self._chunks, episodes, 1)
        used = self._slots.in_use()
        gone = used[self._chunks[used] == 0]
        self._serial[gone] = -1
        self._slots.give_back(gone)

    def validate(self, episodes: Int64s) -> None:
        """`episodes`: one entry for each stored chunk."""
        counted = np.bincount(episodes, minlength=len(self._chunks)) if len(episodes) else np.zeros(len(self._chunks))
        assert np.array_equal(counted, self._chunks), "episodes are not counted by their chunks"
        self._slots.validate(np.flatnonzero(self._chunks))
