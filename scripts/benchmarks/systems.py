"""The systems under test as sides of a contest, and the servers they need: which driver runs where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import Counted, Side
from benchmarks.crew import Crew, Job
from benchmarks.daemon import daemon
from benchmarks.figures import OURS
from benchmarks.settings import Settings

REVERB, ECHO, ZMQ = "dm-reverb", "id-echo", "libzmq"


@dataclass(frozen=True, slots=True)
class Served:
    """A running server with what its clients need."""

    system: str
    driver: str
    address: str
    pid: int
    python: Path | None = None
    http: str = ""
    """Where it tells how it is."""

    def job(self, role: str, **settings: Any) -> Job:
        return Job(self.driver, role, {"address": self.address, **settings}, self.python)

    def side(self, quantity: str, role: str, clients: int = 1, **settings: Any) -> Side:
        """So many processes of one role."""
        return Side(self.system, [Counted(role, quantity)], [self.job(role, **settings)] * clients, self.pid)

    def once(self, role: str, **settings: Any) -> dict[str, Any]:
        """Let one process of a role prepare, and end it: what it said of that."""
        with Crew([self.job(role, **settings)]) as crew:
            return crew.ready[0]


@contextmanager
def replayd(
    settings: Settings, tables: Sequence[str], profile: Path | None = None, *, stores: bool = False
) -> Iterator[Served]:
    """Our daemon with `tables` as `serve --table` has them."""
    with daemon(tables, ipc=settings.ipc, profile=profile, stores=stores) as running:
        yield Served(OURS, "drive_replayd", running.address, running.pid, http=running.http)


@contextmanager
def reverb(settings: Settings, *tables: dict[str, Any]) -> Iterator[Served | None]:
    """dm-reverb's server in a process of its own; None without its environment."""
    python = settings.peers.reverb
    if python is None:
        yield None
        return
    with Crew([Job("drive_reverb", "serve", {"tables": list(tables)}, python)]) as crew:
        yield Served(REVERB, "drive_reverb", crew.ready[0]["address"], crew.workers[0].pid, python)


def paced(served: Served, *tables: str, payload: int) -> Job:
    """A writer that leaves the server time for others: at most 25 600 items a second, each in all of the tables."""
    return served.job("write_paced", tables=tables, payload=payload, batch=256, pause_s=0.01)


def bare_zmq(settings: Settings, payload: int, quantity: str = "", keep: int = 0) -> Side:
    """A libzmq receiver that keeps the last `keep` messages, and a sender."""
    pull = Job("drive_zmq", "pull", {"ipc": settings.ipc, "payload": payload, "keep": keep})
    return Side(
        ZMQ,
        [Counted("pull", quantity)],
        [pull],
        followers=lambda address: [Job("drive_zmq", "push", {"payload": payload}).at(address)],
    )
