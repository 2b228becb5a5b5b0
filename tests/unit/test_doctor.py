"""What the doctor finds: each thing that goes wrong is told with what to do, and what is well is told as such."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from replayd import __version__, cli_doctor, doctor, service_files
from replayd.cli import main
from replayd.config import read_config
from replayd.config_model import Config
from replayd.doctor import Finding, Process

INFO: dict[str, Any] = {
    "server": f"replayd {__version__}",
    "memory": {"resident_bytes": 10, "limit_bytes": 100, "address_space_bytes": 0},
    "process": {"pid": 17, "open_files": 40, "most_open_files": 1024},
    "peers": {"connected": 10},
    "tables": [{"name": "t", "waiting": []}],
}


UNLIMITED = Process("a daemon", 0, 0, 0, doctor.DESCRIPTORS_APART, 0)


def worst(findings: Iterable[Finding]) -> Finding:
    """The gravest one; each that is not well says what to do."""
    found = list(findings)
    assert found
    for finding in found:
        assert bool(finding.advice) == (finding.state != "ok"), finding
    return max(found, key=lambda finding: ("ok", "warn", "fail").index(finding.state))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_what_is_installed_here_is_well_and_told() -> None:
    found = worst(doctor.versions())
    assert found.state == "ok"
    for name in ("replayd", "python", "libzmq", "blosc2"):
        assert f"{name} " in found.what


def test_a_client_of_another_release_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.0.1")
    found = worst(doctor.versions())
    assert (found.state, "the client is 0.0.1" in found.what) == ("warn", True)


def test_faults_of_the_settings_are_told_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text("[server]\nlease = 1\nsead = 2\n")
    config, found = doctor.settings(str(path), str(path), lambda: read_config(str(path)))
    assert config is None
    assert [finding.state for finding in found] == ["fail", "fail"]
    assert f"`replayd check-config {path}`" in found[0].advice
    config, found = doctor.settings("", None, lambda: read_config(environment={"REPLAYD_SERVER_LISTNE": "x"}))
    assert config is not None
    assert worst(found).state == "warn"


def test_a_daemon_that_answers_is_well() -> None:
    assert worst(doctor.daemon("tcp://127.0.0.1:1", INFO, None, {})).state == "ok"


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"server": "replayd 0.0.9"}, "warn", "0.0.9"),
        ({"memory": {"resident_bytes": 95, "limit_bytes": 100}}, "warn", "95 B of at most 100 B"),
        ({"store": {"last_error": "no space"}}, "fail", "no space"),
        ({"store": {"inserts_wait": "70 MB wait for the disk"}}, "warn", "inserts wait: 70 MB wait for the disk"),
        (
            {"tables": [{"name": "t", "waiting": [{"side": "sample", "waited_s": 61.0, "why": "because"}]}]},
            "warn",
            "samples have waited 61 s: because",
        ),
    ],
)
def test_what_is_wrong_with_a_daemon_is_told(change: dict[str, Any], state: str, said: str) -> None:
    found = worst(doctor.daemon("tcp://127.0.0.1:1", INFO | change, None, {}))
    assert (found.state, said in found.what) == ("fail" if state == "fail" else "warn", True)


def test_who_is_silent_is_told_from_who_is_not_there(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert "does not answer" in worst(doctor.daemon(f"tcp://127.0.0.1:{port}", "no answer", None, {})).what
    listener.close()
    assert "nobody answers" in worst(doctor.daemon(f"tcp://127.0.0.1:{port}", "no answer", None, {})).what


def test_a_daemon_that_needs_a_key_is_not_taken_for_a_stuck_one(listener: socket.socket, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    config = read_config(environment={"REPLAYD_ACCESS_KEYS": str(tmp_path)})
    found = worst(doctor.daemon(address, "no answer", config, {}))
    assert (found.state, "REPLAYD_KEY_FILE" in found.what, "stuck" in found.advice) == ("warn", True, False)
    with_key = worst(doctor.daemon(address, "no answer", config, {"REPLAYD_KEY_FILE": "some.key"}))
    assert (with_key.state, "KEY_FILE" in with_key.advice) == ("fail", False)
    unknown = worst(doctor.daemon(address, "no answer", None, {}))
    assert (unknown.state, "REPLAYD_KEY_FILE" in unknown.advice) == ("fail", True)


def test_ports_that_somebody_else_has_are_told(listener: socket.socket, tmp_path: Path) -> None:
    ingest = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    config = read_config(environment={"REPLAYD_SERVER_INGEST": ingest, "REPLAYD_HTTP_LISTEN": "off"}, port=0)
    found = list(doctor.daemon(f"ipc://{tmp_path}/none", "no answer", config, {}))
    taken = [finding for finding in found if finding.check == "addresses" and finding.state == "fail"]
    assert [ingest in finding.what for finding in taken] == [True]
    assert f"is taken by process {os.getpid()} (" in taken[0].what
    assert "`[server] ingest`" in taken[0].advice


@pytest.mark.parametrize(("mode", "state"), [(0o600, "ok"), (0o640, "ok"), (0o644, "fail"), (None, "fail")])
def test_a_key_that_everybody_may_read_is_told(tmp_path: Path, mode: int | None, state: str) -> None:
    path = tmp_path / "actor.key"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    assert worst(doctor.keys(None, {"REPLAYD_KEY_FILE": str(path)})).state == state


def test_every_key_in_the_directory_of_the_settings_is_looked_at(tmp_path: Path) -> None:
    for name, mode in (("server.key", 0o600), ("actor.key", 0o604)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    config = read_config(environment={"REPLAYD_ACCESS_KEYS": str(tmp_path)})
    found = worst(doctor.keys(config, {}))
    assert (found.state, found.advice) == ("fail", f"chmod 0600 {tmp_path / 'actor.key'}")


def test_a_clock_that_is_wrong_or_alone_is_told() -> None:
    assert worst(doctor.clock(0.0, 0)).state == "fail"
    assert worst(doctor.clock(2e9, 5)).state == "warn"
    assert worst(doctor.clock(2e9, 0)).state == "ok"
    assert worst(doctor.clock(2e9, None)).state == "ok"


def test_memory_that_will_not_do_is_told(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[[table]]\nname = "t"\nmax_bytes = "2GiB"\n')
    config = read_config(str(path))

    def found(config: Config | None, **limits: Any) -> Finding:
        return worst(doctor.memory(config, replace(UNLIMITED, **limits)))

    assert found(config, memory_bytes=1 << 30).state == "warn"
    assert found(config, memory_bytes=4 << 30).state == "ok"
    assert "ulimit -v" in found(config, memory_bytes=4 << 30, address_space_bytes=1 << 20).what
    assert found(None).state == "ok"


def test_too_few_descriptors_for_the_peers_are_told() -> None:
    for most, peers, state in ((1024, 2000, "warn"), (1024, 200, "ok"), (0, 10**6, "ok")):
        assert worst(doctor.descriptors(replace(UNLIMITED, most_open_files=most), peers)).state == state


def test_a_daemon_that_answers_is_judged_by_what_it_may_have_itself() -> None:
    process = doctor.process_of(INFO)
    assert (process.memory_bytes, process.most_open_files) == (100, 1024)
    assert "process 17" in process.whose
    assert worst(doctor.descriptors(process, 900)).state == "ok"
    # One that has many files open besides its peers needs them; peers that are there already need not be expected.
    busy = INFO | {"process": {"pid": 17, "open_files": 500, "most_open_files": 1024}}
    assert worst(doctor.descriptors(doctor.process_of(busy), 900)).state == "warn"
    crowded = INFO | {"peers": {"connected": 1000}}
    assert worst(doctor.descriptors(doctor.process_of(crowded), 1)).state == "warn"
    # One of before this was told is not known: it is judged as one that is started here.
    assert doctor.process_of({name: INFO[name] for name in INFO if name != "process"}) == doctor.this_process()


def test_threads_of_blosc2_that_slow_it_down_are_told() -> None:
    assert worst(doctor.threads({"BLOSC_NTHREADS": "8"})).state == "warn"
    assert worst(doctor.threads({"BLOSC_NTHREADS": "1"})).state == worst(doctor.threads({})).state == "ok"


def test_a_store_without_room_or_rights_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(data_dir=str(tmp_path / "made" / "later"), tables=["t,max_size=10"])
    assert worst(doctor.disk(config)).state == "ok"
    huge = read_config(data_dir=str(tmp_path), tables=["t,max_size=1000000000000000"])
    assert worst(doctor.disk(huge)).state == "warn"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert worst(doctor.disk(config)).state == "fail"
    assert worst(doctor.disk(read_config())).state == "ok"


def test_a_directory_that_nobody_can_make_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("/proc/nope", tmp_path / "file", tmp_path / "file" / "in"):
        found = worst(doctor.disk(read_config(data_dir=str(path))))
        assert (found.state, str(path) in found.what) == ("fail", True), path


def test_what_cannot_be_foretold_is_no_warning() -> None:
    found = worst(doctor.memory(read_config(), replace(UNLIMITED, memory_bytes=1 << 40)))
    assert (found.state, "nothing bounds what tables come to when they are full" in found.what) == ("ok", True)


def test_the_command_tells_everything_and_ends_in_a_failure_if_one_was_found(
    listener: socket.socket, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    ended = CliRunner().invoke(main, ["doctor", "--address", address, "--timeout", "0.1"])
    assert ended.exit_code == os.EX_UNAVAILABLE
    checks = ("versions", "settings", "daemon", "keys", "clock", "memory", "blosc2 threads", "file desc", "data dir")
    assert all(check in ended.stdout for check in checks)
    assert "fail" in ended.stdout
    assert "  -> " in ended.stdout
    ended = CliRunner().invoke(main, ["doctor", "--address", address, "--timeout", "0.1", "--json"])
    found = json.loads(ended.stdout)
    assert (ended.exit_code, found["ok"]) == (os.EX_UNAVAILABLE, False)
    assert {finding["state"] for finding in found["findings"]} >= {"ok", "fail"}


def settings_found(*arguments: str) -> list[dict[str, Any]]:
    """What the doctor says of settings, and of the daemon."""
    ended = CliRunner().invoke(main, ["doctor", "--timeout", "0.1", "--json", *arguments])
    found = [each for each in json.loads(ended.stdout)["findings"] if each["check"] in ("settings", "daemon")]
    return sorted(found, key=lambda each: each["check"] == "daemon")


def test_where_the_service_is_installed_its_settings_are_looked_at(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    installed, other = tmp_path / "replayd.toml", tmp_path / "elsewhere" / "other.toml"
    installed.write_text(f'[server]\nlisten = "{address}"\n')
    other.parent.mkdir()
    other.write_text("[server]\nnonsense = 1\n")
    monkeypatch.delenv("REPLAYD_SERVE_CONFIG", raising=False)
    monkeypatch.setattr(service_files, "SETTINGS", tmp_path)
    source, verdict, daemon = settings_found()
    assert (source["state"], str(installed) in source["what"]) == ("ok", True)
    assert verdict["what"] == f"{installed}: no faults"
    assert address in daemon["what"], "it is asked for where the settings say"
    # Who names others means those.
    (verdict, _) = settings_found("--config", str(other), "--address", address)
    assert (verdict["state"], "nonsense" in verdict["what"]) == ("fail", True)
    monkeypatch.setenv("REPLAYD_SERVE_CONFIG", str(other))
    (verdict, _) = settings_found("--address", address)
    assert "nonsense" in verdict["what"]


def test_settings_of_the_service_that_this_user_cannot_read_are_told(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    installed = tmp_path / "replayd.toml"
    installed.write_text("[server]\nnonsense = 1\n")
    monkeypatch.delenv("REPLAYD_SERVE_CONFIG", raising=False)
    monkeypatch.setattr(service_files, "SETTINGS", tmp_path)
    # Root reads whatever the mode is.
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(installed))
    source, verdict, _ = settings_found("--address", address)
    assert (source["state"], source["advice"]) == ("warn", "sudo -u replayd replayd doctor")
    assert verdict["what"] == "defaults and environment: no faults"
    # Where nothing is installed, there is nothing to be told.
    installed.unlink()
    assert [each["check"] for each in settings_found("--address", address)] == ["settings", "daemon"]


def test_of_settings_that_cannot_be_read_nothing_is_concluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[server]\nnonsense = 1\n[store]\npath = "/var/lib/replayd/store"\n[access]\nkeys = "/nowhere"\n')
    monkeypatch.delenv("REPLAYD_KEY_FILE", raising=False)
    monkeypatch.setattr(cli_doctor, "DEFAULT_ADDRESS", "tcp://127.0.0.1:9")
    ended = CliRunner().invoke(main, ["doctor", "--timeout", "0.1", "--json", "--config", str(path)])
    looked_at = {each["check"] for each in json.loads(ended.stdout)["findings"]}
    assert looked_at.isdisjoint({"daemon", "addresses", "keys", "data directory"})
    assert {"settings", "memory", "file descriptors"} <= looked_at
    assert ended.exit_code == os.EX_CONFIG
