"""The short form of scripts/fuzz: 1400 cases. Hypothesis searches with 800 more for the same readers, where they are
tests themselves (test_garbage, test_codecs, test_batches), and whatever it has found comes again there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "fuzz"


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_garbage_brings_nothing_but_answers_and_typed_errors_and_takes_no_memory() -> None:
    ended = fuzz("--cases", "1400", "--calls", "10", "--seed", "7")
    assert ended.returncode == 0, ended.stderr
    assert "1400 cases of seed 7" in ended.stdout
    whole = int(ended.stdout.split(", ")[1].split()[0])
    assert whole > 1000, "few cases are whole, so little is tested"
    assert "10 calls of seed 7: " in ended.stdout
