"""Objects that several threads share: a call works, or raises an error that has a type and a sentence, at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from replayd_client import Client, VectorItem, errors, structured
from tests.daemon.embedded import DEADLINE_S
from tests.daemon.harness import DaemonProcess

NAMES = ("writer", "trajectory", "structured", "vector", "batches", "dataset", "closing")
TABLES = dict.fromkeys(NAMES, 'max_size = 100000\nsampler = "fifo"')
THREADS, TURNS = 8, 25
WIDTH = 16


def together(*works: Callable[[], None]) -> list[BaseException]:
    """What these raise on threads of their own, which begin at the same moment and must end."""
    raised: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        gate.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a thread hangs"
    return raised


def step(thread: int, turn: int) -> dict[str, Any]:
    """Two columns which say the same, so that a step of parts of two would be noticed."""
    number = thread * TURNS + turn
    return {"number": np.full(WIDTH, number), "again": -np.full(WIDTH, number)}


def crowd(turn: Callable[[int, int], None]) -> list[BaseException]:
    def work(thread: int) -> Callable[[], None]:
        def turns() -> None:
            for number in range(TURNS):
                turn(thread, number)

        return turns

    return together(*(work(thread) for thread in range(THREADS)))


def check_whole(client: Client, table: str, appended: int) -> int:
    """Assert that all items of a table are of whole steps that were appended; how many items there were."""
    client.set(table, max_times_sampled=1)
    count = client.server_info()[table].current_size
    seen = []
    for sample in client.sample(table, count, emit_timesteps=False):
        again, number = sample.data
        assert (again == -number).all(), "a step is mixed from two"
        assert (number == number[:, :1]).all()
        seen += number[:, 0].tolist()
    assert set(seen) <= set(range(appended))
    return count


def test_a_trajectory_writer_of_several_threads_makes_whole_items(server: DaemonProcess) -> None:
    with Client(server.address) as client, client.trajectory_writer(THREADS + 1) as writer:

        def turn(thread: int, number: int) -> None:
            writer.append(step(thread, number))
            writer.create_item("trajectory", 1.0, {name: column[-1:] for name, column in writer.history.items()})

        raised = crowd(turn)
        # What another thread has pushed out of the history meanwhile is told as what it is.
        assert all(isinstance(error, errors.DataError) and "expired" in str(error) for error in raised), raised
        writer.flush()
        assert check_whole(client, "trajectory", THREADS * TURNS) >= THREADS * TURNS - len(raised) * TURNS


def test_a_writer_of_several_threads_makes_whole_items(server: DaemonProcess) -> None:
    with Client(server.address) as client, client.writer(2) as writer:

        def turn(thread: int, number: int) -> None:
            writer.append(step(thread, number))
            writer.create_item("writer", 1, 1.0)

        assert crowd(turn) == []
        writer.flush()
        assert check_whole(client, "writer", THREADS * TURNS) == THREADS * TURNS


def test_a_structured_writer_of_several_threads_makes_an_item_of_each_step(server: DaemonProcess) -> None:
    reference = structured.create_reference_step({"number": None, "again": None})
    pattern = {name: reference[name][-1:] for name in ("number", "again")}
    with Client(server.address) as client:
        with client.structured_writer([structured.create_config(pattern, "structured")]) as writer:
            assert crowd(lambda thread, number: writer.append(step(thread, number))) == []
        assert check_whole(client, "structured", THREADS * TURNS) == THREADS * TURNS


def test_a_batch_writer_of_several_threads_inserts_each_batch_once(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        with client.batch_writer() as writer:

            def turn(thread: int, number: int) -> None:
                one = step(thread, number)
                writer.insert({name: value[None, None] for name, value in one.items()}, {"batches": 1.0})

            assert crowd(turn) == []
        client.set("batches", max_times_sampled=1)
        drawn = client.sample_batch("batches", THREADS * TURNS).data
        assert sorted(drawn["number"][:, 0, 0].tolist()) == list(range(THREADS * TURNS))
        assert (drawn["again"] == -drawn["number"]).all()


def test_a_vector_writer_of_several_threads_takes_whole_rows(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        with client.vector_writer(2, [VectorItem("vector", window=1)], observations=()) as writer:

            def turn(thread: int, number: int) -> None:
                rows = {name: np.stack([value, value]) for name, value in step(thread, number).items()}
                writer.append(rows, ends=np.zeros(2, bool))

            assert crowd(turn) == []
        assert check_whole(client, "vector", THREADS * TURNS) == 2 * THREADS * TURNS


def test_a_dataset_of_several_threads_gives_each_batch_to_one(server: DaemonProcess) -> None:
    with Client(server.address) as client:
        keys = client.insert_batch(np.arange(THREADS * TURNS)[:, None], {"dataset": 1.0})
        client.set("dataset", max_times_sampled=1)
        got: list[int] = []
        with client.dataset("dataset", 1, max_batches=THREADS * TURNS) as dataset:

            def take_all() -> None:
                for batch in dataset:
                    got.extend(batch.info.key.tolist())

            assert together(*[take_all] * THREADS) == []
        assert sorted(got) == sorted(keys.tolist())


@pytest.mark.parametrize("what", ["client", "writer"])
def test_who_is_in_a_call_when_another_thread_closes_is_told_so(server: DaemonProcess, what: str) -> None:
    client = Client(server.address)
    writer = client.trajectory_writer(THREADS + 1)
    begun = threading.Event()

    def write() -> None:
        while True:
            writer.append(1.0)
            writer.create_item("closing", 1.0, writer.history[-1:])
            begun.set()

    def close() -> None:
        assert begun.wait(DEADLINE_S)
        (client if what == "client" else writer).close()

    raised = together(*[write] * THREADS, close)
    assert len(raised) == THREADS
    assert all(
        isinstance(error, errors.ClosedError) or (isinstance(error, errors.DataError) and "expired" in str(error))
        for error in raised
    ), raised
    assert any(isinstance(error, errors.ClosedError) for error in raised)
    client.close()
