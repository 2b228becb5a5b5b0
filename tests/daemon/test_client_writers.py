"""Writers against a real server: what was appended and picked is what comes out, and what does not fit is told."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import replayd
from replayd_client import TrajectoryColumn, errors, structured
from tests.daemon.embedded import fifo, size, uniform, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


# Writers.


def test_items_leave_by_themselves(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(5, chunk_length=1)
    writer.append(1)
    handle = writer.create_item("t", 1.0, writer.history[-1:])
    until(lambda: handle.done)
    assert handle.key is not None
    assert size(client, "t") == 1


def test_an_item_does_not_wait_for_its_chunk_to_fill(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(100)
    writer.append(1)
    handle = writer.create_item("t", 1.0, writer.history[-1:])
    until(lambda: handle.done)
    writer.append(2)
    writer.create_item("t", 1.0, writer.history[-2:])
    writer.close()
    assert [s.data[0].tolist() for s in client.sample("t", 1, emit_timesteps=False)] == [[1]]


def test_a_writer_that_is_dropped_still_delivers(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(100)
    writer.append(1)
    writer.create_item("t", 1.0, writer.history[-1:])
    del writer
    gc.collect()
    until(lambda: size(client, "t") == 1)


def test_every_kind_of_pick_comes_back_as_it_was(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    numbers = list(range(20))
    picks: list[Any] = [slice(None), slice(-5, None), slice(None, None, 3), slice(None, None, -1), [0, -1, 7, 7, 3], -2]
    with client.trajectory_writer(20, chunk_length=3) as writer:
        for number in numbers:
            writer.append({"n": number, "img": np.full((4, 4), number, np.uint8)})
        for pick in picks:
            writer.create_item("t", 1.0, {"n": writer.history["n"][pick], "img": writer.history["img"][pick]})
    for pick in picks:
        (sample,) = client.sample("t", 1, emit_timesteps=False)
        expected = np.array([numbers[i] for i in pick] if isinstance(pick, list) else numbers[pick])
        np.testing.assert_array_equal(sample.data[1], expected)
        assert np.array_equal(sample.data[0][..., 0, 0], expected)


def test_items_may_reach_over_episodes_if_buffers_are_kept(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(4) as writer:
        writer.append(1)
        writer.end_episode(clear_buffers=False)
        writer.append(2)
        assert writer.episode_steps == 1
        writer.create_item("t", 1.0, writer.history[:])
        writer.end_episode()
        assert len(writer.history) == 0
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == [1, 2]


def test_what_does_not_fit_a_table_is_refused_when_the_item_is_made(serve: Any, client_of: Any) -> None:
    signature = {"x": replayd.TensorSpec((2,), np.float32)}
    client = client_of(serve(uniform("t", signature=signature), uniform("free")))
    with client.trajectory_writer(4) as writer:
        for _ in range(3):
            writer.append({"x": np.float32(0), "y": 1})
        x, y = writer.history["x"], writer.history["y"]
        for wrong in ({"x": x[:]}, {"x": y[-2:]}, {"z": x[-2:]}, {"x": x[-2:], "y": y[-2:]}, {"x": x[-1]}):
            with pytest.raises(errors.SignatureError, match="table 't', column"):
                writer.create_item("t", 1.0, wrong)
        with pytest.raises(errors.UnknownTableError, match="'free', 't'"):
            writer.create_item("none", 1.0, {"x": x[:]})
        for priority in (float("nan"), float("inf"), -1.0):
            with pytest.raises(errors.PriorityError):
                writer.create_item("t", priority, {"x": x[-2:]})
        with pytest.raises(TypeError):
            writer.create_item("t", 1.0, {"x": 3})
        writer.create_item("t", 1.0, {"x": x[-2:]})
    assert size(client, "t") == 1


def test_what_the_server_refuses_is_told_by_the_next_call_and_the_writer_goes_on(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    writer = client.trajectory_writer(4, chunk_length=2, validate_items=False)
    for number in range(4):
        writer.append(number)
    lost = writer.create_item("nowhere", 1.0, writer.history[:])
    with pytest.raises(errors.UnknownTableError, match="refused 1 item"):
        writer.flush()
    assert isinstance(lost.error, errors.UnknownTableError)
    writer.create_item("t", 1.0, writer.history[:])
    writer.append(4)
    writer.create_item("t", 1.0, writer.history[-3:])
    writer.close()
    assert size(client, "t") == 2


@pytest.mark.parametrize("kind", ["writer", "trajectory_writer", "structured_writer"])
def test_a_closed_writer_says_so(serve: Any, client_of: Any, kind: str) -> None:
    client = client_of(serve(uniform("t")))
    one = structured.create_config(structured.create_reference_step(None)[-1:], "t")
    writer = getattr(client, kind)([one] if kind == "structured_writer" else 2)
    writer.append(1)
    assert not writer.closed
    writer.close()
    writer.close()
    assert writer.closed
    assert writer.report().steps <= 1
    for call in (lambda: writer.append(1), writer.flush, writer.end_episode, writer.__enter__):
        with pytest.raises(errors.ClosedError):
            call()


@pytest.mark.parametrize("kind", ["writer", "trajectory_writer"])
def test_closing_a_writer_tells_what_was_not_acknowledged(serve: Any, client_of: Any, kind: str) -> None:
    server = serve(replayd.Table.queue("t", 1))
    client = client_of(server)
    writer = getattr(client, kind)(1)
    for value in range(3):
        writer.append(value)
        if kind == "writer":
            writer.create_item("t", 1, 1.0)
        else:
            writer.create_item("t", 1.0, writer.history[-1:])
    with pytest.raises(errors.DeadlineExceededError, match="items? not acknowledged"):
        writer.close(timeout_ms=300)
    assert writer.closed
    writer.close()


def test_a_step_of_another_structure_is_none_of_a_writers(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.writer(4) as writer:
        writer.append_sequence({"a": np.arange(3), "b": np.zeros((3, 2))})
        for wrong in ({"a": 1}, {"a": 1, "b": np.zeros(2), "c": 1}, {"a": [1], "b": np.zeros(2)}, 1):
            with pytest.raises(errors.DataError):
                writer.append(wrong)
        for wrong in ({"a": np.arange(0), "b": np.zeros((0, 2))}, {"a": 1, "b": np.zeros((1, 2))}, {}):
            with pytest.raises(errors.DataError):
                writer.append_sequence(wrong)
        writer.append({"a": 3, "b": np.zeros(2)})
        writer.create_item("t", 4, 1.0)
        for steps in (0, 5):
            with pytest.raises(errors.DataError, match="num_timesteps"):
                writer.create_item("t", steps, 1.0)
        writer.flush()
        assert size(client, "t") == 1
        writer.end_episode()
        with pytest.raises(errors.DataError, match="num_timesteps"):
            writer.create_item("t", 1, 1.0)
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.writer(0),
        lambda client: client.writer(2, chunk_length=3),
        lambda client: client.writer(2, chunk_length=0),
        lambda client: client.writer(2, max_in_flight_items=0),
        lambda client: client.trajectory_writer(0),
        lambda client: client.sample("t", 0),
        lambda client: client.sample_batch("t", 0),
        lambda client: client.sample_batch("t", 2, min_n=3),
    ],
)
def test_numbers_that_make_no_sense_are_refused(serve: Any, client_of: Any, make: Any) -> None:
    client = client_of(serve(uniform("t")))
    with pytest.raises(ValueError):
        make(client)


# Handles, references, deadlines.


def test_a_handle_waits_for_its_key(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(100)
    keys = []
    for number in range(5):
        writer.append(number)
        handle = writer.create_item("t", 1.0, writer.history[-1:])
        assert handle.key is None
        keys.append(handle.wait())
        assert handle.done
        assert handle.wait() == handle.key == keys[-1]
    assert len(set(keys)) == 5
    assert [int(s.info.key) for s in client.sample("t", 1, emit_timesteps=False)] == keys[:1]
    writer.append(5, partial_step=True)
    waiting = writer.create_item("t", 1.0, writer.history[-1:])
    with pytest.raises(errors.DataError, match="still open"):
        waiting.wait()
    writer.close()
    assert waiting.wait() == waiting.key


def test_a_handle_of_an_item_that_a_full_table_holds_back_can_be_waited_for_again(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    writer = client.trajectory_writer(2)
    writer.append(0)
    handles = [writer.create_item("q", 1.0, writer.history[-1])]
    handles[0].wait()
    writer.append(1)
    handles.append(writer.create_item("q", 1.0, writer.history[-1]))
    with pytest.raises(errors.DeadlineExceededError, match="max_diff") as late:
        handles[1].wait(timeout_ms=50)
    assert late.value.detail["limiters"]["q"]["max_diff"] == 1
    assert late.value.detail["limiters"]["q"]["inserts"] == 1
    assert [int(s.data[0]) for s in client.sample("q", 2, emit_timesteps=False)] == [0, 1]
    assert handles[1].wait() == handles[0].wait() + 1
    writer.close()


def test_a_refused_item_tells_whoever_waits_for_it(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    writer = client.trajectory_writer(2, validate_items=False)
    writer.append(1)
    handle = writer.create_item("nowhere", 1.0, writer.history[-1:])
    with pytest.raises(errors.UnknownTableError):
        handle.wait()
    writer.close()


def test_appending_gives_references_that_make_a_trajectory(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(10) as writer:
        first = writer.append({"obs": np.zeros(2), "action": None}, partial_step=True)
        assert first["action"] is None
        steps = [writer.append({"obs": None, "action": 0})]
        for number in (1, 2):
            steps.append(writer.append({"obs": np.full(2, float(number)), "action": number}))
        column = TrajectoryColumn([steps[2]["obs"], first["obs"], steps[1]["obs"]])
        writer.create_item("t", 1.0, {"obs": column, "action": writer.history["action"][-1]})
        assert writer.episode_steps == 3
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[1][:, 0].tolist() == [2, 0, 1]
    assert sample.data[0] == 2


def test_a_writer_that_was_told_to_wait_no_longer_goes_on_afterwards(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    writer = client.writer(1, chunk_length=1, max_in_flight_items=1, timeout_ms=100)
    appended = 0
    with pytest.raises(errors.DeadlineExceededError) as late:
        for number in range(10):
            writer.append(number)
            appended += 1
            writer.create_item("q", 1, 1.0)
    assert late.value.detail["limiters"]["q"]["size"] == 1
    # The step of the call that failed was not added: it may be made again.
    seen = [int(s.data[0][0]) for s in client.sample("q", writer.open_items + 1, emit_timesteps=False)]
    assert seen == list(range(len(seen)))
    writer.append(appended)
    writer.create_item("q", 1, 1.0)
    assert [int(s.data[0][0]) for s in client.sample("q", 1, emit_timesteps=False)] == [appended]
    writer.close()


@pytest.mark.parametrize(
    ("refs", "length"), [(0, None), (3, 4), (3, 0), (1, 2)], ids=["no refs", "too long", "zero", "longer"]
)
def test_a_configuration_that_makes_no_sense_is_refused(serve: Any, client_of: Any, refs: int, length: Any) -> None:
    writer = client_of(serve(fifo("t"))).trajectory_writer(2)
    with pytest.raises(ValueError):
        writer.configure(("a",), num_keep_alive_refs=refs, max_chunk_length=length)


def test_a_configured_column_is_kept_as_long_as_it_asks_for(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(1) as writer:
        writer.configure(("later",), num_keep_alive_refs=4, max_chunk_length=2)
        for number in range(5):
            writer.append({"later": number, "x": -number})
        writer.create_item("t", 1.0, {"x": writer.history["x"][-4:]})
        writer.flush()
        assert writer.report().chunk_length == 2
    (sample,) = client.sample("t", 1, emit_timesteps=False)
    assert sample.data[0].tolist() == [-1, -2, -3, -4]


# Every entry point copies.


def test_reusing_a_buffer_is_safe_wherever_it_was_handed_in(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    buffer = np.zeros((3, 4))

    def seen(count: int) -> list[float]:
        return [float(np.max(s.data[0])) for s in client.sample("t", count, emit_timesteps=False)]

    with client.writer(2) as writer:
        for number in range(3):
            buffer[:] = number
            writer.append(buffer)
            writer.create_item("t", 1, 1.0)
        buffer[:] = -1
        writer.append_sequence(buffer[None])
        buffer[:] = 9
        writer.create_item("t", 1, 1.0)
    assert seen(4) == [0, 1, 2, -1]
    one = structured.create_reference_step(None)
    with client.structured_writer([structured.create_config(one[-1], "t")]) as writer:
        for number in range(3):
            buffer[:] = number
            writer.append(buffer)
        buffer[:] = 9
    assert seen(3) == [0, 1, 2]
    batch = np.zeros((2, 1, 3))
    client.insert(buffer, {"t": 1.0})
    client.insert_batch(batch, {"t": 1.0})
    buffer[:], batch[:] = 7, 7
    assert seen(3) == [9, 0, 0]


# The structured writer.


def test_configs_make_the_items_and_nothing_is_made_twice(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("pairs", max_times_sampled=1), fifo("last", max_times_sampled=1)))
    step = structured.create_reference_step({"obs": None, "action": None, "debug": None})
    configs = [
        structured.create_config({"obs": step["obs"][-2:], "action": step["action"][-2]}, "pairs"),
        structured.create_config(step["obs"][-1], "last", [structured.Condition.is_end_episode()]),
    ]
    obs = np.zeros(2, np.float32)
    with client.structured_writer(configs) as writer:
        for number in range(6):
            obs[:] = number
            writer.append({"obs": obs, "action": None, "debug": "not stored"}, partial_step=True)
            assert writer.step_is_open
            writer.append({"obs": None, "action": number, "debug": None})
            if number % 3 == 2:
                writer.end_episode()
        assert sorted(writer.report().columns) == ["action", "obs"]
    pairs = [sample.data for sample in client.sample("pairs", size(client, "pairs"), emit_timesteps=False)]
    assert [(int(action), obs[:, 0].tolist()) for action, obs in pairs] == [
        (number, [number, number + 1]) for number in (0, 1, 3, 4)
    ]
    last = [sample.data[0].tolist() for sample in client.sample("last", size(client, "last"), emit_timesteps=False)]
    assert last == [[2, 2], [5, 5]]


def test_an_item_that_fits_no_table_is_told_and_the_others_are_made(serve: Any, client_of: Any) -> None:
    client = client_of(serve(fifo("t")))
    one = structured.create_reference_step(None)
    writer = client.structured_writer([structured.create_config(one[-1], table) for table in ("none", "t")])
    for number in range(3):
        with pytest.raises(errors.UnknownTableError, match="'none'"):
            writer.append(number)
    writer.flush()
    assert size(client, "t") == 3
    writer.close()
    with pytest.raises(errors.ClosedError):
        writer.append(1)


def test_an_episode_whose_end_came_too_late_can_be_ended_again(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    one = structured.create_reference_step(None)
    ends = structured.create_config(one[-1], "q", [structured.Condition.is_end_episode()])
    with client.structured_writer([structured.create_config(one[-1], "q"), ends]) as writer:
        writer.append(1)
        writer.flush()
        writer.append(2)
        with pytest.raises(errors.DeadlineExceededError, match="max_diff"):
            writer.end_episode(timeout_ms=50)
        assert [int(s.data[0]) for s in client.sample("q", 3, emit_timesteps=False)] == [1, 2, 2]
        writer.end_episode()
        assert size(client, "q") == 0


@pytest.mark.parametrize(("configs", "error"), [([], ValueError), ([None], TypeError)])
def test_a_structured_writer_needs_configs(serve: Any, client_of: Any, configs: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        client_of(serve(fifo("t"))).structured_writer(configs)
