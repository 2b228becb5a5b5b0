"""What a writer's data turned out to cost, column by column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column: bytes as they were appended, and as its chunks store them."""

    bytes_in: int
    bytes_stored: int

    @property
    def ratio(self) -> float:
        """Bytes in for each byte stored; 1 where nothing was stored."""
        return self.bytes_in / self.bytes_stored if self.bytes_stored else 1.0


@dataclass(frozen=True, slots=True)
class WriterReport:
    """What a writer has put in finished chunks so far, those included that no item shows and that are not sent."""

    steps: int
    chunks: int
    chunk_length: int
    """Steps of the next chunk, unless it is cut before it is full."""
    columns: dict[str, ColumnReport]
    """By path, such as `obs/pos`."""

    @property
    def bytes_in(self) -> int:
        return sum(column.bytes_in for column in self.columns.values())

    @property
    def bytes_stored(self) -> int:
        return sum(column.bytes_stored for column in self.columns.values())

    @property
    def ratio(self) -> float:
        return ColumnReport(self.bytes_in, self.bytes_stored).ratio
