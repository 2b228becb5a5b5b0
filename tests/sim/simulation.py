"""One seed: a world of clients at work, what goes wrong meanwhile, and what must be true all the same."""

from __future__ import annotations

import random
from collections import Counter

from tests.sim.clients import Crew
from tests.sim.contents import QUEUE
from tests.sim.network import Faults, Network
from tests.sim.server import Options, Server
from tests.sim.traffic import Traffic
from tests.sim.world import World

TROUBLE_S = 7.0
"""How long things go wrong; afterwards nothing does."""
LONGEST_WAIT_S = 6.0
"""After which no request of somebody who is gone waits any more: nobody asks for longer."""
REST_S = 600.0
"""Within which everybody must have come to an end then."""


class Simulation:
    """`Simulation(seed).run()` raises AssertionError with what is not as promised."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        chance = self.world.random
        self.faults = Faults(slowest_s=chance.choice([0.01, 0.5, 3.0]), repeats=chance.choice([0.0, 0.05]))
        self.network = Network(self.world, self.faults)
        self.crew = Crew(self.world, self.network)
        self.traffic = Traffic(self.world, self.crew, self.faults)
        self.server = Server(self.world, self.network, self.traffic.tables, _options(chance), self._start_again)
        self.crashes = chance.random() < 0.6
        self.disk_fails = chance.random() < 0.4

    def run(self) -> None:
        """The whole of it."""
        world = self.world
        with self.server.installed(), self.crew.installed():
            self.server.start()
            self.traffic.begin()
            end = world.now + TROUBLE_S
            self._plan_trouble(end)
            world.run(end)
            self._come_to_rest()
            self._check_state()
            world.run(end + REST_S, lambda: all(m.is_done or m.host.down for m in self.crew.machines))
            self._check_that_all_came_to_an_end()
            world.run(world.now + LONGEST_WAIT_S)
            self._check_state()
            self.server.check_all_answered()
            self._check_what_clients_know()
            self.server.note_life()

    @property
    def met(self) -> Counter[str]:
        """What was done and what went wrong, by its name."""
        return self.server.met + self.traffic.known.done

    def _come_to_rest(self) -> None:
        self.faults.rest = True
        self.server.disk.mend()
        self._restart()
        for machine in self.crew.machines:
            machine.go_on()
        self.traffic.finish()

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _plan_trouble(self, end: float) -> None:
        """What goes wrong, and when."""
        world, chance = self.world, self.world.random
        kinds = [self._cut, self._cut, self._stop_a_machine, self._kill_a_machine]
        if self.disk_fails:
            kinds += [self._fill_the_disk, self._break_the_disk, self._slow_the_disk]
        troubles = [chance.choice(kinds) for _ in range(chance.randint(0, 6))]
        if self.crashes:
            troubles += [chance.choice([self._crash, self._cut_power]) for _ in range(chance.randint(1, 3))]
        for trouble in troubles:
            world.at(chance.uniform(world.now, end), trouble)

    def _cut(self) -> None:
        if self.network.links:
            self.network.cut(self.world.random.choice(self.network.links))

    def _crash(self) -> None:
        if self.server.is_up:
            self.server.met["crash"] += 1
            self.server.crash()
            self._start_again()

    def _cut_power(self) -> None:
        """Amid one of the next transactions."""
        self.server.disk.cut_in = self.world.random.randrange(8)

    def _start_again(self) -> None:
        self.world.after(self.world.random.choice([0.01, 0.5, 3.0]), self._restart)

    def _restart(self) -> None:
        if not self.server.is_up:
            self.server.start()

    def _fill_the_disk(self) -> None:
        disk = self.server.disk
        disk.is_full = True
        self.world.after(self.world.random.choice([0.1, 1.0, 4.0]), lambda: setattr(disk, "is_full", False))

    def _break_the_disk(self) -> None:
        self.server.disk.errors = self.world.random.choice([0.1, 0.5])

    def _slow_the_disk(self) -> None:
        self.server.disk.slow_down(self.world.random.choice([0.3, 2.0]))

    def _stop_a_machine(self) -> None:
        machine = self.world.random.choice(self.crew.machines)
        machine.pause()
        self.world.after(self.world.random.choice([0.5, 3.0, 70.0]), machine.go_on)

    def _kill_a_machine(self) -> None:
        machine = self.world.random.choice(self.crew.machines)
        if not machine.is_done and not machine.host.down:
            machine.kill()

    # --- what must be true --------------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        self.server.service.validate()
        self.server.history.contents.compare(self.server.service)

    def _check_that_all_came_to_an_end(self) -> None:
        for machine in self.crew.machines:
            if not (machine.is_done or machine.host.down):
                thread = machine.threads[0]
                raise AssertionError(f"{thread.name} is stuck:\n{thread.where()}")

    def _check_what_clients_know(self) -> None:
        """The tables are what the server's history says; so must be what it told its clients."""
        history, known = self.server.history, self.traffic.known
        pushed = {item for item in known.pushed if item[1] in history.contents.tables[item[0]].accepted}
        assert history.pushed_items <= known.pushed, "items were pushed by nobody"
        self.server.met["pushed item"] += len(pushed)
        for item in known.acknowledged:
            table, number = item
            assert item in history.acknowledged, f"item {number} of {table} passes for acknowledged, and nobody said so"
            if number not in history.contents.tables[table].accepted:
                assert history.rolled_back[item], f"acknowledged item {number} of {table} is lost without a crash"
                assert self.server.options.mode != "sync", f"acknowledged item {number} of {table} is lost"
        for number, count in known.consumed.items():
            most = 1 + history.drawn_back[QUEUE, number]
            assert count <= most, f"the queue gave {number} {count} times, and crashes took {most - 1} of these draws"


def _options(chance: random.Random) -> Options:
    return Options(
        mode=chance.choice(["off", "interval", "interval", "sync", "sync"]),
        interval_s=chance.choice([0.1, 1.0]),
        journal_max_bytes=chance.choice([1 << 30, 1 << 30, 1 << 30, 20_000]),
        checkpoint_interval_s=chance.choice([0.0, 0.0, 2.0]),
        lease_s=chance.choice([60.0, 2.0]),
        max_bytes=chance.choice([None, None, None, 20_000]),
        part_bytes=chance.choice([1000, 1 << 24]),
    )
