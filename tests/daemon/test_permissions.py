"""Paths that this user may not look at: each command says so, in the code for that, and calls nothing damaged.

Each runs in a process of its own that has given its rights away, and so only where there are some to give.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # As below.
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from click.testing import CliRunner

from replayd import service_files
from replayd.cli import MODULES, main
from replayd.errors import StoreError
from replayd.exit_codes import of_store
from replayd.store import Store
from replayd.store_copies import bring_back, copy_into_rotation, copy_store

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else"),
    # Of Python from 3.12 on; the child needs no other thread.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]

NOBODY_UID = 65534
# What is imported late could be out of the reach of that user.
for module in (*MODULES.values(), "queue", "replayd.server", "replayd.doctor", "replayd.config", "replayd.forecast"):
    import_module(module)
for module in ("config_differences", "progress", "key_files", "reloading", "taken", "notify", "heap", "keeper"):
    import_module(f"replayd.{module}")
for module in ("inspection", "pool"):
    import_module(f"replayd_client.{module}")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may enter, unlike those of pytest, with `closed` in it, which only root may."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o777)
        (place / "closed/in").mkdir(parents=True)
        (place / "closed").chmod(0o700)
        yield place


def as_nobody(do: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """What it returns where it has no rights."""

    def child(end: Connection) -> None:
        os.setgroups([])
        os.setgid(NOBODY_UID)
        os.setuid(NOBODY_UID)
        os.chdir("/")
        end.send(do())

    here, there = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=child, args=(there,))
    process.start()
    there.close()
    try:
        told: tuple[int, str] = here.recv()
    finally:
        process.join()
    return told


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of a command that nobody runs."""

    def do() -> tuple[int, str]:
        ended = CliRunner(env={name: None for name in os.environ if name.startswith("REPLAYD_")}).invoke(
            main, [str(each) for each in arguments]
        )
        return ended.exit_code, ended.output

    return as_nobody(do)


@pytest.mark.parametrize(
    "command",
    [
        "check-config {}/file",
        "doctor --config {}/file",
        "serve --config {}/file",
        "serve --data-dir {}/store",
        "serve --endpoint-file {}/file",
        "restore {} --data-dir /nowhere",
        "restore / --data-dir {}/store",
        "restore / --config {}/file",
        "checkpoint --to {}/copy",
        "checkpoint --to {} --keep 2",
        "keys list --dir {}",
        "keys revoke a --dir {}",
        "keys generate a --role actor --dir {}",
        "keys generate a --role actor --out {}/a.key",
    ],
)
def test_a_path_where_one_may_not_look_is_a_lack_of_rights(place: Path, command: str) -> None:
    for where in (place / "closed", place / "closed/in"):
        code, said = run(*command.format(where).split())
        assert (code, "this user may not look there" in said, str(where) in said) == (os.EX_NOPERM, True, True), said


def test_a_store_that_one_may_not_look_at_is_no_fault_of_the_settings(place: Path) -> None:
    settings, store = place / "replayd.toml", place / "closed/in/store"
    settings.write_text(f'[store]\npath = "{store}"\n[access]\nkeys = "{place}/closed/in"\n')
    code, said = run("check-config", settings)
    assert (code, f"warning: store.path: {store} cannot be looked at by this user" in said) == (0, True), said
    _, said = run("doctor", "--config", settings, "--timeout", "0.1", "--json")
    found = {each["check"]: each for each in json.loads(said)["findings"]}
    for check in ("data directory", "keys"):
        assert (found[check]["state"], "cannot be looked at" in found[check]["what"]) == ("warn", True)
        assert "root" in found[check]["advice"]


def test_settings_of_a_service_that_one_may_not_read_are_not_taken_for_none(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_files, "SETTINGS", place / "closed")
    code, said = run("check-config")
    assert (code, f"{place}/closed/replayd.toml, of the service, cannot be read" in said) == (os.EX_NOPERM, True), said
    _, said = run("doctor", "--timeout", "0.1")
    assert f"{place}/closed/replayd.toml, of the service, cannot be read" in said


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "copy": copy_store,
    "rotation": lambda source, target: copy_into_rotation(source, target, 2),
    "restore": lambda source, target: bring_back(source, target, replace=True),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("closed", ["source", "its files", "its lock", "target"])
def test_who_may_not_read_or_write_a_store_is_told_that(place: Path, how: str, closed: str) -> None:
    source = place / "source"
    Store(source).close()
    for path in source.iterdir():
        path.chmod(0o666)
    target = place / "target"
    match closed:
        case "source":
            source.chmod(0o700)
        case "its files":
            (source / "data.mdb").chmod(0o600)
        case "its lock":
            source.chmod(0o755)
            (source / "lock.mdb").chmod(0o640)
        case "target":
            target = place / "closed/in/target"

    def do() -> tuple[int, str]:
        try:
            COPIES[how](source, target)
        except StoreError as error:
            return of_store(error), str(error)
        return 0, ""

    code, said = as_nobody(do)
    assert (code, "ermission denied" in said) == (os.EX_NOPERM, True), said
