"""Checkpoints as programs written for Reverb make them and come back to them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.compat import reverb
from replayd.store_files import DATA, is_store
from tests.daemon.compat import data, fifo, size
from tests.daemon.embedded import free_port
from tests.daemon.test_compat_server import environment

Start = Callable[..., reverb.Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(root, table, …)`: a server with its checkpoints in `root`, stopped at the end of the test."""
    servers: list[reverb.Server] = []

    def start(root: Path, *tables: reverb.Table, fallback: str | None = None, port: int | None = None) -> reverb.Server:
        checkpointer = reverb.checkpointers.DefaultCheckpointer(str(root), fallback_checkpoint_path=fallback)
        servers.append(reverb.Server(tables, port, checkpointer))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def replay(name: str = "replay", **settings: Any) -> reverb.Table:
    """As agents have it: with a ratio, drawn by priority."""
    return reverb.Table(
        name,
        sampler=settings.pop("sampler", None) or reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=settings.pop("max_size", 100),
        rate_limiter=settings.pop("rate_limiter", None) or reverb.rate_limiters.SampleToInsertRatio(2.0, 4, 1000.0),
        **settings,
    )


def contents(client: reverb.Client, table: str = "replay") -> dict[int, tuple[float, list[list[float]]]]:
    """Priority and columns by key, as far as many draws show them."""
    samples = client.sample(table, 200, emit_timesteps=False)
    return {each.info.key: (each.info.priority, [column.tolist() for column in each.data]) for each in samples}


def act(client: reverb.Client, first: int, steps: int) -> None:
    """As an actor does it: windows of two steps, from a trajectory writer."""
    with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        for step in range(first, first + steps + 1):
            writer.append({"observation": np.full(3, step, np.float32), "action": step})
            if step > first:
                window = {"o": writer.history["observation"][-2:], "a": writer.history["action"][-2:]}
                # Nearly equal: a few hundred draws by priority show them all.
                writer.create_item("replay", 1.0 + step / 1000, window)


def test_an_agent_goes_on_after_a_restart_where_its_last_checkpoint_was(start: Start, tmp_path: Path) -> None:
    signature = {"a": reverb.TensorSpec((2,), np.int64), "o": reverb.TensorSpec((2, 3), np.float32)}
    port, root = free_port(), tmp_path / "checkpoints"
    server = start(root, replay(signature=signature), port=port)
    client = reverb.Client(f"localhost:{port}")
    act(client, 0, 8)
    client.checkpoint()
    act(client, 100, 8)
    before = contents(client)
    client.mutate_priorities("replay", updates=dict.fromkeys(before, 7.0))
    path = client.checkpoint()
    samples = client.server_info()["replay"].rate_limiter_info.sample_stats.completed
    act(client, 200, 8)
    server.stop()

    table = replay(signature=signature)
    server = start(root, table, port=port)
    assert Path(path).parent == root
    after = contents(client)
    assert {key: columns for key, (_, columns) in after.items()} == {
        key: columns for key, (_, columns) in before.items()
    }
    assert {priority for priority, _ in after.values()} == {7.0}
    info = table.info
    assert (info.current_size, info.signature) == (16, signature)
    assert info.rate_limiter_info.insert_stats.completed == 16
    # What was asked for while the connection came back may have been drawn twice.
    assert samples + 200 <= info.rate_limiter_info.sample_stats.completed <= samples + 201
    act(client, 300, 4)
    client.mutate_priorities("replay", deletes=list(before))
    assert sorted(a for _, (a, _) in contents(client).values()) == [[n, n + 1] for n in range(300, 304)]
    assert client.checkpoint() == path, "the checkpoint takes the place of the one before"


def test_what_came_after_the_last_checkpoint_is_not_saved_by_stopping(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path, fifo("table"))
    client = server.localhost_client()
    client.insert(1, {"table": 1.0})
    client.checkpoint()
    client.insert(2, {"table": 1.0})
    server.stop()
    assert data(start(tmp_path, fifo("table")).localhost_client(), "table") == [[[1]]]


def test_a_server_without_a_checkpoint_begins_empty_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    for _ in range(2):
        server = start(tmp_path, fifo("table"))
        server.localhost_client().insert(1, {"table": 1.0})
        assert size(server.localhost_client(), "table") == 1
        server.stop()
    assert list(tmp_path.iterdir()) == []


