"""Workloads 4 and 5: what agents write step by step, transitions and sequences, and a learner beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.contest import Counted, Side, contest
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import replayd, reverb

TABLE = "bench"
STEPS, PERIOD, OBSERVATION_BYTES, BATCH = 20, 10, 400, 64
SEQUENCES = 10_000


def transitions(settings: Settings) -> Iterator[Figure]:
    """Five small columns, an item of two steps at every step: a transition table."""
    full = settings.most_items
    with ExitStack() as stack:
        ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={full}"]))
        theirs = stack.enter_context(reverb(settings, {"name": TABLE, "max_size": full}))
        for clients in settings.clients:
            sides = [ours.side("TrajectoryWriter", "write_transitions", clients, table=TABLE)]
            if theirs is not None:
                sides.append(theirs.side("writer", "write_transitions", clients, table=TABLE))
            yield from contest(settings, "transitions", sides, clients=clients, unit="steps/s")


def sequences(settings: Settings) -> Iterator[Figure]:
    """Sequences of 20 steps, a new one each 10; two writers and a reader of batches of 64 at once."""
    written = {"table": TABLE, "payload": OBSERVATION_BYTES, "steps": STEPS, "period": PERIOD}
    counted = [Counted("write_sequences", "written by 2"), Counted("read_sequences", "read meanwhile")]
    with ExitStack() as stack:
        ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={SEQUENCES}"]))
        theirs = stack.enter_context(reverb(settings, {"name": TABLE, "max_size": SEQUENCES}))
        sides = []
        for served in filter(None, (ours, theirs)):
            served.once("write_sequences", **written, fill=2 * BATCH)
            shape = {"payload": OBSERVATION_BYTES} if served is theirs else {}
            reader = served.job("read_sequences", table=TABLE, batch=BATCH, steps=STEPS, **shape)
            jobs = [served.job("write_sequences", **written)] * 2 + [reader]
            sides.append(Side(served.system, counted, jobs, served.pid))
        yield from contest(settings, "sequences", sides, unit="steps/s")
