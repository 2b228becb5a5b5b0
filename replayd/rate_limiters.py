"""The rate limiter: how many inserts and samples may pass now, so that samples per insert stay inside a band.

Owns the three counters of a table and the equations of protocol.md §7. Must not know queues, time or items: whoever
asks parks what may not pass and asks again after the next change.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from replayd.errors import NeverGrantable
from replayd.limits import DIFF_MAX, MIN_SIZE_MAX, SAMPLES_PER_INSERT_RANGE
from replayd.state import State

BLOCKED_BY_MIN_SIZE = "min_size_to_sample"
"""Samples wait for inserts: the table holds fewer items than min_size_to_sample."""
BLOCKED_BY_MIN_DIFF = "min_diff"
"""Samples wait for inserts: one more sample would take the cursor below min_diff."""
BLOCKED_BY_MAX_DIFF = "max_diff"
"""Inserts wait for samples: one more insert would take the cursor above max_diff."""


class RateLimiter:
    """Keeps the cursor, inserts · samples_per_insert − samples, between min_diff and max_diff.

    With I inserts, S samples and D deletes (evictions, expiry, explicit deletes) since the last reset:

    - n inserts pass if I + n − D ≤ min_size_to_sample or (I + n) · samples_per_insert − S ≤ max_diff;
    - n samples pass if I − D ≥ min_size_to_sample and I · samples_per_insert − S − n ≥ min_diff.

    None is unlimited, and so are −inf and −DBL_MAX for min_diff, inf and DBL_MAX for max_diff. A limiter belongs to one
    table.

    Raises ValueError unless samples_per_insert is within SAMPLES_PER_INSERT_RANGE, min_size_to_sample between 1 and
    MIN_SIZE_MAX, and min_diff ≤ max_diff, both within ±DIFF_MAX.
    """

    __slots__ = (
        "_table",
        "deletes",
        "inserts",
        "max_diff",
        "min_diff",
        "min_size_to_sample",
        "samples",
        "samples_per_insert",
    )

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, min_diff: float | None, max_diff: float | None
    ) -> None:
        least, most = SAMPLES_PER_INSERT_RANGE
        if not least <= samples_per_insert <= most:
            raise ValueError(f"samples_per_insert must be between {least:g} and {most:g}, got {samples_per_insert!r}")
        if not 1 <= min_size_to_sample <= MIN_SIZE_MAX:
            raise ValueError(f"min_size_to_sample must be between 1 and {MIN_SIZE_MAX}, got {min_size_to_sample!r}")
        self.samples_per_insert = float(samples_per_insert)
        self.min_size_to_sample = operator.index(min_size_to_sample)
        self.min_diff = _bound("min_diff", min_diff, unlimited=-sys.float_info.max)
        self.max_diff = _bound("max_diff", max_diff, unlimited=sys.float_info.max)
        if self.min_diff is not None and self.max_diff is not None and self.min_diff > self.max_diff:
            raise ValueError(f"min_diff must not be above max_diff, got {min_diff!r} and {max_diff!r}")
        self._table: str | None = None
        self.reset()

    def attach(self, table: str) -> None:
        """Makes this the limiter of the table named. Raises ValueError if it already counts for one."""
        if self._table is not None:
            raise ValueError(
                f"this rate limiter belongs to table {self._table!r}; table {table!r} needs one of its own"
            )
        self._table = table

    def reset(self) -> None:
        """Sets the counters to 0."""
        self.inserts = 0
        self.samples = 0
        self.deletes = 0

    def dump(self) -> State:
        """The counters; the settings are those of the table."""
        return {"inserts": self.inserts, "samples": self.samples, "deletes": self.deletes}

    def load(self, state: State) -> None:
        """Take over counters that were dumped."""
        self.inserts, self.samples, self.deletes = state["inserts"], state["samples"], state["deletes"]

    @property
    def cursor(self) -> float:
        """inserts · samples_per_insert − samples, what the band holds."""
        return self.inserts * self.samples_per_insert - self.samples

    @property
    def size(self) -> int:
        """Items in the table."""
        return self.inserts - self.deletes

    def can_insert(self, n: int) -> bool:
        """Whether n inserts pass together. Raises ValueError if n < 1."""
        _check_count(n)
        return self.size + n <= self.min_size_to_sample or self._below_max_diff(n)

    def can_sample(self, n: int) -> bool:
        """Whether n samples pass together. Raises ValueError if n < 1."""
        _check_count(n)
        return self.size >= self.min_size_to_sample and self._above_min_diff(n)

    def insertable(self, n: int) -> int:
        """How many of n inserts pass now, one after the other and with no item removed in between."""
        below_min_size = min(n, max(0, self.min_size_to_sample - self.size))
        if self.max_diff is None:
            return n
        guess = (self.max_diff + self.samples) / self.samples_per_insert - self.inserts
        return max(below_min_size, _largest(n, self._below_max_diff, guess))

    def sampleable(self, n: int) -> int:
        """How many of n samples pass now, one after the other and with no item removed in between."""
        if self.size < self.min_size_to_sample:
            return 0
        if self.min_diff is None:
            return n
        return _largest(n, self._above_min_diff, self.cursor - self.min_diff)

    def inserts_needed(self, n: int) -> int:
        """Fewest inserts after which n samples pass, if nothing else happens."""
        by_size = max(0, self.min_size_to_sample - self.size)
        if self.min_diff is None:
            return by_size
        by_cursor = math.ceil((self.min_diff + self.samples + n) / self.samples_per_insert - self.inserts)
        return max(by_size, by_cursor, 0)

    def samples_needed(self, n: int) -> int:
        """Fewest samples after which n inserts pass, if nothing else happens."""
        if self.max_diff is None or self.size + n <= self.min_size_to_sample:
            return 0
        return max(0, math.ceil((self.inserts + n) * self.samples_per_insert - self.samples - self.max_diff))

    def did_insert(self, n: int) -> None:
        """Count n inserts, whether or not they would have passed."""
        self.inserts += n

    def did_sample(self, n: int) -> None:
        """Count n samples, whether or not they would have passed."""
        self.samples += n

    def did_delete(self, n: int) -> None:
        """Count n items that left: evicted, expired or deleted."""
        self.deletes += n
        assert self.deletes <= self.inserts, "more items were deleted than inserted"

    def anew(self) -> RateLimiter:
        """A limiter with the same settings that has counted nothing."""
        return RateLimiter(self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff)

    def blocking_insert(self) -> str | None:
        """What keeps the next insert waiting: BLOCKED_BY_MAX_DIFF, or None if it passes.

        The other term, min_size_to_sample, only ever lets inserts through.
        """
        return None if self.can_insert(1) else BLOCKED_BY_MAX_DIFF

    def blocking_sample(self) -> str | None:
        """What keeps the next sample waiting: BLOCKED_BY_MIN_SIZE, BLOCKED_BY_MIN_DIFF, or None if it passes."""
        if self.size < self.min_size_to_sample:
            return BLOCKED_BY_MIN_SIZE
        return None if self._above_min_diff(1) else BLOCKED_BY_MIN_DIFF

    def largest_grant(self, max_size: int, max_times_sampled: int | None = None) -> int | None:
        """The most samples ever granted at once to a table of these limits; None if there is no such number.

        A grant of n needs cursor − n ≥ min_diff, so what counts is the largest cursor that can be reached. Only inserts
        raise it, and an insert passes by one of two terms.

        - By max_diff: it leaves cursor ≤ max_diff. With samples_per_insert = p/q the cursor is a multiple of 1/q, so
          the bound is the largest such multiple.
        - By min_size_to_sample, without expiry: evictions start at max_size ≥ min_size_to_sample, where this term lets
          nothing pass. So only the first min_size_to_sample inserts do, and leave
          cursor ≤ samples_per_insert · min_size_to_sample.
        - By min_size_to_sample, with expiry after max_times_sampled ≥ samples_per_insert draws: let R be the draws
          that the items present can still take. A sample lowers cursor and R alike, such an insert raises R at least
          as much as the cursor; so cursor − R is at most what it was after the last insert that passed by max_diff
          (and that left max_size ≥ size ≥ min_size_to_sample items, so R ≥ min_size_to_sample), or 0 at the start.
          Now R ≤ max_times_sampled · min_size_to_sample: cursor ≤ max_diff + (max_times_sampled − 1) ·
          min_size_to_sample.
        - By min_size_to_sample, with expiry after fewer draws than samples_per_insert: each item that comes and goes
          lifts the cursor, without end. Only the draws that a full table can take are left, which hold in any case:
          max_size · max_times_sampled, less one for each of the min_size_to_sample − 1 items that must stay.

        An explicit delete of an item lifts the cursor against R too; nobody can wait for that, so it is not counted on.
        Ask `sampleable` before refusing, for what such deletes have made possible already.

        It is 0 if max_size < min_size_to_sample. It is an upper bound: attained without expiry if the band is at least
        samples_per_insert + 1 wide.
        """
        if max_size < self.min_size_to_sample:
            return 0
        draws = self._draws_of_full_table(max_size, max_times_sampled)
        lifted_without_end = max_times_sampled is not None and max_times_sampled < self.samples_per_insert
        if self.min_diff is None or self.max_diff is None or lifted_without_end:
            return draws
        by_expiry = 0 if max_times_sampled is None else (max_times_sampled - 1) * self.min_size_to_sample
        band = _band(self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff, by_expiry)
        return band if draws is None else min(band, draws)

    def check_grant(self, n: int, max_size: int, max_times_sampled: int | None) -> None:
        """Raises NeverGrantable if a table of these limits can never let n samples pass at once."""
        largest = self.largest_grant(max_size, max_times_sampled)
        if largest is None or n <= largest:
            return
        draws = self._draws_of_full_table(max_size, max_times_sampled)
        # Explicit deletes may have lifted the cursor beyond what the configuration alone can reach.
        if (draws is not None and n > draws) or self.sampleable(n) < n:
            raise NeverGrantable(
                f"table {self._table!r} can never grant {n} samples at once; its limit is {largest}",
                table=self._table,
                largest=largest,
                limiter=self.describe(),
            )

    def describe(self) -> dict[str, int | float]:
        """Configuration, counters, cursor and size. What is unlimited is left out."""
        numbers = {
            "samples_per_insert": self.samples_per_insert,
            "min_size_to_sample": self.min_size_to_sample,
            "min_diff": self.min_diff,
            "max_diff": self.max_diff,
            "inserts": self.inserts,
            "samples": self.samples,
            "deletes": self.deletes,
            "cursor": self.cursor,
            "size": self.size,
        }
        return {name: value for name, value in numbers.items() if value is not None}

    def __repr__(self) -> str:
        return (
            f"RateLimiter(samples_per_insert={self.samples_per_insert!r}, "
            f"min_size_to_sample={self.min_size_to_sample!r}, min_diff={self.min_diff!r}, max_diff={self.max_diff!r})"
        )

    def _draws_of_full_table(self, max_size: int, max_times_sampled: int | None) -> int | None:
        return None if max_times_sampled is None else max_size * max_times_sampled - (self.min_size_to_sample - 1)

    # S and n are added as integers first, so that n at once and one after the other come to the same float.

    def _below_max_diff(self, n: int) -> bool:
        return self.max_diff is None or (self.inserts + n) * self.samples_per_insert - self.samples <= self.max_diff

    def _above_min_diff(self, n: int) -> bool:
        return self.min_diff is None or self.inserts * self.samples_per_insert - (self.samples + n) >= self.min_diff


class MinSize(RateLimiter):
    """Samples wait until the table holds min_size_to_sample items; inserts never wait. Raises as RateLimiter does."""

    __slots__ = ()

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, None, None)


class SampleToInsertRatio(RateLimiter):
    """Holds samples per insert near samples_per_insert, once the table has min_size_to_sample items.

    `error_buffer` is how far the cursor may stray from samples_per_insert · min_size_to_sample to either side, or a
    pair (min_diff, max_diff).

    Raises ValueError if the band is narrower than 2 · max(1, samples_per_insert) or begins above samples_per_insert ·
    min_size_to_sample, where samples could never start. Warns if it ends below that, where inserts may stop before
    samples start.
    """

    __slots__ = ()

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        if samples_per_insert <= 0:
            raise ValueError(f"samples_per_insert must be > 0, got {samples_per_insert!r}")
        start = samples_per_insert * min_size_to_sample
        if isinstance(error_buffer, int | float):
            min_diff, max_diff = start - error_buffer, start + error_buffer
        else:
            min_diff, max_diff = error_buffer
        narrowest = 2 * max(1.0, samples_per_insert)
        if max_diff - min_diff < narrowest:
            raise ValueError(
                f"error_buffer is too small: the band from {min_diff!r} to {max_diff!r} must be at least {narrowest:g} "
                "wide, 2 * max(1, samples_per_insert)"
            )
        if max_diff < start:
            warnings.warn(
                f"max_diff {max_diff!r} is below samples_per_insert * min_size_to_sample = {start:g}: inserts and "
                "samples may end up waiting for each other; widen error_buffer",
                stacklevel=2,
            )
        if min_diff > start:
            raise ValueError(
                f"min_diff {min_diff!r} is above samples_per_insert * min_size_to_sample = {start:g}: samples could "
                "never start"
            )
        super().__init__(samples_per_insert, min_size_to_sample, min_diff, max_diff)


class Queue(RateLimiter):
    """At most `size` inserts ahead of the samples, one sample an insert. Goes with max_times_sampled 1 and Fifo.

    Raises as RateLimiter does.
    """

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)


class Stack(RateLimiter):
    """At most `size` inserts ahead of the samples, one sample an insert. Goes with max_times_sampled 1 and Lifo.

    Raises as RateLimiter does.
    """

    __slots__ = ()

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, size)


def _bound(name: str, value: float | None, unlimited: float) -> float | None:
    """A bound of the cursor, None when it is at or beyond `unlimited` in that direction."""
    if value is None or (value <= unlimited if unlimited < 0 else value >= unlimited):
        return None
    if not abs(value) <= DIFF_MAX:
        raise ValueError(f"{name} must be between ±{DIFF_MAX:g} or unlimited, got {value!r}")
    return float(value)


@lru_cache(256)
def _band(samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float, by_expiry: int) -> int:
    """How far the largest cursor that can be reached is above min_diff, in whole samples. Asked for each request, and
    exact: fractions take 60 µs."""
    rate = Fraction(samples_per_insert)
    by_max_diff = Fraction(math.floor(Fraction(max_diff) * rate.denominator), rate.denominator)
    largest_cursor = max(by_max_diff + by_expiry, rate * min_size_to_sample)
    # The gates compute in floats: a hair is added so that rounding there never grants what was refused here.
    hair = max(1.0, abs(min_diff), float(abs(largest_cursor))) * 1e-12
    return max(0, math.floor(largest_cursor - Fraction(min_diff) + Fraction(hair)))


def _check_count(n: int) -> None:
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n!r}")


def _largest(n: int, passes: Callable[[int], bool], guess: float) -> int:
    """The largest k ≤ n that passes, where all smaller ones pass too; 0 if none.

    The guess, by solving the equation, is right but for rounding; then two looks suffice, and a bisection settles the
    rest.
    """
    if n <= 0 or passes(n):
        return max(n, 0)
    low, high = 0, n  # 0 counts as passing; n does not pass.
    middle = int(min(max(guess, 0.0), float(n - 1)))
    for probe in (middle, middle + 1):
        if low < probe < high:
            low, high = (probe, high) if passes(probe) else (low, probe)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low
