"""The results as tables for people: where and when, what was to be reached beside what was, and all the rest."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence, Set
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import OURS, Figure, count, give_or_take, number, size, spread
from benchmarks.goals import Goal
from benchmarks.nursery import ROOT
from benchmarks.settings import Settings

BEGIN, END = "<!-- scripts/bench --peers --table writes what follows -->\n", "<!-- and ends here -->\n"
VERSION_OF = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
NOT_MEASURED = "not measured"
TRANSPORTS = {
    False: "TCP on loopback",
    True: "ipc between our daemon and its clients and for libzmq, TCP on loopback for dm-reverb, id-echo and the "
    "server in the learner",
}


def circumstances(settings: Settings, command: str) -> dict[str, Any]:
    """Date, machine, commit and versions, and how it is measured; asked for at the beginning."""
    import replayd

    peers = {"dm-reverb": settings.peers.reverb, "id-echo": settings.peers.echo, "ale-py": settings.peers.atari}
    return {
        "command": command,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {_memory_gib()} GiB, Linux {platform.release()}",
        "versions": {
            "replayd": replayd.__version__,
            "Python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "pyzmq", "msgpack", "blosc2")},
            **{name: _version_there(python, name) for name, python in peers.items() if python is not None},
        },
        "transport": TRANSPORTS[settings.ipc],
        "seconds": settings.seconds,
        "rounds": settings.rounds,
    }


def markdown(about: dict[str, Any], goals: Sequence[Goal], figures: Sequence[Figure]) -> str:
    """A row for each goal, measured or not, under a paragraph that says where and when; then all other figures."""
    versions = ", ".join(f"{name} {its}" for name, its in about["versions"].items())
    minutes = about["took_s"] / 60
    loads = [figure.load for figure in figures] or [0.0]
    return "\n".join(
        [
            f"`{about['command']}` at commit {about['commit']}, {about['date']}, in {minutes:.0f} minutes; "
            f"{about['machine']}; {versions}; {about['transport']}; medians of {about['rounds']} runs "
            f"of {about['seconds']:g} s; load average {min(loads):.1f} to {max(loads):.1f}.",
            *_with_a_goal(goals, figures),
            *_without_a_goal(goals, figures),
        ]
    )


def not_measured(goals: Sequence[Goal], figures: Sequence[Figure]) -> list[Goal]:
    return [goal for goal in goals if goal.figure(figures) is None]


def write_into(readme: Path, table: str) -> None:
    """Put the table where the README has its place. Raises ClickException if it has none."""
    text = readme.read_text()
    place = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    if not place.search(text):
        raise click.ClickException(
            f"{readme} has no place for the table: a line {BEGIN.strip()} and later {END.strip()}"
        )
    readme.write_text(place.sub(lambda _: f"{BEGIN}\n{table}\n\n{END}", text))


def _with_a_goal(goals: Sequence[Goal], figures: Sequence[Figure]) -> Iterator[str]:
    if goals:
        yield ""
        yield "| workload | payload | clients | replayd | times that of a peer: median (least to largest) | wanted | |"
        yield "|---|---:|---:|---:|---|---:|---|"
    for goal in goals:
        yield _row(goal, goal.figure(figures))


def _row(goal: Goal, figure: Figure | None) -> str:
    wanted = f"{'≤' if goal.at_most else '≥'} {number(goal.bound)}{' ×' if goal.peer else ''}"
    cells = [
        f"{goal.workload}: {goal.quantity}" + ("" if goal.items is None else f", {count(goal.items)} items"),
        "" if goal.payload is None else size(goal.payload),
        "" if goal.clients is None else str(goal.clients),
    ]
    if figure is None:
        return _line(*cells, NOT_MEASURED, f"× {goal.peer}" if goal.peer else "", wanted, NOT_MEASURED)
    ratio = f"{spread(goal.runs(figure))} × {goal.peer}" if goal.peer else ""
    return _line(*cells, f"{give_or_take(figure.runs)} {figure.unit}", ratio, wanted, goal.verdict(figure))


# --- figures without a goal -------------------------------------------------------------------------------------------


def _without_a_goal(goals: Sequence[Goal], figures: Sequence[Figure]) -> Iterator[str]:
    """What has no goal, and what peers did; by payload or size of the table where a figure has several."""
    with_a_goal = {(id(goal.figure(figures)), goal.peer) for goal in goals}
    rest = [figure for figure in figures if id(figure) not in {figure for figure, _ in with_a_goal}]
    if rest:
        yield ""
        yield (
            "Figures without a goal, and the peers' own; ± half of what lies between the least and the largest run. "
            "Rows with × are times that of a peer: median (least to largest)."
        )
    payloads = [figure for figure in figures if figure.payload_bytes is not None]
    sizes = [figure for figure in figures if figure.table_items is not None and figure.payload_bytes is None]
    yield from _by(payloads, with_a_goal, lambda figure: figure.payload_bytes or 0, size)
    yield from _by(sizes, with_a_goal, lambda figure: figure.table_items or 0, lambda items: f"{count(items)} items")
    others = [figure for figure in rest if figure.payload_bytes is None and figure.table_items is None]
    if others:
        yield ""
        yield "| workload | clients | median | times that of a peer: median (least to largest) |"
        yield "|---|---:|---:|---|"
    for figure in others:
        peers = "; ".join(f"{spread(runs)} × {peer}" for peer, runs in figure.ratios.items())
        yield _line(_name(figure), _clients(figure), f"{give_or_take(figure.runs)} {figure.unit}", peers)


def _by(
    figures: Sequence[Figure],
    with_a_goal: Set[tuple[int, str | None]],
    of: Callable[[Figure], int],
    title: Callable[[int], str],
) -> Iterator[str]:
    """A table with a column for each value of `of`, and a row for each system, quantity and number of clients, and for
    each peer that this is compared with. What has a goal, figure or ratio, stands elsewhere."""
    elsewhere = {figure for figure, _ in with_a_goal}
    rows: dict[tuple[str, str, str], dict[int, str]] = {}
    for figure in figures:
        if id(figure) not in elsewhere:
            cells = rows.setdefault((_name(figure), _clients(figure), figure.unit), {})
            cells[of(figure)] = give_or_take(figure.runs)
        for peer, runs in figure.ratios.items():
            if (id(figure), peer) not in with_a_goal:
                cells = rows.setdefault((_name(figure), _clients(figure), f"× {peer}"), {})
                cells[of(figure)] = spread(runs)
    if not rows:
        return
    columns = sorted({column for cells in rows.values() for column in cells})
    yield ""
    yield _line("workload", "clients", "", *map(title, columns))
    yield "|---|---:|---|" + "---:|" * len(columns)
    for key, cells in rows.items():
        yield _line(*key, *(cells.get(column, "") for column in columns))


def _name(figure: Figure) -> str:
    return f"{figure.workload}: {figure.quantity if figure.system == OURS else f'{figure.system} {figure.quantity}'}"


def _clients(figure: Figure) -> str:
    return "" if figure.clients is None else str(figure.clients)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# --- where and when ---------------------------------------------------------------------------------------------------


def _commit() -> str:
    """Of the tree that is measured, and whether it was changed since."""
    git = ["git", "-C", str(ROOT)]
    named = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    if named.returncode:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no", "--", "replayd", "client", "scripts"],
        capture_output=True,
        text=True,
        check=True,
    )
    return named.stdout.strip() + (" with changes" if changed.stdout else "")


def _version_there(python: Path, name: str) -> str:
    """The version of a distribution in a peer's environment."""
    return subprocess.run([python, "-c", VERSION_OF, name], capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
