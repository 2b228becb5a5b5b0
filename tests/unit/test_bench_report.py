"""The benchmark's verdicts and tables: what they say of figures, and of those that are not there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

ROOT = Path(__file__).resolve().parents[2]
ABOUT = {
    "command": "scripts/bench",
    "commit": "abc",
    "date": "2026-01-02 03:04",
    "machine": "2 cores",
    "versions": {"numpy": "2"},
    "transport": "TCP on loopback",
    "seconds": 0.4,
    "rounds": 3,
    "took_s": 600,
}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """`scripts/bench` as a module, with those of its parts that are looked at."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    loader = SourceFileLoader("bench", str(ROOT / "scripts" / "bench"))
    spec = importlib.util.spec_from_loader("bench", loader)
    assert spec is not None
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    parts = {name: importlib.import_module(f"benchmarks.{name}") for name in ("figures", "goals", "report")}
    yield SimpleNamespace(script=script, **parts)
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("runs", "at_most", "verdict"),
    [
        ((9.0, 12.0, 13.0), False, "within the spread, median yes"),
        ((9.0, 8.0, 13.0), False, "within the spread, median no"),
        ((9.0, 8.0, 10.0), False, "within the spread, median no"),
        ((9.0, 10.0, 13.0), False, "within the spread, median yes"),
        ((11.0, 12.0, 13.0), False, "yes"),
        ((9.0, 8.0, 7.0), False, "no"),
        ((9.0, 8.0, 7.0), True, "yes"),
        ((11.0, 12.0, 13.0), True, "no"),
        ((9.0, 12.0, 13.0), True, "within the spread, median no"),
        ((9.0, 8.0, 13.0), True, "within the spread, median yes"),
        ((10.0,), False, "yes"),
        ((10.0,), True, "yes"),
        ((9.9,), False, "no"),
    ],
)
@pytest.mark.parametrize("peer", [None, "other"])
def test_a_bound_among_the_runs_is_met_or_missed_by_the_median_alone(
    bench: SimpleNamespace, runs: tuple[float, ...], at_most: bool, verdict: str, peer: str | None
) -> None:
    goal = bench.goals.Goal("work", "it", 10.0, peer=peer, at_most=at_most)
    of_ours, ratios = (runs, {}) if peer is None else ((1.0,), {"other": runs})
    figure = bench.figures.Figure("work", "it", "replayd", "items/s", of_ours, ratios=ratios)
    assert goal.verdict(figure) == verdict


def test_figures_stand_in_the_table_of_goals_or_in_one_of_the_rest(bench: SimpleNamespace) -> None:
    figure, goal = bench.figures.Figure, bench.goals.Goal
    figures = [
        figure("insert", "wanted", "replayd", "items/s", (1000.0, 1100.0, 1200.0), 400, 1, ratios={"peer": (2.0,)}),
        figure(
            "insert", "both", "replayd", "items/s", (1.0,), 400, 1, ratios={"peer": (2.0,), "bare": (0.5, 0.7, 0.6)}
        ),
        figure("insert", "plain", "replayd", "items/s", (90.0, 100.0, 110.0), 400, 1, ratios={"peer": (8.0,)}),
        figure("insert", "plain", "replayd", "items/s", (50.0,), 4_000, 1, ratios={"peer": (6.0, 7.0, 9.0)}),
        figure("insert", "plain", "peer", "items/s", (7.0,), 4_000, 1),
        figure("draw", "lifo", "replayd", "µs", (3.0,), table_items=1000),
        figure("latency", "alone", "replayd", "ms", (0.5,), ratios={"peer": (1.0, 2.0, 3.0)}),
    ]
    goals = [
        goal("insert", "wanted", 2000, 400, 1),
        goal("insert", "wanted", 1.5, 400, 1, "peer"),
        goal("insert", "both", 1.5, 400, 1, "peer"),
        goal("insert", "wanted", 1.5, 400, 1, "another"),
        goal("scaling", "forgotten", 1.3, at_most=True, items=1_000_000),
    ]
    assert bench.report.not_measured(goals, figures) == goals[3:]
    lines = bench.report.markdown(ABOUT, goals, figures).splitlines()
    assert (
        "`scripts/bench` at commit abc, 2026-01-02 03:04, in 10 minutes; 2 cores; numpy 2; TCP on loopback" in lines[0]
    )
    assert "medians of 3 runs of 0.4 s" in lines[0]
    for line in (
        "| insert: wanted | 400 B | 1 | 1 100 ±9 % items/s |  | ≥ 2 000 | no |",
        "| insert: wanted | 400 B | 1 | 1 100 ±9 % items/s | 2.00 × peer | ≥ 1.5 × | yes |",
        "| insert: wanted | 400 B | 1 | not measured | × another | ≥ 1.5 × | not measured |",
        "| scaling: forgotten, 10^6 items |  |  | not measured |  | ≤ 1.3 | not measured |",
        "| workload | clients |  | 400 B | 4 kB |",
        "| insert: both | 1 | × bare | 0.60 (0.50 to 0.70) |  |",
        "| insert: plain | 1 | items/s | 100 ±10 % | 50 |",
        "| insert: plain | 1 | × peer | 8.00 | 7.00 (6.00 to 9.00) |",
        "| insert: peer plain | 1 | items/s |  | 7 |",
        "| workload | clients |  | 10^3 items |",
        "| draw: lifo |  | µs | 3 |",
        "| latency: alone |  | 0.5 ms | 2.00 (1.00 to 3.00) × peer |",
    ):
        assert lines.count(line) == 1, line
    assert sum(line.startswith("| insert: wanted") for line in lines) == 3, "and not among the rest"
    assert sum(line.startswith("| insert: both") for line in lines) == 2, "the rest has the ratio that no goal is about"


