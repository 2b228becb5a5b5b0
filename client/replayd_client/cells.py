"""Cells of bytes and str columns, which have any length: leaves as arrays of cells, and rows of cells as bytes.

Owns the decoded form of their blobs (protocol.md §4.2): whatever bytes come in, they are such cells or raise DataError.
An array of cells is one of objects, all `bytes` or all `str`. Knows nothing of codecs, schemas and writers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from replayd_client.errors import DataError
from replayd_client.structure import Path, path_text

MAX_CELL_BYTES = 1 << 26
"""Longest cell, in UTF-8 if it is a str. What is longer is better stored as an array of uint8, or in parts."""

MAX_CELLS_BYTES = 1 << 27
"""Most bytes of a column in one chunk, lengths included. How many there are is the sender's word alone, so a reader
needs a bound before it allocates anything."""

LENGTH_BYTES = 4
_LENGTH: Final = np.dtype("<u4")

Cells = NDArray[np.object_]
Sizes = NDArray[np.int64]


def cells_of(values: NDArray[Any], path: Path) -> Cells:
    """An array of bytes, str or objects as a fresh array of cells of the same shape.

    Cells are plain `bytes` or `str`, whatever subclass came. Raises DataError that names the path for objects that are
    neither all bytes nor all str, and for a str that UTF-8 cannot hold.
    """
    cells: Cells = values.astype(object, order="C")
    flat = cells.reshape(-1)
    kinds = set(map(type, flat.tolist()))
    if not (kinds <= {bytes} or kinds <= {str}):
        kind = next((kind for kind in (bytes, str) if all(issubclass(found, kind) for found in kinds)), None)
        if kind is None:
            names = ", ".join(sorted(found.__name__ for found in kinds))
            raise DataError(
                f"{path_text(path)}: objects can be stored if all are bytes or all are str; these are {names}"
            )
        # Joining one gives its plain value, whatever a subclass makes of `str(…)`.
        flat[:] = [kind().join((cell,)) for cell in flat.tolist()]
    if cells.size and isinstance(flat[0], str):
        _encoded("".join(flat.tolist()), path)
    return cells


def cell_dtype(cells: Cells) -> np.dtype[Any]:
    """The dtype `bytes` or `str` of these cells; of none `bytes`, for their shape says that there will never be any."""
    return np.dtype(type(cells.flat[0]) if cells.size else bytes)


def cell_size(cell: bytes | str, path: Path) -> int:
    """Bytes of one cell. Raises DataError above MAX_CELL_BYTES, and for a str that UTF-8 cannot hold."""
    size = len(cell)
    if isinstance(cell, str) and not cell.isascii():
        size = len(_encoded(cell, path))
    _check_length(size, path)
    return size


def cell_sizes(cells: Cells, path: Path) -> Sizes:
    """Bytes of each cell, of the array's shape. Raises DataError as `cell_size`."""
    flat = cells.reshape(-1).tolist()
    if flat and isinstance(flat[0], str) and not all(map(str.isascii, flat)):
        flat = [_encoded(text, path) for text in flat]
    sizes = np.fromiter(map(len, flat), np.int64, len(flat))
    _check_length(int(sizes.max(initial=0)), path)
    return sizes.reshape(cells.shape)


def pack_cells(cells: Cells) -> NDArray[np.uint8]:
    """The lengths of all cells, then their bytes back to back."""
    flat = cells.reshape(-1).tolist()
    if flat and isinstance(flat[0], str):
        flat = [text.encode() for text in flat]
    lengths = np.fromiter(map(len, flat), _LENGTH, len(flat))
    return np.frombuffer(b"".join([lengths.tobytes(), *flat]), np.uint8)


def unpack_cells(data: NDArray[np.uint8], dtype: np.dtype[Any], out: Cells) -> None:
    """What `pack_cells` made of as many cells as `out` has, which is C-contiguous. Raises DataError for other bytes."""
    head = LENGTH_BYTES * out.size
    if len(data) < head:
        raise DataError(f"{len(data)} bytes have no room for the lengths of {out.size} cells")
    lengths = data[:head].view(_LENGTH)
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if out.size else 0
    if total != len(data) - head:
        raise DataError(f"the lengths of the cells say {total} bytes, and {len(data) - head} follow")
    if int(lengths.max(initial=0)) > MAX_CELL_BYTES:
        raise DataError(f"a cell of {int(lengths.max())} bytes is longer than the limit of {MAX_CELL_BYTES}")
    joined = data[head:].tobytes()
    bounds = pairwise([0, *ends.tolist()])
    cells: list[Any]
    if dtype.kind == "S":
        cells = [joined[low:high] for low, high in bounds]
    else:
        try:
            if joined.isascii():
                text = joined.decode()
                cells = [text[low:high] for low, high in bounds]
            else:
                cells = [joined[low:high].decode() for low, high in bounds]
        except UnicodeDecodeError as error:
            raise DataError(f"a cell of a str column is not UTF-8: {error.reason}") from None
    out.reshape(-1)[:] = cells


def _encoded(text: str, path: Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{path_text(path)}: a str that UTF-8 cannot hold: {error.reason}") from None


def _check_length(size: int, path: Path) -> None:
    if size > MAX_CELL_BYTES:
        raise DataError(f"{path_text(path)}: a value of {size} bytes is longer than the limit of {MAX_CELL_BYTES}")
