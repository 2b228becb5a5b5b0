"""`replayd` under cProfile: `python -m benchmarks.profiled OUT serve …` writes OUT at the end, imports not included."""

from __future__ import annotations

import cProfile
import sys

import replayd.config
import replayd.server
from replayd.cli import main

if __name__ == "__main__":
    assert replayd.config, "imported here, before the profile begins"
    with cProfile.Profile() as profile:
        main(sys.argv[2:], standalone_mode=False)
    profile.dump_stats(sys.argv[1])
