"""Words for the shape of data: columns, schemas and trajectory templates, as values.

How they are written in bytes is `blobs`' business. The server compares and counts them; it never touches the data they
describe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f]")
"""What no name may contain: names are printed, logged and compared by people."""

Path = tuple[str | int, ...]


def path_text(path: Path) -> str:
    """A path as people read it: `obs/pos/0`; a step that is a bare array is `<step>`."""
    return "/".join(str(part) for part in path) or "<step>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema: where it lies in a step, and what it has there."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    """Shape of one step."""


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """The ordered columns of a chunk; `blob` is its identity."""

    blob: bytes
    columns: tuple[Column, ...]

    def extends(self, earlier: Schema) -> bool:
        """True when this schema has the earlier one's columns first, unchanged."""
        return self.columns[: len(earlier.columns)] == earlier.columns


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One column that an item shows: where it lies in the trajectory, and what it is taken from."""

    path: Path
    columns: tuple[int, ...]
    """The schema columns whose cells it shows, one or several that are joined."""
    squeeze: bool
    rows: int | None
    """Rows it shows; None is the whole window of one column."""


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """Which rows of which columns an item shows; `blob` is its identity.

    Without outputs it shows every column over the whole window.
    """

    blob: bytes
    outputs: tuple[OutputColumn, ...] = ()
    span: int = 1
    """Rows a window needs at least."""
    width: int = field(default=0)
    """Columns a schema needs at least."""

    @property
    def is_identity(self) -> bool:
        """True when it has no outputs, and so shows every column as it is."""
        return not self.outputs

    @property
    def squeezes_window(self) -> bool:
        """True when an output drops the leading axis of the whole window, which must then have one row."""
        return any(output.squeeze and output.rows is None for output in self.outputs)

    @property
    def joined(self) -> tuple[OutputColumn, ...]:
        """The outputs of several columns, which must be of one dtype and shape."""
        return tuple(output for output in self.outputs if len(output.columns) > 1)

    def used_columns(self) -> frozenset[int] | None:
        """Schema columns it shows; None is all."""
        return None if self.is_identity else frozenset(column for output in self.outputs for column in output.columns)


@dataclass(frozen=True, slots=True)
class SignatureColumn:
    """What a table asks of one output column: None stands for any size, the leading one being the number of rows."""

    path: Path
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"


Signature = Sequence[SignatureColumn]
