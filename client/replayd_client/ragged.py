"""Items of different lengths in one batch: lists of arrays, or arrays padded with blanks beside masks.

Works on whole columns: the rows that all items show of a column are taken at once, whatever their templates, lengths
and schemas. Knows nothing of requests or how a batch came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from replayd_client.batch_memory import REUSED_BYTES, BatchMemory
from replayd_client.batches import SampleBatchInfo, SampledBatch
from replayd_client.columns import BLANKS
from replayd_client.errors import DataError
from replayd_client.item_windows import ItemWindows, RowSelection, ShownColumn, check_size
from replayd_client.sampled_chunks import MAX_BATCH_BYTES, Ints, starts_of
from replayd_client.structure import Path, Structure, path_text

Ragged = Literal["error", "list", "pad"]
"""What becomes of items of different lengths.

- "error": DataError that names the lengths. Leaves are arrays [B, T, …].
- "list": every leaf is a list of B arrays [T_i, …], also when the lengths are equal. They are views of one array for
  each column, so one that is kept keeps its column of the batch.
- "pad": leaves are arrays [B, T_max, …] with 0, b"" or "" behind the rows of shorter items; a mask says which rows are
  real. T_max is that of the column: observations may have one row more than actions.

Squeezed columns are [B, …] (a list of B arrays […]) in all three.
"""

INFO_NAMES = tuple(field.name for field in fields(SampleBatchInfo))


def check_ragged(ragged: str) -> None:
    if ragged not in get_args(Ragged):
        raise DataError(f"ragged must be one of {', '.join(map(repr, get_args(Ragged)))}, got {ragged!r}")


def joined(
    parts: Sequence[SampledBatch], ragged: Ragged, memory: BatchMemory | None = None
) -> tuple[SampleBatchInfo, Any, Any]:
    """Info, data and masks of the items of one or several replies, in order, as one batch.

    Masks are a nest like the data's with "pad", else None: each a bool array of the leading dimensions of its leaf,
    [B, T_max], or [B] and all true where the column is squeezed. Leaves that show the same rows may share one.
    Where all items are alike in all, large arrays are made of `memory`.

    Raises DataError if the items show different columns, or with "error" differ in length.
    """
    merged = _stacked(parts, memory) if ragged == "error" else None
    if merged is None:
        columns = [_columns(part, ragged) for part in parts]
        merged = columns[0] if len(columns) == 1 else _concatenated(columns, ragged)
    structure = Structure.from_paths([column.path for column in merged])
    info = parts[0].info
    if len(parts) > 1:
        infos = [part.info for part in parts]
        info = SampleBatchInfo(*(np.concatenate([getattr(i, name) for i in infos]) for name in INFO_NAMES))
    data = structure.rebuild([column.data for column in merged])
    mask = structure.rebuild([column.mask for column in merged]) if ragged == "pad" else None
    return info, data, mask


def arrays_of_items(batch: SampledBatch) -> Iterator[tuple[tuple[Path, ...], Sequence[NDArray[Any]]]]:
    """Paths and arrays of each item, as `SampledBatch` gives them, but decoded together where they show the same
    columns: then the arrays of a column are views of one."""
    try:
        columns = _columns(batch, "list")
    except DataError:
        # Items of different columns, or faulty ones: each for itself.
        return iter(batch)
    paths = tuple(column.path for column in columns)
    return ((paths, arrays) for arrays in zip(*(column.data for column in columns), strict=True))


@dataclass(frozen=True, slots=True)
class _Column:
    """A finished column of a batch, and a mask if it is padded."""

    path: Path
    kind: tuple[str, tuple[int, ...], bool]
    """dtype and shape of a row, and whether it stands without its axis."""
    data: Any
    mask: NDArray[np.bool_] | None = None


def _stacked(parts: Sequence[SampledBatch], memory: BatchMemory | None) -> list[_Column] | None:
    """The columns of items that are alike in template, length and schema, each decoded where it stays; None if they are
    not."""
    if not all(len(part) and _is_uniform(part.windows) for part in parts):
        return None
    # Found once for all that are alike.
    shown = parts[0].windows.shown(0)
    if any(part.windows.shown(0) is not shown for part in parts[1:]):
        return None
    items = sum(map(len, parts))
    nbytes = check_size(shown, items)
    if len(parts) == 1 and (memory is None or nbytes < REUSED_BYTES):
        _, arrays = parts[0].windows.stack()
    else:
        empty = np.empty if memory is None else memory.empty
        arrays = [empty((items, *output.shape), output.column.array_dtype) for output in shown]
        start = 0
        for part in parts:
            part.windows.stack([array[start : start + len(part)] for array in arrays])
            start += len(part)
    return [_Column(output.path, _kind(output), array) for output, array in zip(shown, arrays, strict=True)]


def _columns(batch: SampledBatch, ragged: Ragged) -> list[_Column]:
    windows = batch.windows
    if not len(batch):
        raise DataError("a batch without items has no columns")
    kinds = _Kinds(windows)
    return [kinds.column(number, ragged) for number in range(len(kinds.outputs[0]))]


def _kind(output: ShownColumn) -> tuple[str, tuple[int, ...], bool]:
    return output.column.dtype.name, output.column.shape, output.squeeze


def _is_uniform(windows: ItemWindows) -> bool:
    """Whether all windows are of one length, one template and one schema: then a column is one take."""
    template_of, length = windows.template_of, windows.length
    is_one = (template_of == template_of[0]).all() and (length == length[0]).all()
    return len(windows.store.schemas) == 1 and bool(is_one)


class _Kinds:
    """The items of a batch by kind: equal template, last schema and length show equal rows of equal columns."""

    def __init__(self, windows: ItemWindows) -> None:
        self._windows = windows
        kinds = windows.template_of * len(windows.store.schemas) + windows.last_schema
        kinds = kinds * (int(windows.length.max()) + 1) + windows.length
        _, example, self._kind_of = np.unique(kinds, return_index=True, return_inverse=True)
        self.outputs = [windows.shown(int(index)) for index in example]
        """Of each kind, its output columns; in the order of the first kind's."""
        self._rows: dict[tuple[Any, ...], _Rows] = {}
        self._bring_into_order()

    def column(self, number: int, ragged: Ragged) -> _Column:
        """Output column `number` of all items."""
        outputs = [kind[number] for kind in self.outputs]
        key = tuple((output.first, output.count, id(output.rows)) for output in outputs)
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = _Rows(outputs, self._kind_of, self._windows.start)
        path, kind = outputs[0].path, _kind(outputs[0])
        if ragged == "pad" and not outputs[0].squeeze:
            mask, order = rows.padded
            data = self._take(outputs, rows, order)
            data = data.reshape(*mask.shape, *data.shape[1:])
            data[~mask] = outputs[0].column.blank
            return _Column(path, kind, data, mask)
        data = self._take(outputs, rows, None)
        if outputs[0].squeeze:
            if ragged == "list":
                return _Column(path, kind, [data[item, ...] for item in range(len(data))])
            return _Column(path, kind, data, np.ones(len(data), np.bool_) if ragged == "pad" else None)
        if ragged == "list":
            ends = rows.starts.tolist()
            return _Column(path, kind, [data[low:high] for low, high in pairwise(ends)])
        if (rows.counts != rows.counts[0]).any():
            raise _ragged(path, rows.counts.tolist())
        return _Column(path, kind, data.reshape(len(rows.counts), int(rows.counts[0]), *data.shape[1:]))

    def _take(self, outputs: Sequence[ShownColumn], shown: _Rows, order: Ints | None) -> NDArray[Any]:
        """The rows that are shown, or those of them with these numbers: [rows, *shape]."""
        column = outputs[0].column
        rows = shown.flat if order is None else shown.flat[order]
        if column.array_bytes(len(rows)) > MAX_BATCH_BYTES:
            raise DataError(f"{path_text(outputs[0].path)}: more than {MAX_BATCH_BYTES} bytes in one batch")
        if all(output.number == outputs[0].number and not output.parts for output in outputs):
            return self._take_from(outputs[0], rows)
        # Joined columns; or those of these items have different places in their schemas.
        out = np.empty((len(rows), *column.shape), column.array_dtype)
        number_of = np.concatenate([_numbers(output) for output in outputs])
        number_of = number_of[shown.place if order is None else shown.place[order]]
        for number in set(number_of.tolist()):
            where = np.flatnonzero(number_of == number)
            out[where] = self._take_from(replace(outputs[0], number=number), rows[where])
        return out

    def _take_from(self, output: ShownColumn, rows: Ints) -> NDArray[Any]:
        # To the store, each row is a window of one row.
        single = replace(output, first=0, count=1, rows=None, parts=())
        selection = RowSelection(self._windows.store, rows, single)
        self._windows.check_same_columns([single], selection.used)
        return selection.take(single).reshape(len(rows), *output.column.shape)

    def _bring_into_order(self) -> None:
        """Raises DataError unless all kinds show the same columns."""
        first = self.outputs[0]
        for kind, outputs in enumerate(self.outputs[1:], 1):
            by_path = {output.path: output for output in outputs}
            _check_same_paths([output.path for output in first], by_path)
            self.outputs[kind] = tuple(by_path[output.path] for output in first)
            for one, other in zip(first, self.outputs[kind], strict=True):
                _check_alike(one.path, [_kind(one), _kind(other)])


