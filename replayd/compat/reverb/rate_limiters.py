"""The rate limiters: replayd's own, which have the incumbent's names, arguments and checks.

They also check what the incumbent leaves to an abort of the process: `samples_per_insert` and `min_size_to_sample` of
the general one.
"""

from __future__ import annotations

from replayd.rate_limiters import MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]
