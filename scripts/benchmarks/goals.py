"""What the figures should reach, and how far they do. The one place that knows both the workloads and the wishes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.figures import OURS, Figure

MET, MISSED = "yes", "no"
UNSURE = "within the spread, median {}"
"""Of a bound that lies between the least and the largest run nobody can tell whether we meet it; the median alone does
or does not."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure of ours, or on its ratio to a peer's if `peer` names one; ratios are always at least."""

    workload: str
    """As `--only` has it."""
    quantity: str
    bound: float
    payload: int | None = None
    clients: int | None = None
    peer: str | None = None
    at_most: bool = False
    items: int | None = None

    def figure(self, figures: Sequence[Figure]) -> Figure | None:
        """The figure it is about, if it was measured."""
        wanted = (self.workload, self.quantity, self.payload, self.clients, self.items)
        for figure in figures:
            found = (figure.workload, figure.quantity, figure.payload_bytes, figure.clients, figure.table_items)
            if figure.system == OURS and found == wanted:
                return figure if self.peer is None or self.peer in figure.ratios else None
        return None

    def runs(self, figure: Figure) -> tuple[float, ...]:
        """What is compared with the bound."""
        return figure.runs if self.peer is None else figure.ratios[self.peer]

    def verdict(self, figure: Figure) -> str:
        runs = self.runs(figure)
        value = median(runs)
        verdict = MET if (value <= self.bound if self.at_most else value >= self.bound) else MISSED
        unsure = min(runs) != max(runs) and min(runs) <= self.bound <= max(runs)
        return UNSURE.format(verdict) if unsure else verdict


def wanted_of(workloads: Sequence[str], payloads: Sequence[int], clients: Sequence[int]) -> list[Goal]:
    """The goals that a run of these workloads, with these payloads and numbers of clients, is to tell of."""
    return [
        goal
        for goal in GOALS
        if goal.workload in workloads
        and (goal.payload is None or goal.payload in payloads)
        and (goal.clients is None or goal.clients in clients)
    ]


def _by_payload(workload: str, quantity: str, peer: str, clients: int, *bounds: float | None) -> Iterator[Goal]:
    for payload, bound in zip((400, 4_000, 40_000, 400_000), bounds, strict=True):
        if bound is not None:
            yield Goal(workload, quantity, bound, payload, clients, peer)


EMBEDDED = "server in the learner"
GOALS: tuple[Goal, ...] = (
    *_by_payload("insert", "insert_batch", "dm-reverb writer", 1, 8, 3, 2, 2),
    *_by_payload("insert", "insert_batch", "libzmq keeping as many", 1, None, None, None, 0.7),
    Goal("insert", "insert_batch", 300_000, 400, 1),
    Goal("insert", "single-item messages, plain peer", 25_000, 400, 1),
    *_by_payload("sample", "dataset", "dm-reverb tf.data", 1, 8, 4, 1.2, 1.5),
    Goal("sample", "dataset", 50, 400, 1, "dm-reverb Python client"),
    *_by_payload("sample", "dataset", "libzmq", 1, None, None, None, 0.7),
    Goal("sample", "dataset", 900_000, 400, 1),
    *_by_payload("queue", "daemon", f"id-echo {EMBEDDED}", 2, 2.5, 1.2, 0.4, 0.4),
    *_by_payload("queue", EMBEDDED, f"id-echo {EMBEDDED}", 2, None, None, 0.7, 0.9),
    Goal("transitions", "TrajectoryWriter", 3, None, 1, "dm-reverb writer"),
    *(
        goal
        for game in ("pong", "breakout", "seaquest")
        for goal in (
            Goal("atari", f"{game}, stored of raw", 2, at_most=True),
            Goal("atari", f"{game}, compression on the actor", 10, at_most=True),
            Goal("atari", f"{game}, read", 20_000),
        )
    ),
    Goal("priorities", "mutate_priorities of 256", 1, peer="dm-reverb mutate_priorities of 256"),
    Goal("priorities", "sample(1), p99: scraped over not scraped", 1.3, at_most=True),
    Goal("memory", "beyond 16 B payload", 400, at_most=True),
    Goal("memory", "RSS of the full table at the end", 1.05, at_most=True),
    Goal("core", "draw of prioritized, n = 256", 1, at_most=True, items=1_000_000),
    Goal("core", "draw of prioritized, n = 1", 40, at_most=True, items=1_000_000),
    *(
        Goal("scaling", f"{kind}, sample(256){beside}: 10^6 over 10^4 items", 1.3, at_most=True)
        for kind in ("uniform", "prioritized", "fifo", "lifo", "min_heap", "max_heap")
        for beside in ("", " beside a writer")
    ),
    *(
        goal
        for work in ("insert", "sample")
        for goal in (
            Goal("crowd", f"{work}: all of 200 over all of 8 clients", 0.9),
            Goal("crowd", f"{work} by 200, slowest over mean", 0.5),
        )
    ),
)
