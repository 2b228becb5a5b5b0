"""What is no argument of a call is refused at the call, with a typed error, and nothing has changed then."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from replayd_client import (
    Client,
    PatternDataset,
    TimestepDataset,
    TrajectoryColumn,
    TrajectoryDataset,
    VectorItem,
    errors,
    structured,
)
from tests.daemon.harness import DaemonProcess

TABLES = {"t": "max_size = 100_000"}
NAN, INF = float("nan"), float("inf")
NO_TABLES: list[Any] = [3, None, b"t", ["t"], np.str_, 1.5, ("t",), "\ud800"]
NO_INTEGERS: list[Any] = [2.5, 2.0, NAN, "2", None, True, np.True_, [2], np.float64(2), 1j, np.arange(2)]
NO_COUNTS: list[Any] = [*NO_INTEGERS, 0, -1, np.int64(0)]
NO_TIMEOUTS: list[Any] = [-1, -0.5, NAN, -INF, "1", "own ", True, [1], 1j]
NO_FLAGS: list[Any] = ["yes", None, 1, 0, np.zeros(2, bool), []]
INTEGERS: list[Any] = [np.int64(2), np.uint8(2), np.array(2), 2]
REF = structured.create_reference_step({"x": None, "y": None})
PATTERN = {"x": REF["x"][-1]}


@pytest.fixture
def client(server: DaemonProcess) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def state(client: Client) -> Any:
    """Everything that a call might have changed."""
    (table,) = client.info()["tables"]
    return table["size"], table["limiter"]


CLIENT_CALLS: list[tuple[str, Callable[[Client, Any], Any], list[Any]]] = [
    # What is handed to the call, where, and what is none.
    ("sample table", lambda c, a: c.sample(a), NO_TABLES),
    ("sample num_samples", lambda c, a: c.sample("t", a), NO_COUNTS),
    ("sample timeout_ms", lambda c, a: c.sample("t", timeout_ms=a), NO_TIMEOUTS),
    ("sample emit_timesteps", lambda c, a: c.sample("t", emit_timesteps=a), NO_FLAGS),
    ("sample unpack", lambda c, a: c.sample("t", unpack_as_table_signature=a), NO_FLAGS),
    ("sample_batch table", lambda c, a: c.sample_batch(a, 1), NO_TABLES),
    ("sample_batch n", lambda c, a: c.sample_batch("t", a), NO_COUNTS),
    ("sample_batch min_n", lambda c, a: c.sample_batch("t", 9, a), [a for a in [*NO_COUNTS, 10] if a is not None]),
    ("sample_batch timeout_ms", lambda c, a: c.sample_batch("t", 1, timeout_ms=a), NO_TIMEOUTS),
    ("sample_batch ragged", lambda c, a: c.sample_batch("t", 1, ragged=a), ["", None, 1, ["pad"]]),
    ("dataset table", lambda c, a: c.dataset(a, 1), NO_TABLES),
    ("dataset batch_size", lambda c, a: c.dataset("t", a), NO_COUNTS),
    ("dataset min_batch_size", lambda c, a: c.dataset("t", 9, min_batch_size=a), [0, 10, 2.0, True, "2", NAN]),
    ("dataset prefetch_batches", lambda c, a: c.dataset("t", 1, prefetch_batches=a), [*NO_INTEGERS, -1]),
    ("dataset max_batches", lambda c, a: c.dataset("t", 1, max_batches=a), [0, -1, 2.0, True, "2", NAN]),
    ("dataset timeout_ms", lambda c, a: c.dataset("t", 1, timeout_ms=a), NO_TIMEOUTS),
    ("dataset ragged", lambda c, a: c.dataset("t", 1, ragged=a), ["", None, 1, ["pad"]]),
    ("insert table", lambda c, a: c.insert(1, {a: 1.0}), [3, None, b"t", 1.5, ("t",), "\ud800"]),
    ("insert priorities", lambda c, a: c.insert(1, a), ["t", 1.0, None, {}, ["t"]]),
    ("insert priority", lambda c, a: c.insert(1, {"t": a}), [NAN, -1.0, INF, "1.0", None, b"1", 1j, "min", 10**400]),
    ("insert timeout_ms", lambda c, a: c.insert(1, {"t": 1.0}, timeout_ms=a), NO_TIMEOUTS),
    ("insert codec", lambda c, a: c.insert(1, {"t": 1.0}, codec=a), ["", None, 1]),
    (
        "insert_batch priority",
        lambda c, a: c.insert_batch(np.zeros((2, 1)), {"t": a}),
        [[1.0, NAN], [1.0, "1.0"], ["1", "2"], [1.0], [[1.0], [1.0, 2.0]], np.array(["1", "2"]), [1.0, None]],
    ),
    ("insert_batch table", lambda c, a: c.insert_batch(np.zeros((2, 1)), {"t": 1.0, a: 1.0}), [3, None, b"t"]),
    ("mutate table", lambda c, a: c.mutate_priorities(a, {1: 1.0}), NO_TABLES),
    (
        "mutate updates",
        lambda c, a: c.mutate_priorities("t", a),
        [3, "ab", [1], {1.0: 1.0}, {True: 1.0}, {-1: 1.0}, {"1": 1.0}, {1: NAN}, {1: "1"}, {1: -1.0}],
    ),
    (
        "mutate deletes",
        lambda c, a: c.mutate_priorities("t", deletes=a),
        [3, "ab", [1.0], [True], [-1], [None], [[1], [1, 2]], {1}, np.zeros((0, 2)), [2**70]],
    ),
    ("mutate timeout_ms", lambda c, a: c.mutate_priorities("t", {1: 1.0}, timeout_ms=a), NO_TIMEOUTS),
    ("reset table", lambda c, a: c.reset(a), NO_TABLES),
    ("reset timeout_ms", lambda c, a: c.reset("t", timeout_ms=a), NO_TIMEOUTS),
    ("why table", lambda c, a: c.why(a), NO_TABLES),
    ("why timeout_ms", lambda c, a: c.why("t", timeout_ms=a), NO_TIMEOUTS),
    ("peek table", lambda c, a: c.peek(a, newest=1), NO_TABLES),
    ("peek table, no keys", lambda c, a: c.peek(a, keys=[]), NO_TABLES),
    ("peek newest", lambda c, a: c.peek("t", newest=a), NO_COUNTS),
    ("peek highest", lambda c, a: c.peek("t", highest=a), NO_COUNTS),
    ("peek keys", lambda c, a: c.peek("t", keys=a), [3, "ab", [1.0], [True], [-1], [[1], [1, 2]]]),
    ("set table", lambda c, a: c.set(a, max_size=5), NO_TABLES),
    ("set max_size", lambda c, a: c.set("t", max_size=a), [0, -1, 2.5, NAN, "5", [5], 2**70]),
    ("set when_full", lambda c, a: c.set("t", when_full=a), ["never", "", None, 1, True]),
    ("set priority_exponent", lambda c, a: c.set("t", priority_exponent=a), [1.0]),
    ("set paused_inserts", lambda c, a: c.set("t", paused_inserts=a), ["yes", None, []]),
    ("pause table", lambda c, a: c.pause(a), NO_TABLES),
    ("pause sides", lambda c, a: c.pause("t", a), ["both", 3, None, ["insert"]]),
    ("resume sides", lambda c, a: c.resume("t", a), ["both", 3, None, ["insert"]]),
    ("info timeout_ms", lambda c, a: c.info(timeout_ms=a), NO_TIMEOUTS),
    ("server_info timeout", lambda c, a: c.server_info(timeout=a), NO_TIMEOUTS),
    ("checkpoint timeout_ms", lambda c, a: c.checkpoint(timeout_ms=a), NO_TIMEOUTS),
    ("writer max_sequence_length", lambda c, a: c.writer(a), NO_COUNTS),
    ("writer chunk_length", lambda c, a: c.writer(5, a), [*NO_COUNTS, 6, "Auto"]),
    ("writer max_in_flight_items", lambda c, a: c.writer(5, 5, a), [a for a in NO_COUNTS if a is not None]),
    ("writer timeout_ms", lambda c, a: c.writer(5, timeout_ms=a), NO_TIMEOUTS),
    ("writer codec", lambda c, a: c.writer(5, codec=a), ["", None, 1]),
    ("trajectory_writer num_keep_alive_refs", lambda c, a: c.trajectory_writer(a), NO_COUNTS),
    ("trajectory_writer chunk_length", lambda c, a: c.trajectory_writer(5, chunk_length=a), [*NO_COUNTS, 6]),
    ("trajectory_writer validate_items", lambda c, a: c.trajectory_writer(5, validate_items=a), NO_FLAGS),
    ("structured_writer configs", lambda c, a: c.structured_writer(a), [3, None, "ab", [], [3], {}, [None]]),
    (
        "structured_writer chunk_length",
        lambda c, a: c.structured_writer([structured.create_config(PATTERN, "t")], chunk_length=a),
        [*NO_COUNTS, 2],
    ),
    ("batch_writer timeout_ms", lambda c, a: c.batch_writer(timeout_ms=a), NO_TIMEOUTS),
    ("vector_writer num_envs", lambda c, a: c.vector_writer(a, [VectorItem("t", 1)], observations=()), NO_COUNTS),
    ("vector_writer items", lambda c, a: c.vector_writer(2, a, observations=()), [3, None, [], ["t"], "ab", [None]]),
    (
        "vector_writer observations",
        lambda c, a: c.vector_writer(2, [VectorItem("t", 1)], observations=a),
        ["xy", 3, None, [3], [()], [None], [("x", 1.0)], [True], {"x": 1}],
    ),
    (
        "vector_writer chunk_length",
        lambda c, a: c.vector_writer(2, [VectorItem("t", 1)], observations=(), chunk_length=a),
        [*NO_COUNTS, 2**21],
    ),
    (
        "vector_writer autoreset_mode",
        lambda c, a: c.vector_writer(2, [VectorItem("t", 1)], observations=(), autoreset_mode=a),
        ["", None, 1],
    ),
]


@pytest.mark.parametrize(("call", "wrong"), [each[1:] for each in CLIENT_CALLS], ids=[each[0] for each in CLIENT_CALLS])
def test_a_wrong_argument_of_the_client_is_refused_before_anything_changes(
    client: Client, call: Callable[[Client, Any], Any], wrong: list[Any]
) -> None:
    client.insert(1, {"t": 1.0})
    before = state(client)
    for argument in wrong:
        # Not while it is iterated, and not as something that Python or a codec has stumbled upon.
        with pytest.raises((errors.DataError, errors.PriorityError)) as caught:
            call(client, argument)
        assert isinstance(caught.value, errors.ReplaydError)
        assert str(caught.value)
    assert state(client) == before


def test_what_is_of_another_kind_is_a_type_error_and_a_value_error_too(client: Client) -> None:
    with pytest.raises(errors.ArgumentTypeError) as caught:
        client.sample_batch("t", 2.5)  # type: ignore[arg-type]
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, errors.DataError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == "n must be an integer of at least 1, got 2.5"  # noqa: S301
    with pytest.raises(errors.DataError) as too_few:
        client.sample_batch("t", 0)
    assert not isinstance(too_few.value, TypeError)


@pytest.mark.parametrize("two", INTEGERS)
def test_numpys_integers_are_integers(client: Client, two: Any) -> None:
    client.reset("t")
    client.insert_batch(np.zeros((5, 1)), {"t": 1.0})
    assert len(client.sample_batch("t", two, two)) == 2
    assert len(list(client.sample("t", two, emit_timesteps=np.False_))) == 2
    assert len(client.peek("t", newest=two)) == 2
    with client.dataset("t", two, min_batch_size=two, prefetch_batches=two, max_batches=two) as dataset:
        assert [len(batch) for batch in dataset] == [2, 2]
    with client.writer(two, two, two) as writer:
        writer.append_sequence(np.arange(3))
        writer.create_item("t", two, np.float32(1.0))
    with client.trajectory_writer(two, chunk_length=two, validate_items=np.True_) as steps:
        steps.configure(("x",), num_keep_alive_refs=two, max_chunk_length=two)
        steps.append({"x": 1}, partial_step=np.False_)
        steps.append({"x": 2})
        history = steps.history["x"]
        assert history[np.int64(-1)].numpy() == 2
        assert history[-int(two) :].numpy().tolist() == [1, 2]
        steps.create_item("t", 1.0, {"x": TrajectoryColumn([*history[:]], squeeze=np.False_)})
        steps.flush(two)
        steps.end_episode(np.True_)
    with client.vector_writer(two, [VectorItem("t", two, two)], observations=(), chunk_length=two) as vector:
        vector.append(np.arange(2), np.zeros(2, bool))
    info = TrajectoryDataset(client.server_address, "t", max_samples=two, max_in_flight_samples_per_worker=two)
    assert len(list(info)) == 2


# Writers.


def test_a_call_that_is_refused_leaves_a_trajectory_writer_as_it_was(client: Client) -> None:
    with client.trajectory_writer(3, chunk_length=1) as writer:
        writer.append({"x": 1})
        pick = {"x": writer.history["x"][-1]}
        calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
            (lambda a: writer.create_item(a, 1.0, pick), NO_TABLES),
            (lambda a: writer.create_item("t", a, pick), [NAN, -1.0, "1.0", None, b"1", [1.0, 2.0], INF, 10**400]),
            (lambda a: writer.create_item("t", 1.0, a), [{}, None, 3, {"x": 1}, {"x": None}, writer.history]),
            (lambda a: writer.append({"x": 2}, partial_step=a), NO_FLAGS),
            (lambda a: writer.flush(a), [*NO_INTEGERS, 1.5, -1]),
            (lambda a: writer.flush(timeout_ms=a), NO_TIMEOUTS),
            (lambda a: writer.end_episode(a), NO_FLAGS),
            (lambda a: writer.end_episode(timeout_ms=a), NO_TIMEOUTS),
            (lambda a: writer.close(timeout_ms=a), NO_TIMEOUTS),
            (lambda a: writer.configure(("x",), num_keep_alive_refs=a, max_chunk_length=None), [*NO_COUNTS, 7.5]),
            (
                lambda a: writer.configure(("x",), num_keep_alive_refs=7, max_chunk_length=a),
                [8, 0, 2.5, True, "2", NAN],
            ),
        ]
        for call, wrong in calls:
            for argument in wrong:
                with pytest.raises((errors.DataError, errors.PriorityError)):
                    call(argument)
        assert (writer.episode_steps, writer.open_items, writer.closed) == (1, 0, False)
        handle = writer.create_item("t", 1.0, pick)
        with pytest.raises(errors.DataError):
            handle.wait(timeout_ms="1")  # type: ignore[arg-type]
        assert handle.wait() > 0
        with pytest.raises(errors.DataError):
            handle.wait(timeout_ms=-1)


def test_a_call_that_is_refused_leaves_the_other_writers_as_they_were(client: Client) -> None:
    config = structured.create_config(PATTERN, "t", [structured.Condition.is_end_episode()])
    with client.structured_writer([config]) as structured_writer, client.writer(3) as writer:
        structured_writer.append({"x": 1, "y": 1})
        writer.append(1)
        calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
            (lambda a: structured_writer.append({"x": 2, "y": 2}, partial_step=a), NO_FLAGS),
            (lambda a: structured_writer.flush(a), [*NO_INTEGERS, -1]),
            (lambda a: structured_writer.end_episode(a), NO_FLAGS),
            # The items of the episode's end would be made before anybody looks at the deadline.
            (lambda a: structured_writer.end_episode(timeout_ms=a), NO_TIMEOUTS),
            (lambda a: writer.create_item(a, 1, 1.0), NO_TABLES),
            (lambda a: writer.create_item("t", a, 1.0), [*NO_COUNTS, 2]),
            (lambda a: writer.create_item("t", 1, a), [NAN, -1.0, "1.0", None]),
            (lambda a: writer.flush(timeout_ms=a), NO_TIMEOUTS),
            (lambda a: writer.append_sequence(a), [1, np.zeros(0), {"x": np.zeros(2), "y": np.zeros(3)}]),
        ]
        for call, wrong in calls:
            for argument in wrong:
                with pytest.raises((errors.DataError, errors.PriorityError)):
                    call(argument)
        assert (structured_writer.open_items, writer.open_items) == (0, 0)
        size = client.server_info()["t"].current_size
        structured_writer.end_episode()
        assert client.server_info()["t"].current_size == size + 1


def test_ends_that_are_none_add_no_step_to_a_vector_writer(client: Client) -> None:
    with client.vector_writer(2, [VectorItem("t", 1)], observations=()) as writer:
        for ends in ([False], [0, 1], None, "no", [[True], [True, False]], False):
            with pytest.raises(errors.DataError, match=r"expected bool\[2\]"):
                writer.append(np.arange(2), ends)
        assert writer.open_items == 0


# Picks.


@pytest.fixture
def history(client: Client) -> Iterator[Any]:
    with client.trajectory_writer(5) as writer:
        for step in range(4):
            writer.append({"x": step})
        yield writer.history["x"]


@pytest.mark.parametrize("index", [-1.0, np.float64(-1), Fraction(-1), -1 + 0j, True, "0", None, [0.0], [True, False]])
def test_what_only_equals_an_index_is_none_whatever_was_picked_before(history: Any, index: Any) -> None:
    for _ in range(2):
        with pytest.raises(errors.ArgumentTypeError):
            history[index]
        assert history[-1].numpy() == 3
        assert history[np.array(-1)].numpy() == 3


@pytest.mark.parametrize("part", [-2.0, np.float64(-2), Fraction(-2), -2 + 0j, "2", [2]])
def test_parts_of_slices_are_integers_whatever_was_picked_before(history: Any, part: Any) -> None:
    for _ in range(2):
        for index in (slice(part, None), slice(-3, part), slice(part, -1), slice(-1, -4, part)):
            with pytest.raises(errors.ArgumentTypeError):
                history[index]
        assert history[-2:].numpy().tolist() == [2, 3]
        assert history[-3:-2].numpy().tolist() == [1]
        assert history[-2:-1].numpy().tolist() == [2]
        assert history[-1:-4:-2].numpy().tolist() == [3, 1]
    with pytest.raises(errors.DataError, match="cannot be 0"):
        history[::0]
    with pytest.raises(IndexError):
        history[4]


def test_a_column_is_made_of_cells_and_of_nothing_else(history: Any) -> None:
    for wrong in ([history[0]], "ab", [1], 5, None, b"ab", {"x": 1}, [history], [*history[:2], 1], history[0]._pick):
        with pytest.raises(errors.ArgumentTypeError, match="made of references to cells"):
            TrajectoryColumn(wrong)
    with pytest.raises(errors.ArgumentTypeError, match=r"TrajectoryColumn\(\[\*one, \*another\]\)"):
        TrajectoryColumn([history[0]])  # type: ignore[list-item]
    with pytest.raises(errors.ArgumentTypeError, match="squeeze"):
        TrajectoryColumn([*history[:1]], squeeze="yes")  # type: ignore[arg-type]
    assert TrajectoryColumn([*history[:2], *history[3:]]).numpy().tolist() == [0, 1, 3]


# Declarations.

DECLARATIONS: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
    ("VectorItem table", lambda a: VectorItem(a, 1), NO_TABLES),
    ("VectorItem window", lambda a: VectorItem("t", a), [*NO_COUNTS, 2**21]),
    ("VectorItem period", lambda a: VectorItem("t", 1, a), [*NO_COUNTS, 2**70]),
    ("VectorItem priority", lambda a: VectorItem("t", 1, priority=a), [NAN, -1.0, "1.0", None, [1.0, 2.0], b"1"]),
    ("VectorItem shorten", lambda a: VectorItem("t", 1, shorten=a), NO_FLAGS),
    ("VectorItem pattern", lambda a: VectorItem("t", 1, pattern=a), [3, {}, REF, {"x": None}]),
    ("config pattern", lambda a: structured.create_config(a, "t"), [3, {}, REF, None]),
    ("config table", lambda a: structured.create_config(PATTERN, a), [*NO_TABLES, ""]),
    (
        "config priority",
        lambda a: structured.create_config(PATTERN, "t", priority=a),
        [2.0, "max", lambda: 1.0, -1.0, structured.td_error, REF["x"], [1.0]],
    ),
    (
        "config conditions",
        lambda a: structured.create_config(PATTERN, "t", a),
        [3, None, "ab", [True], [structured.Condition.step_index()], structured.Condition.step_index() > 1],
    ),
    ("constant priority", structured.constant_priority_fn, [NAN, -1.0, INF, "1.0", None, b"1", 10**400]),
    (
        "td_error weight",
        lambda a: structured.td_error(a, {"x": None}, lambda step: step["x"]),
        [NAN, -0.1, 1.1, "0.9", None, True, 1j],
    ),
    ("td_error field", lambda a: structured.td_error(0.9, {"x": None}, a), [3, None, "x", lambda step: step]),
    ("pattern transform", lambda a: structured.pattern_from_transform({"x": None}, a), [3, None, "x"]),
    ("pattern index", lambda a: REF["x"][a], [-1.0, True, "1", None, 0, [-1], slice(-2.0, None), slice(None, -1)]),
    ("pattern slice", lambda a: REF["x"][-2:a], [-1.0, "1", [1], True, 1]),
    ("pattern step", lambda a: REF["x"][-2::a], [1.0, "1", [1], True, 0, -1]),
    ("modulus", lambda a: structured.Condition.step_index() % a, [0, -1, 2.0, "2", None, NAN]),
    ("comparison", lambda a: structured.Condition.step_index() >= a, [2.0, "2", None, NAN]),
    ("infer_signature configs", lambda a: structured.infer_signature(a, {"x": 1}), [3, None, [], [3], "ab"]),
    ("unpack_pattern", structured.unpack_pattern, [3, None, PATTERN]),
    ("dataset address", lambda a: TrajectoryDataset(a, "t"), [3, None, "", "localhost", "tcp://"]),
    ("dataset table", lambda a: TimestepDataset("localhost:1", a), NO_TABLES),
    ("dataset in flight", lambda a: TrajectoryDataset("localhost:1", "t", None, None, a), NO_COUNTS),
    ("dataset timeout", lambda a: TrajectoryDataset("localhost:1", "t", rate_limiter_timeout_ms=a), [-2, 1.5, True]),
    ("dataset max_samples", lambda a: TrajectoryDataset("localhost:1", "t", max_samples=a), [0, -2, 1.5, True, "1"]),
    ("pattern dataset steps", lambda a: PatternDataset(a, [CONFIG], True, bool), [3, None]),
    ("pattern dataset configs", lambda a: PatternDataset([], a, True, bool), [3, None, [], [3]]),
    ("pattern dataset boundaries", lambda a: PatternDataset([], [CONFIG], a, bool), NO_FLAGS),
    ("pattern dataset end", lambda a: PatternDataset([], [CONFIG], True, a), [3, None, "end", False]),
    ("address", Client, [3, None, "", "localhost", "localhost:0", "http://localhost:1"]),
]
CONFIG = structured.create_config(PATTERN, "t")


@pytest.mark.parametrize(("call", "wrong"), [each[1:] for each in DECLARATIONS], ids=[each[0] for each in DECLARATIONS])
def test_a_wrong_declaration_is_refused_where_it_is_made(call: Callable[[Any], Any], wrong: list[Any]) -> None:
    for argument in wrong:
        with pytest.raises((errors.DataError, errors.PriorityError)):
            call(argument)


def test_configs_may_come_from_a_generator(client: Client) -> None:
    with client.structured_writer(config for config in [CONFIG]) as writer:  # type: ignore[arg-type]
        writer.append({"x": 1, "y": 1})
        assert writer.open_items == 1


def test_columns_of_bools_are_compared_with_bools_of_numpy_too() -> None:
    done = structured.Condition.data({"done": None})["done"]
    assert (done == np.True_).holds(1)
    assert not (done == False).holds(1)  # noqa: E712
