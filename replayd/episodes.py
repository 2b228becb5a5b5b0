"""Episodes: small names for them, so that tables can count episodes with arrays.

An episode is a run of chunks of one stream with the same episode number. Owns which names are in use: one lives as long
as a chunk of its episode is stored. Knows neither tables nor items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replayd.messages import Int64s, Uint64s
from replayd.slots import Slots, all_true, count, distinct, grown
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
        """All names are below it; it grows."""
        return self._slots.capacity

    def enter(self, numbers: Uint64s, starts: Sequence[int], lasts: Sequence[LastEpisode]) -> Int64s:
        """Names for new chunks: of as many streams as there are `starts`, where the chunks of each begin.

        `lasts` is where each stream was, and is moved on; a stream that comes again goes on from where it was before.
        """
        if len(starts) == 1 and self._goes_on(numbers, lasts[0]):
            self._chunks[lasts[0].name] += len(numbers)
            return np.full(len(numbers), lasts[0].name)
        begins = np.empty(len(numbers), np.bool_)
        begins[1:] = numbers[1:] != numbers[:-1]
        ends = [*starts[1:], len(numbers)]
        moved: set[int] = set()
        firsts, finals = numbers[starts].tolist(), numbers[np.array(ends) - 1].tolist()
        for start, first, final, last in zip(starts, firsts, finals, lasts, strict=True):
            # A stream goes on with its last episode if that is still stored: its name may have been given away since.
            stored = id(last) in moved or (last.serial >= 0 and self._serial[last.name] == last.serial)
            begins[start] = first != last.number or not stored
            last.number = final
            moved.add(id(last))
        new = int(np.count_nonzero(begins))
        names = np.empty(new + 1, np.int64)
        if new:
            names[1:] = self._slots.take(new)
            if self._slots.capacity > len(self._chunks):
                self._chunks = grown(self._chunks, self._slots.capacity)
                self._serial = grown(self._serial, self._slots.capacity)
            self._serial[names[1:]] = np.arange(self._next_serial, self._next_serial + new)
            self._next_serial += new
        begun: Int64s = begins.cumsum()
        episodes = names[begun]
        for start, end, last, goes_on in zip(starts, ends, lasts, (~begins[starts]).tolist(), strict=True):
            if goes_on:
                # As far as no new one begins.
                stop = start + int(begun[start:end].searchsorted(begun[start], side="right"))
                episodes[start:stop] = last.name
            last.name = int(episodes[end - 1])
        count(self._chunks, episodes, 1)
        for last in lasts:
            last.serial = int(self._serial[last.name])
        return episodes

    def _goes_on(self, numbers: Uint64s, last: LastEpisode) -> bool:
        """Whether all these chunks are of a stream's last episode, as they are where none are told apart."""
        if last.serial < 0 or self._serial[last.name] != last.serial or numbers[0] != last.number:
            return False
        return len(numbers) == 1 or all_true(numbers == numbers[0])

    def leave(self, episodes: Int64s) -> None:
        """Chunks of these episodes are freed, one entry a chunk."""
        count(self._chunks, episodes, -1)
        ended = episodes[self._chunks[episodes] == 0]
        if len(ended):
            ended = distinct(ended)
            self._serial[ended] = -1
            self._slots.give_back(ended)

    def dump(self) -> State:
        """The names in use; how many chunks each has follows from the chunks."""
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
