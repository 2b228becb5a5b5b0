"""`why`, `peek`, `set` and `reset` as an operator types them: what they say, as text and as JSON, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from replayd import cli_store
from replayd.cli import main
from replayd.cli_info import _leases_text, _store_text
from replayd_client import Client
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import free_port
from tests.daemon.harness import DaemonProcess, Peer, run_replayd

TABLES = {"replay": ""}
QUEUE = ("--table", "q,preset=queue,max_size=2")
PER = ("--table", "per,sampler=prioritized,priority_exponent=0.5,max_size=100")


def asked(daemon: DaemonProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_replayd(*arguments, "--address", daemon.address)


def said(daemon: DaemonProcess, *arguments: str) -> str:
    ended = asked(daemon, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def said_json(daemon: DaemonProcess, *arguments: str) -> Any:
    return json.loads(said(daemon, *arguments, "--json"))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"last_error": "no space left"}, "the last one failed: no space left"),
        ({"inserts_wait": "70 MB wait for the disk"}, "inserts wait: 70 MB wait for the disk"),
        ({"journal": {"state": "broken", "last_error": "no space left"}}, "the journal is broken (no space left)"),
        ({"journal": {"state": "beginning", "last_error": "no space"}}, "the journal is beginning (no space)"),
    ],
)
def test_info_says_why_something_is_not_on_the_disk(told: dict[str, Any], words: str) -> None:
    store = {"path": "/var/lib/replayd", "size_bytes": 1 << 20}
    assert _store_text(store | told) == f"/var/lib/replayd, 1 MiB: no checkpoint yet; {words}"
    assert "journal" not in _store_text({**store, "journal": {"state": "whole"}})


def fill_queue(peer: Peer) -> None:
    """Two items in the queue of two, and a third that waits."""
    peer.insert("q")
    peer.insert("q")
    peer.send_insert("q")
    peer.ask("hello")


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_says_who_waits_on_what_and_what_must_happen(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*QUEUE)
    assert said(daemon, "why", "q").startswith("table 'q': flowing; nobody waits\n")
    fill_queue(connect(daemon))
    text = said(daemon, "why", "q")
    assert text.startswith("table 'q': inserts wait; 1 sample would set the first one free")
    assert "1 insert request (1 item, 1 peer), the oldest for " in text
    assert "may not pass max_diff 2; learners must sample" in text
    assert "2 of at most 2 items; cursor 2, min_diff 0, max_diff 2" in text
    found = said_json(daemon, "why", "q")
    assert (found["verdict"], found["size"], found["limiter"]["cursor"]) == ("inserts_wait", 2, 2.0)
    assert [side["needs_samples"] for side in found["waiting"]] == [1]


# --- peek -------------------------------------------------------------------------------------------------------------


def test_peek_shows_items_and_draws_none(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*PER)
    peer = connect(daemon)
    keys = [peer.insert("per", priority)["first_key"] for priority in (1.0, 3.0, 2.0)]
    heading, columns, *rows = said(daemon, "peek", "per", "--highest", "2").splitlines()
    assert heading == "per: 2 items"
    assert columns.split() == ["key", "priority", "sampled", "age", "data"]
    assert [row.split()[:3] for row in rows] == [[str(keys[1]), "3", "0"], [str(keys[2]), "2", "0"]]
    assert "x float32[1] = [1.0]" in rows[0]
    assert [item["key"] for item in said_json(daemon, "peek", "per")["items"]] == keys[::-1]
    assert [item["key"] for item in said_json(daemon, "peek", "per", "--oldest", "1")["items"]] == keys[:1]
    assert [item["key"] for item in said_json(daemon, "peek", "per", "--lowest", "1")["items"]] == keys[:1]
    found = said_json(daemon, "peek", "per", "--key", str(keys[0]), "--key", "999")
    [item] = found["items"]
    assert (item["key"], item["priority"], item["times_sampled"]) == (keys[0], 1.0, 0)
    assert item["data"] == {"x": {"dtype": "float32", "shape": [1], "values": [0.0]}}
    assert found["missing"] == [999]
    assert "not there: 999" in said(daemon, "peek", "per", "--key", "999")
    assert peer.ask("info")["tables"][0]["limiter"]["samples"] == 0


def test_peek_shows_bytes_and_text(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*PER)
    with Client(daemon.address) as client:
        client.insert({"t": "grüße", "b": np.array([b"\xff", b"a"])}, {"per": 1.0})
        client.insert({"t": "x" * 10_000, "b": np.array([b"", b""])}, {"per": 2.0})
    rows = said(daemon, "peek", "per", "--lowest", "2").splitlines()[2:]
    assert "b bytes[1, 2] = [[b'\\xff', b'a']], t str[1] = ['grüße']" in rows[0]
    assert rows[1].endswith("x…")
    assert len(rows[1]) < 400
    [item] = said_json(daemon, "peek", "per", "--lowest", "1")["items"]
    assert item["data"] == {
        "b": {"dtype": "bytes", "shape": [1, 2], "values": [["ff", "61"]]},
        "t": {"dtype": "str", "shape": [1], "values": ["grüße"]},
    }


def test_peek_takes_one_way_of_asking() -> None:
    assert run_replayd("peek", "t", "--newest", "1", "--key", "1").returncode == os.EX_USAGE
    assert run_replayd("peek", "t", "--newest", "1", "--oldest", "1").returncode == os.EX_USAGE
    assert run_replayd("peek", "t", "--newest", "0").returncode == os.EX_USAGE


# --- set and reset ----------------------------------------------------------------------------------------------------


def test_set_changes_shows_and_logs_settings(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*QUEUE)
    peer = connect(daemon)
    fill_queue(peer)
    lines = said(daemon, "set", "q", "max_diff=unlimited", "max_size=50", "paused_samples=yes").splitlines()
    assert lines[0] == "q"
    assert [line.split(maxsplit=1) for line in lines[1:]] == [
        ["max_size", "2 -> 50"],
        ["max_diff", "2 -> unlimited"],
        ["paused_samples", "no -> yes"],
    ]
    header, _ = peer.receive()
    assert header["items"] == 1, "what waited is in"
    settings = dict(line.split(maxsplit=1) for line in said(daemon, "set", "q").splitlines()[1:])
    assert settings == {
        "max_size": "50",
        "max_times_sampled": "1",
        "max_bytes": "unlimited",
        "when_full": "evict",
        "samples_per_insert": "1",
        "min_size_to_sample": "1",
        "min_diff": "0",
        "max_diff": "unlimited",
        "paused_inserts": "no",
        "paused_samples": "yes",
    }
    assert "it was so already" in said(daemon, "set", "q", "max_size=50")
    found = said_json(daemon, "set", "q", "min_diff=-2.5", "paused_samples=no")
    assert [found[when]["paused_samples"] for when in ("before", "after")] == [True, False]
    assert found["after"]["min_diff"] == -2.5
    assert "max_size 2 -> 50" in daemon.output()


def test_a_side_is_paused_and_resumed_and_the_other_stays_as_it_is(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUEUE)

    def paused(*command: str) -> list[bool]:
        after = said_json(daemon, *command)["after"]
        return [after["paused_inserts"], after["paused_samples"]]

    assert said(daemon, "pause", "q", "sample").splitlines()[1].split() == ["paused_samples", "no", "->", "yes"]
    assert paused("pause", "q", "insert") == [True, True]
    assert paused("resume", "q", "sample") == [True, False]
    assert "it was so already" in said(daemon, "resume", "q", "sample")
    assert paused("resume", "q") == [False, False]
    assert paused("pause", "q", "insert", "sample") == [True, True]
    assert asked(daemon, "pause", "q", "update").returncode == os.EX_USAGE


@pytest.mark.parametrize("pair", ["max_size", "=3", "max_size=many", "max_size=1=2"])
def test_a_change_that_is_none_is_a_usage_error(pair: str) -> None:
    ended = run_replayd("set", "t", pair)
    assert ended.returncode == os.EX_USAGE
    assert "Usage: " in ended.stderr


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("max_size=unlimited", "max_size is an integer of at least 1, not 'unlimited'"),
        ("max_times_sampled=unlimited", "max_times_sampled is an integer, 0 for any number of times"),
        ("samples_per_insert=unlimited", "samples_per_insert is a number above 0"),
        ("min_size_to_sample=many", "min_size_to_sample is an integer of at least 1, not 'many'"),
        ("priority_exponent=unlimited", "priority_exponent is a number of at least 0"),
        ("max_diff=many", "max_diff is a number or 'unlimited', not 'many'"),
        ("paused_inserts=both", "paused_inserts is yes or no, not 'both'"),
    ],
)
def test_a_value_that_cannot_be_is_told_what_can(pair: str, said: str) -> None:
    ended = CliRunner().invoke(main, ["set", "t", pair])
    assert ended.exit_code == os.EX_USAGE
    assert said in ended.stderr


def test_set_tells_what_left_and_what_the_limiter_still_holds(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*QUEUE)
    fill_queue(connect(daemon))
    assert "max_diff still holds inserts at 2: for all of max_size it must be 10" in said(
        daemon, "set", "q", "max_size=10"
    )
    told = said(daemon, "set", "q", "max_size=1")
    assert "  1 item left at once" in told
    assert "beyond max_size items leave undrawn" in told
    assert "1 item left at once" in daemon.output()
    assert said_json(daemon, "set", "q", "max_diff=1")["removed"] == 0


def test_why_tells_who_will_wait_next(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--table", "q,preset=queue,max_size=1", "--table", "t")
    assert "the next" not in said(daemon, "why", "t")
    assert "the next" not in said(daemon, "why", "q")
    with Client(daemon.address) as client:
        client.insert([1.0], {"q": 1.0})
    assert "flowing; nobody waits; the next insert will: the cursor 1 may not pass max_diff 1" in said(
        daemon, "why", "q"
    )


def test_a_setting_given_twice_is_a_usage_error() -> None:
    assert CliRunner().invoke(main, ["set", "t", "max_size=1", "max_size=2"]).exit_code == os.EX_USAGE


def test_refusals_are_told_and_change_nothing(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUEUE)
    before = said_json(daemon, "set", "q")["after"]
    for changes, word in (
        (["max_sise=3", "max_size=9"], "max_sise"),
        (["max_size=9", "samples_per_insert=0"], "samples_per_insert"),
        (["max_size=0"], "max_size"),
        (["priority_exponent=1"], "priority_exponent"),
        (["paused=1"], "paused"),
    ):
        ended = asked(daemon, "set", "q", *changes)
        assert ended.returncode == os.EX_USAGE
        assert word in ended.stderr
        assert ended.stdout == ""
    assert said_json(daemon, "set", "q")["after"] == before


def test_reset_empties_a_table(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*PER)
    peer = connect(daemon)
    peer.insert("per")
    assert said(daemon, "reset", "per") == "per: 1 item removed\n"
    assert said_json(daemon, "reset", "per") == {"removed": 0}
    peer.insert("per")
    assert [table["size"] for table in peer.ask("info")["tables"]] == [1]


def test_info_says_who_must_keep_less() -> None:
    text = _leases_text({"bytes": 512 << 20, "max_bytes": 512 << 20, "refused": 3})
    assert text.startswith(
        "writers keep 512 MiB for items to come, of 512 MiB that they may: 3 inserts refused for it; "
    )


def test_info_tells_of_paused_sides_and_bytes(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon(*PER)
    connect(daemon).insert("per")
    said(daemon, "pause", "per")
    text = said(daemon, "info")
    assert "1 of at most 100; 4 B of 1 episode" in text
    assert "paused   insert, sample" in text


# --- how they end -----------------------------------------------------------------------------------------------------

EACH = [["why", "t"], ["peek", "t"], ["set", "t", "max_size=3"], ["pause", "t"], ["resume", "t"], ["reset", "t"]]


@pytest.mark.parametrize("command", EACH, ids=lambda command: command[0])
def test_a_table_that_is_not_there_is_told(server: DaemonProcess, command: list[str]) -> None:
    ended = asked(server, *command)
    assert ended.returncode == os.EX_USAGE
    assert "there is no table 't'; there are: replay" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize("command", EACH, ids=lambda command: command[0])
def test_nobody_at_the_address_is_told(command: list[str]) -> None:
    ended = run_replayd(*command, "--timeout", "0.2", "--address", "tcp://127.0.0.1:9")
    assert ended.returncode == os.EX_UNAVAILABLE
    assert "tcp://127.0.0.1:9" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_checkpoint_does_not_wait_long_for_a_daemon_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only to write takes as long as `--timeout` allows."""
    monkeypatch.setattr(cli_store, "REACHED_S", 0.1)
    ended = CliRunner().invoke(main, ["checkpoint", "--address", f"tcp://127.0.0.1:{free_port()}"])
    assert ended.exit_code == os.EX_UNAVAILABLE
    assert "no replayd" in ended.stderr
