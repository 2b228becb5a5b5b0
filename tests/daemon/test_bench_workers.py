"""The benchmark's worker processes: where they come from, what they tell, and how they end."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tests.daemon.harness import ROOT, STOP_S

PULL = {"ipc": True, "payload": 100, "keep": 3}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in ("crew", "nursery", "threads_profile")}
    yield SimpleNamespace(**modules)
    for nursery in modules["nursery"].Nursery._of.values():
        nursery.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]


def state(pid: int) -> str:
    """Of a process, as the kernel tells it in a letter."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_of_a_driver_are_forked_from_one_process_and_end_with_their_crew(benchmarks: SimpleNamespace) -> None:
    crew, job = benchmarks.crew.Crew, benchmarks.crew.Job
    with crew([job("drive_zmq", "pull", PULL), job("drive_zmq", "pull", PULL)]) as pulls:
        pids = [worker.pid for worker in pulls.workers]
        with crew([job("drive_zmq", "push", {"payload": 100}).at(ready["address"]) for ready in pulls.ready]) as pushes:
            pushes.let_run()
            pids += [worker.pid for worker in pushes.workers]
            done = pulls.run(seconds=0.01, settle_s=0.0)
            assert done["pull"].items > 0
            assert done["pull"].functions_s == {}
            pushes.hold()
            with pushes.going_on():
                assert pulls.run(seconds=0.01, settle_s=0.0)["pull"].items > 0
            deadline = time.monotonic() + STOP_S
            while {state(worker.pid) for worker in pushes.workers} != {"T"}:
                assert time.monotonic() < deadline, "who is held stands still"
            assert len(set(pids)) == 4
            assert all(map(is_running, pids))
    assert not any(map(is_running, pids))
    assert len(benchmarks.nursery.Nursery._of) == 1


def test_workers_end_with_where_they_come_from(benchmarks: SimpleNamespace) -> None:
    worker = benchmarks.crew.Worker(benchmarks.crew.Job("drive_zmq", "pull", PULL))
    worker.answer()
    benchmarks.nursery.Nursery.of("drive_zmq", None).close()
    assert not is_running(worker.pid)
    worker.end()


def test_a_profile_comes_with_what_was_done(benchmarks: SimpleNamespace) -> None:
    with benchmarks.crew.Crew([benchmarks.crew.Job("drive_core", "sample", {"items": 100, "counts": [1]})]) as crew:
        assert crew.turn()[0].keys() == {"n = 1"}
    with benchmarks.crew.Crew([benchmarks.crew.Job("drive_zmq", "pull", {**PULL, "profile": True})]) as pulls:
        push = benchmarks.crew.Job("drive_zmq", "push", {"payload": 100}).at(pulls.ready[0]["address"])
        with benchmarks.crew.Crew([push]) as pushes:
            pushes.let_run()
            functions_s = pulls.run(seconds=0.01, settle_s=0.0)["pull"].functions_s
    assert functions_s["drive_zmq.pull"] > 0


@pytest.mark.parametrize(("driver", "role"), [("drive_nothing", "pull"), ("drive_zmq", "pull")])
def test_what_cannot_begin_says_why(benchmarks: SimpleNamespace, driver: str, role: str) -> None:
    said = {"drive_nothing": "No module named", "drive_zmq": "unexpected keyword argument 'wrong'"}[driver]
    with pytest.raises(click.ClickException, match=f"{driver} .*(?s:.)*{said}"):
        with benchmarks.crew.Crew([benchmarks.crew.Job(driver, role, {"wrong": 1})]):
            pass


def test_a_profile_has_the_functions_of_all_threads_that_began_after_it(benchmarks: SimpleNamespace) -> None:
    def work_here() -> int:
        return sum(range(100_000))

    def work_there() -> int:
        return sum(range(100_000))

    old = threading.getprofile()
    try:
        profile = benchmarks.threads_profile.ThreadsProfile()
        go, done = threading.Event(), threading.Event()

        def follow() -> Any:
            go.wait()
            work_there()
            done.set()

        thread = threading.Thread(target=follow)
        thread.start()
        profile.begin()
        work_here()
        go.set()
        done.wait()
        used_s = profile.end()
        thread.join()
    finally:
        threading.setprofile(old)
    names = {name.rpartition(".")[2] for name in used_s}
    assert {"work_here", "work_there", "<built-in method builtins.sum>".rpartition(".")[2]} <= names
    assert all(used > 0 for used in used_s.values())
