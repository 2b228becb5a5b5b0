"""The benchmark's workloads without processes: every job suits its driver, and every goal is measured."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEERS = {"reverb": ("Table", "Client"), "echo": ("Server", "TcpClient", "TcpTransport"), "ale_py": ()}
WORKLOADS = {
    "atari": ("atari",),
    "core": ("core",),
    "cost": ("costs",),
    "memory": ("memory",),
    "priorities": ("priorities",),
    "queues": ("queues",),
    "scaling": ("sizes", "crowds"),
    "throughput": ("inserts", "samples", "over_ipc"),
    "writers": ("transitions", "sequences"),
}


class FakeWorker:
    """Does no work and says that it did; `jobs` is what all were made for."""

    jobs: list[Any] = []  # noqa: RUF012

    def __init__(self, job: Any) -> None:
        self.jobs.append(job)
        self.job = job
        self.pid = os.getpid()
        self._order: dict[str, Any] | None = None

    def order(self, **order: Any) -> None:
        self._order = order

    def answer(self) -> dict[str, Any]:
        if self._order is None:
            return {"address": "tcp://127.0.0.1:1", "fill_per_s": 1.0, "stored": 0.01}
        if "turn" not in self._order:
            done = {"items": 100, "seconds": 1.0, "items_with_settling": 120, "cpu_s": 0.5}
            return {**done, "functions": {"f": 1.0}} if self.job.settings.get("profile") else done
        told = dict.fromkeys(("p50", "p99", "items/s", "slowest over mean", "compress_us", "n = 256", "n = 1"), 1.0)
        settings = self.job.settings
        sizes, counts = settings.get("sizes", ()), settings.get("counts", ())
        draws = [(kind, size, n, False, [1.0]) for kind in settings.get("kinds", ()) for size in sizes for n in counts]
        return {**told, "draws": draws}

    def end(self) -> None:
        pass


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Modules of the benchmark by name; nothing that they start is a process, and the peers' packages are empty."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    for name, members in PEERS.items():
        package = ModuleType(name)
        vars(package).update(dict.fromkeys(members))
        monkeypatch.setitem(sys.modules, name, package)
    games = ModuleType("ale_py.vector_env")
    vars(games)["AtariVectorEnv"] = None
    monkeypatch.setitem(sys.modules, "ale_py.vector_env", games)
    names = [path.stem for path in (ROOT / "scripts" / "benchmarks").glob("*.py") if path.stem != "__init__"]
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in names}

    @contextmanager
    def daemon(tables: Any, *, ipc: bool, profile: Path | None, stores: bool) -> Iterator[Any]:
        yield modules["daemon"].Daemon("tcp://127.0.0.1:1", "http://127.0.0.1:1", os.getpid())
        if profile is not None:
            profile.write_text(json.dumps({"server.Daemon._take_requests": 3}))

    monkeypatch.setattr(FakeWorker, "jobs", [])
    monkeypatch.setattr(modules["crew"], "Worker", FakeWorker)
    monkeypatch.setattr(modules["crew"].Crew, "hold", lambda self: None)
    monkeypatch.setattr(modules["crew"].Crew, "going_on", lambda self: nullcontext())
    monkeypatch.setattr(modules["systems"], "daemon", daemon)
    monkeypatch.setattr(modules["scaling"], "available_bytes", lambda: 1 << 40)
    yield SimpleNamespace(**modules)
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def settings(benchmarks: SimpleNamespace, directory: Path, *, peers: bool, **other: Any) -> Any:
    """Those of a whole run."""
    python = Path("python") if peers else None
    given = {
        "payloads": (400, 4_000, 40_000, 400_000),
        "clients": (1, 2),
        "seconds": 0.4,
        "settle_s": 0.2,
        "rounds": 1,
        "table_bytes": 800_000_000,
        "most_items": 200_000,
        "scaled_items": 1_000_000,
        "ipc": False,
        "quick": False,
        "peers": benchmarks.settings.Peers(python, python, python),
        "directory": directory,
    }
    return benchmarks.settings.Settings(**{**given, **other})


def measured(benchmarks: SimpleNamespace, its: Any) -> list[Any]:
    return [
        figure
        for module, names in WORKLOADS.items()
        for name in names
        for figure in getattr(getattr(benchmarks, module), name)(its)
    ]


def test_a_whole_run_measures_every_goal_with_jobs_that_suit_their_drivers(
    benchmarks: SimpleNamespace, tmp_path: Path
) -> None:
    figures = measured(benchmarks, settings(benchmarks, tmp_path, peers=True))
    goals = benchmarks.goals.GOALS
    assert benchmarks.report.not_measured(goals, figures) == []
    drivers = [name for name in vars(benchmarks) if name.startswith("drive_")]
    assert roles_done(benchmarks) == {name: set(getattr(benchmarks, name).ROLES) for name in drivers}, (
        "none is left over"
    )
    said = (ROOT / "scripts" / "bench").read_text()
    assert {goal.workload for goal in goals} <= set(re.findall(r'^    "(\w+)": \w+\.\w+,$', said, re.MULTILINE))


def test_without_peers_what_compares_with_them_is_not_measured(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    figures = measured(benchmarks, settings(benchmarks, tmp_path, peers=False))
    missing = benchmarks.report.not_measured(benchmarks.goals.GOALS, figures)
    theirs = [goal for goal in benchmarks.goals.GOALS if goal.peer and not goal.peer.startswith("libzmq")]
    assert missing == [goal for goal in benchmarks.goals.GOALS if goal in theirs or goal.workload == "atari"]


def test_every_job_of_a_quick_run_suits_its_driver(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    measured(benchmarks, settings(benchmarks, tmp_path, peers=True, quick=True, payloads=(400,), clients=(1,)))
    assert roles_done(benchmarks)


def roles_done(benchmarks: SimpleNamespace) -> dict[str, set[str]]:
    """By driver; each job must suit what its driver's role takes, and the interpreter that has its packages."""
    done: dict[str, set[str]] = {}
    for job in FakeWorker.jobs:
        role = getattr(benchmarks, job.driver).ROLES[job.role]
        inspect.signature(role).bind(**{name: its for name, its in job.settings.items() if name != "profile"})
        json.dumps(job.settings)
        assert (job.python is not None) == (job.driver in ("drive_reverb", "drive_echo", "drive_atari"))
        done.setdefault(job.driver, set()).add(job.role)
    return done


