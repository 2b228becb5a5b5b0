"""The trajectory writer with the incumbent's histories, columns and texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._cells import AutoTunedChunkerOptions, CellWriter, ChunkerOptions, ConstantChunkerOptions
from replayd.compat.reverb._nests import (
    Path,
    flatten_with_path,
    map_structure,
    map_structure_with_path,
    merged,
    unflatten_as,
)
from replayd.compat.reverb._trajectories import wire_paths
from replayd.compat.reverb.errors import ReverbError


class TrajectoryWriter:
    """Appends steps and makes items of any cells of their history. Made by `Client.trajectory_writer`.

    A context manager: leaving it flushes, unless an error of this package is on its way, and does not close. `close`
    sends what there is; what comes after it raises RuntimeError. For one thread.
    """

    def __init__(self, internal_writer: Any) -> None:
        self._writer = internal_writer
        self._structure: Any = None
        self._history: Any = None
        self._paths: list[Path] = []
        """Of the columns by number, in the order in which they appeared."""
        self._number_of: dict[Path, int] = {}
        self._histories: list[_ColumnHistory] = []
        self._steps = 0
        self._open_step: set[int] | None = None
        """Columns that the open step has; None if there is no open step."""
        self._wishes: dict[Path, ChunkerOptions] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, ReverbError):
            self.flush()

    def __del__(self) -> None:
        # The cell writer's own end sends what is there, without making anybody wait.
        self._histories = []

    @property
    def history(self) -> Any:
        """A nest of the histories of all columns. Raises RuntimeError before the first `append`."""
        if not self._histories:
            raise RuntimeError("history cannot be accessed before `append` is called at least once.")
        return map_structure(lambda history: history, self._history)

    @property
    def episode_steps(self) -> int:
        """Steps of the episode so far; an open one does not count."""
        steps: int = self._writer.episode_steps
        return steps

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Add a step, or with `partial_step` a part of one; return a nest of references to the values.

        Fields may be None or absent, and new ones may come. Raises ValueError for a value whose dtype or shape is not
        that of the column's first one, and for a field that the open step has already; TypeError for what cannot be
        stored. After an error the step is as it was.
        """
        pairs = flatten_with_path(data)
        structure, paths, number_of = self._structure, self._paths, self._number_of
        if any(path not in number_of for path, _ in pairs):
            structure = data if structure is None else merged(structure, data)
            known = [path for path, _ in flatten_with_path(structure) if path not in number_of]
            paths = [*paths, *known]
            number_of = {path: number for number, path in enumerate(paths)}
            # A None where the structure has more fields stands for all of them.
            pairs = [pair for pair in pairs if pair[0] in number_of]
        row: list[Any] = [None] * len(paths)
        for path, value in pairs:
            row[number_of[path]] = value
        if self._open_step is not None:
            for number in sorted(self._open_step):
                if row[number] is not None:
                    raise ValueError(
                        f"Field {paths[number]} has already been set in the active step by previous (partial) append "
                        f"call and thus must be omitted or set to None but got: {row[number]}"
                    )
        for path in paths[len(self._paths) :]:
            if path in self._wishes:
                self._writer.ConfigureChunker(number_of[path], self._wishes.pop(path))
        try:
            refs = self._writer.AppendPartial(row) if partial_step else self._writer.Append(row)
        except ValueError as error:
            raise _with_path(error, paths) from error
        if paths is not self._paths:
            self._add_columns(structure, paths)
        self._record(refs, partial_step)
        found = {path: refs[number_of[path]] for path, _ in pairs}
        return map_structure_with_path(lambda path, value: found.get(path), data)

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Make an item of a nest of TrajectoryColumn; it is sent in the background.

        Raises TypeError for another leaf; ValueError for an empty trajectory or column, expired or mixed data, a NaN
        priority, one that the table does not take, and (if items are validated) an unknown table and a trajectory that
        does not fit its signature.
        """
        pairs = flatten_with_path(trajectory)
        for path, column in pairs:
            if not isinstance(column, TrajectoryColumn):
                raise TypeError(
                    f"All leaves of `trajectory` must be `TrajectoryColumn` but got {type(column).__name__} at {path}"
                )
        if not pairs:
            raise ValueError("trajectory must not be empty.")
        if math.isnan(_priorities.number(priority)):
            raise ValueError("`priority` must not be nan.")
        columns = [list(column) for _, column in pairs]
        squeezed = [column.is_squeezed for _, column in pairs]
        if isinstance(self._writer, CellWriter):
            names = [path for path, _ in pairs]
            self._writer.CreateItem(table, priority, columns, squeezed, wire_paths(trajectory), names)
        else:
            # Somebody else's, who knows what the binding takes.
            self._writer.CreateItem(table, priority, columns, squeezed)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Send what there is and wait until at most so many items are not confirmed.

        Raises ValueError for a negative number, DeadlineExceededError at the timeout (None, or not above 0: none); the
        work goes on.
        """
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items must be >= 0, got {block_until_num_items}")
        self._writer.Flush(block_until_num_items, -1 if timeout_ms is None else timeout_ms)

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Flush and begin a new episode, with `clear_buffers` without any history.

        Raises DeadlineExceededError at the timeout (None: none; 0: at once if anything is open); nothing has changed
        then.
        """
        self._writer.EndEpisode(clear_buffers, timeout_ms)
        self._steps += self._open_step is not None
        self._open_step = None
        if clear_buffers:
            self._steps = 0
            for history in self._histories:
                history.clear()

    def configure(self, path: Path, *, num_keep_alive_refs: int, max_chunk_length: int | None) -> None:
        """Set what a column needs, at best before it has values: how many of them are kept, how many make a chunk.

        replayd's chunks hold all columns, so the writer keeps as many steps as the column which asks for most. Raises
        ValueError unless 1 ≤ max_chunk_length ≤ num_keep_alive_refs (None: found out), RuntimeError for a column in the
        middle of a chunk of the length that was asked for before.
        """
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs ({num_keep_alive_refs}) must be a positive integer")
        if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
            raise ValueError(
                f"max_chunk_length ({max_chunk_length}) must be None or a positive integer <= num_keep_alive_refs "
                f"({num_keep_alive_refs})"
            )
        options: ChunkerOptions = (
            AutoTunedChunkerOptions(num_keep_alive_refs, throughput_weight=1.0)
            if max_chunk_length is None
            else ConstantChunkerOptions(max_chunk_length, num_keep_alive_refs)
        )
        path = tuple(path)
        if path in self._number_of:
            self._writer.ConfigureChunker(self._number_of[path], options)
        else:
            self._wishes[path] = options

    def close(self) -> None:
        """Send what there is and end; waits a moment for confirmations. May be called again."""
        self._writer.Close()

    def _add_columns(self, structure: Any, paths: list[Path]) -> None:
        self._structure = structure
        for number in range(len(self._paths), len(paths)):
            self._number_of[paths[number]] = number
            # In the steps before it, an open one included, the column has no value.
            self._histories.append(_ColumnHistory(paths[number], self._steps + (self._open_step is not None)))
        self._paths = paths
        numbers = [self._number_of[path] for path, _ in flatten_with_path(structure)]
        self._history = unflatten_as(structure, [self._histories[number] for number in numbers])

    def _record(self, refs: Sequence[Any], partial_step: bool) -> None:
        keep: int = self._writer.max_num_keep_alive_refs
        for number, history in enumerate(self._histories):
            ref = refs[number] if number < len(refs) else None
            if self._open_step is None:
                history.append(ref, keep)
            elif ref is not None:
                history.amend(ref)
        present = {number for number, ref in enumerate(refs) if ref is not None}
        columns = present | (self._open_step or set())
        self._open_step = columns if partial_step else None
        if not partial_step:
            self._steps += 1


class TrajectoryColumn:
    """Values of a column of a trajectory by reference: [T, *shape], or with `squeeze` the only one, [*shape].

    Indexed by an int, a slice or a list of ints. Columns are joined by making one of the references of several:
    `TrajectoryColumn([*a, *b])`. Raises ValueError for None, and for `squeeze` with another number than one.
    """

    def __init__(self, data_references: Iterable[Any], *, squeeze: bool = False, path: Path | None = None) -> None:
        references = tuple(data_references)
        if squeeze and len(references) != 1:
            raise ValueError(f"Columns must contain exactly one data reference when squeeze set, got {len(references)}")
        if any(reference is None for reference in references):
            gone = [place for place, reference in enumerate(references) if reference is None]
            raise ValueError(
                f"TrajectoryColumns cannot contain any None data references: of the {len(references)} of the column at "
                f"path {path} there are none, or none any more, at {gone}"
            )
        self._references = references
        self._path = path
        self.is_squeezed = squeeze

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._references)

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        path = None if self._path is None else (*self._path, _plain(index))
        if isinstance(index, int):
            return TrajectoryColumn([self._references[index]], squeeze=True, path=path)
        if isinstance(index, slice):
            return TrajectoryColumn(self._references[index], path=path)
        if isinstance(index, list):
            return TrajectoryColumn([self._references[each] for each in index], path=path)
        raise _bad_index(self, index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Raises IndexError for a column of nothing."""
        shape: tuple[int, ...] = tuple(self._first.shape)
        return shape if self.is_squeezed else (len(self._references), *shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every cell. Raises IndexError for a column without data."""
        dtype: np.dtype[Any] = self._first.dtype
        return dtype

    def numpy(self) -> NDArray[Any]:
        """The data, copied. Raises RuntimeError if some of it has expired."""
        if any(getattr(reference, "expired", False) for reference in self._references):
            raise RuntimeError("Cannot convert TrajectoryColumn with expired data references to numpy array.")
        if self.is_squeezed:
            value: NDArray[Any] = self._references[0].numpy()
            return value
        return np.stack([reference.numpy() for reference in self._references])

    def __repr__(self) -> str:
        return f"TrajectoryColumn({len(self._references)} values, path={self._path}, squeezed={self.is_squeezed})"

    @property
    def _first(self) -> Any:
        if not self._references:
            raise IndexError("a TrajectoryColumn without data has neither shape nor dtype")
        return self._references[0]


class _ColumnHistory:
    """The references of one column by step of the history; those that are no longer kept, and missing ones, are None.

    Indexed as a list of all steps is, but before its first step, as far as one likes, there is None. A slice from the
    first step up to a given one shows what is kept of it; every other pick of what is None raises ValueError, and a
    step that is yet to come IndexError.
    """

    def __init__(self, path: Path, steps_before: int) -> None:
        self._path = path
        self._dropped = steps_before
        self._kept: list[Any] = []
        self._keep = 0

    def append(self, reference: Any, keep: int) -> None:
        self._keep = keep
        self._kept.append(reference)
        if len(self._kept) >= 2 * keep:
            self._dropped += len(self._kept) - keep
            del self._kept[:-keep]

    def amend(self, reference: Any) -> None:
        """Fill in the open step."""
        if not self._kept:
            # The column began in a step that was open already.
            self._kept.append(None)
            self._dropped -= 1
            self._keep = max(self._keep, 1)
        self._kept[-1] = reference

    def clear(self) -> None:
        self._dropped = 0
        self._kept = []

    def __len__(self) -> int:
        return self._dropped + len(self._kept)

    def __iter__(self) -> Iterator[Any]:
        return (self._at(step) for step in range(len(self)))

    def __getitem__(self, index: Any) -> TrajectoryColumn:
        path = (*self._path, _plain(index))
        if isinstance(index, int):
            return TrajectoryColumn([self._picked(index)], squeeze=True, path=path)
        if isinstance(index, slice):
            picked: Iterable[int] = range(len(self))[index]
            if index.start is None and index.stop is not None:
                picked = [step for step in picked if step >= self._first_kept]
            before = 0 if index.start is None else max(-len(self) - index.start, 0)
            return TrajectoryColumn([None] * before + [self._at(step) for step in picked], path=path)
        if isinstance(index, list):
            return TrajectoryColumn([self._picked(each) for each in index], path=path)
        raise _bad_index(self, index)

    def __repr__(self) -> str:
        return f"<history of {self._path}: {len(self)} steps>"

    @property
    def _first_kept(self) -> int:
        return max(self._dropped, len(self) - self._keep)

    def _picked(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(f"index {index} is out of range: there are {len(self)} steps")
        return self._at(index if index >= 0 else index + len(self))

    def _at(self, step: int) -> Any:
        return self._kept[step - self._dropped] if step >= self._first_kept else None


def _plain(index: Any) -> Any:
    """An index as it is shown in a path: lists are not hashable."""
    return tuple(index) if isinstance(index, list) else index


def _bad_index(indexed: Any, index: Any) -> TypeError:
    return TypeError(
        f"{type(indexed).__name__} indices must be integers or slices, not {type(index)}; or lists of integers"
    )


def _with_path(error: ValueError, paths: Sequence[Path]) -> ValueError:
    """The error with its column's path in the place of the number."""

    def named(match: re.Match[str]) -> str:
        column = int(match[1])
        return f"for column {paths[column]}" if column < len(paths) else match[0]

    return ValueError(re.sub(r"for column (\d+)", named, str(error)))
