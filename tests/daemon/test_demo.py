"""scripts/demo: real processes, bounded in time. Whether it learns is for a quiet machine to show."""

from __future__ import annotations

import json
import os
import subprocess

from tests.daemon.harness import ROOT

SECONDS = 15
KEYS = {
    "seconds",
    "inserted",
    "sampled",
    "samples_per_insert",
    "cursor_min",
    "cursor_max",
    "evaluation_return",
    "bytes_in",
    "bytes_stored",
    "priority_updates",
    "replies_dropped",
}


def test_the_demo_runs_in_its_time_and_sums_up() -> None:
    ended = subprocess.run(
        ["scripts/demo", "--seconds", str(SECONDS), "--seed", "1", "--json"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert set(summary) == KEYS
    assert summary["replies_dropped"] == 0
    assert summary["sampled"] > 0
    assert summary["priority_updates"] > 0
    assert summary["cursor_min"] <= summary["cursor_max"]
    assert summary["bytes_stored"] > 0
    assert 0 <= summary["evaluation_return"] <= 500
