"""What the client says when something goes wrong: the fault, where it is, and what became of the data."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

import replayd
from replayd import limits
from replayd_client import Client, array_messages, errors, structured, updates
from replayd_client.sender import Sender
from replayd_client.vector_items import VectorItem
from tests.daemon.embedded import DEADLINE_S, free_port, size, uniform, until
from tests.daemon.harness import Peer, environment

pytest_plugins = ["tests.daemon.embedded_fixtures"]


# Priorities.


def test_a_bad_priority_is_told_with_the_table_it_was_for(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("prio")))
    with pytest.raises(errors.PriorityError, match=r"table 'prio'.*-1\.0"):
        client.mutate_priorities("prio", {1: -1.0})


@pytest.mark.parametrize("wrong", [None, "2", 1j, [1.0]])
def test_what_is_no_number_is_no_priority(serve: Any, client_of: Any, wrong: Any) -> None:
    client = client_of(serve(uniform("prio")))
    for wrongs in ({1: wrong}, {1: 1.0, 2: wrong}, ([1, 2], [1.0, wrong])):
        with pytest.raises(errors.DataError, match="table 'prio'"):
            client.mutate_priorities("prio", wrongs)
    if wrong is None:
        with pytest.raises(errors.DataError, match="got None at position 1"):
            client.mutate_priorities("prio", {1: 1.0, 2: None})


@pytest.mark.parametrize("priorities", [[9.0], np.ones(2), [], np.ones((3, 1)), np.ones((1, 3))])
def test_priorities_of_another_number_than_the_keys_are_refused(serve: Any, client_of: Any, priorities: Any) -> None:
    client = client_of(serve(uniform("t")))
    keys = client.insert_batch(np.arange(3)[:, None], {"t": 1.0})
    with pytest.raises(errors.DataError, match="3 keys"):
        client.mutate_priorities("t", (keys, priorities))
    assert client.mutate_priorities("t", (keys, 9.0)).updated == 3
    assert client.mutate_priorities("t", (keys, np.float32(8.0))).updated == 3
    assert client.mutate_priorities("t", ([], [])).updated == 0


def test_an_update_takes_as_many_keys_as_the_server_allows(serve: Any, client_of: Any, zmq_context: Any) -> None:
    assert limits.UPDATES.value == updates.UPDATE_KEYS
    server = serve(uniform("t"))
    client, peer = client_of(server), Peer(zmq_context, server.address)

    def requests_of(keys: int) -> int:
        """Besides the peer's own."""
        before = peer.ask("info")["counters"]["requests"]
        missing = client.mutate_priorities("t", (np.arange(1, 1 + keys), 1.0)).missing
        assert len(missing) == keys
        return int(peer.ask("info")["counters"]["requests"] - before - 1)

    client.info()
    assert [requests_of(limits.UPDATES.value), requests_of(limits.UPDATES.value + 1)] == [1, 2]
    peer.close()


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1.1e90, 1e308])
def test_a_bad_priority_refuses_an_update_of_several_requests_whole(
    serve: Any, client_of: Any, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setattr(updates, "UPDATE_KEYS", 2)
    client = client_of(serve(uniform("t")))
    keys = client.insert_batch(np.arange(6)[:, None], {"t": 1.0})
    for form in (list, np.array):
        with pytest.raises(errors.PriorityError, match=r"table 't'.*at most 1e\+90"):
            client.mutate_priorities("t", (keys[1:], form([2.0, 2.0, 2.0, 2.0, bad])), keys[:1])
    assert [item.info.priority for item in client.peek("t", oldest=6)] == [1.0] * 6
    good = [0.0, 5e-324, 1.0, 2.0, 3.0, limits.PRIORITY_MAX]
    assert client.mutate_priorities("t", (keys, good)).updated == 6
    assert client.mutate_priorities("t", (keys, np.array(good)[::-1])).updated == 6
    assert [item.info.priority for item in client.peek("t", keys=keys)] == good[::-1]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1.1e90])
