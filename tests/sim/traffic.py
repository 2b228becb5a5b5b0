"""What the people of the simulation do: write, learn, consume, and look after the server; and what they were told.

Every item has a number of its own, which is its only datum and the whole part of its priority, so that each can be told
from all others. `ledger` keeps items, `queue` gives each one once, `band` lets inserts and samples wait for each other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack
import numpy as np

from replayd import rate_limiters, selectors
from replayd.rate_limiters import RateLimiter
from replayd.table import Table
from replayd_client.array_messages import BLOB_RECORD, ChunkBatch, ItemBatch
from replayd_client.array_wire import encode_insert
from replayd_client.client import Client
from replayd_client.dataset import Dataset
from replayd_client.errors import ReplaydError, TableFullError
from replayd_client.sampling import SampleBatch
from replayd_client.trajectory_writer import TrajectoryWriter
from tests.sim.clients import Crew, Machine
from tests.sim.contents import QUEUE
from tests.sim.network import Faults, Frames, Pusher
from tests.sim.world import World

LEDGER, BAND = "ledger", "band"
PRIORITIES = 64
"""Priorities that an item can have: its number and so many parts of one."""


@dataclass(slots=True)
class Known:
    """What the clients were told, as people would remember it. Items are (table, number)."""

    acknowledged: set[tuple[str, int]] = field(default_factory=set)
    consumed: Counter[int] = field(default_factory=Counter)
    """Those that came out of the queue."""
    pushed: set[tuple[str, int]] = field(default_factory=set)
    """Those that were sent and that nobody answers for."""
    done: Counter[str] = field(default_factory=Counter)
    """What was done with success, by its name."""


class Traffic:
    """Until the `faults` rest there is work; then all come to an end."""

    def __init__(self, world: World, crew: Crew, faults: Faults) -> None:
        self.known = Known()
        self._world = world
        self._crew = crew
        self._faults = faults
        self._numbers = itertools.count(1)
        self._samples_per_insert = spi = world.random.choice([0.5, 1.0, 4.0])
        self._band = {"samples_per_insert": spi, "min_diff": -2 * spi - 4, "max_diff": 5 * spi + 4}
        self._meddles = world.random.random() < 0.5
        """Whether the operator changes anything."""
        kinds = [*3 * [self._write_steps, self._write_batches], *2 * [self._push]]
        self._writers = [world.random.choice(kinds) for _ in range(world.random.randint(1, 3))]

    @property
    def pushes(self) -> bool:
        """Whether a writer does."""
        return self._push in self._writers

    def tables(self) -> list[Table]:
        """As they are configured."""
        spi, lowest, highest = self._band.values()
        return [
            Table(LEDGER, selectors.Prioritized(1.0), selectors.Fifo(), 10**6, rate_limiters.MinSize(1)),
            Table.queue(QUEUE, 50),
            Table(BAND, selectors.Uniform(), selectors.Fifo(), 40, RateLimiter(spi, 2, lowest, highest)),
        ]

    def begin(self) -> None:
        """Everybody starts to work."""
        random = self._world.random
        for n, work in enumerate(self._writers):
            self._start(f"writer {n}", work)
        for n in range(random.randint(1, 2)):
            self._start(f"learner {n}", random.choice([self._learn, self._learn, self._learn, self._read_ahead]))
        self._start("consumer", self._consume)
        self._start("operator", self._operate)

    def finish(self) -> None:
        """In place of those that were killed: writers wait for somebody who takes, and settings must fit."""
        self._start("last learner", self._learn)
        self._start("last consumer", self._consume)
        self._start("last operator", self._put_right)

    def _start(self, name: str, work: Any) -> Machine:
        return self._crew.start(name, work)

    @property
    def _writers_are_done(self) -> bool:
        return self._are_done("writer")

    def _are_done(self, role: str) -> bool:
        those = [machine for machine in self._crew.machines if machine.threads[0].name.startswith(role)]
        return all(machine.is_done or machine.host.down for machine in those)

    # --- writers ------------------------------------------------------------------------------------------------------

    def _write_steps(self, client: Client) -> None:
        """Items of one step, some of them in several tables, through one writer after the other."""
        while not self._faults.rest:
            handles: list[tuple[str, int, Any]] = []
            writer = client.trajectory_writer(num_keep_alive_refs=3, timeout_ms=2000)
            steps = self._world.random.randint(5, 100)
            while not self._faults.rest and (steps > 0 or handles):
                steps -= 1
                self._step(writer, handles)
            self._flush(writer)
            self._note(handles)
            assert not handles, "a writer has flushed, and an item has no answer"
            writer.close()
            self.known.done["writer closed"] += 1

    def _step(self, writer: TrajectoryWriter, handles: list[tuple[str, int, Any]]) -> None:
        random = self._world.random
        number = next(self._numbers)
        try:
            writer.append({"x": np.float64(number)})
            for table in self._some_tables():
                handles.append(
                    (table, number, writer.create_item(table, float(number), {"x": writer.history["x"][-1:]}))
                )
            if random.random() < 0.1:
                writer.end_episode(timeout_ms=random.choice([100, 5000]))
            elif random.random() < 0.2:
                writer.flush(timeout_ms=random.choice([100, 5000]))
        except ReplaydError:
            self._world.sleep(random.uniform(0, 1.0))
        self._note(handles)
        # Now and then for longer than a lease.
        self._world.sleep(5.0 if random.random() < 0.01 else random.uniform(0, 0.3))

    def _flush(self, writer: TrajectoryWriter) -> None:
        """Until nothing is unanswered; what the band had no room for is told meanwhile."""
        while True:
            with contextlib.suppress(TableFullError):
                writer.flush(timeout_ms=None)
                return

    def _note(self, handles: list[tuple[str, int, Any]]) -> None:
        for table, number, handle in handles:
            if handle.done and isinstance(handle.error, TableFullError):
                # With its whole message, so items of others may be refused for one of the band's.
                self.known.done["item without room"] += 1
            elif handle.done:
                assert handle.error is None, f"a good item was refused: {handle.error}"
                self.known.acknowledged.add((table, number))
        handles[:] = [each for each in handles if not each[2].done]

    def _write_batches(self, client: Client) -> None:
        """Items in batches, each waited for."""
        random = self._world.random
        while not self._faults.rest:
            numbers = [next(self._numbers) for _ in range(random.randint(1, 6))]
            priorities, tables = np.array(numbers, np.float64), self._some_tables()
            try:
                client.insert_batch({"x": priorities[:, None]}, dict.fromkeys(tables, priorities), 5000)
            except ReplaydError:
                # It goes on being delivered, or never was sent.
                self._world.sleep(random.uniform(0, 1.0))
            else:
                self.known.acknowledged.update(itertools.product(tables, numbers))
            self._world.sleep(random.uniform(0, 0.5))

    def _push(self, client: Client) -> None:
        """Items for which nobody answers, by messages of one stream or two."""
        random = self._world.random
        socket = Pusher(self._crew.running.host)
        while not self._faults.rest:
            stream = random.randbytes(16)
            for seq in range(random.randint(5, 100)):
                numbers = [next(self._numbers) for _ in range(random.randint(1, _MOST_PUSHED))]
                tables = self._some_tables()
                frames = _pushed_frames(stream, seq, numbers, tables)
                # Of what is given up here the server sees that it is missing.
                tries = random.randint(1, 100)
                while tries and not socket.send(frames):
                    tries -= 1
                    self._world.sleep(0.1)
                if tries:
                    self.known.pushed.update(itertools.product(tables, numbers))
                if self._faults.rest:
                    break
                self._world.sleep(5.0 if random.random() < 0.01 else random.uniform(0, 0.3))
        socket.close(1000)

    def _some_tables(self) -> list[str]:
        # A table whose side is blocked holds up the whole writer, so the ledger is in each choice.
        return [LEDGER, *self._world.random.choice([[], [], [], [QUEUE], [BAND]])]

    # --- learners -----------------------------------------------------------------------------------------------------

    def _learn(self, client: Client) -> None:
        """Batches whose data must be what their priorities say; priorities set anew, and items deleted."""
        random = self._world.random
        while not (self._faults.rest and self._writers_are_done):
            table, n = random.choice([LEDGER, BAND]), random.randint(1, 5)
            with contextlib.suppress(ReplaydError):
                timeout_ms = random.choice([0, 200, 3000])
                batch = client.sample_batch(table, n, min_n=random.randint(1, n), timeout_ms=timeout_ms)
                numbers = batch.data["x"][:, 0]
                assert np.array_equal(numbers, batch.info.priority // 1), "an item came with another one's data"
                keys, first = np.unique(batch.info.key, return_index=True)
                if random.random() < 0.3:
                    updates = keys, numbers[first] + random.randrange(PRIORITIES) / PRIORITIES
                    deletes = keys[:1] if random.random() < 0.2 else None
                    answer = client.mutate_priorities(table, updates, deletes, timeout_ms=2000)
                    self.known.done["update"] += answer.updated
                    self.known.done["delete"] += answer.deleted
            self._world.sleep(random.uniform(0, 0.3))

    def _read_ahead(self, client: Client) -> None:
        """Datasets, which keep samples asked ahead, and end at some moment, whatever they wait for."""
        random = self._world.random
        while not (self._faults.rest and self._writers_are_done):
            table = random.choice([LEDGER, BAND, QUEUE])
            dataset = client.dataset(
                table,
                random.randint(1, 5),
                prefetch_batches=random.choice([0, 1, 4, "auto"]),
                timeout_ms=random.choice([None, 300, 3000]),
            )
            self._crew.running.spawn("closer", partial(self._close_later, dataset))
            with contextlib.suppress(ReplaydError):
                for batch in dataset:
                    numbers = batch.data["x"][:, 0]
                    assert np.array_equal(numbers, batch.info.priority // 1), "an item came with another one's data"
                    if table == QUEUE:
                        self.known.consumed.update(numbers.astype(int).tolist())
                    self._world.sleep(random.uniform(0, 0.3))
            dataset.close()
            assert dataset.ended_by is not None
            self.known.done[f"dataset ended: {dataset.ended_by.reason}"] += 1

    def _close_later(self, dataset: Dataset[SampleBatch]) -> None:
        self._world.sleep(self._world.random.uniform(0, 4.0))
        dataset.close()

    def _consume(self, client: Client) -> None:
        """Takes each item of the queue once."""
        random, host = self._world.random, self._crew.running.host
        while not (self._faults.rest and self._writers_are_done):
            before = len(host.samples_got)
            with contextlib.suppress(ReplaydError):
                batch = client.sample_batch(QUEUE, random.randint(1, 8), timeout_ms=1000)
                got = [keys for asked, keys in host.samples_got[before:] if asked not in host.samples_given_up]
                assert sorted(itertools.chain(*got)) == sorted(batch.info.key), "what came was not what a call returned"
                self.known.consumed.update(batch.info.priority.astype(int).tolist())
            # What still comes is for nobody.
            host.samples_given_up |= host.samples_asked
            self._world.sleep(random.uniform(0, 0.3))

    # --- operators ----------------------------------------------------------------------------------------------------

    def _operate(self, client: Client) -> None:
        """Asks what operators ask, which must change nothing, and changes what they change."""
        random = self._world.random
        looks = [
            ("info", lambda: client.server_info(timeout=1)),
            ("why", lambda: client.why(BAND, timeout_ms=1000)),
            ("peek", lambda: self._peek(client, random.choice([LEDGER, QUEUE, BAND]))),
            ("checkpoint", lambda: client.checkpoint(timeout_ms=5000)),
        ]
        changes = [
            ("reset", lambda: client.reset(random.choice([LEDGER, QUEUE, BAND, BAND]), timeout_ms=2000)),
            ("set band", lambda: client.set(BAND, timeout_ms=2000, **self._other_settings())),
            ("set ledger", lambda: client.set(LEDGER, timeout_ms=2000, max_size=random.choice([30, 10**6]))),
        ]
        while not self._faults.rest:
            name, act = random.choice(changes if self._meddles and random.random() < 0.6 else looks)
            with contextlib.suppress(ReplaydError):
                act()
                self.known.done[name] += 1
            self._world.sleep(random.uniform(0, 1.5))

    def _peek(self, client: Client, table: str) -> None:
        for item in client.peek(table, oldest=1024, timeout_ms=2000):
            assert item.data["x"][0] == item.info.priority // 1, "an item is shown with another one's data"

    def _other_settings(self) -> dict[str, Any]:
        random, spi = self._world.random, self._samples_per_insert
        return random.choice(
            [
                {"max_size": random.choice([5, 40, 100])},
                {"samples_per_insert": random.choice([0.5, 1.0, 4.0])},
                {"max_diff": random.choice([4, 40]) * spi + 4},
                {
                    "max_bytes": random.choice([None, 3000, 10_000]),
                    "when_full": random.choice(["evict", "block", "reject"]),
                },
                {"max_bytes": random.choice([1000, 3000]), "when_full": "reject"},
                {"paused_inserts": random.random() < 0.5, "paused_samples": random.random() < 0.5},
            ]
        )

    def _put_right(self, client: Client) -> None:
        """Settings as they were configured; a band that was changed begins anew."""
        while not self._are_done("operator"):
            self._world.sleep(1.0)
        # What he sent last may still be on its way.
        self._world.sleep(self._faults.slowest_s + 1.0)
        as_was = {**self._band, "min_size_to_sample": 2, "max_size": 40, "max_bytes": None, "when_full": "evict"}
        while True:
            try:
                client.set(BAND, **as_was, paused_inserts=False, paused_samples=False)
                if self._meddles:
                    client.reset(BAND)
                break
            except ReplaydError:
                self._world.sleep(1.0)
        while not self._writers_are_done:
            self._world.sleep(1.0)
        self._peek(client, LEDGER)


_MOST_PUSHED = 4
_SCHEMA = msgpack.packb([[["x"], "float64", []]])


def _pushed_frames(stream: bytes, seq: int, numbers: list[int], tables: list[str]) -> Frames:
    """An insert of a chunk for each number, which is in items of all these tables."""
    n, first = len(numbers), seq * _MOST_PUSHED
    records = np.zeros(n, BLOB_RECORD)
    records["stored_bytes"] = 8
    body = [np.array(numbers, "<f8").tobytes()]
    chunks = ChunkBatch(first, np.ones(n, np.int64), [_SCHEMA], records.tobytes(), body)
    all = len(tables) * n
    items = ItemBatch(
        tables,
        chunk=np.tile(np.arange(first, first + n), len(tables)),
        length=np.ones(all, np.int64),
        priority=np.tile(np.array(numbers, np.float64), len(tables)),
        table_of=np.repeat(np.arange(len(tables)), n),
    )
    header, *payloads = map(bytes, encode_insert(0, stream, seq, first + n, chunks, items))
    # Who pushes has no use for an id.
    fields = {name: value for name, value in msgpack.unpackb(header).items() if name != "id"}
    return [msgpack.packb(fields), *payloads]
