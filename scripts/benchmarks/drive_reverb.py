"""dm-reverb's roles: its server, and clients that do with it what ours do. Runs in its own environment."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import reverb

from benchmarks.worker import Turns, main

STEPS_A_TURN = 50
IN_FLIGHT = 100
AHEAD_BATCHES, AHEAD_BYTES = 32, 16 << 20
"""What a reader may draw ahead at most, as ours does by default; and two batches if that is less."""


def serve(tables: list[dict[str, Any]]) -> Turns:
    """A server of `tables`, which `_table` describes."""
    server = reverb.Server([_table(**table) for table in tables], port=None)
    yield {"address": f"localhost:{server.port}"}


def _table(name: str, max_size: int, sampler: str = "uniform") -> reverb.Table:
    selectors = reverb.selectors
    made = selectors.Prioritized(0.6) if sampler == "prioritized" else selectors.Uniform()
    return reverb.Table(name, made, selectors.Fifo(), max_size, reverb.rate_limiters.MinSize(1))


def noise(count: int, payload: int) -> Any:
    return np.frombuffer(np.random.default_rng().bytes(count * payload), np.float32).reshape(count, -1)


def write_steps(address: str, table: str, payload: int, fill: int = 0) -> Turns:
    """Its one way in: a trajectory writer, one step and one item at a time."""
    steps = itertools.cycle(noise(64, payload))
    client = reverb.Client(address)
    with client.trajectory_writer(1) as writer:

        def write(count: int) -> None:
            for number in range(count):
                writer.append({"x": next(steps)})
                writer.create_item(table, 0.5 + number % 64 / 64, {"x": writer.history["x"][-1:]})
            writer.flush(IN_FLIGHT)

        write(1)
        started = time.perf_counter()
        for start in range(0, fill, STEPS_A_TURN):
            write(min(STEPS_A_TURN, fill - start))
        writer.flush()
        yield {"fill_per_s": fill / (time.perf_counter() - started)}
        while True:
            write(STEPS_A_TURN)
            yield STEPS_A_TURN


def _batches(address: str, table: str, batch: int, columns: dict[str, tuple[Any, list[int]]]) -> Any:
    """An iterator of batches as its dataset gives them, drawn ahead as far as ours are and prefetched as it finds good
    itself."""
    import tensorflow as tf

    item_bytes = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in columns.values())
    ahead = max(min(AHEAD_BATCHES, AHEAD_BYTES // (batch * item_bytes)), 2)
    dataset = reverb.TrajectoryDataset(
        server_address=address,
        table=table,
        dtypes={name: tf.as_dtype(dtype) for name, (dtype, _) in columns.items()},
        shapes={name: tf.TensorShape(shape) for name, (_, shape) in columns.items()},
        max_in_flight_samples_per_worker=ahead * batch,
    )
    return iter(dataset.batch(batch).prefetch(tf.data.AUTOTUNE))


def sample_dataset(address: str, table: str, payload: int, batch: int) -> Turns:
    """Its tf.data path: stacked tensors, as numpy arrays."""
    batches = _batches(address, table, batch, {"x": (np.float32, [1, payload // 4])})
    next(batches)
    yield {}
    for drawn in batches:
        yield len(drawn.data["x"].numpy())


def sample_items(address: str, table: str, count: int) -> Turns:
    """Its Python client: items one by one."""
    client = reverb.Client(address)
    list(client.sample(table, 2, emit_timesteps=False))
    yield {}
    while True:
        yield sum(1 for _ in client.sample(table, count, emit_timesteps=False))


def write_transitions(address: str, table: str) -> Turns:
    """Five columns a step; each two steps that follow each other are an item."""
    observations = itertools.cycle(noise(64, 16))
    client = reverb.Client(address)
    with client.trajectory_writer(2) as writer:
        steps = 0
        yield {}
        while True:
            for _ in range(STEPS_A_TURN):
                writer.append(
                    {
                        "o": next(observations),
                        "a": np.int32(1),
                        "r": np.float32(1),
                        "d": np.float32(1),
                        "s": np.bool_(0),
                    }
                )
                steps += 1
                if steps > 1:
                    writer.create_item(table, 1.0, {name: column[-2:] for name, column in writer.history.items()})
            writer.flush(IN_FLIGHT)
            yield STEPS_A_TURN


def write_sequences(address: str, table: str, payload: int, steps: int, period: int, fill: int = 0) -> Turns:
    """An item of the last `steps` steps each `period` steps, so that items overlap."""
    observations = itertools.cycle(noise(64, payload))
    client = reverb.Client(address)
    with client.trajectory_writer(steps) as writer:
        written = 0

        def write(count: int) -> None:
            nonlocal written
            for _ in range(count * period):
                writer.append({"observation": next(observations), "action": np.int32(1), "reward": np.float32(1)})
                written += 1
                if written >= steps and written % period == 0:
                    writer.create_item(table, 1.0, {name: column[-steps:] for name, column in writer.history.items()})
            writer.flush(IN_FLIGHT)

        write(steps // period)
        for _ in range(fill):
            write(1)
        writer.flush()
        yield {}
        while True:
            write(1)
            yield period


def read_sequences(address: str, table: str, payload: int, batch: int, steps: int) -> Turns:
    """Batches of whole sequences; counts steps."""
    columns = {
        "observation": (np.float32, [steps, payload // 4]),
        "action": (np.int32, [steps]),
        "reward": (np.float32, [steps]),
    }
    batches = _batches(address, table, batch, columns)
    next(batches)
    yield {}
    for drawn in batches:
        yield len(drawn.data["observation"].numpy()) * steps


def write_frames(address: str, table: str, steps: int, frames: str, fill: int = 0) -> Turns:
    """An actor's steps with frames of a real game, an item of `steps` steps that overlaps no other, one chunk each."""
    observations = itertools.cycle(np.load(frames))
    client = reverb.Client(address)
    with client.trajectory_writer(steps) as writer:

        def write(count: int = 1) -> None:
            for _ in range(count):
                for _ in range(steps):
                    writer.append({"observation": next(observations), "action": np.int32(1), "reward": np.float32(0)})
                writer.create_item(table, 1.0, {name: column[-steps:] for name, column in writer.history.items()})
                writer.flush(IN_FLIGHT)

        writer.append({"observation": next(observations), "action": np.int32(1), "reward": np.float32(0)})
        for name in ("observation", "action", "reward"):
            writer.configure((name,), num_keep_alive_refs=steps, max_chunk_length=steps)
        writer.end_episode()
        write(1 + fill)
        writer.flush()
        yield {}
        while True:
            write()
            yield steps


