"""The choices of a table, as models: selectors and rate limiters, each a `type` with keys of its own.

Numbers which a rate limiter or selector judges are judged by that class itself. Knows neither file nor command line.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from replayd import rate_limiters, selectors


class Section(BaseModel):
    """A table of the file. Keys it does not know are faults: a misspelt setting must not be a default in disguise."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Choice(Section):
    """A table with a `type`, which says what its other keys are."""

    type: str

    def build(self) -> object:
        """What this section stands for, new. Raises ValueError for numbers which the class of that refuses."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _judge(self) -> Self:
        self.build()
        return self

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self if key != "type" and value is not None)
        return f"{self.type}({settings})" if settings else self.type


class PlainSelector(_Choice):
    """A selector without settings. As a string, `"uniform"`, it is short for `{ type = "uniform" }`."""

    type: Literal["uniform", "fifo", "lifo", "min_heap", "max_heap"]

    def build(self) -> selectors.Selector:
        return _PLAIN_SELECTORS[self.type]()


_PLAIN_SELECTORS: dict[str, type[selectors.Selector]] = {
    "uniform": selectors.Uniform,
    "fifo": selectors.Fifo,
    "lifo": selectors.Lifo,
    "min_heap": selectors.MinHeap,
    "max_heap": selectors.MaxHeap,
}


class PrioritizedSelector(_Choice):
    """Draws in proportion to priority ** `priority_exponent`, which is 0 to 3."""

    type: Literal["prioritized"]
    priority_exponent: float

    def build(self) -> selectors.Selector:
        return selectors.Prioritized(self.priority_exponent)


class MinSizeLimiter(_Choice):
    """Samples wait until the table holds `min_size_to_sample` items, at least 1; inserts never wait."""

    type: Literal["min_size"]
    min_size_to_sample: int

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.MinSize(self.min_size_to_sample)


def _number_or_pair(value: Any) -> Any:
    numbers = value if isinstance(value, list) else [value]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in numbers) or (
        isinstance(value, list) and len(value) != 2
    ):
        raise ValueError(f"expected a number or [min_diff, max_diff], got {value!r}")
    return value if not isinstance(value, list) else (float(value[0]), float(value[1]))


class SampleToInsertRatioLimiter(_Choice):
    """Keeps samples per insert near a ratio. `error_buffer`: half the width of the band, or `[min_diff, max_diff]`."""

    type: Literal["sample_to_insert_ratio"]
    samples_per_insert: float
    min_size_to_sample: int
    error_buffer: Annotated[float | tuple[float, float], BeforeValidator(_number_or_pair)]

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.SampleToInsertRatio(self.samples_per_insert, self.min_size_to_sample, self.error_buffer)


class QueueLimiter(_Choice):
    """One sample an insert, and at most `size` inserts ahead. Goes with fifo and max_times_sampled 1."""

    type: Literal["queue"]
    size: int = Field(ge=1)

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.Queue(self.size)


class StackLimiter(_Choice):
    """One sample an insert, and at most `size` inserts ahead. Goes with lifo and max_times_sampled 1."""

    type: Literal["stack"]
    size: int = Field(ge=1)

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.Stack(self.size)


class GeneralLimiter(_Choice):
    """The base of the others. A bound that is left out is none."""

    type: Literal["rate_limiter"]
    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float | None = None
    max_diff: float | None = None

    def build(self) -> rate_limiters.RateLimiter:
        return rate_limiters.RateLimiter(self.samples_per_insert, self.min_size_to_sample, self.min_diff, self.max_diff)


def _named(value: Any) -> Any:
    """`"uniform"` is short for `{ type = "uniform" }`."""
    return {"type": value} if isinstance(value, str) else value


Selector = Annotated[PlainSelector | PrioritizedSelector, Field(discriminator="type"), BeforeValidator(_named)]
Limiter = Annotated[
    MinSizeLimiter | SampleToInsertRatioLimiter | QueueLimiter | StackLimiter | GeneralLimiter,
    Field(discriminator="type"),
    BeforeValidator(_named),
]


LIMITERS: dict[str, type[Section]] = {
    "min_size": MinSizeLimiter,
    "sample_to_insert_ratio": SampleToInsertRatioLimiter,
    "queue": QueueLimiter,
    "stack": StackLimiter,
    "rate_limiter": GeneralLimiter,
}
CHOICES: dict[str, type[Section]] = {"prioritized": PrioritizedSelector, **LIMITERS}
"""The model behind each `type`; those not listed are plain selectors."""
