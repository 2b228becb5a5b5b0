"""Clients and writers that outlive their server: the next one on the port has tables with other selectors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb.timestep_dataset import TimestepDataset
from tests.daemon.embedded import until

Selector = Callable[[], Any]

HEAP: Selector = reverb.selectors.MaxHeap
PRIORITIZED: Selector = lambda: reverb.selectors.Prioritized(1.0)  # noqa: E731 - one word beside the other
BOTH_WAYS = pytest.mark.parametrize(("first", "then"), [(HEAP, PRIORITIZED), (PRIORITIZED, HEAP)])


def table(sampler: Selector, limiter: Any = None) -> reverb.Table:
    limiter = limiter or reverb.rate_limiters.MinSize(1)
    return reverb.Table("table", sampler(), reverb.selectors.Fifo(), 100, limiter)


class Place:
    """A port on which one server follows another."""

    def __init__(self) -> None:
        self.server: reverb.Server | None = None
        self.port: int | None = None

    def start(self, *tables: reverb.Table) -> reverb.Client:
        """The next server; a client that knows of no other one."""
        self.server = reverb.Server(tables, self.port)
        self.port = self.server.port
        return self.server.localhost_client()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.stop()


def priorities(client: reverb.Client, draws: int = 100) -> dict[int, float]:
    """Of the items that are drawn, by their first value."""
    drawn = client.sample("table", draws, emit_timesteps=False)
    return {int(np.ravel(sample.data[0])[0]): sample.info.priority for sample in drawn}


def begun(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@BOTH_WAYS
def test_a_client_inserts_updates_and_samples_as_the_server_there_is_keeps_them(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(table(first))
    old.insert(1, {"table": 3.0})
    assert priorities(old) == {1: 3.0}
    place.stop()
    new = place.start(table(then))
    old.insert(5, {"table": 5.0})
    assert priorities(old) == priorities(new) == {5: 5.0}
    [[step]] = new.sample("table")
    old.mutate_priorities("table", {step.info.key: 7.0})
    assert priorities(old) == priorities(new) == {5: 7.0}
    if then is HEAP:
        old.insert(6, {"table": -6.0})
        old.mutate_priorities("table", {step.info.key: -7.0})
        assert priorities(new) == {6: -6.0}
    else:
        with pytest.raises(ValueError, match="negative"):
            old.insert(6, {"table": -6.0})
        with pytest.raises(ValueError, match="negative"):
            old.mutate_priorities("table", {step.info.key: -7.0})


@BOTH_WAYS
def test_an_insert_into_a_table_that_came_with_the_next_server_keeps_all_its_priorities(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(table(first))
    old.insert(1, {"table": 1.0})
    place.stop()
    new = place.start(table(then), reverb.Table.queue("new", 5))
    old.insert(5, {"table": 5.0, "new": 6.0})
    assert priorities(new) == {5: 5.0}
    assert next(new.sample("new"))[0].info.priority == 6.0


def trajectory(client: reverb.Client) -> Callable[[int, float], None]:
    writer = client.trajectory_writer(2)

    def write(value: int, priority: float) -> None:
        writer.append([value])
        writer.create_item("table", priority, [writer.history[0][-1:]])
        writer.flush()

    return write


def unchecked(client: reverb.Client) -> Callable[[int, float], None]:
    writer = client.trajectory_writer(2, validate_items=False)

    def write(value: int, priority: float) -> None:
        writer.append([value])
        writer.create_item("table", priority, [writer.history[0][-1:]])
        writer.flush()

    return write


def legacy(client: reverb.Client) -> Callable[[int, float], None]:
    writer = client.writer(2)

    def write(value: int, priority: float) -> None:
        writer.append([value])
        writer.create_item("table", 1, priority)
        writer.flush()

    return write


def structured(client: reverb.Client) -> Callable[[int, float], None]:
    step = reverb.structured.create_reference_step([None, None])
    config = reverb.structured.create_config(
        [step[0][-1:]], "table", priority=reverb.structured.td_error(1.0, [None, None], lambda step: step[0])
    )
    writer = client.structured_writer([config])

    def write(value: int, priority: float) -> None:
        writer.append([np.float32(priority), None])
        writer.flush()

    return write


@BOTH_WAYS
def test_writers_that_live_on_write_as_the_server_there_is_keeps_priorities(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(table(first))
    writes = [kind(old) for kind in (trajectory, unchecked, legacy, structured)]
    for write in writes:
        write(1, 1.0)
    place.stop()
    new = place.start(table(then))
    for value, write in enumerate([write for write in writes for _ in range(2)], 10):
        write(value, float(value))
        assert priorities(new, 500)[value] == value
    assert new.server_info()["table"].current_size == 2 * len(writes)


@BOTH_WAYS
@pytest.mark.parametrize("was_sent", [False, True])
def test_items_that_a_server_left_unanswered_are_kept_by_the_next_as_they_were_given(
    place: Place, first: Selector, then: Selector, was_sent: bool
) -> None:
    held = reverb.rate_limiters.RateLimiter(1.0, 1, -100.0, 1.0)
    old = place.start(made := table(first, held))
    writer = old.trajectory_writer(1)
    writer.append([1])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])
    writer.flush()
    if not was_sent:
        place.stop()
    for value in range(2, 12):
        writer.append([value])
        writer.create_item("table", float(value), [writer.history[0][-1:]])
    if was_sent:
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=50)
        until(lambda: bool(made.internal_table.pending_inserts))
        place.stop()
    new = place.start(table(then))
    writer.append([12])
    writer.create_item("table", 12.0, [writer.history[0][-1:]])
    writer.flush()
    found = priorities(new, 500)
    assert found == ({12: 12.0} if then is HEAP else {value: float(value) for value in range(2, 13)})
    assert new.server_info()["table"].current_size == 11


def test_negative_ones_that_the_next_server_does_not_take_are_refused_and_not_changed(place: Place) -> None:
    old = place.start(table(HEAP))
    writer = old.trajectory_writer(1)
    writer.append([1])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])
    writer.flush()
    place.stop()
    writer.append([2])
    writer.create_item("table", -2.0, [writer.history[0][-1:]])
    new = place.start(table(PRIORITIZED))
    with pytest.raises((ValueError, RuntimeError), match="priorit"):
        writer.flush()
    assert new.server_info()["table"].current_size == 0
    writer.append([3])
    writer.create_item("table", 3.0, [writer.history[0][-1:]])
    writer.flush()
    assert priorities(new) == {3: 3.0}


@BOTH_WAYS
def test_an_insert_that_waits_enters_the_next_server_as_it_was_given(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(made := table(first, reverb.rate_limiters.RateLimiter(1.0, 1, -100.0, 1.0)))
    old.insert(1, {"table": 1.0})
    waiting = begun(lambda: old.insert(5, {"table": 5.0}))
    until(lambda: bool(made.internal_table.pending_inserts))
    place.stop()
    new = place.start(table(then))
    waiting.join(60)
    assert not waiting.is_alive()
    assert priorities(new) == {5: 5.0}


@BOTH_WAYS
def test_a_sample_that_waits_shows_the_priorities_of_the_next_server(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(made := table(first))
    drawn: list[Any] = []
    waiting = begun(lambda: drawn.extend(old.sample("table", emit_timesteps=False)))
    until(lambda: bool(made.internal_table.pending_samples))
    place.stop()
    place.start(table(then)).insert(5, {"table": 5.0})
    waiting.join(60)
    assert [sample.info.priority for sample in drawn] == [5.0]


@BOTH_WAYS
def test_a_dataset_that_goes_on_shows_the_priorities_of_the_next_server(
    place: Place, first: Selector, then: Selector
) -> None:
    old = place.start(made := table(first))
    dataset = TimestepDataset(old.server_address, "table", np.int64, (), max_in_flight_samples_per_worker=1)
    old.insert(1, {"table": 1.0})
    steps = iter(dataset)
    assert next(steps).info.priority.item() == 1.0
    old.reset("table")
    drawn: list[Any] = []
    waiting = begun(lambda: drawn.append(next(steps)))
    until(lambda: bool(made.internal_table.pending_samples))
    place.stop()
    place.start(table(then)).insert(5, {"table": 5.0})
    waiting.join(60)
    assert [step.info.priority.item() for step in drawn] == [5.0]
    with contextlib.suppress(AttributeError):
        steps.close()  # type: ignore[attr-defined]
