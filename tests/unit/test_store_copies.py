"""A copy that is brought back where a store is: whatever goes wrong one of the two is there, or a start refuses."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from replayd.errors import StoreError, StoreInUse, StoreNotMade, StoreUnreadable
from replayd.messages import Reset, Result
from replayd.store import Store
from replayd.store_copies import bring_back, copy_into_rotation, copy_store
from replayd.store_files import DATA, LOCK, MARK
from replayd.store_parts import part_of_copy, remove_files
from tests.daemon.harness import environment
from tests.unit.kept import Kept

OLD, NEW = [b"old" * 99], [b"new" * 99, b"newer" * 99]


def made(directory: Path, payloads: list[bytes]) -> Path:
    with Kept(directory) as kept:
        kept.insert(payloads)
        kept.stop()
    return directory


@pytest.fixture
def live(tmp_path: Path) -> Path:
    return made(tmp_path / "live", OLD)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    copy_store(made(tmp_path / "other", NEW), tmp_path / "copy")
    return tmp_path / "copy"


def contents(directory: Path) -> list[bytes]:
    with Kept(directory) as kept:
        return kept.contents()


def saved_at(directory: Path) -> float | None:
    """Of what a start would find; None: it would begin empty."""
    with Store(directory) as store:
        return store.head.saved_at if store.head else None


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# --- what is no copy --------------------------------------------------------------------------------------------------


def remove_mark(copy: Path) -> None:
    (copy / MARK).unlink()


def remove_data(copy: Path) -> None:
    (copy / DATA).unlink()


def cut(copy: Path) -> None:
    os.truncate(copy / DATA, (copy / DATA).stat().st_size - 1)


def rot_the_index(copy: Path) -> None:
    with Store(copy) as store, store._env.begin(write=True, db=store._db["index"]) as txn:
        [key, *_] = list(txn.cursor().iternext(values=False))
        value = txn.get(key)
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))


def rot_the_head(copy: Path) -> None:
    with Store(copy) as store, store._env.begin(write=True, db=store._db["head"]) as txn:
        txn.put(b"head", txn.get(b"head")[:-1])


def empty(copy: Path) -> None:
    for name in names(copy):
        (copy / name).unlink()
    Store(copy).close()


@pytest.mark.parametrize("spoil", [remove_mark, remove_data, cut, rot_the_index, rot_the_head, empty])
def test_what_is_no_whole_copy_leaves_the_store_that_is_there(
    live: Path, copy: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(copy)
    with pytest.raises(StoreUnreadable) as refused:
        bring_back(copy, live, replace=True)
    assert str(copy) in str(refused.value)
    assert ".part-" not in str(refused.value)
    assert names(live) == {DATA, LOCK, MARK}
    assert contents(live) == OLD


def test_copies_that_are_to_go_into_a_file_are_refused(live: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreNotMade, match="file is no directory: name another place"):
        copy_into_rotation(live, tmp_path / "file", 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", [DATA, LOCK])
def test_root_gives_away_no_file_that_a_store_merely_points_to(
    live: Path, copy: Path, tmp_path: Path, name: str
) -> None:
    theirs, its = tmp_path / "somebody", live / name
    its.rename(theirs)
    its.symlink_to(theirs)
    for path in (live, *live.iterdir()):
        os.chown(path, 4711, 4712, follow_symlinks=False)
    bring_back(copy, live, replace=True)
    assert theirs.stat().st_uid == 0


def test_a_mark_that_is_a_link_is_neither_followed_nor_filled(live: Path, copy: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "somebody"
    theirs.write_bytes((live / MARK).read_bytes())
    (live / MARK).unlink()
    (live / MARK).symlink_to(theirs)
    with pytest.raises(StoreError):
        bring_back(copy, live, replace=True)
    theirs.unlink()
    bring_back(copy, live, replace=True)
    assert not theirs.exists()
    assert not (live / MARK).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("place", ["a store", "a directory", "nothing"])
def test_what_root_brings_back_belongs_to_whom_the_place_belongs_to(tmp_path: Path, copy: Path, place: str) -> None:
    owner = (4711, 4712)
    state = tmp_path / "state"
    state.mkdir()
    directory = state if place == "a directory" else state / "run" / "store"
    if place == "a store":
        made(directory, OLD)
    for path in (state, *state.rglob("*")):
        os.chown(path, *owner)
    bring_back(copy, directory, replace=True)
    found = list(state.rglob("*"))
    assert {path.name for path in found} >= {DATA, MARK}
    assert {(path.stat().st_uid, path.stat().st_gid) for path in found} == {owner}


# --- what cannot be written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [DATA, MARK])
def test_a_copy_that_cannot_take_its_place_gives_it_back(
    live: Path, copy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if (path.parent.name.startswith(".part-"), path.name) == (True, name):
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="Input/output error"):
        patch.setattr(Path, "rename", rename)
        bring_back(copy, live, replace=True)
    assert names(live) >= {DATA, MARK}
    assert names(live) <= {DATA, MARK, LOCK}
    assert contents(live) == OLD


def test_a_store_that_cannot_be_given_its_place_again_is_named(
    live: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if target == live / DATA:
            raise OSError(5, "Input/output error")
        return real(path, target)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="the store that was there is in") as told:
        patch.setattr(Path, "rename", rename)
        bring_back(copy, live, replace=True)
    [aside] = [path for path in live.iterdir() if path.is_dir()]
    assert str(aside) in str(told.value)
    with pytest.raises(StoreUnreadable, match=f"put aside last is in {aside}"):
        Store(live)
    assert contents(aside) == OLD


# --- killed -----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from replayd.store_copies import bring_back, copy_store

work, source, directory, steps = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "open", "shutil.rmtree"}


def count(event, arguments):
    global steps
    if event in CHANGES and any(directory in str(argument) for argument in arguments):
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)


for n in range(steps):
    pid = os.fork()
    if pid == 0:
        directory, steps = f"{directory}/{n}", n
        sys.addaudithook(count)
        eval(work)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(code, flush=True)
    if code == 0:
        break
"""
RESTORE = "bring_back(source, Path(directory), replace=True)"
COPY = "copy_store(source, Path(directory) / 'copy')"
STEPS = 40


