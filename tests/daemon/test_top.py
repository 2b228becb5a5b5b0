"""`replayd top`, as it looks in a terminal of its own and in a pipe."""

from __future__ import annotations

import io
import os
import re
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replayd.cli_top import Look, top
from replayd.messages import Sample
from replayd.rate_limiters import RateLimiter
from replayd.table import Table
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import DaemonProcess, run_replayd
from tests.daemon.terminal import SECONDS, Terminal
from tests.unit.writer import StreamWriter, fifo, service

BAND = "replay,max_size=10,limiter=rate_limiter,samples_per_insert=2,min_size_to_sample=2,min_diff=0,max_diff=8"


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Runs `replayd top` in a terminal, until the test ends."""
    with ExitStack() as started:
        yield lambda *arguments: started.enter_context(Terminal([sys.executable, "-m", "replayd", "top", *arguments]))


@pytest.fixture
def waiting(start_daemon: StartDaemon, connect: ConnectPeer) -> DaemonProcess:
    """A daemon with a table at which a sample waits, and one at which an insert does."""
    daemon = start_daemon("--table", BAND, "--table", "queue,preset=queue,max_size=2")
    peer = connect(daemon)
    for _ in range(4):
        peer.insert("replay")
    peer.ask("sample", table="replay", n=8, timeout_ms=1000)
    peer.send("sample", table="replay", n=3, timeout_ms=60_000)
    for _ in range(2):
        peer.insert("queue")
    peer.send_insert("queue")
    peer.ask("hello")
    return daemon


def test_in_a_pipe_it_says_once_how_it_is(waiting: DaemonProcess) -> None:
    ended = run_replayd("top", "--address", waiting.address)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    lines = ended.stdout.splitlines()
    assert re.match(rf"replayd \S+ at {waiting.address}, up .*s$", lines[0])
    assert re.match(r"memory \S+ MiB of \S+ GiB, about \S+ MiB when all tables are full$", lines[1])
    assert re.match(r"\d connections, 1 writer, 1 peer waiting; loop \d+% busy, slowest turn \S+ m?s$", lines[2])
    text = " ".join(ended.stdout.split())
    assert "samples wait" in text
    assert "the cursor 0 may not go below min_diff 0; writers must insert" in text
    assert "the cursor 2 may not pass max_diff 2; learners must sample" in text
    assert "40% 4 of 10, 1.203 KiB" in text
    assert all(len(line) <= 80 for line in lines)


def test_in_a_terminal_it_follows_what_happens_until_q(
    waiting: DaemonProcess, connect: ConnectPeer, terminal: Callable[..., Terminal]
) -> None:
    screen = terminal("--address", waiting.address, "--interval", "0.2")
    first = screen.read_until("learners must sample")
    assert "replay" in first
    connect(waiting).insert("replay")
    assert "5 of 10" in screen.read_until("5 of 10")
    screen.type("q")
    assert screen.process.wait(SECONDS) == 0
    assert termios.tcgetattr(screen.slave) == screen.before, "the terminal is as it was"


def test_it_waits_for_a_daemon_that_is_away(start_daemon: StartDaemon, terminal: Callable[..., Terminal]) -> None:
    daemon = start_daemon()
    port = daemon.address.rpartition(":")[2]
    screen = terminal("--address", daemon.address, "--interval", "0.2")
    screen.read_until("replay")
    daemon.stop()
    screen.read_until("nobody answers")
    again = start_daemon(
        "--listen", f"tcp://127.0.0.1:{port}", "--http", "off", "--ingest-port", "0", file_decides=True
    )
    assert again.address == daemon.address
    screen.read_until("connection")
    screen.type("q")
    assert screen.process.wait(SECONDS) == 0


def test_it_ends_quietly_on_control_c(daemon: DaemonProcess, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--address", daemon.address)
    screen.read_until("replay")
    os.killpg(screen.process.pid, 2)
    assert screen.process.wait(SECONDS) == 130
    assert termios.tcgetattr(screen.slave) == screen.before


def test_tables_that_do_not_fit_are_named(start_daemon: StartDaemon, terminal: Callable[..., Terminal]) -> None:
    names = [f"table-{i}" for i in range(9)]
    daemon = start_daemon(*(word for name in names for word in ("--table", name)))
    screen = terminal("--address", daemon.address, "--interval", "0.2")
    said = screen.read_until("more:")
    shown = [name for name in names if f"{name}  " in said]
    assert 3 <= len(shown) < 9
    screen.type("q")
    assert "table-8" in run_replayd("top", "table-8", "--address", daemon.address).stdout


def test_a_table_that_is_not_there_is_told(daemon: DaemonProcess) -> None:
    ended = run_replayd("top", "nowhere", "--address", daemon.address)
    assert ended.returncode == os.EX_USAGE
    assert ended.stderr == "replayd: there is no table 'nowhere'; there are: replay\n"


def test_nobody_at_the_address_is_told(tmp_path: Path) -> None:
    ended = run_replayd("top", "--address", f"ipc://{tmp_path}/nobody")
    assert ended.returncode == os.EX_UNAVAILABLE


def test_several_looks_tell_rates(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    peer = connect(daemon)
    peer.insert("replay")
    ended = run_replayd("top", "--frames", "3", "--interval", "0.1", "--address", daemon.address)
    assert ended.stdout.count("up ") == 3
    assert ended.stdout.count("inserts       0/s") == 3, "the first one too"


@pytest.mark.parametrize("frames", [(), ("--frames", "1")], ids=["in a pipe", "once"])
def test_who_looks_once_is_told_rates_too(
    daemon: DaemonProcess, connect: ConnectPeer, monkeypatch: pytest.MonkeyPatch, frames: tuple[str, ...]
) -> None:
    peer = connect(daemon)
    # Between its two looks, however long this machine takes for them, somebody inserts.
    monkeypatch.setattr("replayd.cli_top.time.sleep", lambda seconds: [peer.insert("replay") for _ in range(5)])
    ended = CliRunner().invoke(top, [*frames, "--address", daemon.address])
    assert ended.exit_code == 0, ended.output
    assert ended.output.count("up ") == 1
    (inserts,) = re.findall(r"inserts +(\S+)/s", ended.output)
    assert inserts not in ("–", "0")


def test_a_table_that_is_full_of_bytes_looks_full(daemon: DaemonProcess, connect: ConnectPeer) -> None:
    peer = connect(daemon)
    peer.ask("set", table="replay", changes={"max_bytes": 1280})
    for _ in range(9):
        peer.insert("replay")
    said = {command: run_replayd(command, "--address", daemon.address).stdout for command in ("top", "tables", "info")}
    (items,) = re.findall(r"items +(\d+) of at most", said["info"])
    assert int(items) < 9
    share = int(items) * 308 * 100 / 1280
    assert f"{share:.0f}% of max_bytes  {items} of " in said["top"]
    assert f"{share:.0f}% of max_bytes" in said["tables"]
    held = re.search(r"holds +(.+) of at most 1\.25 KiB \(max_bytes\); (\d+)% of max_bytes\n", said["info"])
    assert held
    assert int(held[2]) == round(share)
    assert f", of which {9 - int(items)} made room" in said["info"]
    peer.ask("set", table="replay", changes={"max_bytes": 1 << 40})
    assert re.search(r"\d+% of max_size  ", run_replayd("top", "--address", daemon.address).stdout)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [5, 24, 60])
def test_no_frame_is_larger_than_the_terminal(width: int, height: int) -> None:
    from rich.console import Console

    hostile = "[bold]\x1b[2Jna\nme" + "x" * 90
    s = service(*(fifo(f"t{i}") for i in range(7)))
    writer = StreamWriter()
    look = Look(())
    for second in range(30):
        s.handle("peer", "insert", writer.insert([b"x"], [(second, 1)], table="t0"), float(second))
        report = s.report(float(second))
        report["tables"][0]["name"] = hostile
        look.see(report, "tcp://somewhere:1" * 5)
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(look.drawn(width, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "\x1b" not in captured.get()


def frame(look: Look, width: int, height: int) -> list[str]:
    from rich.console import Console

    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(look.drawn(width, height))
    return captured.get().splitlines()


def watched(*tables: Table) -> Look:
    """Somebody wrote, drew and learned at these tables for half a minute, and much happened before."""
    s = service(*tables)
    look = Look(())
    # Numbers as long as they get, beside what can be had here.
    busy = {"inserts": 123_456_789_012, "samples": 987_654_321_098, "cursor": -1_234_567.8}
    bounds = {"min_diff": -1e6, "max_diff": 1e7, "min_size_to_sample": 1_000_000}
    writers = {table.name: StreamWriter(bytes([at]) * 16) for at, table in enumerate(tables)}
    for second in range(30):
        now = float(second)
        for at, (name, writer) in enumerate(writers.items()):
            told = writer.insert([b"x"], [(second, 1)], table=name, policy_version=120_000 + second)
            s.handle(f"peer-{at}", "insert", told, now)
            s.handle(f"peer-{at}", "sample", Sample(second, name, 4, 4, 60.0), now)
            if second == 29:
                s.handle("another", "sample", Sample(second, name, 60, 60, 60.0), now - 0.5)
        s.drain()
        report = s.report(now)
        report["uptime_s"] = 86_400.0 * 99 + now
        report["server"] = "replayd 10.20.30"
        report["memory"] |= {"resident_bytes": (1 << 40) - (1 << 30), "limit_bytes": (1 << 40) + (1 << 33)}
        report["memory"] |= {"bytes_when_full": (1 << 41) - (1 << 30), "held_bytes": 1 << 39, "max_bytes": 1 << 40}
        report["peers"] |= {"connected": 1023, "waiting": 1001}
        report["streams"] |= {"open": 1000}
        report["loop"]["slowest_turn_s"] = 3659.0
        for table in report["tables"]:
            table["limiter"] |= {key: n + now for key, n in busy.items()} | bounds
            table["held_bytes"], table["max_bytes"] = (1 << 39) + 12345, 1 << 40
        look.see(report, "tcp://learner-with-a-long-name.lab.example:17077")
    return look


def band() -> RateLimiter:
    return RateLimiter(samples_per_insert=4.0, min_size_to_sample=1, min_diff=0.0, max_diff=100.0)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_all_that_counts_of_two_busy_tables_fits_and_no_word_is_cut(width: int, height: int) -> None:
    look = watched(fifo("replay", rate_limiter=band()), fifo("rollouts-of-the-day-1234", rate_limiter=band()))
    lines = frame(look, width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    told = " ".join(" ".join(lines).split())
    assert "…" not in told
    for words in (
        "replayd 10.20.30 at tcp://learner-with-a-long-name.lab.example:17077, up 99 d 0 h",
        "memory 1023 GiB of 1.008 TiB, about 1.999 TiB when all tables are full",
        "tables hold 512 GiB of 1 TiB (max_bytes)",
        "50% of max_bytes 30 of 1000, 512 GiB of 1 TiB",
        "1023 connections, 1000 writers, 1001 peers waiting; loop 0% busy, slowest turn 1 h 0 min",
        "-1M ",
        "10M cursor -1.23M samples begin at 1M",
        "samples wait",
        "may not go below min_diff 0; writers must insert",
        "rollouts-of-the-day-1234 ",
        "drawn at age ≤ 30 s (half), ≤ 30 s (90%); items 4 times, 97% never; policy 120029, draws 18.0 behind",
    ):
        assert words in told, (words, lines)


CHECKPOINT = {"generation": 3, "age_s": 725.0, "duration_s": 2.0, "held_ms": 5.0, "items": 9, "chunks": 9, "bytes": 900}
RUNNING = {"phase": "chunks", "chunks": 12, "chunks_total": 48, "bytes": 1, "elapsed_s": 75.0}


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ({"checkpoint_age_s": 4.0}, "no checkpoint yet"),
        ({"checkpoint_age_s": 725.0, "durable_age_s": 725.0, "last": CHECKPOINT}, "durable as it was 12 min 5 s ago"),
        (
            {"checkpoint_age_s": 725.0, "durable_age_s": 0.25, "last": CHECKPOINT, "journal": {}},
            "durable as it was 250 ms ago; the last checkpoint is of 12 min 5 s ago",
        ),
        (
            {"checkpoint_age_s": 4.0, "durable_age_s": 0.25, "journal": {}},
            "durable as it was 250 ms ago; without a checkpoint since the start, 4.0 s ago",
        ),
        (
            {"checkpoint_age_s": 4.0, "running": RUNNING, "last_error": "no space left"},
            "checkpoint: chunks, 12 of 48 chunks, since 1 min 15 s",
        ),
        (
            {"checkpoint_age_s": 4.0, "running": {**RUNNING, "phase": "preparing", "chunks_total": 0}},
            "checkpoint: preparing, since 1 min 15 s",
        ),
        (
            {"checkpoint_age_s": 725.0, "last": CHECKPOINT, "running": RUNNING, "journal": {}},
            "checkpoint: chunks, 12 of 48 chunks, since 1 min 15 s; the last checkpoint is of 12 min 5 s ago",
        ),
        (
            {"checkpoint_age_s": 725.0, "last": CHECKPOINT, "last_error": "no [bold] space\x1b left", "journal": {}},
            "the last checkpoint failed: no [bold] space? left; the last checkpoint is of 12 min 5 s ago",
        ),
        ({"checkpoint_age_s": 4.0, "last_error": "no space left"}, "the last checkpoint failed: no space left"),
    ],
)
def test_what_is_durable_and_how_the_checkpoints_are(store: dict[str, Any], told: str) -> None:
    look = Look(())
    look.see({**service(fifo()).report(0.0), "store": store}, "")
    assert frame(look, 120, 40)[3] == told


def test_inserts_that_wait_for_the_disk_are_told() -> None:
    look = Look(())
    store = {"checkpoint_age_s": 4.0, "running": RUNNING, "inserts_wait": "70 MB [bold] wait for the disk"}
    look.see({**service(fifo()).report(0.0), "store": store}, "")
    assert frame(look, 120, 40)[4] == "inserts wait: 70 MB [bold] wait for the disk"


def test_without_a_store_nothing_is_said_of_checkpoints() -> None:
    look = Look(())
    look.see(service(fifo()).report(0.0), "")
    told = " ".join(frame(look, 120, 40))
    assert "durable" not in told
    assert "checkpoint" not in told


def test_ages_and_lags_are_those_of_the_last_looks() -> None:
    s, writer, look = service(fifo()), StreamWriter(), Look(())
    s.handle("peer", "insert", writer.insert([b"x"], [(0, 1)], policy_version=1), 0.0)
    for request in range(50):
        s.handle("peer", "sample", Sample(request, "t", 1, 1, 60.0), 0.0)
    look.see(s.report(0.0), "")
    assert "drawn at age ≤ 10 ms (half), ≤ 10 ms (90%); items" in " ".join(frame(look, 200, 40))
    s.handle("peer", "insert", writer.insert([b"x"], [(1, 1)], policy_version=4), 1.0)
    s.handle("peer", "sample", Sample(51, "t", 1, 1, 60.0), 100_000.0)
    look.see(s.report(100_000.0), "")
    told = " ".join(frame(look, 200, 40))
    assert "drawn at age > 1 d (half), > 1 d (90%); items" in told
    assert "policy 4, draws 3.0 behind" in told


def test_a_reset_makes_no_negative_rate() -> None:
    s = service(fifo())
    look = Look(())
    s.handle("peer", "insert", StreamWriter().insert([b"x"], [(0, 1)]), 0.0)
    look.see(s.report(1.0), "")
    s.tables["t"].reset()
    look.see(s.report(2.0), "")
    assert list(look._rates["t"]["inserts"]) == [0.0]