def test_a_bad_priority_is_refused_before_anything_is_inserted(serve: Any, client_of: Any, bad: float) -> None:
    assert array_messages.PRIORITY_MAX == limits.PRIORITY_MAX
    client = client_of(serve(uniform("t")))
    with pytest.raises(errors.PriorityError, match=r"at most 1e\+90"):
        client.insert_batch(np.arange(2)[:, None], {"t": [1.0, bad]})
    with client.writer(1) as writer:
        writer.append([1.0])
        with pytest.raises(errors.PriorityError, match=r"at most 1e\+90"):
            writer.create_item("t", 1, bad)
    assert size(client, "t") == 0


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_an_update_of_several_requests_means_what_a_single_one_would(data: st.DataObject) -> None:
    places = st.integers(0, 7)
    updated = data.draw(st.lists(st.tuples(places, st.sampled_from([1.0, 2.0, 3.0])), max_size=12))
    deleted = data.draw(st.lists(places, max_size=8))

    def outcome(table: str, most: int) -> Any:
        keys = client.insert_batch(np.arange(6)[:, None], {table: 9.0})
        named = [int(keys[0]) + place if place < 6 else (1 << 50) + place for place in range(8)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(updates, "UPDATE_KEYS", most)
            pairs = ([named[place] for place, _ in updated], [priority for _, priority in updated])
            result = client.mutate_priorities(table, pairs, [named[place] for place in deleted])
        left = [(item.info.key - int(keys[0]), item.info.priority) for item in client.peek(table, oldest=6)]
        missing = [named.index(key) for key in result.missing.tolist()]
        return result.updated, result.deleted, missing, sorted(left)

    with replayd.Server([uniform("one"), uniform("several")]) as server, Client(server.address) as client:
        assert outcome("several", 3) == outcome("one", 100)


# Deadlines.


@pytest.mark.parametrize("timeout_ms", [200, 20])
def test_a_first_insert_with_a_short_deadline_does_not_take_a_live_server_for_lost(serve: Any, timeout_ms: int) -> None:
    # In a process of its own, where nothing has been imported and no session been opened.
    code = (
        "import numpy as np\n"
        "from replayd_client import Client, errors\n"
        f"client = Client({serve(uniform('t')).address!r})\n"
        "batch = {'x': np.zeros((4, 1, 100_000), np.float32)}\n"
        "try:\n"
        f"    print(len(client.insert_batch(batch, {{'t': 1.0}}, timeout_ms={timeout_ms})))\n"
        "except errors.ReplaydError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    told = r"4|DeadlineExceededError (insert: 4 items not acknowledged after|hello: no answer from) .*"
    assert re.fullmatch(told, ended.stdout.strip()), ended.stdout


def test_a_session_that_comes_after_the_deadline_is_no_lost_one(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.info()
    sender = Sender(client._pool)
    try:
        sender.open(time.monotonic() - 1.0, "insert")
        with pytest.raises(errors.DeadlineExceededError):
            sender.wait(lambda: False, time.monotonic() - 1.0, "insert")
    finally:
        sender.close()


def test_who_waits_after_the_deadline_sees_what_there_is_all_the_same(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    sender = Sender(client._pool)
    carried: list[float] = []
    sender.carry = carried.append  # type: ignore[method-assign]
    try:
        sender.wait(lambda: bool(carried), time.monotonic() - 1.0, "insert")
    finally:
        sender.close()
    assert carried == [0.0]


# Servers.


def test_a_name_that_does_not_resolve_is_told_as_that() -> None:
    with Client("no-such-host.invalid:7077") as client:
        with pytest.raises(errors.ConnectionLostError, match=r"'no-such-host\.invalid' does not resolve") as caught:
            client.info(timeout_ms=100)
        assert caught.value.detail["address"] == "tcp://no-such-host.invalid:7077"


def test_a_port_where_nobody_listens_is_not_blamed_on_the_name() -> None:
    with (
        Client(f"localhost:{free_port()}") as client,
        pytest.raises(errors.ConnectionLostError, match="nothing accepts"),
    ):
        client.info(timeout_ms=100)


@pytest.mark.parametrize("kind", [zmq.PULL, zmq.PUB, zmq.PUSH])
def test_a_socket_of_another_kind_may_be_the_ingest_port(zmq_context: Any, kind: int) -> None:
    with zmq_context.socket(kind) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        with Client(f"127.0.0.1:{port}") as client:
            with pytest.raises(errors.ConnectionLostError, match=r"ROUTER.*ingest port") as caught:
                client.info(timeout_ms=100)
    assert "no replayd at" not in str(caught.value)


def test_a_sample_that_a_stopping_server_sends_away_is_told_with_table_and_address(serve: Any, client_of: Any) -> None:
    server = serve(uniform("replay"))
    client = client_of(server)
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(client.sample_batch, "replay", 1, timeout_ms=3000)
        until(lambda: bool(client.server_info()["replay"].waiting))
        server.stop()
        error = drawn.exception(DEADLINE_S)
    assert isinstance(error, errors.ShuttingDownError)
    assert error.code == "shutting_down"
    for word in ("table 'replay'", server.address, "the server is stopping"):
        assert word in str(error)
    assert server.address in error.detail["address"]


# Deadlines.


@pytest.mark.parametrize("wrong", ["5", -5, -0.1, float("nan"), True, [5]])
def test_a_deadline_that_is_none_is_refused_by_every_call(serve: Any, client_of: Any, wrong: Any) -> None:
    client = client_of(serve(uniform("t")))
    with client.trajectory_writer(2) as writer:
        calls = (
            lambda: client.insert(1, {"t": 1.0}, timeout_ms=wrong),
            lambda: client.sample_batch("t", 1, timeout_ms=wrong),
            lambda: list(client.sample("t", timeout_ms=wrong)),
            lambda: client.mutate_priorities("t", timeout_ms=wrong),
            lambda: client.info(timeout_ms=wrong),
            lambda: client.peek("t", newest=1, timeout_ms=wrong),
            lambda: client.writer(2, timeout_ms=wrong),
            lambda: writer.flush(timeout_ms=wrong),
            lambda: writer.end_episode(timeout_ms=wrong),
        )
        for call in calls:
            with pytest.raises(errors.DataError, match="timeout_ms must be"):
                call()
    assert client.info()["tables"][0]["size"] == 0


@pytest.mark.parametrize("timeout_ms", [np.float32(5000), np.int64(5000), 5000.0, None])
def test_any_number_is_a_deadline(serve: Any, client_of: Any, timeout_ms: Any) -> None:
    client = client_of(serve(uniform("t")))
    client.insert(1, {"t": 1.0}, timeout_ms=timeout_ms)
    assert len(client.sample_batch("t", 1, timeout_ms=timeout_ms)) == 1


def test_a_limit_is_told_apart_from_what_was_asked_for(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    with pytest.raises(errors.LimitExceededError, match="got 1000000, the limit `peeked` is 1024 "):
        client.peek("t", newest=1_000_000)


# Writers.


def writer_of_five(client: Client, kind: str, timeout_ms: float) -> Any:
    """A writer that has made five items of table q, of one step each."""
    writer: Any
    if kind == "structured_writer":
        config = structured.create_config(structured.create_reference_step(None)[-1:], "q")
        writer = client.structured_writer([config], timeout_ms=timeout_ms)
    elif kind == "vector_writer":
        writer = client.vector_writer(1, [VectorItem("q", 1)], observations=(), timeout_ms=timeout_ms)
    else:
        writer = getattr(client, kind)(1, timeout_ms=timeout_ms)
    for step in range(5):
        if kind == "vector_writer":
            writer.append(np.array([step]), np.zeros(1, bool))
            continue
        writer.append(step)
        if kind == "writer":
            writer.create_item("q", 1, 1.0)
        elif kind == "trajectory_writer":
            writer.create_item("q", 1.0, writer.history[-1:])
    return writer


@pytest.mark.parametrize("kind", ["writer", "trajectory_writer", "structured_writer", "vector_writer"])
def test_a_writer_waits_by_its_own_deadline_and_counts_what_is_left(serve: Any, client_of: Any, kind: str) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2)))
    writer = writer_of_five(client, kind, 50)
    end_episode = "end_episodes" if kind == "vector_writer" else "end_episode"
    # By the default of other calls these would take minutes.
    for call in ("flush", end_episode):
        with pytest.raises(
            errors.DeadlineExceededError, match=rf"^{call}: \d items not acknowledged after 0\."
        ) as caught:
            getattr(writer, call)()
        assert caught.value.detail["unacknowledged_items"] == writer.open_items
    client.sample_batch("q", 2)
    client.sample_batch("q", 2)
    writer.flush(timeout_ms=DEADLINE_S * 1000)
    assert writer.open_items == 0
    writer = writer_of_five(client, kind, 50)
    with pytest.raises(errors.DeadlineExceededError, match=r"^close: \d items not acknowledged after 0\."):
        writer.close()
    assert writer.closed


@pytest.mark.parametrize("kind", ["writer", "trajectory_writer", "structured_writer", "vector_writer"])
@pytest.mark.parametrize("timeout_ms", [0, 50])
def test_a_writer_that_closes_says_what_holds_its_items_back(
    serve: Any, client_of: Any, kind: str, timeout_ms: int
) -> None:
    client = client_of(serve(replayd.Table.queue("q", 2)))
    writer = writer_of_five(client, kind, 50)
    with pytest.raises(errors.DeadlineExceededError):
        writer.flush()
    with pytest.raises(errors.DeadlineExceededError, match=r"^close: .*max_diff.* may or may not arrive\.$") as caught:
        writer.close(timeout_ms=timeout_ms)
    assert caught.value.detail["limiters"]["q"]["max_diff"] == 2
    assert caught.value.detail["unacknowledged_items"] > 0


def test_a_handle_waits_by_the_deadline_of_its_writer(serve: Any, client_of: Any) -> None:
    client = client_of(serve(replayd.Table.queue("q", 1)))
    with client.trajectory_writer(1, timeout_ms=50) as writer:
        writer.append(1)
        handles = [writer.create_item("q", 1.0, writer.history[-1:]) for _ in range(2)]
        with pytest.raises(errors.DeadlineExceededError, match=r"wait: 2 items not acknowledged after 0\."):
            handles[1].wait()
        client.sample_batch("q", 1)
        assert handles[1].wait(DEADLINE_S * 1000) == handles[0].wait() + 1


def test_a_with_block_does_not_end_quietly_with_items_left(serve: Any, client_of: Any) -> None:
    server = serve(replayd.Table.queue("q", 2))
    client = client_of(server)

    def write_five() -> None:
        with client.trajectory_writer(1, timeout_ms=50, validate_items=False) as writer:
            for step in range(5):
                writer.append(step)
                writer.create_item("q", 1.0, writer.history[-1:])

    with pytest.raises(errors.DeadlineExceededError, match=r"^close: \d items not acknowledged.*max_diff"):
        write_five()
    server.stop()
    with pytest.raises(errors.ConnectionLostError, match="^close: 5 items not acknowledged: no replayd at") as caught:
        write_five()
    assert caught.value.detail["unacknowledged_items"] == 5


@pytest.mark.parametrize("refused", [1, 2])
def test_refusals_are_told_in_grammar(serve: Any, client_of: Any, refused: int) -> None:
    client = client_of(serve(uniform("t")))
    writer = client.trajectory_writer(1, validate_items=False)
    for step in range(refused):
        writer.append(step)
        writer.create_item("nowhere", 1.0, writer.history[-1:])
    with pytest.raises(errors.UnknownTableError, match="refused (1 item that was|2 items that were) created earlier"):
        writer.flush()


def test_a_list_that_became_a_nest_is_explained(serve: Any, client_of: Any) -> None:
    client = client_of(serve(uniform("t")))
    with client.trajectory_writer(2) as writer:
        writer.append({"obs": [0.1, 0.2]})
        with pytest.raises(TypeError, match=r"obs/0: .* not ColumnHistory; .*numpy\.array"):
            writer.create_item("t", 1.0, writer.history)
        with pytest.raises(TypeError, match="not float$"):
            writer.create_item("t", 1.0, {"obs": 1.0})