def _numbers(output: ShownColumn) -> Ints:
    """The schema column of each row that is shown."""
    numbers = np.full(output.count, output.number)
    for part, places in output.parts:
        numbers[places] = part.number
    return numbers


class _Rows:
    """Which rows of the store all items of a batch show of a column."""

    def __init__(self, outputs: Sequence[ShownColumn], kind_of: Ints, start: Ints) -> None:
        counts = np.array([output.count for output in outputs], np.int64)
        relative = np.concatenate(
            [np.arange(o.first, o.first + o.count) if o.rows is None else o.rows for o in outputs]
        )
        self.counts: Ints = counts[kind_of]
        """Rows of each item."""
        self.starts = starts_of(self.counts)
        """Where the rows of each item begin in `flat`."""
        item = np.repeat(np.arange(len(kind_of)), self.counts)
        within = np.arange(len(item)) - self.starts[item]
        self.place: Ints = starts_of(counts)[kind_of][item] + within
        """Of each row, its place among those that the kinds show, one kind behind the other."""
        self.flat: Ints = relative[self.place] + start[item]
        """The rows, item after item."""
        self._padded: tuple[NDArray[np.bool_], Ints] | None = None

    @property
    def padded(self) -> tuple[NDArray[np.bool_], Ints]:
        """Mask [B, T_max], and for each place a number in `flat`; where no row is, that of the item's first row."""
        if self._padded is None:
            mask = np.arange(int(self.counts.max())) < self.counts[:, None]
            order = np.repeat(self.starts[:-1][:, None], mask.shape[1], axis=1)
            order[mask] = np.arange(len(self.flat))
            self._padded = mask, order.reshape(-1)
        return self._padded


