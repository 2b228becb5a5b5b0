"""Systems measured in turn: what else the machine does falls on all of them alike, and on the runs of a ratio most.

Owns the order of the runs. Knows systems as processes that can be told to work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import click

from benchmarks.crew import Crew, Done, Job
from benchmarks.daemon import cpu_s
from benchmarks.figures import OURS, Figure, ratios
from benchmarks.settings import Settings

T = TypeVar("T")


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
    """Processes that work during its runs whenever the others let them, for the address that the first of those
    tells."""
    table_items: int | None = None
    """Told with its figures."""


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
    runs = _in_turn(settings, sides, lambda side, crew: _run(settings, side, crew))
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
                    side.table_items,
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
    turns = _in_turn(settings, sides, lambda _, crew: crew.turn()[0])
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
                Figure(
                    workload,
                    quantity,
                    side.system,
                    result.unit,
                    tuple(runs),
                    table_items=side.table_items,
                    ratios=compared,
                    load=load(),
                )
            )
            tell(str(figures[-1]))
    return figures


def _in_turn(settings: Settings, sides: Sequence[Side], run: Callable[[Side, Crew], T]) -> list[list[T]]:
    """What each side's runs gave. Every second round goes the other way round."""
    given: list[list[T]] = [[] for _ in sides]
    with ExitStack() as stack:
        teams = [stack.enter_context(_team(side)) for side in sides]
        for _, followers in teams:
            followers.hold()
        order = list(zip(sides, teams, given, strict=True))
        for turn in range(settings.rounds):
            for side, (crew, followers), own in order if turn % 2 == 0 else reversed(order):
                with followers.going_on():
                    own.append(run(side, crew))
    return given


def _run(settings: Settings, side: Side, crew: Crew) -> Run:
    pid = side.server_pid
    used_s = cpu_s(pid) if pid is not None else 0.0
    done = crew.run(settings.seconds, settings.settle_s)
    return Run(done, cpu_s(pid) - used_s if pid is not None else 0.0)


@contextmanager
def _team(side: Side) -> Iterator[tuple[Crew, Crew]]:
    """Who is told when to work, and their followers, who disturb nobody else's runs."""
    with Crew(side.jobs) as crew:
        with Crew([] if side.followers is None else side.followers(crew.ready[0]["address"])) as followers:
            followers.let_run()
            yield crew, followers


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
    items: int | None = None,
    **notes: Any,
) -> Figure:
    """A figure without a peer in turn, told."""
    figure = Figure(workload, quantity, system, unit, runs, payload, clients, items, load=load(), notes=notes)
    tell(str(figure))
    return figure
