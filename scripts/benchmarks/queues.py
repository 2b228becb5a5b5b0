"""Workload 3: a FIFO queue end to end, writers and a learner at once, each item delivered once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.contest import Counted, Side, contest
from benchmarks.crew import Job
from benchmarks.figures import OURS, Figure
from benchmarks.settings import Settings
from benchmarks.systems import ECHO, replayd

TABLE = "queue"
QUEUE_BYTES, MOST_ITEMS, LEAST_ITEMS = 32_000_000, 40_000, 256
CALLS_IN_QUEUE = 4
"""Batches of a writer that fill the queue."""
BATCH = 64


def queues(settings: Settings) -> Iterator[Figure]:
    """The learner counts; writers send whenever the queue lets them."""
    for payload in settings.payloads:
        most = max(min(QUEUE_BYTES // payload, MOST_ITEMS), LEAST_ITEMS)
        for clients in settings.clients:
            with ExitStack() as stack:
                served = stack.enter_context(replayd(settings, [f"{TABLE},preset=queue,max_size={most}"]))
                sending = {"table": TABLE, "payload": payload, "batch": most // CALLS_IN_QUEUE}
                writers = _followers(Job("drive_replayd", "write_batches", sending), clients)
                learner = served.job("drain", table=TABLE, batch=BATCH)
                embedded = Job("drive_replayd", "drain_embedded", {"table": TABLE, "most": most, "batch": BATCH})
                sides = [
                    Side(OURS, [Counted("drain", "daemon")], [learner], served.pid, writers),
                    Side(OURS, [Counted("drain_embedded", "server in the learner")], [embedded], None, writers),
                ]
                if settings.peers.echo is not None:
                    learner = Job("drive_echo", "drain", {"payload": payload, "batch": BATCH}, settings.peers.echo)
                    writers = _followers(Job("drive_echo", "send", {"payload": payload}, settings.peers.echo), clients)
                    sides.append(Side(ECHO, [Counted("drain", "server in the learner")], [learner], None, writers))
                yield from contest(settings, "queue", sides, payload=payload, clients=clients)


def _followers(job: Job, clients: int) -> Callable[[str], list[Job]]:
    return lambda address: [job.at(address)] * clients
