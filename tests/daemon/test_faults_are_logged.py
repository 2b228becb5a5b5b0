"""What a daemon says of faults that no reply can tell of: pushed messages and extensions, a few lines for thousands."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.embedded import fifo, until

pytest_plugins = ["tests.daemon.embedded_fixtures"]


def test_each_refused_push_is_counted_in_the_log_of_a_daemon_that_ends(
    start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    daemon = start_daemon("--table", "replay")
    peer = connect(daemon)
    for _ in range(40):
        peer.send_insert("nowhere", push=True)

    def refused() -> int:
        counters: dict[str, int] = peer.ask("info")["counters"]
        return counters["pushes_refused"]

    until(lambda: refused() == 40)
    said = [line for line in daemon.stop().stderr.splitlines() if "refused a pushed message: unknown_table: " in line]
    assert "there is no table 'nowhere'; there are: replay" in said[0]
    assert len(said) >= 2
    assert sum(map(count, said)) == 40


def test_a_flood_of_garbage_holds_nobody_up_and_fills_no_log(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--table", "replay")
    flood, other = connect(daemon), connect(daemon)
    sent = 0
    answers: list[str] = []

    def read() -> None:
        while flood.dealer.poll(0):
            answers.append(flood.receive()[0]["error"]["code"])

    def floods() -> bool:
        nonlocal sent
        for _ in range(1500):
            flood.dealer.send(b"\xff\x00nonsense")
            sent += 1
            read()
        # Others are served between.
        assert other.insert("replay")["items"] == 1
        return "floods the server with what cannot be read" in daemon.output()

    def all_are_answered() -> bool:
        read()
        counters = other.ask("info")["counters"]
        assert counters["unreadable"] <= sent
        dropped: int = counters["replies_dropped"]
        return len(answers) + dropped == sent

    until(floods)
    until(all_are_answered)
    assert set(answers) <= {"bad_message", "limit_exceeded"}
    lines = [line for line in daemon.stop().stderr.splitlines() if "WARNING" in line]
    assert len([line for line in lines if "from 127.0.0.1 speaks another protocol: end it" in line]) == 1
    assert len(lines) < 40


def test_an_extension_that_fails_each_time_is_told_of_in_full_once(
    serve: Any, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty:
        def on_insert(self, access: Any, items: Any) -> None:
            raise RuntimeError("broken on purpose")

    caplog.set_level(logging.WARNING, "replayd")
    server = serve(fifo("t", extensions=[Faulty()]))
    client = client_of(server)
    for _ in range(30):
        client.insert(np.zeros(1), {"t": 1.0})
    assert client.info()["tables"][0]["extension_faults"] == 30
    server.stop()
    first, *others = [record.getMessage() for record in caplog.records]
    assert first.startswith("table t: on_insert of extension Faulty failed with RuntimeError: Traceback (most recent")
    assert first.count("broken on purpose") == 2, "the line that raises and what it raises"
    assert sum(map(count, others)) == 29
    assert not any("Traceback" in line for line in others)


def count(line: str) -> int:
    """The faults that a line stands for."""
    _, told, rest = line.rpartition(" (the last of ")
    return int(rest.split()[0]) if told else 1


def test_settings_that_change_all_the_time_are_told_in_a_few_lines(
    start_daemon: StartDaemon, connect: ConnectPeer
) -> None:
    daemon = start_daemon("--table", "replay,max_size=1000")
    peer = connect(daemon)
    for size in range(1, 201):
        peer.ask("set", table="replay", changes={"max_size": size})
    lines = [line for line in daemon.stop().stderr.splitlines() if "table replay: max_size " in line]
    assert "1000 -> 1" in lines[0]
    assert sum(map(count, lines)) == 200
    assert len(lines) < 200
    assert " -> 200" in lines[-1], "the last change is always told"
