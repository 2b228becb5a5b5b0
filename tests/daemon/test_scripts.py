"""The scripts run, from beginning to end, on whatever machine this is. What they measure is nobody's promise."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.daemon.harness import ROOT, environment


def test_the_benchmark_measures_every_payload_both_ways() -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench"), "--quick", "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert [(figure["payload_bytes"], figure["operation"]) for figure in figures] == [
        (payload, operation) for payload in (400, 4_000, 40_000, 400_000) for operation in ("insert", "sample")
    ]
    assert all(figure["items_per_s"] > 0 for figure in figures)
