"""What of a service is durable, as `info` tells it, and who waits for a checkpoint.

The numbers are written by whoever writes the store; nothing here is done about it. Owns the peers that asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replayd.errors import NoStore
from replayd.messages import Peer


@dataclass(slots=True)
class Progress:
    """A checkpoint that is being written."""

    began_at: float
    phase: str = "preparing"
    """`preparing` the memory for a copy of the index, handing over `chunks`, writing the `index`."""
    chunks: int = 0
    chunks_total: int = 0
    nbytes: int = 0
    rescued_bytes: int = 0
    """Of chunks that have left the tables, and wait for the disk."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint that is on the disk."""

    generation: int
    of: float
    """When the state was that it saved."""
    duration_s: float
    held_ms: float
    """How long it kept all requests waiting."""
    chunks: int
    """Chunks that were written, others being there already."""
    nbytes: int
    """What was written, the index included."""
    items: int


@dataclass(slots=True)
class Lost:
    """What damage of the store took from what the server began with."""

    items: int = 0
    chunks: int = 0
    requests: int = 0
    """Of the journal: those behind damage, and those that were refused when they were repeated."""


@dataclass(slots=True)
class Durability:
    """Times are by the service's clock. Without a `path` there is no store."""

    path: str | None = None
    began_at: float = 0.0
    """When the store was opened."""
    host: str = ""
    size_bytes: int = 0
    checkpoints: int = 0
    failures: int = 0
    last: Checkpoint | None = None
    last_error: str | None = None
    restored_generation: int | None = None
    differences: list[str] = field(default_factory=list)
    """Between the store that the server began with and its configuration, for people."""
    lost: Lost = field(default_factory=Lost)
    running: Progress | None = None
    waits: str | None = None
    """Why inserts, or all requests, wait for the disk, for people; None: nobody does for longer than a moment."""
    replayed: int | None = None
    """Requests of the journal that the server began with."""
    journal: Callable[[float], dict[str, Any]] | None = None
    """How the journal is; None without one."""
    askers: list[tuple[Peer, int]] = field(default_factory=list)
    """(peer, request id) of those who wait for a checkpoint that has not begun."""
    _waited_s: float = 0.0
    _looked_at: float = 0.0
    """For how long inserts have waited for the disk, until when."""

    def wait(self, why: str | None, now: float) -> None:
        """Inserts wait for the disk, and why; None: they do not."""
        if self.waits is not None:
            self._waited_s += now - self._looked_at
        self.waits, self._looked_at = why, now

    def ask(self, peer: Peer, id: int) -> None:
        """Somebody wants a checkpoint. Raises NoStore."""
        if self.path is None:
            raise NoStore(
                "the server was started without a store; `replayd serve --data-dir DIR` and "
                "`replayd.Server(…, data_dir=DIR)` have one"
            )
        self.askers.append((peer, id))

    def take_askers(self) -> list[tuple[Peer, int]]:
        """Those who have asked since the last time."""
        askers, self.askers = self.askers, []
        return askers

    def report(self, now: float) -> dict[str, Any]:
        """Plain values; empty without a store."""
        if self.path is None:
            return {}
        fields: dict[str, Any] = {
            "path": self.path,
            "size_bytes": self.size_bytes,
            # Until there is one, what has come since the start is in none.
            "checkpoint_age_s": now - (self.began_at if self.last is None else self.last.of),
            "checkpoints": self.checkpoints,
            "failures": self.failures,
            "blocked_s": self._waited_s + (0.0 if self.waits is None else now - self._looked_at),
        }
        if self.restored_generation is not None:
            fields["restored_generation"] = self.restored_generation
            fields["differences"] = self.differences
            fields |= {f"lost_{name}": getattr(self.lost, name) for name in ("items", "chunks", "requests")}
        if self.last is not None:
            fields["durable_age_s"] = now - self.last.of
            fields["last"] = {**self._fields(self.last), "age_s": fields["durable_age_s"]}
        if self.replayed is not None:
            fields["replayed_requests"] = self.replayed
        if self.journal is not None:
            fields["journal"] = self.journal(now)
            fields["durable_age_s"] = fields["journal"].pop("age_s")
        if self.last_error is not None:
            fields["last_error"] = self.last_error
        if self.waits is not None:
            fields["inserts_wait"] = self.waits
        if self.running is not None:
            running = self.running
            fields["running"] = {
                "phase": running.phase,
                "chunks": running.chunks,
                "chunks_total": running.chunks_total,
                "bytes": running.nbytes,
                "rescued_bytes": running.rescued_bytes,
                "elapsed_s": now - running.began_at,
            }
        return {"store": fields}

    def answer(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The fields of the reply to who asked for it."""
        return {"path": self.path, "host": self.host, "size_bytes": self.size_bytes, **self._fields(checkpoint)}

    def _fields(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {
            "generation": checkpoint.generation,
            "duration_s": checkpoint.duration_s,
            "held_ms": checkpoint.held_ms,
            "items": checkpoint.items,
            "chunks": checkpoint.chunks,
            "bytes": checkpoint.nbytes,
        }
