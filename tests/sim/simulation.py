"""One seed: writers, learners and an operator at work, what goes wrong meanwhile, and what must be true all the same.

Every item has a number of its own, which is its priority and its only datum, so that each can be told from all others.
`ledger` keeps every item, `queue` gives each one once, and `band` lets inserts and samples wait for each other.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replayd import rate_limiters, selectors
from replayd.journal import Mode
from replayd.rate_limiters import RateLimiter
from replayd.table import Table
from replayd_client.client import Client
from replayd_client.errors import ReplaydError
from tests.sim.clients import Crew, Machine
from tests.sim.network import Faults, Network
from tests.sim.server import Server
from tests.sim.world import World

TROUBLE_S = 8.0
"""How long things go wrong; afterwards nothing does."""
LONGEST_WAIT_S = 61.0
"""After which no request of somebody who is gone waits any more."""
REST_S = 600.0
"""Within which everybody must have come to an end then."""


@dataclass(slots=True)
class Known:
    """What the clients were told, as people would remember it."""

    sent: set[int] = field(default_factory=set)
    """Numbers of items that were handed to a writer."""
    acknowledged: dict[int, float] = field(default_factory=dict)
    """Those that the server acknowledged, with the time when that was known."""
    consumed: Counter[int] = field(default_factory=Counter)
    """Those that came out of the queue."""


class Simulation:
    """`Simulation(seed).run()` raises AssertionError with what is not as promised."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        random = self.world.random
        self.mode: Mode = random.choice(["off", "interval", "sync"])
        self.interval_s = random.choice([0.1, 1.0])
        self.faults = Faults(slowest_s=random.choice([0.01, 0.5, 3.0]), repeats=random.choice([0.0, 0.05]))
        self.network = Network(self.world, self.faults)
        self.samples_per_insert = random.choice([0.5, 1.0, 4.0])
        self.server = Server(self.world, self.network, self._tables, self.mode, self.interval_s)
        self.crew = Crew(self.world, self.network)
        self.known = Known()
        self._crashes = random.random() < 0.6
        self._numbers = itertools.count(1)

    def run(self) -> None:
        """The whole of it."""
        world = self.world
        with self.server.installed(), self.crew.installed():
            self.server.start()
            for n in range(world.random.randint(1, 3)):
                self._start(f"writer {n}", world.random.choice([self._write_steps, self._write_batches]))
            for n in range(world.random.randint(1, 2)):
                self._start(f"learner {n}", self._learn)
            self._start("consumer", self._consume)
            self._start("operator", self._look)
            end = world.now + TROUBLE_S
            self._plan_trouble(end)
            world.run(end)
            self.faults.rest = True
            if not self.server.is_up:
                self.server.start()
            for machine in self.crew.machines:
                machine.go_on()
            # In place of those that were killed: writers wait for somebody who takes.
            self._start("last learner", self._learn)
            self._start("last consumer", self._consume)
            self._check_state()
            world.run(end + REST_S, lambda: all(m.is_done or m.host.down for m in self.crew.machines))
            self._check_that_all_came_to_an_end()
            world.run(world.now + LONGEST_WAIT_S)
            self._check_state()
            self._check_answers()
            self._check_items()

    # --- the world ----------------------------------------------------------------------------------------------------

    def _tables(self) -> list[Table]:
        spi = self.samples_per_insert
        return [
            Table("ledger", selectors.Prioritized(1.0), selectors.Fifo(), 10**6, rate_limiters.MinSize(1)),
            Table.queue("queue", 50),
            Table("band", selectors.Uniform(), selectors.Fifo(), 40, RateLimiter(spi, 2, -2 * spi - 4, 12 * spi + 4)),
        ]

    def _start(self, name: str, work: Any) -> Machine:
        return self.crew.start(name, work)

    def _plan_trouble(self, end: float) -> None:
        """What goes wrong, and when."""
        world, random = self.world, self.world.random
        kinds = [self._cut, self._cut, self._stop_a_machine, self._kill_a_machine]
        if self._crashes:
            kinds += [self._crash, self._crash]
        for _ in range(random.randint(0, 8)):
            kind = random.choice(kinds)
            world.at(random.uniform(world.now, end), kind)
        for _ in range(random.randint(0, 5)):
            world.at(random.uniform(world.now, end), lambda: self.server.is_up and self.server.checkpoint())

    def _cut(self) -> None:
        if self.network.links:
            self.network.cut(self.world.random.choice(self.network.links))

    def _crash(self) -> None:
        if self.server.is_up:
            self.server.crash()
            self.world.after(self.world.random.choice([0.01, 0.5, 3.0]), self._restart)

    def _restart(self) -> None:
        if not self.server.is_up:
            self.server.start()

    def _stop_a_machine(self) -> None:
        machine = self.world.random.choice(self.crew.machines)
        machine.pause()
        self.world.after(self.world.random.choice([0.5, 3.0, 70.0]), machine.go_on)

    def _kill_a_machine(self) -> None:
        machine = self.world.random.choice(self.crew.machines)
        if not machine.is_done and not machine.host.down:
            machine.kill()

    # --- the work of each ---------------------------------------------------------------------------------------------

    def _number(self) -> int:
        number = next(self._numbers)
        self.known.sent.add(number)
        return number

    def _write_steps(self, client: Client) -> None:
        """Items of one step, some of them in several tables, through a writer."""
        random = self.world.random
        handles: list[tuple[int, Any]] = []
        writer = client.trajectory_writer(num_keep_alive_refs=3, timeout_ms=2000)
        while not self.faults.rest:
            number = self._number()
            try:
                writer.append({"x": np.float64(number)})
                for table in self._some_tables():
                    handle = writer.create_item(table, float(number), {"x": writer.history["x"][-1:]})
                    if table == "ledger":
                        handles.append((number, handle))
                if random.random() < 0.1:
                    writer.end_episode(timeout_ms=random.choice([100, 5000]))
                elif random.random() < 0.2:
                    writer.flush(timeout_ms=random.choice([100, 5000]))
            except ReplaydError:
                self.world.sleep(random.uniform(0, 1.0))
            self._note(handles)
            self.world.sleep(random.uniform(0, 0.3))
        writer.flush(timeout_ms=None)
        self._note(handles)
        assert not handles, "a writer has flushed, and an item has no answer"
        writer.close()

    def _note(self, handles: list[tuple[int, Any]]) -> None:
        for number, handle in handles:
            if handle.done:
                assert handle.error is None, f"a good item was refused: {handle.error}"
                self.known.acknowledged[number] = self.world.now
        handles[:] = [(number, handle) for number, handle in handles if not handle.done]

    def _write_batches(self, client: Client) -> None:
        """Items in batches, each waited for."""
        random = self.world.random
        while not self.faults.rest:
            numbers = [self._number() for _ in range(random.randint(1, 6))]
            priorities = np.array(numbers, np.float64)
            try:
                client.insert_batch({"x": priorities[:, None]}, dict.fromkeys(self._some_tables(), priorities), 5000)
            except ReplaydError:
                # It goes on being delivered, or never was sent.
                self.world.sleep(random.uniform(0, 1.0))
            else:
                self.known.acknowledged.update(dict.fromkeys(numbers, self.world.now))
            self.world.sleep(random.uniform(0, 0.5))

    def _some_tables(self) -> list[str]:
        # A table whose side is blocked holds up the whole writer, so the ledger is in each choice.
        return ["ledger", *self.world.random.choice([[], [], [], ["queue"], ["band"]])]

    def _learn(self, client: Client) -> None:
        """Batches whose data must be what their priorities say; priorities set to what they are."""
        random = self.world.random
        while True:
            table = random.choice(["ledger", "band"])
            n = random.randint(1, 5)
            try:
                batch = client.sample_batch(
                    table, n, min_n=random.randint(1, n), timeout_ms=random.choice([0, 200, 3000])
                )
                shown = batch.data["x"][:, 0]
                assert np.array_equal(shown, batch.info.priority), "an item came with another one's data"
                if random.random() < 0.3:
                    client.mutate_priorities(table, updates=(batch.info.key, batch.info.priority), timeout_ms=2000)
            except ReplaydError:
                pass
            if self.faults.rest and self._writers_are_done:
                return
            self.world.sleep(random.uniform(0, 0.3))

    def _consume(self, client: Client) -> None:
        """Takes each item of the queue once."""
        while True:
            try:
                batch = client.sample_batch("queue", self.world.random.randint(1, 8), timeout_ms=1000)
                self.known.consumed.update(batch.info.priority.astype(int).tolist())
            except ReplaydError:
                pass
            if self.faults.rest and self._writers_are_done:
                return
            self.world.sleep(self.world.random.uniform(0, 0.3))

    def _look(self, client: Client) -> None:
        """Asks what operators ask, which must change nothing."""
        random = self.world.random
        while not self.faults.rest:
            with contextlib.suppress(ReplaydError):
                random.choice([lambda: client.server_info(timeout=1), lambda: client.why("band", timeout_ms=1000)])()
            self.world.sleep(random.uniform(0, 3.0))

    @property
    def _writers_are_done(self) -> bool:
        writers = [machine for machine in self.crew.machines if machine.threads[0].name.startswith("writer")]
        return all(machine.is_done or machine.host.down for machine in writers)

    # --- what must be true --------------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        service = self.server.service
        service.validate()
        for table in service.tables.values():
            limiter = table.limiter
            inserts, samples, deletes = (getattr(limiter, name) for name in ("inserts", "samples", "deletes"))
            cursor = inserts * limiter.samples_per_insert - samples
            if limiter.min_diff is not None and samples:
                assert cursor >= limiter.min_diff, f"{table.name}: more was sampled than the band lets"
            if limiter.max_diff is not None and inserts - deletes > limiter.min_size_to_sample:
                assert cursor <= limiter.max_diff, f"{table.name}: more was inserted than the band lets"

    def _check_that_all_came_to_an_end(self) -> None:
        for machine in self.crew.machines:
            if not (machine.is_done or machine.host.down):
                thread = machine.threads[0]
                raise AssertionError(f"{thread.name} is stuck:\n{thread.where()}")

    def _check_answers(self) -> None:
        asked, answers = self.server.asked, self.server.answers
        for request, count in answers.items():
            assert count <= asked[request], f"{request} was asked {asked[request]} times, and answered {count} times"
        if not any(table.pending_inserts for table in self.server.service.tables.values()):
            assert asked == answers, f"without an answer: {asked - answers}"

    def _check_items(self) -> None:
        table = self.server.service.tables["ledger"]
        there = Counter(table.items.priority[table.items.in_order()].astype(int).tolist())
        twice = sorted(number for number, count in there.items() if count > 1)
        assert not twice, f"items {twice} were inserted more than once"
        assert there.keys() <= self.known.sent, "an item is there that nobody sent"
        missing = sorted(number for number in self.known.acknowledged if number not in there)
        assert not missing or self.server.crashes, f"acknowledged items {missing} are lost without a crash"
        assert not missing or self.mode != "sync", f"acknowledged items {missing} are lost"
        again = sorted(number for number, count in self.known.consumed.items() if count > 1)
        assert not again or self.server.crashes, f"the queue gave {again} more than once"
