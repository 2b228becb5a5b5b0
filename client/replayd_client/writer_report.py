"""What a writer's data turned out to cost, column by column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column: what was appended, and what its chunks store of it."""

    bytes_in: int
    """Bytes as they were appended: elements times the size of the dtype."""
    bytes_stored: int
    """Bytes of the encoded blobs, without headers."""

    @property
    def ratio(self) -> float:
        """Bytes in for each byte stored; 1 where nothing was stored."""
        return self.bytes_in / self.bytes_stored if self.bytes_stored else 1.0


@dataclass(frozen=True, slots=True)
class WriterReport:
    """What a writer has put in finished chunks so far, those included that no item shows and that are not sent."""

    steps: int
    """Steps in these chunks."""
    chunks: int
    chunk_length: int
    """Steps of the next chunk, unless it is cut before it is full."""
    columns: dict[str, ColumnReport]
    """By path, such as `obs/pos`."""

    @property
    def bytes_in(self) -> int:
        """Bytes of all columns as they were appended."""
        return sum(column.bytes_in for column in self.columns.values())

    @property
    def bytes_stored(self) -> int:
        """Bytes of all columns as the chunks store them."""
        return sum(column.bytes_stored for column in self.columns.values())

    @property
    def ratio(self) -> float:
        """Bytes in for each byte stored, over all columns; 1 where nothing was stored."""
        return ColumnReport(self.bytes_in, self.bytes_stored).ratio