def test_what_else_is_in_the_root_stays(start: Start, tmp_path: Path) -> None:
    (tmp_path / "zzz").write_text("mine")
    (tmp_path / "zz").mkdir()
    for _ in range(2):
        server = start(tmp_path, fifo("table"))
        path = server.localhost_client().checkpoint()
        server.stop()
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "zzz", tmp_path / "zz", Path(path)])


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_fallback_counts_only_where_there_is_no_checkpoint(start: Start, tmp_path: Path, is_empty: bool) -> None:
    first = start(tmp_path / "first", fifo("table")).localhost_client()
    first.insert(1, {"table": 1.0})
    saved = first.checkpoint()
    if not is_empty:
        other = start(tmp_path / "second", fifo("table"))
        other.localhost_client().insert(2, {"table": 1.0})
        other.localhost_client().checkpoint()
        other.stop()
    server = start(tmp_path / "second", fifo("table"), fallback=saved)
    client = server.localhost_client()
    assert data(client, "table") == [[[1]] if is_empty else [[2]]]
    assert Path(client.checkpoint()).parent == tmp_path / "second"
    assert size(first, "table") == 1, "the fallback is only read"


@pytest.mark.parametrize("fallback", ["none", "", "root"])
def test_a_fallback_that_is_no_checkpoint_is_none(start: Start, tmp_path: Path, fallback: str) -> None:
    if fallback == "root":
        start(tmp_path / "root", fifo("table")).localhost_client().checkpoint()
    server = start(tmp_path / "new", fifo("table"), fallback=str(tmp_path / fallback))
    assert size(server.localhost_client(), "table") == 0


def test_a_server_begins_with_the_checkpoint_of_one_that_still_runs(start: Start, tmp_path: Path) -> None:
    """As in a program that only forgets its old server."""
    old = start(tmp_path, fifo("table")).localhost_client()
    old.insert(1, {"table": 1.0})
    path = old.checkpoint()
    old.insert(2, {"table": 1.0})
    new = start(tmp_path, fifo("table"))
    client = new.localhost_client()
    assert size(client, "table") == 1
    client.insert(3, {"table": 1.0})
    other = client.checkpoint()
    assert Path(other).parent == tmp_path
    assert other != path
    new.stop()
    assert size(old, "table") == 2
    assert data(start(tmp_path, fifo("table")).localhost_client(), "table") == [[[1]], [[3]]]


def test_the_newest_checkpoint_counts_and_older_ones_go(start: Start, tmp_path: Path) -> None:
    old = start(tmp_path, fifo("table"))
    old.localhost_client().checkpoint()
    new = start(tmp_path, fifo("table"))
    new.localhost_client().insert(1, {"table": 1.0})
    outdated = new.localhost_client().checkpoint()
    new.stop()
    old.localhost_client().insert(2, {"table": 1.0})
    path = old.localhost_client().checkpoint()
    # File systems count time in steps.
    os.utime(Path(outdated) / DATA, (time.time() - 60,) * 2)
    old.stop()
    assert data(start(tmp_path, fifo("table")).localhost_client(), "table") == [[[2]]]
    assert list(tmp_path.iterdir()) == [Path(path)]


def test_settings_of_a_checkpoint_replace_those_of_the_constructor(start: Start, tmp_path: Path) -> None:
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 4, (-10.0, 50.0))
    saved = replay(
        max_size=7, rate_limiter=limiter, max_times_sampled=3, signature={"a": reverb.TensorSpec((1,), np.int64)}
    )
    server = start(tmp_path, saved)
    client = server.localhost_client()
    for n in range(9):
        client.insert({"a": n}, {"replay": 1.0 + n})
    client.checkpoint()
    server.stop()
    table = reverb.Table("replay", reverb.selectors.Fifo(), reverb.selectors.Lifo(), 3, reverb.rate_limiters.MinSize(1))
    more = fifo("more", signature=reverb.TensorSpec((None,), np.int64))
    client = start(tmp_path, table, more).localhost_client()
    for info in (table.info, client.server_info()["replay"]):
        assert info.current_size == 7
        assert (info.max_size, info.max_times_sampled) == (7, 3)
        assert info.sampler_options.prioritized.priority_exponent == 0.6
        assert info.remover_options.HasField("fifo")
        assert (info.rate_limiter_info.min_diff, info.rate_limiter_info.max_diff) == (-10.0, 50.0)
        assert info.signature is not None
        assert info.signature["a"].dtype == np.int64
    assert more.info.signature == reverb.TensorSpec((None,), np.int64)
    assert table.replace(name="other").info.max_size == 7
    with pytest.raises(ValueError, match="replay"):
        client.insert({"a": 1.0}, {"replay": 1.0})


