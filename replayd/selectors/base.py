"""What the selectors share: their interface, equality by configuration, and the meaning of `room`.

Must not know tables, items or priorities. `room` is defined here once: draws happen one after the other, and an item
leaves the selector at the moment its room is used up.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from replayd.state import State

Slots = NDArray[np.int64]
Floats = NDArray[np.float64]
Draws = tuple[Slots, Floats]

MIN_SLOTS = 1024
MIN_BLOCK = 256
LEAST_MASS_LEFT = 1e-4
NO_ROOM = "a slot without room is in the selector: its table must remove an item once its room is used up"


class Selector(Protocol):
    """Chooses slots of a table. One object is the table's sampler, another its remover; both are told of every change.

    Slots are indices into the table's columns (int64). They are used again after removal, and grow without notice.
    Priorities are float64, already checked by the table (finite, 0 … 1e90).
    """

    __slots__ = ()

    def add(self, slots: Slots, priorities: Floats) -> None:
        """Adds n distinct slots that are not present, in order of insertion."""

    def remove(self, slots: Slots) -> None:
        """Removes n distinct slots that are present."""

    def update(self, slots: Slots, priorities: Floats) -> None:
        """Sets the priorities of n distinct slots that are present, in this order."""

    def clear(self) -> None:
        """Removes all slots."""

    def __len__(self) -> int: ...

    def draw(self, n: int, rng: np.random.Generator, room: Slots | None = None) -> Draws:
        """n draws one after the other, with replacement: slots int64[m], and float64[m], the probability of each then.

        `room`, indexed by slot, says how many more draws each slot can take (≥ 1 for those present). The draws are as
        if a slot were removed at the moment its room is used up. m is n unless nothing is left to draw from. The
        selector itself does not change.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """The configuration as a small map that msgpack can pack; `kind` names the selector."""
        ...

    def dump(self) -> State:
        """What decides about later draws and does not follow from the slots, their order and their priorities."""
        ...

    def load(self, state: State, slots: Slots, priorities: Floats) -> None:
        """Fills this empty selector: it draws as the dumped one did. Of slots which that had some may be missing.

        `slots` are given in order of insertion, as for `validate`.
        """

    def validate(self, slots: Slots, priorities: Floats) -> None:
        """Asserts that all agrees with the table's slots, given in order of insertion, and their priorities."""


class Configured(Selector):
    """Equality, hash and repr from the configuration: two selectors are equal when they choose by the same rule."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configured) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(tuple(self.describe().items()))

    def __bool__(self) -> bool:
        # It is a setting before it holds anything: `sampler or Uniform()` takes the sampler.
        return True

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.describe().items() if name != "kind")
        return f"{type(self).__name__}({settings})"


class Pool(Protocol):
    """A distribution over slots that `draw_within_room` can narrow for a while."""

    __slots__ = ()

    def __len__(self) -> int: ...

    def block(self, n: int, rng: np.random.Generator) -> Draws:
        """n independent draws: slots and their weights."""
        ...

    def mass(self) -> float:
        """Sum of the weights of all slots: a slot's probability is its weight / mass."""
        ...

    def exclude(self, slots: Slots) -> None:
        """Takes distinct slots out until `readmit`."""

    def readmit(self) -> None:
        """Undoes every `exclude`, to the bit."""


def remaining(order: Slots, slots: Slots) -> Slots:
    """Those of `order` that are among `slots`, in that order."""
    return order[np.isin(order, slots)]


def nothing() -> Draws:
    """No draws: int64[0] and float64[0]."""
    return np.empty(0, np.int64), np.empty(0)


def draw_within_room(pool: Pool, n: int, rng: np.random.Generator, room: Slots, drawn: Slots) -> Draws:
    """Draws at random where a slot leaves once its room is used up. `drawn` is scratch by slot, zero before and after.

    A round draws blocks from one fixed distribution and rejects the draws that hit a slot already used up: what is
    left has exactly the conditional distribution, and probability weight / (mass − mass used up so far). After a
    block that leaves less than half the mass, where every second draw would be rejected, the slots used up are
    excluded for good and a new round starts from exact sums. The same happens within a block at LEAST_MASS_LEFT,
    where the difference begins to lose digits; the rest of that block is thrown away, which is exact too, since
    whether to go on depends only on the draws before. Every round begins with a draw that counts, and there are at
    most log2(mass / smallest weight).
    """
    if n == 1:  # No room can run out before the first draw.
        slots, weights = pool.block(1, rng)
        return slots, weights / pool.mass()
    found: list[Draws] = []
    need = n
    try:
        while need and len(pool):
            need -= _draw_round(pool, need, rng, room, drawn, found)
    finally:
        pool.readmit()
        for slots, _ in found:
            drawn[slots] = 0
    if not found:
        return nothing()
    return np.concatenate([slots for slots, _ in found]), np.concatenate([probabilities for _, probabilities in found])


def _draw_round(pool: Pool, need: int, rng: np.random.Generator, room: Slots, drawn: Slots, found: list[Draws]) -> int:
    """Draws from one distribution until `need` are found or half its mass is used up; returns how many it found."""
    mass = left_mass = pool.mass()
    used_up: list[Slots] = []
    limit = max(MIN_BLOCK, 2 * len(pool))  # With small rooms most of a longer first block would be thrown away.
    missing = need
    while True:
        slots, weights = pool.block(min(limit, int(missing * (mass / left_mass)) + 1), rng)
        already = drawn[slots]
        free = room[slots] - already
        assert (already + free >= 1).all(), NO_ROOM
        earlier = _earlier_draws(slots)
        exhausting = earlier == free - 1
        gone = np.where(exhausting, weights, 0.0).cumsum()
        mass_at = left_mass - np.concatenate(([0.0], gone[:-1]))
        taken = np.flatnonzero((earlier < free) & (mass_at >= LEAST_MASS_LEFT * mass))[:missing]
        if taken.size:
            found.append((slots[taken], weights[taken] / mass_at[taken]))
            drawn[slots[taken]] = already[taken] + earlier[taken] + 1  # A slot's last assignment is its highest count.
            used_up.append(slots[taken[exhausting[taken]]])
            left_mass -= float(gone[taken[-1]])
            missing -= taken.size
        if not missing:
            return need
        if left_mass < 0.5 * mass or not taken.size:
            pool.exclude(np.concatenate(used_up))
            return need - missing
        limit *= 2


def _earlier_draws(slots: Slots) -> Slots:
    """How often each entry occurs before its own place."""
    order = slots.argsort(kind="stable")
    ordered = slots[order]
    place = np.arange(slots.size)
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    earlier = np.empty_like(place)
    earlier[order] = place - np.maximum.accumulate(np.where(first, place, 0))
    return earlier


def grown(column: NDArray[Any], needed: int, fill: int) -> NDArray[Any]:
    """The column itself if it has `needed` entries, else a copy doubled until it has, with `fill` in the new ones."""
    if needed <= column.size:
        return column
    size = max(column.size, MIN_SLOTS)
    while size < needed:
        size *= 2
    wider = np.full(size, fill, column.dtype)
    wider[: column.size] = column
    return wider
