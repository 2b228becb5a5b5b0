"""Which rows of a writer lack which columns: those before a column began, and steps appended without it. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Presence:
    """Rows and columns by number. That a row has a column is the rule, and costs nothing to note."""

    __slots__ = ("_born", "_dense_before", "_missing", "dense_from")

    def __init__(self) -> None:
        self.dense_from = 0
        """No row from this one on lacks a column."""
        self._dense_before = 0
        self._born: list[int] = []
        self._missing: dict[int, set[int]] = {}

    def add_columns(self, count: int, first_row: int) -> None:
        """So many columns begin with this row."""
        self.dense_from = self._dense_before = max(self.dense_from, first_row)
        self._born.extend([first_row] * count)

    def lack(self, row: int, columns: Iterable[int]) -> None:
        """The newest row has not these columns."""
        if row not in self._missing:
            self._missing[row] = set()
            self._dense_before, self.dense_from = self.dense_from, row + 1
        self._missing[row].update(columns)

    def fill(self, row: int, columns: Iterable[int]) -> None:
        """The newest row has got these columns."""
        missing = self._missing.get(row)
        if missing is not None:
            missing.difference_update(columns)
            if not missing:
                del self._missing[row]
                self.dense_from = self._dense_before

    def forget_before(self, row: int) -> None:
        if self._missing:
            for old in [old for old in self._missing if old < row]:
                del self._missing[old]

    def is_complete(self, row: int) -> bool:
        """Whether the row, one of those that are kept, has every column there was when it was appended."""
        return row not in self._missing

    def is_present(self, column: int, row: int) -> bool:
        """Whether the row has the column."""
        return row >= self._born[column] and column not in self._missing.get(row, ())