def test_what_runs_in_peers_environments_imports_nothing_of_ours(benchmarks: SimpleNamespace) -> None:
    allowed = {"numpy", "reverb", "tensorflow", "echo", "ale_py", "benchmarks"} | set(sys.stdlib_module_names)
    for name in ("drive_reverb", "drive_echo", "drive_atari", "worker", "threads_profile"):
        tree = ast.parse((ROOT / "scripts" / "benchmarks" / f"{name}.py").read_text())
        imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert {module.partition(".")[0] for module in imported if module} <= allowed, name


def test_versions_of_peers_are_pinned_to_what_the_readme_compares_with(benchmarks: SimpleNamespace) -> None:
    setup = (ROOT / "scripts" / "bench-peers-setup").read_text()
    asked = re.findall(r"'([\w-]+)(?:\[\w+\])?([^']*)'", "\n".join(re.findall("^make .*", setup, re.MULTILINE)))
    assert all(pin.startswith("==") for _, pin in asked), "whoever measures again compares with the same"
    report = benchmarks.report
    table = (ROOT / "README.md").read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    told = {name: pin[2:] for name, pin in asked if name != "gymnasium"}
    assert told.keys() == {"dm-reverb", "id-echo", "ale-py"}
    for name, its in told.items():
        assert re.findall(rf"{name} (\d[\d.]*\d)[,;]", table) == [its]


def test_a_version_is_asked_of_the_environment_it_is_in(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    assert (
        benchmarks.report._version_there(Path(sys.executable), "numpy") == importlib.import_module("numpy").__version__
    )
    with pytest.raises(subprocess.CalledProcessError):
        benchmarks.report._version_there(Path(sys.executable), "no-such-distribution")


@pytest.mark.parametrize(
    ("items", "alone", "grown"),
    [
        (500, [500], []),
        (10_000, [1_000, 10_000], ["10^4 over 10^3"]),
        (1_000_000, [1_000, 10_000, 100_000, 1_000_000], ["10^6 over 10^4"]),
        (10_000_000, [1_000, 10_000, 100_000, 1_000_000, 10_000_000], ["10^6 over 10^4", "10^7 over 10^4"]),
    ],
)
def test_samples_are_timed_by_powers_of_ten_and_compared_where_something_is_wanted(
    benchmarks: SimpleNamespace, tmp_path: Path, items: int, alone: list[int], grown: list[str]
) -> None:
    its = settings(benchmarks, tmp_path, peers=False, scaled_items=items)
    figures = list(benchmarks.scaling.sizes(its))
    for kind in benchmarks.settings.KINDS:
        for beside in ("", " beside a writer"):
            what = f"{kind}, sample(256){beside}"
            compared = [figure.quantity for figure in figures if figure.quantity.startswith(f"{what}: ")]
            assert compared == [f"{what}: {sizes} items" for sizes in grown]
        assert [figure.table_items for figure in figures if figure.quantity == f"{kind}, sample(256), p50"] == alone
    writers = [job for job in FakeWorker.jobs if job.role == "write_paced"]
    assert len(writers) == len(benchmarks.settings.KINDS) * len(
        {figure.table_items for figure in figures if figure.quantity == "fifo, sample(256) beside a writer, p50"}
    ), "each size has its own, as a follower works during the runs of its own side alone"


def test_an_item_costs_what_the_full_table_takes_at_its_largest(
    benchmarks: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = 1_000_000 - benchmarks.memory.FIRST_ITEMS
    sizes = iter([5, 5 + 100 * taken, 5 + 120 * taken, 5 + 116 * taken, 5 + 110 * taken])
    monkeypatch.setattr(benchmarks.memory, "rss_bytes", lambda _: next(sizes))
    beyond, growth = benchmarks.memory.memory(settings(benchmarks, tmp_path, peers=False))
    assert beyond.runs == (104.0,), "without the 16 bytes of payload"
    assert beyond.notes["after the first filling"] == 84.0
    assert growth.median == pytest.approx(1.1)
