"""What is shipped for systemd: units judged by systemd's own tools, the example settings, and their installation."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from replayd.cli import main
from replayd.config import read_config
from replayd.config_model import SECTIONS, TableConfig
from replayd.config_text import default_text
from replayd_client import Client
from tests.daemon import confined
from tests.daemon.harness import DaemonProcess

ROOT = Path(__file__).resolve().parent.parent
SYSTEMD = ROOT / "systemd"
SERVICES = ("replayd.service", "replayd@.service")
PROGRAM = "/usr/local/lib/replayd/bin/python"

MAX_EXPOSURE = 15
"""Ten times the most that `systemd-analyze security` may say: 1.5 of 10."""

needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units where a program is that may be started; the template as an instance of it."""
    for name in (*SERVICES, "replayd.socket"):
        text = (SYSTEMD / name).read_text()
        (tmp_path / name.replace("@.", "@pong.")).write_text(text.replace(PROGRAM, sys.executable))
    return tmp_path


# --- units ------------------------------------------------------------------------------------------------------------


@needs_analyze
@pytest.mark.parametrize("unit", ["replayd.service", "replayd@pong.service", "replayd.socket"])
def test_systemd_finds_no_fault_in_a_unit(units: Path, unit: str) -> None:
    verdict = analyze("verify", "--man=no", str(units / unit))
    ours = [line for line in verdict.stderr.splitlines() if "replayd" in line]
    assert (verdict.returncode, ours) == (0, []), verdict.stderr


@needs_analyze
@pytest.mark.parametrize("unit", ["replayd.service", "replayd@pong.service"])
def test_a_service_is_hardly_exposed(units: Path, unit: str) -> None:
    verdict = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(units / unit))
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", verdict.stdout)
    said = re.search(r"`systemd-analyze security replayd` says (\d+\.\d)", (ROOT / "README.md").read_text())
    assert found, verdict.stdout
    assert said, "the README names the figure"
    # Versions of systemd weigh a setting or two otherwise.
    assert abs(float(found[1]) - float(said[1])) < 0.25, "the README's figure is another one"


@needs_analyze
def test_an_exposed_service_would_be_found(units: Path) -> None:
    (units / "bare.service").write_text(f"[Service]\nExecStart={sys.executable} -m replayd serve\n")
    verdict = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(units / "bare.service"))
    assert verdict.returncode != 0


def test_files_that_units_read_are_told_of_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in SERVICES:
        text = (SYSTEMD / name).read_text()
        read = re.findall(r"^EnvironmentFile=-?(\S+)", text, re.MULTILINE)
        read += re.findall(r"^ExecStart=.* --config (\S+)", text, re.MULTILINE)
        assert len(read) == 2
        assert [path for path in read if f"`{path.replace('%i', 'NAME')}`" not in readme] == []
    # Who may write to the directory of keys need not be its owner, who could not make the file of a client elsewhere.
    (line,) = re.findall(r"^d (\S+) 0700 replayd replayd", (SYSTEMD / "replayd.tmpfiles").read_text(), re.MULTILINE)
    assert f"`{line}`" in readme
    for path in (ROOT / "README.md", *SYSTEMD.glob("replayd*")):
        assert "-u replayd replayd keys" not in path.read_text(), path.name


# --- what a service may do --------------------------------------------------------------------------------------------

needs_seccomp = pytest.mark.skipif(not confined.can_confine(), reason="libseccomp is not installed")


def launcher(unit: str, *without: str) -> list[str]:
    """What starts a command under the restrictions of a unit."""
    return [sys.executable, confined.__file__, str(SYSTEMD / unit), *without, "--"]


@needs_seccomp
def test_a_service_does_all_its_work_under_its_restrictions(tmp_path: Path) -> None:
    settings = tmp_path / "replayd.toml"
    settings.write_text(
        f"""
        [server]
        ingest = "ipc://{tmp_path}/ingest.sock"
        [http]
        listen = "127.0.0.1:0"
        [store]
        path = "{tmp_path}/store"
        journal = "sync"
        [access]
        keys = "{tmp_path}/keys"
        [[table]]
        name = "replay"
        """
    )
    key = tmp_path / "me.key"
    words = ("keys", "generate", "me", "--role", "admin", "--out", str(key), "--dir", str(tmp_path / "keys"))
    made = CliRunner().invoke(main, words)
    assert made.exit_code == 0, made.output
    under = launcher("replayd.service")
    with DaemonProcess(tmp_path, "--config", str(settings), launcher=under) as daemon:
        assert Path(f"/proc/{daemon.pid}/status").read_text().count("\nSeccomp:\t2\n") == 1, "it is restricted"
        with Client(daemon.address, key_file=str(key)) as client:
            client.insert({"x": [1.0]}, {"replay": 1.0})
            assert client.info()["tables"][0]["size"] == 1
            client.checkpoint()
        assert daemon.http_address is not None
        with urllib.request.urlopen(f"{daemon.http_address}/metrics", timeout=30) as answer:
            assert b"replayd_table_items" in answer.read()
        assert (tmp_path / "ingest.sock").is_socket()
        said = daemon.stop()
    assert "not permitted" not in said.stderr