def kill_at_each_step(work: str, source: Path, many: Path) -> int:
    """How many were killed before one ended by itself: each works in its own of the directories in `many`."""
    command = [sys.executable, "-c", KILLED, work, str(source), str(many), str(STEPS)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    codes = list(map(int, ended.stdout.split()))
    kills = len(codes) - 1
    assert codes == [-signal.SIGKILL] * kills + [0], ended.stderr
    return kills


@pytest.mark.parametrize("was_there", [True, False], ids=["over a store", "where none was"])
def test_a_restore_that_is_killed_at_any_step_leaves_a_store_or_a_start_that_refuses(
    tmp_path: Path, live: Path, copy: Path, was_there: bool
) -> None:
    many, old, new = tmp_path / "many", saved_at(live), saved_at(copy)
    for n in range(STEPS):
        if was_there:
            shutil.copytree(live, many / str(n))
        else:
            (many / str(n)).mkdir(parents=True)
    kills = kill_at_each_step(RESTORE, copy, many)
    assert kills > 10
    found, layouts = [], set()
    for n in range(kills + 1):
        directory = many / str(n)
        layout = frozenset(
            (re.sub(r"\d", "", str(path.relative_to(directory))), path.stat().st_size) for path in directory.rglob("*")
        )
        if layout in layouts:
            continue
        layouts.add(layout)
        asides = [path for path in directory.iterdir() if path.name.startswith("aside-") and (path / DATA).exists()]
        try:
            found.append({old: "old", new: "new", None: "empty"}[saved_at(directory)])
        except StoreUnreadable as refused:
            found.append("refused" if not asides or f"put aside last is in {asides[0]}" in str(refused) else "untold")
        # Whatever was left: it is brought back again, nothing is lost and nothing piles up.
        _, aside = bring_back(copy, directory, replace=True)
        assert names(directory) - {LOCK} == {DATA, MARK} | {path.name for path in {*asides, aside} if path}
        assert saved_at(directory) == new
        if was_there:
            assert old in [saved_at(path) for path in directory.iterdir() if path.is_dir()]
    # In this order, and empty only while nothing had been copied.
    assert list(dict.fromkeys(found)) == [*(["old"] if was_there else ["empty"]), "refused", "new"]


def test_a_start_tells_where_a_store_is_that_was_put_aside_and_begins_anew_only_if_told(live: Path) -> None:
    aside = live / "aside-20260102T030405Z-7"
    aside.mkdir()
    for name in (DATA, MARK):
        (live / name).rename(aside / name)
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match=rf"only one that was put aside.*{aside}.*--allow-empty"):
            Kept(live)
    with Kept(live, allow_empty=True) as kept:
        assert kept.contents() == []
    assert contents(aside) == OLD


def test_a_store_that_is_in_use_is_not_replaced(live: Path, copy: Path) -> None:
    with Kept(live), pytest.raises(StoreInUse):
        bring_back(copy, live, replace=True)
    assert names(live) == {DATA, LOCK, MARK}


# --- copies that were killed ------------------------------------------------------------------------------------------


@pytest.fixture
def killed(tmp_path: Path, live: Path) -> list[Path]:
    """Directories of copies each of which was killed at another step."""
    many = tmp_path / "many"
    for n in range(STEPS):
        (many / str(n)).mkdir(parents=True)
    return [many / str(n) for n in range(kill_at_each_step(COPY, live, many))]


