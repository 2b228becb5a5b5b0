"""The log of a daemon: text for people, entries of the journal, or JSON; what it begins with, and that it is calm."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from replayd import logs
from replayd.config import read_config
from replayd.errors import BadMessage, Fault
from replayd.fault_log import FaultLog
from tests.daemon.conftest import ConnectPeer, StartDaemon
from tests.daemon.harness import DaemonProcess, run_replayd

# --- a daemon ---------------------------------------------------------------------------------------------------------


def test_json_is_one_object_a_line_and_nothing_else(start_daemon: StartDaemon, connect: ConnectPeer) -> None:
    daemon = start_daemon("--log-format", "json", "--seed", "7")
    peer = connect(daemon)
    assert "error" not in peer.ask("set", table="replay", changes={"max_size": 5})
    daemon.send_signal(signal.SIGHUP)
    assert "error" not in peer.ask("hello")
    ended = daemon.stop()
    assert ended.stdout == ""
    entries = [json.loads(line) for line in ended.stderr.splitlines()]
    assert all(entry.keys() >= {"time", "level", "message"} for entry in entries)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"]) for entry in entries)
    start = [entry["message"] for entry in entries if entry.get("event") == "start"]
    assert f"requests {daemon.address}" in start
    listen = "server.listen = 'tcp://127.0.0.1:0' (--port)"
    assert (
        f"settings {listen}, server.seed = 7 (--seed), log.format = 'json' (--log-format) besides the defaults" in start
    )
    (setting,) = [entry for entry in entries if entry.get("event") == "setting"]
    assert (setting["table"], setting["level"]) == ("replay", "info")
    assert [entry["level"] for entry in entries if "SIGHUP" in entry["message"]] == ["warning"]
    assert entries[-1] | {"time": ""} == {"time": "", "level": "info", "message": "stopped", "event": "stop"}


def test_a_fault_at_the_start_is_an_entry_too(start_daemon: StartDaemon) -> None:
    port = start_daemon().address.rpartition(":")[2]
    ended = run_replayd("serve", "--log-format", "json", "--port", port, "--ingest-port", "0")
    assert ended.returncode == os.EX_CANTCREAT
    *_, last = map(json.loads, ended.stderr.splitlines())
    assert last["level"] == "error"
    assert port in last["message"]


@pytest.mark.skipif(Path(logs.JOURNAL).exists(), reason="the journal of this machine would take the entries")
def test_lines_have_their_priority_where_stderr_is_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its socket is not there, as when it is restarted: then the stream has all, each line with its priority.
    stderr = tmp_path / "stderr.txt"
    stderr.touch()
    monkeypatch.setenv("JOURNAL_STREAM", f"{stderr.stat().st_dev}:{stderr.stat().st_ino}")
    with DaemonProcess(tmp_path, "--insecure-public") as daemon:
        ended = daemon.stop()
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert all(re.match(r"<[0-7]>", line) for line in lines)
    assert any(line.startswith("<4>insecure_public changes nothing") for line in lines)
    assert lines[-1] == "<6>stopped"


def test_people_read_text_where_stderr_is_no_journal(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    monkeypatch.setenv("REPLAYD_SERVE_LOG_LEVEL", "warning")
    ended = start_daemon().stop()
    assert "log.level = 'warning' (REPLAYD_SERVE_LOG_LEVEL) besides the defaults" in ended.stdout
    assert ended.stdout.endswith("stopped\n")
    assert ended.stderr == "", "a daemon that has nothing to tell is calm"


def test_a_level_and_a_format_that_are_none_are_refused() -> None:
    for option in ("--log-level", "--log-format"):
        assert run_replayd("serve", option, "loud").returncode == os.EX_USAGE
    with pytest.raises(Exception, match="format"):
        read_config(None, environment={"REPLAYD_LOG_FORMAT": "loud"})


# --- entries ----------------------------------------------------------------------------------------------------------


def parsed(entry: bytes) -> dict[str, str]:
    """The fields of an entry in the journal's own protocol."""
    fields = {}
    while entry:
        line, _, entry = entry.partition(b"\n")
        if b"=" in line:
            name, _, value = line.partition(b"=")
        else:
            name, (size,) = line, struct.unpack("<Q", entry[:8])
            value, end, entry = entry[8 : 8 + size], entry[8 + size : 9 + size], entry[9 + size :]
            assert end == b"\n"
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root of all logs, which is afterwards as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def journal(tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A journal in place of the system's, to which the log goes."""
    monkeypatch.setattr("replayd.logs.JOURNAL", str(tmp_path / "journal"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        journal.settimeout(10)
        assert logs.begin("journald", "info", {}) == "journald"
        yield journal


def test_an_entry_has_its_priority_and_what_it_is_about(journal: socket.socket) -> None:
    logging.getLogger("replayd").warning(
        "table %r is full", "replay", extra={"event": "full", "table": "replay", "peer": "00ff"}
    )
    entry = parsed(journal.recv(1 << 20))
    assert entry["MESSAGE"] == "table 'replay' is full"
    assert entry["PRIORITY"] == "4"
    assert entry["SYSLOG_IDENTIFIER"] == "replayd"
    assert entry["CODE_FILE"] == __file__
    assert {name: entry[name] for name in entry if name.startswith("REPLAYD_")} == {
        "REPLAYD_EVENT": "full",
        "REPLAYD_TABLE": "replay",
        "REPLAYD_PEER": "00ff",
    }


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, "2"), (logging.ERROR, "3"), (logging.WARNING, "4"), (logging.INFO, "6")],
)
def test_each_level_has_a_priority(journal: socket.socket, level: int, priority: str) -> None:
    logging.getLogger("replayd").log(level, "x")
    assert parsed(journal.recv(1 << 20))["PRIORITY"] == priority


