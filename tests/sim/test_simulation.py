"""Seeds of the simulation; `scripts/simulate` runs others, and one again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.simulation import Simulation

SEEDS = 200
SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "simulate"


EVENTS = {
    "crash",
    "crash amid a transaction",
    "crash while it began",
    "checkpoint",
    "failed checkpoint",
    "failed journal",
    "replayed request",
    "expired stream",
    "duplicate",
    "refused request",
    "insert that waited",
    "eviction",
    "eviction for the server",
    "item without room",
    "pushed item",
    "pushed message left unread",
    "dataset ended: closed",
    "dataset ended: deadline",
    "proof amid work",
    "withdraw",
    "keepalive",
    "close_stream",
    "update",
    "delete",
    "reset",
    "set band",
    "set ledger",
    "peek",
}
ran = 0
met: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_goes_wrong_the_promises_hold(seed: int) -> None:
    global ran
    simulation = Simulation(seed)
    simulation.run()
    ran += 1
    met.update(simulation.met)


def test_the_seeds_meet_all_there_is() -> None:
    if ran < SEEDS:
        pytest.skip("of all seeds")
    assert not {event for event in EVENTS if met[event] < 5}, met


def test_the_script_runs_a_seed_again() -> None:
    command = [sys.executable, str(SCRIPT), "--seed", "3"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "seed 3: all promises held\n"


def test_a_seed_is_the_same_world_each_time() -> None:
    worlds = [Simulation(5) for _ in range(2)]
    for world in worlds:
        world.run()
    first, second = ((w.world.now, w.traffic.known, w.server.history.acknowledged) for w in worlds)
    assert first == second
