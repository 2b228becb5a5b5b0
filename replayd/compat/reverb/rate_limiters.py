"""The rate limiters: replayd's, with the incumbent's arguments, checks, texts and tolerance of bounds out of reach.

The general one also checks what the incumbent leaves to an abort of the process.
"""

from __future__ import annotations

import logging
import sys

from replayd import rate_limiters as replayd_limiters
from replayd.limits import DIFF_MAX

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

log = logging.getLogger("replayd")


class RateLimiter(replayd_limiters.RateLimiter):
    """Keeps inserts · samples_per_insert − samples between min_diff and max_diff: see `replayd.rate_limiters`.

    A bound beyond what replayd counts to is none. Raises ValueError for what could never let anything pass.
    """

    __slots__ = ()

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, min_diff: float | None, max_diff: float | None
    ) -> None:
        super().__init__(
            samples_per_insert,
            min_size_to_sample,
            None if min_diff is None or min_diff < -DIFF_MAX else min_diff,
            None if max_diff is None or max_diff > DIFF_MAX else max_diff,
        )

    @property
    def internal_limiter(self) -> RateLimiter:
        """What a table has of it: itself."""
        return self

    def __repr__(self) -> str:
        min_diff = -sys.float_info.max if self.min_diff is None else self.min_diff
        max_diff = sys.float_info.max if self.max_diff is None else self.max_diff
        return (
            f"RateLimiter(samples_per_insert={self.samples_per_insert:g}, min_diff_={min_diff:g}, "
            f"max_diff={max_diff:g}, min_size_to_sample={self.min_size_to_sample})"
        )


class MinSize(RateLimiter):
    """Samples wait until the table holds min_size_to_sample items; inserts never wait."""

    __slots__ = ()

    def __init__(self, min_size_to_sample: int) -> None:
        _check_size(min_size_to_sample)
        super().__init__(1.0, min_size_to_sample, -sys.float_info.max, sys.float_info.max)


class SampleToInsertRatio(RateLimiter):
    """Holds samples per insert near samples_per_insert, once the table has min_size_to_sample items.

    `error_buffer` is how far the difference may stray to either side of samples_per_insert · min_size_to_sample, or a
    pair (min_diff, max_diff). Raises ValueError for a band that is too narrow or begins too high to let samples pass;
    a warning is logged for one that ends below the start, where inserts may stop before samples do start.
    """

    __slots__ = ()

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        start = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, float | int):
            min_diff, max_diff = start - error_buffer, start + error_buffer
        else:
            min_diff, max_diff = error_buffer
        if samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert ({samples_per_insert}) must be > 0")
        if max_diff - min_diff < 2 * max(1.0, samples_per_insert):
            raise ValueError(
                f"The size of error_buffer must be >= max(1.0, samples_per_insert), got the band from {min_diff} to "
                f"{max_diff}"
            )
        if max_diff < start:
            log.warning(
                "The range covered by error_buffer is below samples_per_insert * min_size_to_sample (%s < %s): inserts "
                "and samples may end up waiting for each other",
                max_diff,
                start,
            )
        if min_diff > start:
            raise ValueError(
                f"The range covered by error_buffer is above samples_per_insert * min_size_to_sample ({min_diff} > "
                f"{start}): samples could never start"
            )
        _check_size(min_size_to_sample)
        super().__init__(samples_per_insert, min_size_to_sample, min_diff, max_diff)


class Queue(RateLimiter):
    """At most `size` inserts ahead of the samples, one sample an insert: see `Table.queue`."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)


class Stack(RateLimiter):
    """At most `size` inserts ahead of the samples, one sample an insert: see `Table.stack`."""

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)


def _check_size(min_size_to_sample: int) -> None:
    if min_size_to_sample < 1:
        raise ValueError(f"min_size_to_sample ({min_size_to_sample}) must be a positive integer")