def test_what_a_copy_left_that_was_killed_at_any_step_goes_with_the_next_one_there(
    live: Path, killed: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    left = [parent for parent in killed if names(parent) - {"copy"}]
    assert len(left) > 5
    for parent in killed:
        assert "copy" not in names(parent) or contents(parent / "copy") == OLD
        parts = names(parent) - {"copy"}
        # A copy of another name does not touch it.
        copy_store(live, parent / "other")
        assert names(parent) >= set(parts)
        shutil.rmtree(parent / "copy", ignore_errors=True)
        caplog.clear()
        copy_store(live, parent / "copy")
        assert names(parent) == {"copy", "other"}
        told = [record.message for record in caplog.records]
        assert told == [
            f"removed {parent / part}, which a copy left that was cut short; see that copies have time and room"
            for part in parts
        ]
        assert contents(parent / "copy") == OLD


def test_what_copies_left_that_were_killed_goes_with_the_next_one_of_a_rotation(live: Path, killed: list[Path]) -> None:
    parts = [part for parent in killed for part in parent.iterdir() if part.name.startswith(".copy.part-")]
    copies = live.parent / "copies"
    copies.mkdir()
    for n, part in enumerate(parts):
        part.rename(copies / f".20260102T030405Z-checkpoint-{n}.part-{n}-0a1b")
    strangers = {".mine.part-7-0a1b", ".20260102T030405Z-checkpoint-7.part-8", ".20260102T030405Z-checkpoint-7.part-9"}
    for name in strangers:
        # Named otherwise; and without the mark.
        (copies / name).mkdir()
        (copies / name / DATA).write_bytes(b"somebody's")
    (copies / ".mine.part-7-0a1b" / MARK).write_bytes(b"")
    (copies / ".20260102T030405Z-checkpoint-7.part-9" / MARK).write_bytes(b"{}")
    copied, removed = copy_into_rotation(live, copies, 1)
    assert (names(copies), removed) == ({copied.path.name, *strangers}, [])


def test_a_copy_that_is_being_made_stays(live: Path, tmp_path: Path) -> None:
    with part_of_copy(tmp_path / "copy") as part:
        (part / DATA).write_bytes(b"half of it")
        copy_store(live, tmp_path / "copy")
        assert names(part) == {DATA, MARK}
    assert not part.exists()
    assert contents(tmp_path / "copy") == OLD


def test_a_rotation_that_is_killed_while_it_removes_goes_on_with_the_next_one(
    live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    first, _ = copy_into_rotation(live, copies, 2)
    real = Path.unlink
    for steps in range(4):
        old = copies / f"20200101T000000Z-checkpoint-{steps}"
        shutil.copytree(first.path, old)
        left = [steps]

        def unlink(path: Path, missing_ok: bool = False, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            real(path, missing_ok)

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", unlink)
            remove_files(old)
        shutil.rmtree(first.path)
        first, _ = copy_into_rotation(live, copies, 1)
        assert names(copies) == {first.path.name}


WRITES = """
import select, sys
from pathlib import Path
import numpy as np
from replayd.store import Store
with Store(Path(sys.argv[1])) as store:
    state = {"chunks": {"uids": np.zeros(0, "i8")}, "journal": {"next": 1}}
    store.add_entries([(n, bytes(9000)) for n in range(1, 400)])
    store.write_index(state, saved_at=0.0, clean=False)
    n = 400
    while not select.select([sys.stdin], [], [], 0.0)[0]:
        store.add_entries([(n + k, bytes(9000)) for k in range(20)])
        n += 20
        store.drop_entries(n - 400, 64)
        if n == 800:
            print(flush=True)
"""


def test_a_store_is_copied_whole_while_it_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITES, str(tmp_path / "live")]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        for n in range(3):
            copy_store(tmp_path / "live", tmp_path / f"copy{n}")
        writer.stdin.close()
    assert writer.returncode == 0
    for n in range(3):
        # Which looks at its pages, as a start does.
        with Store(tmp_path / f"copy{n}") as copy:
            values = [(number, len(value)) for number, value in copy.entries(0)]
            assert len(values) >= 400 - 64
            assert values == [(values[0][0] + k, 9000) for k in range(len(values))]


def test_whatever_the_clock_does_the_last_copies_of_a_rotation_stay(
    live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "copies"
    # One of a version that numbered none, and which the clock of today takes for the newest.
    chance, made_then = random.Random(5), ["20990101T000000Z-checkpoint-900"]
    shutil.copytree(live, copies / made_then[0])
    for n in range(12):
        at = time.struct_time((2026, chance.randint(1, 12), chance.randint(1, 28), 3, 4, n, 0, 1, 0))
        monkeypatch.setattr("replayd.store_copies.time.gmtime", lambda at=at: at)
        keep = chance.randint(1, 3)
        before = names(copies)
        copied, removed = copy_into_rotation(live, copies, keep)
        made_then.append(copied.path.name)
        stay = {*made_then[-keep:]} & {*before, copied.path.name}
        assert names(copies) == stay
        assert {path.name for path in removed} == before - stay


READER_KILLED = """
import lmdb, os, signal, sys
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=8)
transaction = env.begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_copy_that_is_killed_does_not_make_the_store_grow(tmp_path: Path) -> None:
    with Kept(tmp_path / "data") as kept:
        sizes = []
        for n in range(12):
            if n == 4:
                subprocess.run([sys.executable, "-c", READER_KILLED, str(tmp_path / "data")])
            kept.insert([os.urandom(1 << 18)] * 4)
            assert isinstance(kept.ask(Reset(1, "t")), Result)
            assert isinstance(kept.checkpoint(), Result)
            sizes.append((tmp_path / "data" / DATA).stat().st_size)
        assert sizes[-1] <= 1.5 * sizes[3]
