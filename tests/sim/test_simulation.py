"""Seeds of the simulation; `scripts/simulate` runs others, and one again."""

from __future__ import annotations

import pytest

from tests.sim.simulation import Simulation

SEEDS = 200


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_goes_wrong_the_promises_hold(seed: int) -> None:
    Simulation(seed).run()
