"""Memory stays where max_bytes says: the short form of scripts/soak.

Much of its bound is constants, so the sizes are such that it can fail: a daemon that keeps half of its payloads twice
is above the first, and one that keeps three quarters twice is above the second. Small items are for what grows; what
one costs is held to by tests/unit/test_overhead.py.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.daemon.harness import ROOT, environment

DEADLINE_S = 400.0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-bytes", "64MiB", "--journal", "off"),
        ("--max-bytes", "96MiB", "--readers", "1", "--journal", "interval"),
        ("--max-bytes", "8MiB", "--small"),
    ],
    ids=["checkpoints", "readers and a store", "small items"],
)
def test_memory_is_flat_when_full_and_bounded_by_max_bytes(arguments: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "soak"), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
