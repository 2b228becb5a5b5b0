"""The script that says what a journal costs: it measures what it names."""

from __future__ import annotations

import subprocess
import sys

from tests.daemon.harness import ROOT, environment

DEADLINE_S = 400.0


def test_what_a_journal_costs_is_measured_and_told_as_a_table() -> None:
    arguments = ("--mode", "checkpoints", "--payload", "400", "--rounds", "1", "--seconds", "0.1")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "journal-figures"), *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    *_, row = ended.stdout.splitlines()
    payload, told, items_per_s, cpu_us, answer_ms = (cell.strip() for cell in row.strip("|").split("|"))
    assert (payload, told) == ("400 B", "checkpoints")
    assert int(items_per_s.replace(",", "")) > 0
    assert float(cpu_us) > 0
    assert float(answer_ms) > 0


def test_the_readme_has_the_place_for_them() -> None:
    readme = (ROOT / "README.md").read_text()
    marks = (
        "<!-- scripts/journal-figures --table writes what follows -->\n",
        "<!-- the journal's figures end here -->",
    )
    assert [readme.count(mark) for mark in marks] == [1, 1]
    assert all(mark in (ROOT / "scripts" / "journal-figures").read_text().replace('\\n"', "\n") for mark in marks)
