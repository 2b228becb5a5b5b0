"""What tables say of themselves, as the incumbent's messages: selectors, limiters, times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayd.compat.reverb._messages import INT64, Message

DBL_MAX = 1.7976931348623157e308


class Prioritized(Message, fields={"priority_exponent": float}):
    pass


class Heap(Message, fields={"min_heap": bool}):
    pass


class KeyDistributionOptions(
    Message,
    fields={
        "fifo": bool,
        "uniform": bool,
        "prioritized": Prioritized,
        "heap": Heap,
        "lifo": bool,
        "is_deterministic": bool,
    },
    oneofs={"distribution": ("fifo", "uniform", "prioritized", "heap", "lifo")},
):
    """How a selector chooses: one member of the group `distribution`."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> KeyDistributionOptions:
        """The options of a selector as replayd's `describe` says them."""
        kind = description["kind"]
        if kind == "prioritized":
            return cls(prioritized=Prioritized(priority_exponent=description["priority_exponent"]))
        if kind in ("min_heap", "max_heap"):
            return cls(heap=Heap(min_heap=kind == "min_heap"), is_deterministic=True)
        return cls(**{kind: True}, is_deterministic=kind != "uniform")


class RateLimiterCallStats(Message, fields={"completed": INT64}):
    pass


class RateLimiterInfo(
    Message,
    fields={
        "samples_per_insert": float,
        "min_diff": float,
        "max_diff": float,
        "min_size_to_sample": INT64,
        "insert_stats": RateLimiterCallStats,
        "sample_stats": RateLimiterCallStats,
    },
):
    """A limiter's settings and counts."""

    @classmethod
    def of(cls, limiter: Mapping[str, Any]) -> RateLimiterInfo:
        """From what replayd's limiter says of itself; a bound it does not have is the largest double there."""
        return cls(
            samples_per_insert=limiter["samples_per_insert"],
            min_diff=limiter.get("min_diff", -DBL_MAX),
            max_diff=limiter.get("max_diff", DBL_MAX),
            min_size_to_sample=limiter["min_size_to_sample"],
            insert_stats=RateLimiterCallStats(completed=limiter["inserts"]),
            sample_stats=RateLimiterCallStats(completed=limiter["samples"]),
        )


class TableWorkerTime(
    Message,
    fields={
        "running_ms": INT64,
        "sampling_ms": INT64,
        "inserting_ms": INT64,
        "sleeping_ms": INT64,
        "waiting_for_sampling_ms": INT64,
        "waiting_for_inserts_ms": INT64,
    },
):
    """Milliseconds by what the table did. Of these replayd measures how long either side was held back: in
    `waiting_for_sampling_ms` inserts were, in `waiting_for_inserts_ms` samples."""

    @classmethod
    def of(cls, blocked_s: Mapping[str, float]) -> TableWorkerTime:
        """From the seconds that replayd says each side was blocked."""
        return cls(
            waiting_for_sampling_ms=int(blocked_s.get("insert", 0.0) * 1000),
            waiting_for_inserts_ms=int(blocked_s.get("sample", 0.0) * 1000),
        )
