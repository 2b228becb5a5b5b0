"""The items of a sample reply: what the server says of each draw, and the way to their data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.array_messages import ShownItems
from replayd_client.errors import DataError
from replayd_client.item_windows import ItemWindows, check_size
from replayd_client.structure import Path, Structure


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatchInfo:
    """What the server says of each item of a batch, one array of m for each word."""

    key: NDArray[np.uint64]
    probability: NDArray[np.float64]
    """Chance of the item at its draw."""
    table_size: NDArray[np.uint64]
    """Items in the table at the draw."""
    priority: NDArray[np.float64]
    times_sampled: NDArray[np.uint32]
    """Draws of the item so far, this one included."""


@dataclass(slots=True, eq=False)
class SampledBatch:
    """m drawn items, undecoded. Every method checks the batch first, once, and raises DataError if it is not in order;
    so does `windows`, which decodes them."""

    shown: ShownItems
    probabilities: NDArray[np.float64]
    table_sizes: NDArray[np.uint64]
    _windows: ItemWindows | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.shown)

    @property
    def info(self) -> SampleBatchInfo:
        shown = self.shown
        return SampleBatchInfo(shown.keys, self.probabilities, self.table_sizes, shown.priorities, shown.times_sampled)

    @property
    def windows(self) -> ItemWindows:
        if self._windows is None:
            if not len(self.probabilities) == len(self.table_sizes) == len(self):
                raise DataError(f"{len(self)} keys, but what is said of their draws is of another length")
            self._windows = ItemWindows(self.shown)
        return self._windows

    @property
    def item_bytes(self) -> int:
        """Bytes of the arrays of an item, about: of the first one, or the mean of what was sent if that is more, as it
        is for bytes and str. 0 if there is no item that can be decoded."""
        try:
            decoded = check_size(self.windows.shown(0), 1) if len(self) else 0
        except DataError:
            return 0
        return max(decoded, sum(map(len, self.shown.body)) // max(len(self), 1))

    def part(self, first: int, end: int) -> SampledBatch:
        """The items `first` to `end`, over the same chunks."""
        shown, some = self.shown, slice(first, end)
        items = replace(
            shown,
            keys=shown.keys[some],
            priorities=shown.priorities[some],
            times_sampled=shown.times_sampled[some],
            chunk=shown.chunk[some],
            chunks=shown.chunks[some],
            offset=shown.offset[some],
            length=shown.length[some],
            template_of=None if shown.template_of is None else shown.template_of[some],
        )
        return SampledBatch(items, self.probabilities[some], self.table_sizes[some])

    def item(self, index: int) -> tuple[tuple[Path, ...], list[NDArray[Any]]]:
        """The paths and the arrays of item `index`; `Structure.from_paths(paths).rebuild(arrays)` is the trajectory."""
        return self.windows.item(range(len(self))[index])

    def __iter__(self) -> Iterator[tuple[tuple[Path, ...], list[NDArray[Any]]]]:
        return iter(self.windows)

    def stack(self) -> Any:
        """All items as one trajectory: a nest of arrays [B, T, *shape], or [B, *shape] where columns are squeezed.

        Raises DataError as `ItemWindows.stack` does.
        """
        paths, arrays = self.windows.stack()
        return Structure.from_paths(paths).rebuild(arrays)


def split(parts: Sequence[SampledBatch], sizes: Sequence[int]) -> list[list[SampledBatch]]:
    """The items of some replies, in order, as groups of these sizes; what is left over is the last group, if any is."""
    groups: list[list[SampledBatch]] = []
    queue = list(reversed(parts))
    for size in sizes:
        group: list[SampledBatch] = []
        while size:
            part = queue.pop()
            if len(part) > size:
                queue.append(part.part(size, len(part)))
                part = part.part(0, size)
            group.append(part)
            size -= len(part)
        groups.append(group)
    if queue:
        groups.append(queue[::-1])
    return groups