def test_negative_priorities_come_back(start: Start, tmp_path: Path) -> None:
    def table() -> reverb.Table:
        return replay(sampler=reverb.selectors.MinHeap(), rate_limiter=reverb.rate_limiters.MinSize(1))

    server = start(tmp_path, table())
    for priority in (-2.5, 0.0, 3.0):
        server.localhost_client().insert(priority, {"replay": priority})
    server.localhost_client().checkpoint()
    server.stop()
    [[step]] = start(tmp_path, table()).localhost_client().sample("replay")
    assert (step.info.priority, step.data[0].item()) == (-2.5, -2.5)


def test_a_checkpoint_with_a_table_that_is_not_given_is_refused_and_kept(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path, fifo("one"), fifo("two"))
    server.localhost_client().checkpoint()
    server.stop()
    given = fifo("one")
    with pytest.raises(ValueError, match=r"'two'.*Available tables: \['one'\]"):
        start(tmp_path, given)
    start(tmp_path, given, fifo("two"), fifo("three"))


def test_a_group_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "root"), "group")
    with pytest.raises(ValueError, match="group"):
        reverb.Server([fifo("table")], checkpointer=checkpointer)
    assert not (tmp_path / "root").exists()


def test_where_no_checkpoint_can_be_a_server_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "file" / "root"))
    with pytest.raises(RuntimeError, match="file"):
        reverb.Server([fifo("table")], checkpointer=checkpointer)


def test_a_damaged_checkpoint_stops_a_server(start: Start, tmp_path: Path) -> None:
    server = start(tmp_path, fifo("table"))
    path = server.localhost_client().checkpoint()
    server.stop()
    (Path(path) / DATA).write_bytes(b"\xff" * 8192)
    with pytest.raises(RuntimeError, match="LMDB"):
        start(tmp_path, fifo("table"))


def test_a_store_of_a_plain_daemon_is_no_checkpoint_of_reverb(start: Start, tmp_path: Path) -> None:
    table = replayd.Table(
        "table", replayd.selectors.Fifo(), replayd.selectors.Fifo(), 9, replayd.rate_limiters.MinSize(1)
    )
    replayd.Server([table], data_dir=tmp_path / "store").stop()
    with pytest.raises(ValueError, match="daemon"):
        start(tmp_path, fifo("table"))


def test_a_server_without_a_checkpointer_writes_where_a_new_one_finds_it(start: Start) -> None:
    server = reverb.Server([fifo("table")])
    server.localhost_client().insert(1, {"table": 1.0})
    path = server.localhost_client().checkpoint()
    server.stop()
    client = start(Path(path.rsplit("/", 1)[0]), fifo("table")).localhost_client()
    assert data(client, "table") == [[[1]]]
    for name in os.listdir(path):
        (Path(path) / name).unlink()


def test_a_program_that_ends_leaves_no_directory_unless_it_made_a_checkpoint(tmp_path: Path) -> None:
    program = (
        "from replayd.compat import reverb\n"
        "saved, other = (reverb.Server([reverb.Table.queue('queue', 1)]) for _ in range(2))\n"
        "print(saved.localhost_client().checkpoint())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert is_store(path)
    assert list(tmp_path.iterdir()) == [path.parent]


def test_who_cannot_be_asked_for_a_checkpoint_says_so() -> None:
    with pytest.raises(RuntimeError):
        reverb.Client(f"localhost:{free_port()}").checkpoint()
    table = replayd.Table(
        "table", replayd.selectors.Fifo(), replayd.selectors.Fifo(), 9, replayd.rate_limiters.MinSize(1)
    )
    with replayd.Server([table]) as server, pytest.raises(ValueError):
        reverb.Client(f"localhost:{server.port}").checkpoint()