def read_frames(address: str, table: str, batch: int, steps: int) -> Turns:
    """Batches of whole sequences of frames; counts steps."""
    columns = {
        "observation": (np.uint8, [steps, 84, 84]),
        "action": (np.int32, [steps]),
        "reward": (np.float32, [steps]),
    }
    batches = _batches(address, table, batch, columns)
    next(batches)
    yield {}
    for drawn in batches:
        yield len(drawn.data["observation"].numpy()) * steps


def mutate(address: str, table: str, keys: int) -> Turns:
    """New priorities for so many keys a call."""
    client = reverb.Client(address)
    known = [item.info.key for item in client.sample(table, 64 * keys, emit_timesteps=False)]
    rows = [known[start : start + keys] for start in range(0, len(known), keys)]
    values = np.random.default_rng(0).random(keys).tolist()
    yield {"address": address}
    for row in itertools.cycle(rows):
        client.mutate_priorities(table, dict(zip(row, values, strict=True)))
        yield keys


def write_paced(address: str, tables: list[str], payload: int, batch: int, pause_s: float) -> Turns:
    """Items with a pause after each few: traffic that a server has time for."""
    steps = itertools.cycle(noise(64, payload))
    client = reverb.Client(address)
    with client.trajectory_writer(1) as writer:
        yield {"address": address}
        while True:
            for _ in range(batch):
                writer.append({"x": next(steps)})
                for table in tables:
                    writer.create_item(table, 1.0, {"x": writer.history["x"][-1:]})
            writer.flush()
            time.sleep(pause_s)
            yield batch


def probe(address: str, table: str, calls: int) -> Turns:
    """Latency of a sample of one item: percentiles of so many calls a turn."""
    client = reverb.Client(address)
    yield {"address": address}
    while True:
        took_ms = np.empty(calls)
        for number in range(calls):
            started = time.perf_counter()
            list(client.sample(table, 1, emit_timesteps=False))
            took_ms[number] = (time.perf_counter() - started) * 1e3
        yield {f"p{percent}": float(np.percentile(took_ms, percent)) for percent in (50, 99)}


def poll_info(address: str, pause_s: float) -> Turns:
    """What a dashboard does."""
    client = reverb.Client(address)
    yield {"address": address}
    while True:
        client.server_info()
        time.sleep(pause_s)
        yield 1


ROLES: dict[str, Any] = {
    "serve": serve,
    "write_steps": write_steps,
    "sample_dataset": sample_dataset,
    "sample_items": sample_items,
    "write_transitions": write_transitions,
    "write_sequences": write_sequences,
    "read_sequences": read_sequences,
    "write_frames": write_frames,
    "read_frames": read_frames,
    "mutate": mutate,
    "write_paced": write_paced,
    "probe": probe,
    "poll_info": poll_info,
}

if __name__ == "__main__":
    main(ROLES)