def _ragged(path: Path, counts: Sequence[int]) -> DataError:
    lengths = sorted(set(counts))
    some = ", ".join(map(str, lengths[:8])) + ", …" * (len(lengths) > 8)
    return DataError(
        f"{path_text(path)}: the items have different lengths ({some}) and cannot be stacked; "
        "ask for ragged='list' or ragged='pad'",
        detail={"path": path_text(path), "lengths": lengths},
    )


def _concatenated(parts: Sequence[Sequence[_Column]], ragged: Ragged) -> list[_Column]:
    """The columns of several replies one behind the other."""
    by_path = [{column.path: column for column in part} for part in parts]
    for part in by_path[1:]:
        _check_same_paths(by_path[0], part)
    return [_behind([part[path] for part in by_path], ragged) for path in by_path[0]]


def _behind(columns: Sequence[_Column], ragged: Ragged) -> _Column:
    path, kind = columns[0].path, columns[0].kind
    _check_alike(path, [column.kind for column in columns])
    if ragged == "list":
        return _Column(path, kind, [array for column in columns for array in column.data])
    arrays = [column.data for column in columns]
    masks = [column.mask for column in columns if column.mask is not None]
    squeezed = kind[2]
    if not squeezed:
        lengths = [array.shape[1] for array in arrays]
        if ragged == "pad":
            arrays = [_lengthened(array, max(lengths), BLANKS.get(kind[0], 0)) for array in arrays]
            masks = [_lengthened(mask, max(lengths), False) for mask in masks]
        elif len(set(lengths)) > 1:
            raise _ragged(path, lengths)
    return _Column(path, kind, np.concatenate(arrays), np.concatenate(masks) if masks else None)


def _lengthened(array: NDArray[Any], length: int, blank: Any) -> NDArray[Any]:
    longer = np.full((len(array), length, *array.shape[2:]), blank, array.dtype)
    longer[:, : array.shape[1]] = array
    return longer


def _check_same_paths(some: Iterable[Path], others: Iterable[Path]) -> None:
    if set(some) != set(others):
        one, other = (", ".join(sorted(map(path_text, paths))) for paths in (some, others))
        raise DataError(f"some items show the columns {one}, others {other}: they cannot be one batch")


def _check_alike(path: Path, kinds: Sequence[tuple[str, tuple[int, ...], bool]]) -> None:
    """Raises DataError unless the rows have one dtype and shape, and are squeezed or not."""
    distinct = sorted(set(kinds))
    if len(distinct) > 1:
        texts = [f"{dtype}{list(shape)}{' squeezed' * squeezed}" for dtype, shape, squeezed in distinct]
        raise DataError(f"{path_text(path)}: some items show {texts[0]}, others {texts[1]}: they cannot be one batch")
