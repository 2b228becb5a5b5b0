"""Our client's roles: what a process of a user does, through public names alone, but where a part of it is timed.

Run by `worker`. Payloads are float32 of random bits, which nothing compresses: even normal random numbers have
exponents that compress a little.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import blosc2  # noqa: F401 - the client's first insert imports it, which would be each worker's half second
import numpy as np
from numpy.typing import NDArray

from benchmarks.worker import Turns, main
from replayd_client import Client, VectorItem, chunk_log

STEPS_A_TURN = 50
TIMED_STEPS = 2000
EVERYWHERE_ITEMS = 10_000


def noise(count: int, payload: int) -> NDArray[np.float32]:
    """[count, payload / 4] of random bits."""
    return np.frombuffer(np.random.default_rng().bytes(count * payload), np.float32).reshape(count, -1)


def insert_batch(address: str, table: str, payload: int, batch: int, fill: int = 0) -> Turns:
    """Whole batches, one step and one item each; `fill` items are there before the measurement."""
    steps, priorities = noise(batch, payload)[:, None], np.linspace(0.5, 1.5, batch)
    with Client(address) as client:
        client.insert_batch({"x": steps[:1]}, {table: 1.0})
        started = time.perf_counter()
        for start in range(0, fill, batch):
            some = slice(0, min(batch, fill - start))
            client.insert_batch({"x": steps[some]}, {table: priorities[some]})
        yield {"fill_per_s": fill / (time.perf_counter() - started)}
        while True:
            client.insert_batch({"x": steps}, {table: priorities})
            yield batch


def write_batches(address: str, table: str, payload: int, batch: int) -> Turns:
    """Whole batches as well, but a batch is on its way while the next one is made."""
    steps, priorities = noise(batch, payload)[:, None], np.linspace(0.5, 1.5, batch)
    with Client(address) as client, client.batch_writer() as writer:
        writer.insert({"x": steps[:1]}, {table: 1.0})
        yield {}
        while True:
            writer.insert({"x": steps}, {table: priorities})
            yield batch


def write_steps(address: str, table: str, payload: int) -> Turns:
    """A trajectory writer, one step and one item at a time."""
    steps = itertools.cycle(noise(64, payload))
    with Client(address) as client, client.trajectory_writer(1) as writer:
        yield {}
        while True:
            for _ in range(STEPS_A_TURN):
                writer.append({"x": next(steps)})
                writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})
            yield STEPS_A_TURN


def write_vectors(address: str, table: str, payload: int, environments: int) -> Turns:
    """A vector writer, one step of all environments at a time, each an item of its own; it does not wait for keys."""
    steps, ends = noise(environments, payload), np.zeros(environments, np.bool_)
    with Client(address) as client:
        items = [VectorItem(table, window=1)]
        with client.vector_writer(environments, items, observations=(), chunk_length=1) as writer:
            yield {}
            while True:
                writer.append({"x": steps}, ends)
                yield environments


def sample_dataset(address: str, table: str, batch: int) -> Turns:
    """Stacked arrays, which a thread fetches and decodes ahead."""
    with Client(address) as client, client.dataset(table, batch) as batches:
        next(batches)
        yield {}
        for drawn in batches:
            yield len(drawn)


def sample_batch(address: str, table: str, batch: int) -> Turns:
    """Stacked arrays, asked for when they are wanted."""
    with Client(address) as client:
        client.sample_batch(table, batch)
        yield {}
        while True:
            yield len(client.sample_batch(table, batch))


def drain(address: str, table: str, batch: int) -> Turns:
    """A learner that takes what comes, from a daemon."""
    with Client(address) as client, client.dataset(table, batch) as batches:
        yield {"address": address}
        for drawn in batches:
            yield len(drawn)


def drain_embedded(table: str, most: int, batch: int) -> Turns:
    """The same with the server in the learner's process."""
    import replayd

    with replayd.Server([replayd.Table.queue(table, most)]) as server:
        yield from drain(server.address, table, batch)


def write_transitions(address: str, table: str) -> Turns:
    """Five columns a step; each two steps that follow each other are an item."""
    observations = itertools.cycle(noise(64, 16))
    with Client(address) as client, client.trajectory_writer(2) as writer:
        yield {}
        while True:
            for _ in range(STEPS_A_TURN):
                writer.append(
                    {"o": next(observations), "a": np.int32(1), "r": np.float32(1), "d": np.float32(1), "s": False}
                )
                if writer.episode_steps > 1:
                    writer.create_item(table, 1.0, {name: column[-2:] for name, column in writer.history.items()})
            yield STEPS_A_TURN


