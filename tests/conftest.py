"""What all tests share: hypothesis without a clock, so that a busy machine fails nothing."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No test asserts on time, hypothesis' own deadline included. In continuous integration the examples are the same each
# run, so that a failure there is a fault of the change and not of the day; at a desk they differ, which finds more.
settings.register_profile(
    "replayd", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("replayd")