def test_goals_are_wanted_of_what_is_run(bench: SimpleNamespace) -> None:
    every, payloads = tuple(bench.script.WORKLOADS), bench.script.PAYLOADS
    assert bench.goals.wanted_of(every, payloads, (1, 2)) == list(bench.goals.GOALS)
    some = bench.goals.wanted_of(["insert", "memory"], [400], [1])
    assert {goal.workload for goal in some} == {"insert", "memory"}
    assert {goal.payload for goal in some} == {400, None}
    assert bench.goals.wanted_of(["queue"], payloads, [1]) == []


@pytest.fixture
def run(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run the command with other workloads than its own, and environments of peers that only tell a version."""
    for peer in ("reverb", "echo", "atari"):
        python = tmp_path / peer / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho 1.0\n")
        python.chmod(0o755)

    def run(workloads: dict[str, Any], *arguments: str) -> Result:
        monkeypatch.setattr(bench.script, "WORKLOADS", workloads)
        return CliRunner().invoke(bench.script.main, [*arguments, "--dir", str(tmp_path)])

    return run


def test_what_fails_leaves_the_rest_and_ends_badly(bench: SimpleNamespace, run: Any) -> None:
    def failing(_: Any) -> Iterator[Any]:
        """Measure one figure and fail."""
        yield bench.figures.Figure("memory", "beyond 16 B payload", "replayd", "B/item", (300.0,))
        raise click.ClickException("a worker ended too early")

    def working(_: Any) -> Iterator[Any]:
        """Measure a figure."""
        yield bench.figures.Figure("cost", "it", "replayd", "µs", (1.0,))

    ended = run({"memory": failing, "cost": working})
    assert ended.exit_code == 1
    assert "memory failed: a worker ended too early" in ended.stderr
    assert "| memory: beyond 16 B payload |  |  | 300 B/item |  | ≤ 400 | yes |" in ended.stdout
    assert (
        "| memory: RSS of the full table at the end |  |  | not measured |  | ≤ 1.05 | not measured |" in ended.stdout
    )
    assert "| cost: it |  | 1 µs |  |" in ended.stdout


@pytest.mark.parametrize(("options", "exit_code"), [((), 0), (("--peers",), 1), (("--peers", "--quick"), 0)])
def test_a_whole_run_that_measured_too_little_says_so_and_ends_badly(
    bench: SimpleNamespace, run: Any, options: tuple[str, ...], exit_code: int
) -> None:
    def forgetful(_: Any) -> Iterator[Any]:
        """Measure half."""
        yield bench.figures.Figure("memory", "beyond 16 B payload", "replayd", "B/item", (300.0,))

    ended = run({"memory": forgetful}, *options)
    assert ended.exit_code == exit_code
    assert "not measured: memory: RSS of the full table at the end" in ended.stderr


@pytest.mark.parametrize("options", [("--only", "cost", "--peers"), ("--quick", "--peers"), ()])
def test_a_table_of_a_part_is_not_measured_for_the_readme(
    bench: SimpleNamespace, run: Any, options: tuple[str, ...]
) -> None:
    def never(_: Any) -> Iterator[Any]:
        raise AssertionError("it is said at once")

    bench.script.report.write_into = never
    ended = run({"cost": never}, "--table", *options)
    assert ended.exit_code == os.EX_USAGE
    assert "--table is for whole runs" in ended.stderr


@pytest.mark.parametrize(("workload", "said"), [("cost", "failed: cost"), ("memory", "not all that is wanted")])
def test_a_run_that_ends_badly_leaves_the_readmes_table(
    bench: SimpleNamespace, run: Any, workload: str, said: str
) -> None:
    def ending(_: Any) -> Iterator[Any]:
        """Measure a figure, and fail unless another is wanted."""
        yield bench.figures.Figure(workload, "it", "replayd", "µs", (1.0,))
        if workload == "cost":
            raise click.ClickException("a worker ended too early")

    written: list[str] = []
    bench.script.report.write_into = lambda readme, table: written.append(table)
    ended = run({workload: ending}, "--peers", "--table")
    assert (ended.exit_code, written) == (1, [])
    assert said in ended.stderr
    assert "the README's table is the one before" in ended.stderr


def test_the_command_that_the_readme_documents_is_the_one_that_its_table_is_of(
    bench: SimpleNamespace, run: Any
) -> None:
    documented = re.findall(r"^(scripts/bench --peers --table)  +# ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(documented) == 1
    seen: list[str] = []

    def looking(_: Any) -> Iterator[Any]:
        """Look at how the command is written down."""
        seen.append(bench.script._command())
        yield bench.figures.Figure("cost", "it", "replayd", "µs", (1.0,))

    written: list[str] = []
    bench.script.report.write_into = lambda readme, table: written.append(table)
    given = ("--seconds", f"{bench.script.SECONDS:g}", "--rounds", str(bench.script.ROUNDS))
    assert run({"cost": looking}, *given, "--peers", "--table", "--json").exit_code == 0
    assert seen == documented, "what is the default is not told"
    assert written[0].startswith(f"`{documented[0]}` at commit ")
    assert run({"cost": looking}, "--seconds", "0.7", "--payload", "400", "--payload", "4000").exit_code == 0
    assert seen[1] == "scripts/bench --payload 400 --payload 4000 --seconds 0.7"
