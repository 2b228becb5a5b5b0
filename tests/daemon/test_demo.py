"""scripts/demo as a user runs it: real processes, which end by themselves once they have learned."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any
from urllib.request import urlopen

import pytest

from tests.daemon.harness import ROOT

TARGET_RETURN = 450
SEEDS = (1, 2)
"""A run of two that does not learn is chance; two of two are a fault."""
END_S = 600.0
"""Bound on a run, installing included; no expectation."""
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


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["scripts/demo", *arguments],
        cwd=ROOT,
        # It installs what it runs.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def summary_of(*arguments: str) -> tuple[dict[str, Any], int, str]:
    """The JSON, the exit status and what was told to people."""
    with started("--json", *arguments) as demo:
        stdout, stderr = demo.communicate(timeout=END_S)
    assert stdout, stderr
    summary: dict[str, Any] = json.loads(stdout)
    assert set(summary) == KEYS
    assert summary["replies_dropped"] == 0
    return summary, demo.returncode, stderr


def test_the_demo_learns() -> None:
    runs = []
    for seed in SEEDS:
        summary, status, told = summary_of("--seed", str(seed))
        runs.append(told)
        if status == 0:
            break
    else:
        pytest.fail("\n".join(runs))
    assert TARGET_RETURN <= summary["evaluation_return"] <= 500, told
    assert ": learned" in told
    assert summary["sampled"] > 0
    assert summary["samples_per_insert"] == summary["sampled"] / summary["inserted"]
    assert summary["priority_updates"] > 0
    # 32 draws for each transition, all but the newest 900 to 1100.
    assert 32 * 900 <= summary["cursor_min"] <= summary["cursor_max"] <= 32 * 1100
    assert 0 < summary["bytes_stored"] <= summary["bytes_in"]


def test_the_demo_claims_nothing_that_it_had_no_time_for() -> None:
    # Shorter than the processes take to start.
    summary, status, told = summary_of("--seconds", "0.2")
    assert status == 0
    assert [summary[name] for name in ("evaluation_return", "cursor_min", "cursor_max")] == [None, None, None]
    for words in ("no greedy episode was played", "NOT learned", "no draws yet"):
        assert words in told
    assert "None" not in told


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "x"])
def test_the_demo_refuses_a_bound_that_is_none(seconds: str) -> None:
    with started("--seconds", seconds) as demo:
        stdout, stderr = demo.communicate(timeout=END_S)
    assert (demo.returncode, stdout) == (2, "")
    assert "--seconds" in stderr


def test_the_demo_ends_quietly_when_nobody_reads_on() -> None:
    with started("--seconds", "30") as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert demo.stdout.readline().startswith("replayd at ")
        told, page = demo.stdout.readline().split(": ")
        assert told == "status page while this runs"
        with urlopen(page.strip(), timeout=30) as answer:
            assert answer.status == 200
        # Whoever has never heard of a rate limiter reads what it does before its numbers.
        assert "is to be drawn 32 times" in demo.stdout.readline()
        assert "100 transitions ahead" in demo.stdout.readline()
        demo.stdout.close()
        told = demo.stderr.read()
        assert demo.wait(END_S) == 141
    assert "Traceback" not in told
    assert "BrokenPipe" not in told
