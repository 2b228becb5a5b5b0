"""Trajectory templates: which rows of which columns an item shows.

Owns the template blob of the protocol (its §4.4): whatever bytes come in, they decode or raise DataError. Knows nothing
of the data that is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from replayd_client.columns import MAX_CHUNK_ROWS
from replayd_client.descriptions import pack_description, read_path, unpack_description
from replayd_client.errors import DataError
from replayd_client.structure import MAX_COLUMNS, Path, check_paths, path_text

MAX_RUNS = 4096
"""Most runs of one output column of a template."""

Run = tuple[int, int, int]
"""start, length ≥ 1, stride: the rows start, start + stride, …, `length` of them."""

Part = tuple[int, tuple[Run, ...]]
"""The rows of these runs of a schema column; no runs are the whole window."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column of a trajectory, shown as `path`: the rows of its parts, one part behind the other.

    Several parts join columns, which must be of one dtype and shape; each of them has runs then. With `squeeze` the
    single row is shown without the leading axis. Raises DataError if this can be no column of any window.
    """

    path: Path
    squeeze: bool
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise DataError(f"{path_text(self.path)}: an output column has at least one part")
        shown = count = 0
        for column, runs in self.parts:
            if not 0 <= column < MAX_COLUMNS:
                raise DataError(f"{path_text(self.path)}: there is no column {column}")
            if not runs and len(self.parts) > 1:
                raise DataError(f"{path_text(self.path)}: a part without runs is the whole window, and the only part")
            count += len(runs)
            shown += sum([length for _, length, _ in runs])
            self._check_runs(runs)
        if count > MAX_RUNS:
            raise DataError(f"{path_text(self.path)}: {count} runs are more than the limit of {MAX_RUNS}")
        if shown > MAX_CHUNK_ROWS:
            raise DataError(f"{path_text(self.path)}: {shown} rows are more than the limit of {MAX_CHUNK_ROWS}")
        if self.squeeze and shown > 1:
            raise DataError(f"{path_text(self.path)}: {shown} rows cannot be squeezed, only one")

    def _check_runs(self, runs: Sequence[Run]) -> None:
        for start, length, stride in runs:
            last = start + (length - 1) * stride
            if not (1 <= length <= MAX_CHUNK_ROWS and 0 <= start < MAX_CHUNK_ROWS and 0 <= last < MAX_CHUNK_ROWS):
                raise DataError(f"{path_text(self.path)}: ({start}, {length}, {stride}) is not a run of rows")
            if abs(stride) >= MAX_CHUNK_ROWS:
                raise DataError(f"{path_text(self.path)}: stride {stride} leaves every window")


@dataclass(frozen=True, slots=True)
class Template:
    """Which rows of which columns an item shows. `Template.identity`, without outputs, shows every column of the item's
    chunks over its whole window. Raises DataError if the outputs' paths are not those of one nest."""

    outputs: tuple[OutputColumn, ...]
    identity: ClassVar[Template]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(self.outputs))
        check_paths([output.path for output in self.outputs])

    @property
    def is_identity(self) -> bool:
        return not self.outputs

    def encode(self) -> bytes:
        """The template blob (§4.4). Equal templates give equal bytes."""
        if self.is_identity:
            return b""
        flat = [[o.path, o.squeeze, [[column, _flat(runs)] for column, runs in o.parts]] for o in self.outputs]
        return pack_description(flat, "template")

    @staticmethod
    def decode(blob: bytes) -> Template:
        """The template in a blob. Raises DataError for any bytes that are not one. Equal blobs give the same object."""
        return _decode_template(blob)


Template.identity = Template(())


def runs_of(rows: NDArray[np.int64]) -> list[Run]:
    """The fewest runs that are exactly these rows in this order; gaps, repeats and reversals are kept.

    A run is as long as it can be, which is the fewest since every part of a run is a run. The whole window of n rows is
    `[(0, n, 1)]`; a part says the same for windows of any length with no runs at all.
    """
    rows = np.asarray(rows, np.int64)
    count = len(rows)
    if count == 0:
        raise DataError("an output column shows at least one row")
    if count == 1:
        return [(int(rows[0]), 1, 1)]
    steps = np.diff(rows)
    changes = np.flatnonzero(steps[1:] != steps[:-1]) + 1
    # Rows from the start of a group of equal steps to its end form a run; the step that leads out of it is used up.
    ends = np.append(changes, count - 1)
    runs: list[Run] = []
    row = group = 0
    while row < count - 1:
        while ends[group] <= row:
            group += 1
        last = int(ends[group])
        runs.append((int(rows[row]), last - row + 1, int(steps[row])))
        row = last + 1
    if row == count - 1:
        runs.append((int(rows[row]), 1, 1))
    return runs


def rows_of(runs: Sequence[Run], length: int) -> NDArray[np.int64]:
    """The window rows of these runs, in order; without runs, all rows of a window of `length`.

    Raises DataError for a row outside the window.
    """
    if not runs:
        return np.arange(length, dtype=np.int64)
    starts, lengths, strides = np.array(runs, np.int64).T
    before = np.cumsum(lengths) - lengths
    within = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(before, lengths)
    rows: NDArray[np.int64] = np.repeat(starts, lengths) + within * np.repeat(strides, lengths)
    if int(rows.min()) < 0 or int(rows.max()) >= length:
        raise DataError(f"rows {int(rows.min())} to {int(rows.max())} are not all in a window of {length}")
    return rows


@lru_cache(maxsize=256)
def _decode_template(blob: bytes) -> Template:
    if not blob:
        return Template.identity
    outputs = []
    for entry in unpack_description(blob, "template"):
        match entry:
            case [list(path), bool(squeeze), list(parts)]:
                outputs.append(OutputColumn(read_path(path), squeeze, tuple([_part(part) for part in parts])))
            case _:
                raise DataError(f"{entry!r:.200} is not an output column of a template")
    return Template(tuple(outputs))


def _part(part: Any) -> Part:
    match part:
        case [int(column), list(flat)] if not isinstance(column, bool):
            if len(flat) % 3 or not all(type(number) is int for number in flat):
                raise DataError(f"{flat!r:.200} are not runs, which are triples of integers")
            return column, tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
    raise DataError(f"{part!r:.200} is not a part of an output column")


def _flat(runs: Sequence[Run]) -> list[int]:
    return [number for run in runs for number in run]
