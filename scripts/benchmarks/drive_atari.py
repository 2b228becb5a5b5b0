"""Real frames: a random policy plays, and what an agent would see is kept. Runs in the environment of ale-py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from benchmarks.worker import Turns, main


def play(game: str, frames: int, path: str) -> Turns:
    """84×84 grey, every fourth frame, the brighter of two: u8[frames, 84, 84] in `path`."""
    environment = AtariVectorEnv(game, num_envs=1, stack_num=1)
    rng = np.random.default_rng(0)
    observation, _ = environment.reset(seed=0)
    seen = np.empty((frames, *observation.shape[-2:]), np.uint8)
    for number in range(frames):
        seen[number] = observation[0, 0]
        observation, *_ = environment.step(rng.integers(0, environment.single_action_space.n, 1))
    draft = Path(f"{path}.{os.getpid()}.npy")
    np.save(draft, seen)
    draft.replace(path)
    yield {}


ROLES: dict[str, Any] = {"play": play}

if __name__ == "__main__":
    main(ROLES)