def test_a_traceback_is_one_entry(journal: socket.socket) -> None:
    try:
        raise RuntimeError("broken on purpose")
    except RuntimeError:
        logging.getLogger("replayd").exception("it failed")
    message = parsed(journal.recv(1 << 20))["MESSAGE"]
    assert message.startswith("it failed\nTraceback (most recent call last):\n")
    assert message.endswith("RuntimeError: broken on purpose")


@pytest.mark.parametrize("text", ["", "=", "a\nb=c\n", "ä" * 3 + "\n", "\udcff", "%s\0"])
def test_no_text_breaks_an_entry(journal: socket.socket, text: str) -> None:
    # By the one handler: what else listens to the log of a test may not take each text.
    (handler,) = (each for each in logging.getLogger().handlers if type(each).__module__ == logs.__name__)
    handler.handle(logging.makeLogRecord({"levelno": logging.INFO, "msg": "%s", "args": (text,), "table": text}))
    entry = parsed(journal.recv(1 << 20))
    assert entry["MESSAGE"] == text.encode(errors="replace").decode()
    assert entry["PRIORITY"] == "6"


def test_an_entry_is_never_too_long(journal: socket.socket) -> None:
    logging.getLogger("replayd").info("%s", "ä" * 1_000_000)
    message = parsed(journal.recv(1 << 20))["MESSAGE"]
    assert message == "ä" * (logs.MESSAGE_BYTES // 2)


def test_lines_that_repeat_keep_what_they_are_about(journal: socket.socket) -> None:
    lines = FaultLog()
    for _ in range(3):
        lines.tell(Fault("table t: on_insert failed", BadMessage("no"), "mend it", "t"), now=0.0)
    lines.say("set to 5", kind="table u", now=0.0, fields={"event": "setting", "table": "u"})
    lines.close(1.0)
    told = [parsed(journal.recv(1 << 20)) for _ in range(3)]
    assert [(entry["REPLAYD_EVENT"], entry["REPLAYD_TABLE"]) for entry in told] == [
        ("fault", "t"),
        ("setting", "u"),
        ("fault", "t"),
    ]
    assert told[2]["MESSAGE"].endswith("(the last of 2 since the line before)")


def test_a_journal_that_is_gone_loses_no_line(
    journal: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "journal").unlink()
    logging.getLogger("replayd").error("first\nsecond")
    assert capsys.readouterr().err == "<3>first\n<3>second\n"


def test_stderr_that_was_redirected_is_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        of = os.fstat(stderr.fileno())
        assert logs.is_journal(f"{of.st_dev}:{of.st_ino}")
        assert not logs.is_journal(f"{of.st_dev}:{of.st_ino + 1}")
        assert not logs.is_journal("")
