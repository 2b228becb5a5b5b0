"""The messages that the incumbent hands out as protocol buffers, as plain objects that answer the same questions.

Attributes have defaults, sub-messages are there when asked for, `HasField` tells what was set. Nothing is serialised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

DBL_MAX = 1.7976931348623157e308


class Message:
    """What all messages can: equality and text come from their fields."""

    __slots__ = ()

    def HasField(self, name: str) -> bool:  # noqa: N802 - protocol buffers' word
        """Whether a sub-message or a member of a one-of is set. Raises ValueError for a name it does not have."""
        if name not in {each.name for each in fields(self)}:  # type: ignore[arg-type]
            raise ValueError(f"Protocol message {type(self).__name__} has no field {name!r}.")
        value = getattr(self, name)
        return value is not None and value is not False

    def ListFields(self) -> list[tuple[str, Any]]:  # noqa: N802
        """Name and value of what differs from its default."""
        pairs = [(each.name, getattr(self, each.name)) for each in fields(self)]  # type: ignore[arg-type]
        return [(name, value) for name, value in pairs if value]

    def __str__(self) -> str:
        return _text(self, 0)


@dataclass(slots=True)
class PrioritizedOptions(Message):
    priority_exponent: float = 0.0

    __str__ = Message.__str__


@dataclass(slots=True)
class HeapOptions(Message):
    min_heap: bool = False

    __str__ = Message.__str__


@dataclass(slots=True, init=False)
class KeyDistributionOptions(Message):
    """How a selector chooses: one of `fifo`, `uniform`, `prioritized`, `heap` and `lifo`."""

    fifo: bool
    uniform: bool
    prioritized: PrioritizedOptions
    heap: HeapOptions
    lifo: bool
    is_deterministic: bool

    __str__ = Message.__str__

    def __init__(self, distribution: str, value: Any) -> None:
        self.fifo = self.uniform = self.lifo = False
        self.prioritized = PrioritizedOptions()
        self.heap = HeapOptions()
        setattr(self, distribution, value)
        self.is_deterministic = distribution not in ("uniform", "prioritized")

    def WhichOneof(self, group: str) -> str:  # noqa: N802
        """The member of the one-of `distribution` that is set."""
        if group != "distribution":
            raise ValueError(f"Protocol message {type(self).__name__} has no oneof {group!r} field.")
        names = ("fifo", "uniform", "lifo")
        set_names = [name for name in names if getattr(self, name)]
        if set_names:
            return set_names[0]
        return "heap" if self.is_deterministic else "prioritized"

    def HasField(self, name: str) -> bool:  # noqa: N802
        if name == "is_deterministic":
            raise ValueError(f"Field {name!r} has no presence; read it.")
        return Message.HasField(self, name) and self.WhichOneof("distribution") == name

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> KeyDistributionOptions:
        """The options of a selector as replayd's `describe` says them."""
        kind = description["kind"]
        if kind == "prioritized":
            return cls(kind, PrioritizedOptions(float(description["priority_exponent"])))
        if kind in ("min_heap", "max_heap"):
            return cls("heap", HeapOptions(kind == "min_heap"))
        return cls(kind, True)


@dataclass(slots=True)
class CallStats(Message):
    completed: int = 0

    __str__ = Message.__str__


@dataclass(slots=True)
class RateLimiterInfo(Message):
    samples_per_insert: float = 0.0
    min_diff: float = 0.0
    max_diff: float = 0.0
    min_size_to_sample: int = 0
    insert_stats: CallStats = field(default_factory=CallStats)
    sample_stats: CallStats = field(default_factory=CallStats)

    __str__ = Message.__str__

    @classmethod
    def of(cls, limiter: Mapping[str, Any]) -> RateLimiterInfo:
        """From what replayd's limiter says of itself; a bound it does not have is the largest double there."""
        return cls(
            samples_per_insert=float(limiter["samples_per_insert"]),
            min_diff=float(limiter.get("min_diff", -DBL_MAX)),
            max_diff=float(limiter.get("max_diff", DBL_MAX)),
            min_size_to_sample=int(limiter["min_size_to_sample"]),
            insert_stats=CallStats(int(limiter["inserts"])),
            sample_stats=CallStats(int(limiter["samples"])),
        )


@dataclass(slots=True)
class TableWorkerTime(Message):
    """Milliseconds by what the table did. Of these replayd measures how long either side was held back."""

    running_ms: int = 0
    sampling_ms: int = 0
    inserting_ms: int = 0
    sleeping_ms: int = 0
    waiting_for_sampling_ms: int = 0
    """Inserts were blocked."""
    waiting_for_inserts_ms: int = 0
    """Samples were blocked."""

    __str__ = Message.__str__


def _text(message: Any, depth: int) -> str:
    lines = []
    for name, value in message.ListFields():
        indent = "  " * depth
        if isinstance(value, Message):
            lines.append(f"{indent}{name} {{\n{_text(value, depth + 1)}{indent}}}\n")
        else:
            lines.append(f"{indent}{name}: {str(value).lower() if isinstance(value, bool) else value}\n")
    return "".join(lines)
