"""The results as a table for people: where and when, and what was to be reached beside what was."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.figures import Figure, number, size, spread
from benchmarks.goals import GOALS, Goal
from benchmarks.settings import Settings

BEGIN, END = "<!-- scripts/bench --peers --table writes what follows -->\n", "<!-- and ends here -->\n"
VERSION_OF = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def circumstances(settings: Settings) -> dict[str, Any]:
    """Date, machine and versions, and how it was measured."""
    import replayd

    peers = {"dm-reverb": settings.peers.reverb, "id-echo": settings.peers.echo, "ale-py": settings.peers.atari}
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores ({_processor()}), {_memory_gib()} GiB, Linux {platform.release()}",
        "versions": {
            "replayd": replayd.__version__,
            "Python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "pyzmq", "msgpack", "blosc2")},
            **{name: _version_there(python, name) for name, python in peers.items() if python is not None},
        },
        "transport": "ipc" if settings.ipc else "TCP on loopback",
        "seconds": settings.seconds,
        "rounds": settings.rounds,
    }


def markdown(about: dict[str, Any], figures: Sequence[Figure]) -> str:
    """A row for each goal that was measured, under a paragraph that says where and when."""
    versions = ", ".join(f"{name} {its}" for name, its in about["versions"].items())
    loads = [figure.load for figure in figures] or [0.0]
    rows = [_row(goal, figure) for goal in GOALS if (figure := goal.figure(figures)) is not None]
    return "\n".join(
        [
            f"{about['date']}, {about['machine']}; {versions}; {about['transport']}; medians of {about['rounds']} runs "
            f"of {about['seconds']:g} s; load average {min(loads):.1f} to {max(loads):.1f}.",
            "",
            "| workload | payload | clients | replayd | times that of a peer: median (least to largest) | wanted | |",
            "|---|---:|---:|---:|---|---:|---|",
            *rows,
        ]
    )


def write_into(readme: Path, table: str) -> None:
    """Put the table where the README has its place. Raises ClickException if it has none."""
    text = readme.read_text()
    place = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    if not place.search(text):
        raise click.ClickException(
            f"{readme} has no place for the table: a line {BEGIN.strip()} and later {END.strip()}"
        )
    readme.write_text(place.sub(lambda _: f"{BEGIN}\n{table}\n\n{END}", text))


def _row(goal: Goal, figure: Figure) -> str:
    ratios = figure.ratios.get(goal.peer or "", ())
    cells = [
        f"{goal.workload}: {goal.quantity}",
        "" if goal.payload is None else size(goal.payload),
        "" if goal.clients is None else str(goal.clients),
        f"{number(figure.median)} {figure.unit}",
        f"{spread(ratios)} × {goal.peer}" if ratios else "",
        f"{'≤' if goal.at_most else '≥'} {number(goal.bound)}{' ×' if goal.peer else ''}",
        "yes" if goal.is_met(median(ratios) if ratios else figure.median) else "no",
    ]
    return f"| {' | '.join(cells)} |"


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
