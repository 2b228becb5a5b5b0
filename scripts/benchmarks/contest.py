"""Systems measured in turn: what else the machine does falls on all of them alike, and on the runs of a ratio most.

Owns the order of the runs and the settings of a whole benchmark. Knows systems as processes that can be told to work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.crew import Crew, Done, Job
from benchmarks.daemon import cpu_s
from benchmarks.figures import OURS, Figure, ratios


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
    ipc: bool
    quick: bool
    peers: Peers
    directory: Path
    """Where the frames of games are kept from one benchmark to the next."""

    def table_items(self, payload: int) -> int:
        return max(min(self.most_items, self.table_bytes // payload), 300)


@dataclass(frozen=True, slots=True)
class Counted:
    """A role whose rate is a figure."""

    role: str
    quantity: str


@dataclass(frozen=True, slots=True)
class Side:
    """A system in a contest."""

    system: str
    counted: Sequence[Counted]
    """What we count first is compared with what a peer counts first, and so on."""
    jobs: Sequence[Job]
    """Its processes that are told when to work."""
    server_pid: int | None = None
    """Whose CPU time is told."""
    followers: Callable[[str], Sequence[Job]] | None = None
    """Processes that work whenever the others let them, for the address that the first of the others tells."""


@dataclass(frozen=True, slots=True)
class Run:
    done: dict[str, Done]
    server_cpu_s: float

    def costs(self, role: str) -> dict[str, float]:
        """CPU time in µs an item: of the server, with all it does for others meanwhile, and of the role's processes."""
        items = max(self.done[role].items, 1)
        return {"server": self.server_cpu_s * 1e6 / items, "clients": self.done[role].cpu_s * 1e6 / items}


def contest(
    settings: Settings,
    workload: str,
    sides: Sequence[Side],
    *,
    payload: int | None = None,
    clients: int | None = None,
    unit: str = "items/s",
) -> list[Figure]:
    """Runs of all sides in turn, there and back; what we did is compared with what each peer did in the same round."""
    runs = _in_turn(settings, sides)
    figures = []
    for side, own in zip(sides, runs, strict=True):
        for place, counted in enumerate(side.counted):
            rates = [run.done[counted.role].rate for run in own]
            compared = {}
            for peer, theirs in zip(sides, runs, strict=True):
                if side.system == OURS != peer.system and place < len(peer.counted):
                    other = peer.counted[place]
                    name = f"{peer.system} {other.quantity}".strip()
                    compared[name] = ratios(rates, [run.done[other.role].rate for run in theirs])
            costs = {
                f"{whose} CPU µs/item": median(run.costs(counted.role)[whose] for run in own)
                for whose in ("server", "clients")
                if whose == "clients" or side.server_pid is not None
            }
            figures.append(
                Figure(
                    workload,
                    counted.quantity,
                    side.system,
                    unit,
                    tuple(rates),
                    payload,
                    clients,
                    compared,
                    load(),
                    costs,
                )
            )
            tell(str(figures[-1]))
    return figures


@dataclass(frozen=True, slots=True)
class Told:
    """A result that a role tells of its own turns."""

    name: str
    unit: str
    less_is_better: bool = True


def told(settings: Settings, workload: str, sides: Sequence[Side], *results: Told) -> list[Figure]:
    """Turns of all sides, there and back, each of one job that tells its results itself; side by side, result by
    result. What a side counts first says what the results are of."""
    turns: list[list[dict[str, float]]] = [[] for _ in sides]
    with ExitStack() as stack:
        crews = [stack.enter_context(_at_work(side)) for side in sides]
        for turn in range(settings.rounds):
            for index in there_and_back(len(sides), turn):
                turns[index] += crews[index].turn()
    figures = []
    for side, own in zip(sides, turns, strict=True):
        for result in results:
            runs = [turn[result.name] for turn in own]
            compared = {
                peer.system: ratios(runs, [turn[result.name] for turn in theirs], less_is_better=result.less_is_better)
                for peer, theirs in zip(sides, turns, strict=True)
                if side.system == OURS != peer.system
            }
            quantity = f"{side.counted[0].quantity}, {result.name}"
            figures.append(
                Figure(workload, quantity, side.system, result.unit, tuple(runs), ratios=compared, load=load())
            )
            tell(str(figures[-1]))
    return figures


def there_and_back(count: int, turn: int) -> Sequence[int]:
    """The order of a round: every second one is the other way round."""
    return range(count) if turn % 2 == 0 else range(count)[::-1]


def _in_turn(settings: Settings, sides: Sequence[Side]) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in sides]
    with ExitStack() as stack:
        crews = [stack.enter_context(_at_work(side)) for side in sides]
        for turn in range(settings.rounds):
            for index in there_and_back(len(sides), turn):
                pid = sides[index].server_pid
                used_s = cpu_s(pid) if pid is not None else 0.0
                done = crews[index].run(settings.seconds, settings.settle_s)
                runs[index].append(Run(done, cpu_s(pid) - used_s if pid is not None else 0.0))
    return runs


@contextmanager
def _at_work(side: Side) -> Iterator[Crew]:
    with Crew(side.jobs) as crew, ExitStack() as stack:
        if side.followers is not None:
            stack.enter_context(Crew(side.followers(crew.ready[0]["address"]))).let_run()
        yield crew


def load() -> float:
    return os.getloadavg()[0]


def tell(line: str) -> None:
    """Progress goes to stderr, so that stdout is the result alone."""
    click.echo(line, err=True)


def measured(
    workload: str,
    quantity: str,
    unit: str,
    *runs: float,
    system: str = OURS,
    payload: int | None = None,
    clients: int | None = None,
    **notes: Any,
) -> Figure:
    """A figure without a peer in turn, told."""
    figure = Figure(workload, quantity, system, unit, runs, payload, clients, load=load(), notes=notes)
    tell(str(figure))
    return figure
