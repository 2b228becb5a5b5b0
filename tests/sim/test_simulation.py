"""Seeds of the simulation; `scripts/simulate` runs others, and one again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import Simulation

SEEDS = 200
SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "simulate"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_goes_wrong_the_promises_hold(seed: int) -> None:
    Simulation(seed).run()


def test_the_script_runs_a_seed_again() -> None:
    command = [sys.executable, str(SCRIPT), "--seed", "3"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "seed 3: all promises held\n"


def test_a_seed_is_the_same_world_each_time() -> None:
    worlds = [Simulation(5) for _ in range(2)]
    for world in worlds:
        world.run()
    first, second = ((w.world.now, w.traffic.known, w.server.history.acknowledged) for w in worlds)
    assert first == second
