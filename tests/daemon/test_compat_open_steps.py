"""Steps that are appended in parts: what is shown and flushed while one of them is still open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replayd.compat import reverb
from tests.daemon.compat import data, fifo, size


@pytest.fixture(scope="module")
def client() -> Iterator[reverb.Client]:
    server = reverb.Server([fifo("table")])
    yield server.localhost_client()
    server.stop()


@pytest.fixture(autouse=True)
def _empty(client: reverb.Client) -> None:
    client.reset("table")


def flush(writer: Any) -> None:
    writer.flush()


def end_episode(writer: Any) -> None:
    writer.end_episode(clear_buffers=False)


def leave(writer: Any) -> None:
    with writer:
        pass


def test_a_policy_may_act_on_what_the_learner_made_of_the_open_step(client: reverb.Client) -> None:
    length = 3
    writer = client.trajectory_writer(length)
    for step in range(8):
        writer.append({"observation": step}, partial_step=True)
        if step >= length - 1:
            history = writer.history
            writer.create_item(
                "table", 1.0, {"o": history["observation"][-length:], "a": history["action"][-length:-1]}
            )
            writer.flush()
            ((actions, observations),) = data(client, "table")
            assert observations == list(range(step - length + 1, step + 1))
            assert actions == [10 * each for each in observations[:-1]]
        writer.append({"action": 10 * step})
        assert writer.episode_steps == step + 1
    writer.close()


@pytest.mark.parametrize("end", [flush, end_episode, leave])
def test_an_item_of_an_open_step_enters_its_table(client: reverb.Client, end: Callable[[Any], None]) -> None:
    writer = client.trajectory_writer(2)
    writer.append({"a": 1}, partial_step=True)
    writer.create_item("table", 1.0, writer.history["a"][:])
    end(writer)
    assert data(client, "table") == [[[1]]]
    writer.close()


def test_only_as_many_items_as_asked_for_are_left(client: reverb.Client) -> None:
    writer = client.trajectory_writer(2)
    writer.append({"a": 1}, partial_step=True)
    for _ in range(3):
        writer.create_item("table", 1.0, writer.history["a"][:])
    writer.flush(1)
    assert size(client, "table") >= 2
    writer.append({"b": 1})
    writer.flush()
    assert size(client, "table") == 3
    writer.close()


def test_a_field_of_an_open_step_that_was_flushed_must_not_come_again(client: reverb.Client) -> None:
    writer = client.trajectory_writer(2)
    writer.append({"a": 1}, partial_step=True)
    writer.create_item("table", 1.0, writer.history["a"][:])
    writer.flush()
    with pytest.raises(ValueError, match="has already been set in the active step"):
        writer.append({"a": 2})
    writer.append({})
    writer.append({"a": 2})
    assert writer.episode_steps == 2
    assert writer.history["a"][:].numpy().tolist() == [1, 2]
    writer.close()


def test_a_step_may_have_no_value_at_all(client: reverb.Client) -> None:
    with client.trajectory_writer(4) as writer:
        writer.append({"a": None})
        writer.append({"a": 1})
        writer.append({})
        writer.append({"a": None}, partial_step=True)
        writer.append({"a": 2})
        assert writer.episode_steps == 4
        assert [ref is not None for ref in writer.history["a"]] == [False, True, False, True]
        writer.create_item("table", 1.0, writer.history["a"][[1, 3]])
    assert data(client, "table") == [[[1, 2]]]


def test_a_pattern_that_shows_the_open_step_is_flushed(client: reverb.Client) -> None:
    step = reverb.structured.create_reference_step({"a": None, "b": None})
    writer = client.structured_writer([reverb.structured.create_config({"a": step["a"][-1:]}, "table")])
    writer.append({"a": 1, "b": None}, partial_step=True)
    writer.flush()
    assert data(client, "table") == [[[1]]]
    writer.append({"a": None, "b": 2})
    writer.flush()
    assert size(client, "table") == 0


NAMES = ("a", "b", "c")
PART = st.tuples(st.sets(st.sampled_from(NAMES)), st.booleans(), st.booleans())
"""Fields that come, whether an item shows what there is, whether it is flushed."""


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(PART, min_size=1, max_size=3), min_size=1, max_size=8), st.integers(1, 4))
def test_however_steps_are_cut_up_every_item_shows_what_it_was_made_of(
    client: reverb.Client, steps: list[list[Any]], keep: int
) -> None:
    writer = client.trajectory_writer(keep)
    expected: list[list[int]] = []
    rows: list[dict[str, int]] = []
    value = 0
    for parts in steps:
        rows.append({})
        for number, (names, shows, flushes) in enumerate(parts):
            part = {}
            for name in sorted(names - set(rows[-1])):
                value += 1
                part[name] = value
            rows[-1].update(part)
            writer.append(part, partial_step=number < len(parts) - 1)
            kept = rows[-keep:]
            shown = [name for name in NAMES if all(name in row for row in kept)]
            if shows and shown:
                trajectory = {name: writer.history[name][-len(kept) :] for name in shown}
                expected += [[row[name] for row in kept] for name in shown]
                for name, column in trajectory.items():
                    assert column.numpy().tolist() == [row[name] for row in kept]
                writer.create_item("table", 1.0, trajectory)
            if flushes:
                writer.flush()
        assert writer.episode_steps == len(rows)
    writer.end_episode()
    writer.close()
    assert [column for item in data(client, "table") for column in item] == expected


def test_no_more_steps_are_kept_than_cut_steps_need(client: reverb.Client) -> None:
    writer = client.trajectory_writer(3)
    for step in range(40):
        writer.append({"a": np.int64(step)}, partial_step=True)
        writer.create_item("table", 1.0, writer.history["a"][-1:])
        writer.flush()
        writer.append({"b": step})
    assert writer._writer._writer._core.log.keep_rows == 2 * 3
    writer.close()


def test_an_open_step_that_no_flush_waits_for_stays_one_row(client: reverb.Client) -> None:
    writer = client.trajectory_writer(3)
    for step in range(10):
        writer.append({"a": step}, partial_step=True)
        writer.create_item("table", 1.0, writer.history["a"][-1:])
        writer.flush(block_until_num_items=5)
        writer.append({"b": step})
        writer.flush()
    assert writer._writer._writer._core.log.keep_rows == 3
    writer.close()
