"""The benchmark runs, from beginning to end, on whatever machine this is. What it measures is nobody's promise."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.daemon.harness import ROOT, environment

RUN_S = 240.0

QUANTITIES = {
    "insert": {"filling an empty table", "insert_batch", "BatchWriter of 64", "VectorWriter of 64", "TrajectoryWriter"},
    "sample": {"dataset", "sample_batch", "dataset, prioritized"},
    "ipc": {"insert_batch over ipc", "dataset over ipc"},
    "queue": {"daemon", "server in the learner"},
    "transitions": {"TrajectoryWriter"},
    "sequences": {"written by 2", "read meanwhile"},
    "atari": {"pong, stored of raw", "pong, compression on the actor", "pong, written", "pong, read"},
    "priorities": {"mutate_priorities of 256", "sample(1), p50", "sample(1), beside a writer and checkpoints, p99"},
    "memory": {"beyond 16 B payload", "RSS of the full table at the end"},
    "core": {
        "prioritized Sample through the Service, n = 256",
        "draw of prioritized, n = 1",
        "draw of prioritized, of changed priorities, n = 256",
    },
    "scaling": {"prioritized, sample(256), p50", "uniform, sample(256) beside a writer, p99"},
    "crowd": {"insert by 8, items/s", "sample by 8, slowest over mean"},
    "cost": {"daemon, inserted item", "daemon, sampled item", "client, queue with the server in the learner"},
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench"), *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


def figures(*arguments: str) -> list[dict[str, Any]]:
    ended = bench("--json", *arguments)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)["figures"]
    return found


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A directory where the frames of a game are already, so that nobody need play it: a dot that moves."""
    played = np.zeros((400, 84, 84), np.uint8)
    played[np.arange(400), np.arange(400) % 84, 7] = 200
    np.save(tmp_path / "pong-400.npy", played)
    return tmp_path


@pytest.mark.parametrize("workload", QUANTITIES)
def test_each_workload_measures_what_it_is_for(workload: str, frames: Path) -> None:
    found = figures("--quick", "--only", workload, "--dir", str(frames))
    ours = [figure for figure in found if figure["system"] == "replayd"]
    assert QUANTITIES[workload] <= {figure["quantity"] for figure in ours}
    assert all(figure["median"] > 0 for figure in found)


def test_the_table_says_where_it_was_measured_and_what_was_wanted(tmp_path: Path) -> None:
    ended = bench("--quick", "--only", "memory", "--ipc", "--dir", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    paragraph, _, *table = ended.stdout.splitlines()
    assert all(word in paragraph for word in ("cores", "numpy", "ipc", "load average", "TCP on loopback for dm-reverb"))
    assert paragraph.startswith("`scripts/bench --only memory --ipc --quick` at commit ")
    head, _, beyond, *_ = table
    assert head.startswith("| workload | payload | clients | replayd |")
    assert beyond.startswith("| memory: beyond 16 B payload |")
    assert "≤ 400" in beyond
    assert "beyond 16 B payload" in ended.stderr, "progress is told"


def test_the_table_goes_where_the_readme_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    report = importlib.import_module("benchmarks.report")
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text())
    before, begin, _, end, after = re.split(f"({report.BEGIN}|{report.END})", readme.read_text())
    for table in ("a table", "another \\1 table"):
        report.write_into(readme, table)
        assert readme.read_text() == f"{before}{begin}\n{table}\n\n{end}{after}"


def test_peers_that_are_not_installed_are_named_with_the_remedy(tmp_path: Path) -> None:
    ended = bench("--peers", "--table", "--dir", str(tmp_path))
    assert ended.returncode == 1
    assert "scripts/bench-peers-setup" in ended.stderr


def test_a_worker_that_fails_ends_the_benchmark_with_its_own_words(tmp_path: Path) -> None:
    np.save(tmp_path / "pong-400.npy", np.zeros(0, np.uint8))  # No frames: the actor has nothing to write.
    ended = bench("--quick", "--only", "atari", "--dir", str(tmp_path))
    assert ended.returncode == 1
    assert "drive_replayd write_frames ended too early" in ended.stderr


def test_the_setup_makes_each_environment_once(tmp_path: Path) -> None:
    # An interpreter whose `-m venv` makes a pip that only notes what it was asked for: the real ones fetch a gigabyte.
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/bash
        mkdir -p "${!#}/bin"
        printf '#!/bin/bash\\necho "$@" >>"%s/asked"\\n' "${!#}" >"${!#}/bin/pip"
        chmod +x "${!#}/bin/pip"
        """
    )
    python.chmod(0o755)
    setup = [str(ROOT / "scripts" / "bench-peers-setup"), "--dir", str(tmp_path / "peers")]
    for _ in range(2):
        subprocess.run(setup, env={**os.environ, "PYTHON": str(python)}, capture_output=True, timeout=60, check=True)
    asked = {path.parent.name: path.read_text().splitlines() for path in tmp_path.glob("peers/*/asked")}
    assert asked.keys() == {"reverb", "echo", "atari"}
    assert asked["reverb"] == ["install --quiet dm-reverb[tensorflow]==0.14.0"]


def test_the_setup_says_how_it_is_used() -> None:
    ended = subprocess.run(
        [str(ROOT / "scripts" / "bench-peers-setup"), "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == os.EX_USAGE
    assert "--dir DIRECTORY" in ended.stderr