@needs_seccomp
def test_a_service_that_may_not_ask_for_network_interfaces_does_not_start(tmp_path: Path) -> None:
    bare = launcher("replayd.service", "AF_NETLINK")
    with (
        pytest.raises(AssertionError, match=f"the daemon ended with {-signal.SIGABRT}"),
        DaemonProcess(tmp_path, launcher=bare),
    ):
        pass


@needs_seccomp
@pytest.mark.parametrize("unit", SERVICES)
def test_restrictions_are_in_force(unit: str) -> None:
    program = """
import errno, mmap, os, socket
def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
print(refused(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
      refused(mmap.mmap, -1, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
      refused(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW))
"""
    said = subprocess.run(
        [*launcher(unit), sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.stdout.split() == ["EAFNOSUPPORT", "EPERM", "done"], said.stderr


def settings_of(unit: str) -> list[str]:
    return [
        line for line in (SYSTEMD / unit).read_text().splitlines() if line and not line.startswith("#") and "=" in line
    ]


def test_the_template_differs_in_its_places_alone() -> None:
    one, many = settings_of("replayd.service"), settings_of("replayd@.service")
    assert [line.partition("=")[0] for line in one] == [line.partition("=")[0] for line in many]
    differing = {mine.partition("=")[0] for mine, its in zip(one, many, strict=True) if mine != its}
    assert differing == {
        "Description",
        "EnvironmentFile",
        "ExecStart",
        "StateDirectory",
        "RuntimeDirectory",
        "RuntimeDirectoryPreserve",
    }


@pytest.mark.parametrize("unit", SERVICES)
def test_what_a_service_starts_exists(unit: str) -> None:
    (command,) = [line.partition("=")[2] for line in settings_of(unit) if line.startswith("ExecStart=")]
    program, *arguments = shlex.split(command)
    assert (program, arguments[:4]) == (PROGRAM, ["-P", "-m", "replayd", "serve"])
    known = {name for option in main.commands["serve"].params for name in option.opts}
    assert {argument for argument in arguments[4:] if argument.startswith("-")} <= known


@pytest.mark.parametrize("unit", SERVICES)
def test_what_the_documents_promise_of_a_service_is_set_once(unit: str) -> None:
    promised = {
        # A start is over when the store is restored, which asks for more time as it goes on; so does a stop.
        "Type": "notify",
        "TimeoutStartSec": "10min",
        "TimeoutStopSec": "5min",
        # A loop that is stuck is ended and started again; what a restart does not cure is not tried again.
        "WatchdogSec": "30s",
        "Restart": "on-failure",
        "RestartPreventExitStatus": "64 65 77 78",
        # The data and the sockets are for the group, and for nobody beyond.
        "StateDirectoryMode": "0750",
        "RuntimeDirectoryMode": "0750",
        "UMask": "0007",
    }
    said = [tuple(line.split("=", 1)) for line in settings_of(unit)]
    assert {key: [value for each, value in said if each == key] for key in promised} == {
        key: [value] for key, value in promised.items()
    }


def test_the_library_that_aborts_without_it_may_set_its_scheduling() -> None:
    filters = [line for line in settings_of("replayd.service") if line.startswith("SystemCallFilter=")]
    denied = next(n for n, line in enumerate(filters) if "@resources" in line)
    allowed = next(n for n, line in enumerate(filters) if "sched_setscheduler" in line)
    assert denied < allowed, "what comes later counts"


def test_the_sockets_are_where_the_settings_are_by_default() -> None:
    sockets = [line.partition("=")[2] for line in settings_of("replayd.socket") if line.startswith("ListenStream=")]
    server = read_config().server
    assert [f"tcp://{address}" for address in sockets] == [server.listen, server.ingest]


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_the_user_can_be_made(tmp_path: Path) -> None:
    made = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", "--dry-run", "--inline", *_lines("replayd.sysusers")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "replayd" in made.stdout + made.stderr


def _lines(name: str) -> list[str]:
    return [line for line in (SYSTEMD / name).read_text().splitlines() if line and not line.startswith("#")]


# --- settings ---------------------------------------------------------------------------------------------------------

EXAMPLE = SYSTEMD / "replayd.toml"


def uncommented(text: str) -> str:
    """The text with each setting that it shows in effect: `#key = value`; what explains has a space after its "#"."""
    return re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE)


def test_the_example_can_be_served_and_keeps_what_it_holds() -> None:
    config = read_config(str(EXAMPLE))
    assert config.store is not None
    assert config.store.path == "/var/lib/replayd/store"
    assert config.server == read_config().server, "everything else is the default"


def test_the_example_is_the_default_text_with_a_store() -> None:
    wanted = re.sub(r"^#(\[store\]|path = )", r"\1", default_text(), flags=re.MULTILINE)
    assert EXAMPLE.read_text().strip() == wanted.strip(), (
        r"write it again: replayd default-config | sed 's/^#\(\[store\]\|path = \)/\1/' > systemd/replayd.toml"
    )


def test_the_example_has_every_key_and_no_other(tmp_path: Path) -> None:
    text = uncommented(EXAMPLE.read_text())
    data = tomllib.loads(text)
    tables = data.pop("table")
    assert {section: set(keys) for section, keys in data.items()} == {
        section: set(model.model_fields) for section, model in SECTIONS.items()
    }
    # A preset goes with few other keys, so it is not in effect.
    assert "# preset = " in text
    assert {key for table in tables for key in table} == set(TableConfig.model_fields) - {"preset"}
    everything = tmp_path / "replayd.toml"
    everything.write_text(text)
    config = read_config(str(everything))
    assert config.store is not None
    assert config.table[0].signature is not None


def test_every_key_of_the_example_is_explained() -> None:
    lines = EXAMPLE.read_text().splitlines()
    keys = [n for n, line in enumerate(lines) if re.match(r"(# ?)?[a-z_]+ = ", line)]
    assert len(keys) > 15
    unexplained = [lines[n] for n in keys if not re.match(r"# .*\w", lines[n - 1])]
    assert not unexplained


# --- installation -----------------------------------------------------------------------------------------------------

INSTALL = ROOT / "scripts" / "install"


def install(destdir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `scripts/install` with the libraries of this interpreter, and no index to ask."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PYTHONPATH": sysconfig.get_paths()["purelib"],
        "PIP_NO_INDEX": "1",
        "PIP_NO_COMPILE": "1",
        # pip reads this one the other way round: it builds with what is there.
        "PIP_NO_BUILD_ISOLATION": "0",
        **variables,
    }
    return subprocess.run(
        [INSTALL, "--destdir", destdir], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.skipif(int(version("setuptools").split(".")[0]) < 77, reason="cannot build with a setuptools below 77")
def test_installing_twice_renews_the_program_and_keeps_the_settings(tmp_path: Path) -> None:
    destdir = tmp_path / "machine"
    first = install(destdir)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-2:] == ["  sudo systemctl enable --now replayd", "  systemctl status replayd"]
    settings = destdir / "etc/replayd/replayd.toml"
    assert settings.read_text() == EXAMPLE.read_text()
    for unit in (*SERVICES, "replayd.socket"):
        installed = destdir / "etc/systemd/system" / unit
        assert installed.read_text() == (SYSTEMD / unit).read_text()
        assert installed.stat().st_mode & 0o777 == 0o644
    documents = destdir / "usr/local/share/doc/replayd"
    links = re.findall(r"\]\(([\w./]+\.md)\b", (documents / "README.md").read_text())
    assert "systemd/replayd.1.md" in links
    assert [link for link in links if not (documents / link).exists()] == []

    changed = '[server]\nlisten = "tcp://127.0.0.1:7000"\n'
    settings.write_text(changed)
    (installed / "..").resolve().joinpath("replayd.service").write_text("[Service]\n")
    (module,) = destdir.glob("usr/local/lib/replayd/lib/python*/site-packages/replayd/server.py")
    module.unlink()
    second = install(destdir)
    assert second.returncode == 0, second.stderr
    assert settings.read_text() == changed
    assert f"kept      {settings}" in second.stdout
    assert (destdir / "etc/systemd/system/replayd.service").read_text() == (SYSTEMD / "replayd.service").read_text()
    assert module.read_text() == (ROOT / "replayd" / "server.py").read_text()
    assert not (ROOT / "build").exists(), "a build leaves nothing beside the source"

    # The program runs from where it was put, whatever lies in the directory where it is called.
    (tmp_path / "replayd.py").write_text("raise AssertionError('a module of a stranger')")
    program = destdir / "usr/local/lib/replayd/bin/python"
    said = subprocess.run(
        [program, "-P", "-m", "replayd", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    wrapper = (destdir / "usr/local/bin/replayd").read_text()
    assert wrapper == f'#!/bin/sh\nexec {PROGRAM} -P -m replayd "$@"\n'


def test_an_interpreter_that_is_missing_is_told(tmp_path: Path) -> None:
    told = install(tmp_path, PYTHON="no-such-python")
    assert told.returncode == os.EX_UNAVAILABLE
    assert "PYTHON" in told.stderr
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_told() -> None:
    for arguments in (["--prefix", "/"], ["--destdir"], ["there"]):
        told = subprocess.run([INSTALL, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == os.EX_USAGE
        assert "--destdir DIRECTORY" in told.stderr
