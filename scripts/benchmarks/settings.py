"""How much is measured and for how long, and where the peers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peers:
    """Interpreters of the environments that `scripts/bench-peers-setup` made; None for one that is not there."""

    reverb: Path | None = None
    echo: Path | None = None
    atari: Path | None = None

    @classmethod
    def under(cls, directory: Path) -> Peers:
        found = {name: directory / name / "bin" / "python" for name in cls.__slots__}
        return cls(**{name: path for name, path in found.items() if path.exists()})


KINDS = ("uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap")
"""Of selectors."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured and for how long."""

    payloads: tuple[int, ...]
    clients: tuple[int, ...]
    seconds: float
    settle_s: float
    """Not counted at the beginning of each run."""
    rounds: int
    table_bytes: int
    """Payload in a table, about; the systems need several times as much for small ones."""
    most_items: int
    scaled_items: int
    """In the largest table of those that are compared by size."""
    ipc: bool
    quick: bool
    peers: Peers
    directory: Path
    """Where the frames of games are kept from one benchmark to the next."""

    def table_items(self, payload: int) -> int:
        return max(min(self.most_items, self.table_bytes // payload), 300)
