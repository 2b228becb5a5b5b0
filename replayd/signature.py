"""Signatures: does an item's trajectory fit what its table asks for?

The answer depends on schema, template and number of rows alone, so it is worked out once for each (schema, template)
and then compared with a whole batch of lengths. Never looks at data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replayd.columns import Schema, Signature, SignatureColumn, Template, path_text
from replayd.errors import SignatureMismatch
from replayd.messages import Int64s


@dataclass(frozen=True, slots=True)
class _Shown:
    """One output column of an item: dtype, shape of a row, and how many rows (None: the whole window)."""

    path: tuple[str | int, ...]
    dtype: str
    cell: tuple[int, ...]
    rows: int | None
    squeeze: bool

    def shape(self, window: int) -> tuple[int, ...]:
        return self.cell if self.squeeze else (window if self.rows is None else self.rows, *self.cell)


def check_signature(table: str, signature: Signature, schema: Schema, template: Template, lengths: Int64s) -> None:
    """Raise SignatureMismatch for the first item that does not fit; `lengths` are rows of the items' windows."""
    shown = _shown(schema, template)
    wanted = {column.path: column for column in signature}
    for column in signature:
        if column.path not in {s.path for s in shown}:
            raise _mismatch(table, column.path, str(column), "no such column")
    for column_shown in shown:
        if column_shown.path not in wanted:
            raise _mismatch(table, column_shown.path, "no such column", column_shown.dtype)
        _check_column(table, wanted[column_shown.path], column_shown, lengths)


def _check_column(table: str, wanted: SignatureColumn, shown: _Shown, lengths: Int64s) -> None:
    worst = int(lengths[0])
    leading = wanted.shape[0] if wanted.shape and not shown.squeeze and shown.rows is None else None
    if leading is not None:
        wrong = np.flatnonzero(lengths != leading)
        if len(wrong):
            worst = int(lengths[wrong[0]])
    shape = shown.shape(worst)
    if shown.dtype != wanted.dtype or not _fits(wanted.shape, shape):
        raise _mismatch(table, wanted.path, str(wanted), str(SignatureColumn(shown.path, shown.dtype, shape)))


def _fits(wanted: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(wanted) == len(shape) and all(w is None or w == s for w, s in zip(wanted, shape, strict=True))


def _shown(schema: Schema, template: Template) -> list[_Shown]:
    if template.is_identity:
        return [_Shown(c.path, c.dtype, c.shape, None, False) for c in schema.columns]
    # Joined columns are alike, so the first one tells.
    outputs = ((o, schema.columns[o.columns[0]]) for o in template.outputs)
    return [_Shown(o.path, c.dtype, c.shape, o.rows, o.squeeze) for o, c in outputs]


def _mismatch(table: str, path: tuple[str | int, ...], expected: str, got: str) -> SignatureMismatch:
    text = path_text(path)
    return SignatureMismatch(
        f"table {table!r}, column {text}: expected {expected}, got {got}", path=text, expected=expected, got=got
    )