def write_sequences(address: str, table: str, payload: int, steps: int, period: int, fill: int = 0) -> Turns:
    """An item of the last `steps` steps each `period` steps, so that items overlap."""
    observations = itertools.cycle(noise(64, payload))
    with Client(address) as client, client.trajectory_writer(steps) as writer:

        def write(count: int) -> None:
            for _ in range(count * period):
                writer.append({"observation": next(observations), "action": np.int32(1), "reward": np.float32(1)})
                if writer.episode_steps >= steps and writer.episode_steps % period == 0:
                    writer.create_item(table, 1.0, {name: column[-steps:] for name, column in writer.history.items()})

        write(steps // period + fill)
        writer.flush()
        yield {}
        while True:
            write(1)
            yield period


def read_sequences(address: str, table: str, batch: int, steps: int) -> Turns:
    """Batches of whole sequences; counts steps."""
    for drawn in sample_dataset(address, table, batch):
        yield drawn * steps if isinstance(drawn, int) else drawn


def write_frames(address: str, table: str, steps: int, frames: str, fill: int = 0) -> Turns:
    """An actor's steps with frames of a real game, an item of `steps` steps that overlaps no other, one chunk each."""
    played = np.load(frames, mmap_mode="r")
    with Client(address) as client, client.trajectory_writer(steps, chunk_length=steps) as writer:
        observations = itertools.cycle(np.array(played))

        def write() -> None:
            for _ in range(steps):
                writer.append({"observation": next(observations), "action": np.int32(1), "reward": np.float32(0)})
            writer.create_item(table, 1.0, {name: column[-steps:] for name, column in writer.history.items()})

        write()
        for _ in range(fill):
            write()
        writer.flush()
        yield {"stored": 1 / writer.report().columns["observation"].ratio}
        while True:
            write()
            yield steps


def time_frames(address: str, table: str, steps: int, frames: str) -> Turns:
    """What compressing a step costs an actor: CPU time inside `encode_chunk`, which is called once a chunk.

    Under cProfile, which times each function that it calls as well, it seems to take twice as long.
    """
    of_writers: Any = chunk_log
    encode, spent_s = of_writers.encode_chunk, 0.0

    def timed(*arguments: Any) -> Any:
        nonlocal spent_s
        started = time.thread_time()
        encoded = encode(*arguments)
        spent_s += time.thread_time() - started
        return encoded

    of_writers.encode_chunk = timed
    turns = write_frames(address, table, steps, frames)
    yield next(turns)
    while True:
        written, spent_s = 0, 0.0
        while written < TIMED_STEPS:
            written += next(turns)
        yield {"compress_us": spent_s * 1e6 / written}


def write_paced(address: str, tables: list[str], payload: int, batch: int, pause_s: float) -> Turns:
    """Batches with a pause after each: traffic that a server has time for."""
    with Client(address) as client:
        steps = noise(batch, payload)[:, None]
        rng = np.random.default_rng(0)
        yield {"address": address}
        while True:
            client.insert_batch({"x": steps}, dict.fromkeys(tables, rng.random(batch) + 0.1))
            time.sleep(pause_s)
            yield batch


def insert_everywhere(address: str, tables: list[str], payload: int, count: int) -> Turns:
    """`count` more items in each of the tables, which share their chunks."""
    with Client(address) as client:
        for start in range(0, count, EVERYWHERE_ITEMS):
            n = min(EVERYWHERE_ITEMS, count - start)
            client.insert_batch(
                {"x": noise(n, payload)[:, None]}, dict.fromkeys(tables, np.random.default_rng(start).random(n))
            )
        yield {}


def mutate(address: str, table: str, keys: int) -> Turns:
    """New priorities for so many keys a call, of items that stay."""
    rng = np.random.default_rng(0)
    with Client(address) as client:
        known = client.sample_batch(table, 64 * keys).info.key.reshape(64, keys)
        yield {"address": address}
        for row in itertools.cycle(known):
            client.mutate_priorities(table, updates=(row, rng.random(keys)))
            yield keys


def probe(address: str, table: str, calls: int, batch: int = 1) -> Turns:
    """Latency of a sample: percentiles of so many calls a turn."""
    with Client(address) as client:
        client.sample_batch(table, batch)
        yield {"address": address}
        while True:
            yield percentiles_ms(lambda: client.sample_batch(table, batch), calls)


def percentiles_ms(call: Callable[[], Any], calls: int) -> dict[str, float]:
    took_ms = np.empty(calls)
    for number in range(calls):
        started = time.perf_counter()
        call()
        took_ms[number] = (time.perf_counter() - started) * 1e3
    return {f"p{percent}": float(np.percentile(took_ms, percent)) for percent in (50, 99)}


def poll_info(address: str, pause_s: float) -> Turns:
    """What a dashboard does."""
    with Client(address) as client:
        yield {"address": address}
        while True:
            client.info()
            time.sleep(pause_s)
            yield 1


def scrape(address: str, http: str, pause_s: float) -> Turns:
    """What Prometheus does, more often."""
    yield {"address": address}
    while True:
        with urlopen(f"{http}/metrics") as answer:
            answer.read()
        time.sleep(pause_s)
        yield 1


def checkpoint(address: str) -> Turns:
    """One after the other."""
    with Client(address) as client:
        yield {"address": address}
        while True:
            client.checkpoint()
            yield 1


ROLES: dict[str, Any] = {
    "insert_batch": insert_batch,
    "write_batches": write_batches,
    "write_steps": write_steps,
    "write_vectors": write_vectors,
    "sample_dataset": sample_dataset,
    "sample_batch": sample_batch,
    "drain": drain,
    "drain_embedded": drain_embedded,
    "write_transitions": write_transitions,
    "write_sequences": write_sequences,
    "read_sequences": read_sequences,
    "write_frames": write_frames,
    "time_frames": time_frames,
    "write_paced": write_paced,
    "insert_everywhere": insert_everywhere,
    "mutate": mutate,
    "probe": probe,
    "poll_info": poll_info,
    "scrape": scrape,
    "checkpoint": checkpoint,
}

if __name__ == "__main__":
    main(ROLES)
