"""Memory stays where max_bytes says: the short form of scripts/soak."""

from __future__ import annotations

import subprocess
import sys

from tests.daemon.harness import ROOT, environment

DEADLINE_S = 120.0


def test_memory_is_flat_when_full_and_bounded_by_max_bytes() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "soak"), "--max-bytes", "192MiB"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
