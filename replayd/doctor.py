"""What goes wrong in practice, looked for: versions, settings, addresses, keys, clock, memory, descriptors, disk.

Each look returns findings, every one with what to do unless all is well. Changes nothing; a look that fails is a
finding, and never ends the others.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from replayd import __version__
from replayd.config_faults import ConfigError
from replayd.config_model import Config
from replayd.forecast import memory_text, memory_warnings, tables_text, total_bytes
from replayd.process import address_space_bytes, limit_bytes, most_open_files
from replayd.taken import another, holder
from replayd.wording import size_text

State = Literal["ok", "warn", "fail"]
OK: State = "ok"
WARN: State = "warn"
FAIL: State = "fail"

KEY_FILE_VARIABLE = "REPLAYD_KEY_FILE"
"""Of a client: the file of its keys."""
LEAST_ZMQ = (4, 3)
DESCRIPTORS_APART = 64
"""That the daemon needs besides those of its peers: sockets, store, log, libraries."""
FULL_SHARE = 0.9
"""Of its limit that a daemon's memory may come to before that is worth a word."""
AS_ITS_USER = "run this as the daemon's user (`sudo -u replayd`), or as root"
EARLIEST_S = 1_750_000_000
"""No clock that is right shows less: a date in 2025."""
_TIME_ERROR = 5
"""Of adjtimex(2): nothing keeps the clock right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    state: State
    what: str
    advice: str = ""
    """What to do; empty if nothing need be done."""


@dataclass(frozen=True, slots=True)
class Process:
    """What a daemon's process may have: of the one that answers, or of one that this user would start from here."""

    whose: str
    memory_bytes: int
    address_space_bytes: int
    most_open_files: int
    """All three: 0 if there is no limit, or none that is known."""
    files_apart: int
    """Files that it needs besides those of its peers."""
    connected: int
    """Peers that it has."""


def examine(
    config: Config | None,
    settled: Sequence[Finding],
    environment: Mapping[str, str],
    address: str,
    info: Mapping[str, Any] | str,
    peers: int,
) -> Iterator[Finding]:
    """Look at everything, in the order in which it matters.

    `config` is the settings, None if they are faulty, `settled` what there is to say of them. `info` is what the daemon
    at `address` says of itself, or the text of why it says nothing; no address if nobody knows where one would answer.
    `peers` is how many are expected to connect.
    """
    yield from versions()
    yield from settled
    if address:
        yield from daemon(address, info, config, environment)
    yield from keys(config, environment)
    yield from clock(time.time(), _clock_state())
    process = this_process() if isinstance(info, str) else process_of(info)
    yield from memory(config, process)
    yield from threads(environment)
    yield from descriptors(process, peers)
    yield from disk(config)


# --- what is installed ------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """Of the interpreter and of the libraries that matter."""
    python = ".".join(map(str, sys.version_info[:3]))
    found = {"replayd": __version__, "python": python}
    for name in ("zmq", "numpy", "msgpack", "blosc2"):
        try:
            module = import_module(name)
        except ImportError as error:
            yield Finding("versions", FAIL, f"{name} cannot be imported: {error}", "install the distribution again")
            continue
        found[name] = str(getattr(module, "__version__", "?"))
        if name == "zmq":
            found["libzmq"] = module.zmq_version()
            if module.zmq_version_info()[:2] < LEAST_ZMQ:
                yield Finding(
                    "versions", FAIL, f"libzmq {found['libzmq']} is too old", "install a pyzmq that brings its own"
                )
            if not module.has("curve"):
                yield Finding("versions", WARN, "this libzmq has no CURVE: keys are of no use", "install another pyzmq")
    # A source tree that nobody has installed has no number of its own.
    with suppress(metadata.PackageNotFoundError):
        found["replayd-client"] = metadata.version("replayd-client")
    if found.get("replayd-client") not in (__version__, None):
        yield Finding(
            "versions",
            WARN,
            f"the client is {found['replayd-client']} and the server {__version__}",
            "install both from one release: pip install ./client .",
        )
    yield Finding("versions", OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def threads(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Of blosc2: clients use one, whatever is set; other users of the library in their processes use what is set."""
    said = environment.get("BLOSC_NTHREADS")
    if said is not None and said != "1":
        yield Finding(
            "blosc2 threads",
            WARN,
            f"BLOSC_NTHREADS is {said}: small chunks take twenty times as long with several threads",
            "BLOSC_NTHREADS=1 for actors and learners; replayd's own calls use one thread in any case",
        )
        return
    yield Finding("blosc2 threads", OK, "one for each call")


# --- what was set -----------------------------------------------------------------------------------------------------


def settings(name: str, file: str | None, read: Callable[[], Config]) -> tuple[Config | None, list[Finding]]:
    """The settings, None if they are faulty, and what there is to say of them. `name` is what has them, `file` the one
    that is among it, and `read` reads them, or raises ConfigError."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        try:
            config = read()
        except ConfigError as error:
            again = " ".join(["replayd check-config", *([shlex.quote(file)] if file else [])])
            advice = f"correct it; `{again}` checks again"
            return None, [Finding("settings", FAIL, problem, advice) for problem in error.problems]
    found = [
        Finding("settings", WARN, str(doubt.message), "`replayd default-config` explains each key") for doubt in doubts
    ]
    return config, found or [Finding("settings", OK, f"{name}: no faults")]


def keys(config: Config | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Files of keys that are named in the settings or the environment: there, readable, and not for everybody."""
    access = None if config is None else config.access
    named = [Path(path) for path in (access and access.keys, environment.get(KEY_FILE_VARIABLE)) if path]
    for path in [file for place in named for file in _key_files(place)]:
        try:
            mode = path.stat().st_mode
        except PermissionError:
            yield Finding("keys", WARN, f"{path} cannot be looked at by this user", AS_ITS_USER)
            continue
        except OSError as error:
            yield Finding("keys", FAIL, f"{path}: {error.strerror}", "`replayd keys generate` makes it")
            continue
        if path.is_file() and mode & stat.S_IRWXO:
            yield Finding("keys", FAIL, f"{path} is open to everybody ({stat.S_IMODE(mode):04o})", f"chmod 0600 {path}")
        elif not os.access(path, os.R_OK):
            yield Finding("keys", WARN, f"{path} cannot be read by this user", AS_ITS_USER)
        else:
            yield Finding("keys", OK, f"{path} ({stat.S_IMODE(mode):04o})")
    # Of settings that could not be read nobody knows what they name.
    if not named and config is not None:
        yield Finding("keys", OK, "none are named")


def _key_files(place: Path) -> Iterator[Path]:
    """The file, or the directory and those in it."""
    yield place
    with suppress(PermissionError):
        yield from sorted(place.glob("*.key"))


# --- what runs --------------------------------------------------------------------------------------------------------


def daemon(
    address: str, info: Mapping[str, Any] | str, config: Config | None, environment: Mapping[str, str]
) -> Iterator[Finding]:
    """Whether it answers, who else may sit at its addresses, and how it is."""
    if isinstance(info, str):
        if _connects(address):
            has_key = bool(environment.get(KEY_FILE_VARIABLE))
            if config is not None and config.access is not None and not has_key:
                text = f"somebody listens at {address}, and answers only who has a key: {KEY_FILE_VARIABLE} is not set"
                yield Finding("daemon", WARN, text, f"{KEY_FILE_VARIABLE}=FILE replayd doctor, the file of an operator")
                return
            advice = "see who it is (ss -ltnp), and the daemon's log; a stuck daemon is restarted"
            if not has_key:
                advice += f"; if keys are needed there, {KEY_FILE_VARIABLE} names the file of one"
            yield Finding("daemon", FAIL, f"somebody listens at {address} and does not answer: {info}", advice)
            return
        yield Finding("daemon", FAIL, f"nobody answers at {address}: {info}", "start it: systemctl start replayd")
        yield from _addresses(config)
        return
    yield Finding("daemon", OK, f"{info['server']} answers at {address}")
    if info["server"] != f"replayd {__version__}":
        yield Finding("daemon", WARN, f"it is {info['server']}, this is {__version__}", "restart it, or update this")
    resident, limit = info["memory"]["resident_bytes"], info["memory"]["limit_bytes"]
    if limit and resident > FULL_SHARE * limit:
        advice = "lower max_bytes or max_size (`replayd set`), or allow it more (MemoryMax of the service)"
        yield Finding("daemon", WARN, f"it has {size_text(resident)} of at most {size_text(limit)}", advice)
    for table in info["tables"]:
        for waiting in table["waiting"]:
            if waiting["waited_s"] > 60:
                text = f"table {table['name']}: {waiting['side']}s have waited {waiting['waited_s']:.0f} s"
                yield Finding("daemon", WARN, f"{text}: {waiting['why']}", f"replayd why {table['name']}")
    store = info.get("store", {})
    if waits := store.get("inserts_wait"):
        advice = "see to that disk; one that is too slow has less to do with checkpoints further apart"
        yield Finding("daemon", WARN, f"inserts wait: {waits}", advice)
    if error := store.get("last_error"):
        yield Finding("daemon", FAIL, f"the last checkpoint failed: {error}", "replayd checkpoint, when that is cured")


def _addresses(config: Config | None) -> Iterator[Finding]:
    """Whether somebody else has the ports that the daemon would take."""
    if config is None:
        return
    wanted = [config.server.listen, config.server.ingest, f"tcp://{config.http.listen}" if config.http.is_on else ""]
    for address in filter(None, wanted):
        if _connects(address.replace("://*", "://127.0.0.1").replace("://0.0.0.0", "://127.0.0.1")):
            who = holder(address)
            advice = f"end that{'' if who else ' (ss -ltnxp says who it is)'}, or {another(config, address)}"
            yield Finding("addresses", FAIL, f"{address} is taken by {who or 'somebody else'}", advice)
        else:
            yield Finding("addresses", OK, f"{address} is free")


def _connects(address: str) -> bool:
    """Whether anything listens there."""
    with suppress(OSError):
        if path := address.removeprefix("ipc://") if address.startswith("ipc://") else None:
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(1.0)
                unix.connect(path)
            return True
        tcp = re.fullmatch(r"tcp://\[?([^\]]+)\]?:(\d+)", address)
        if tcp and tcp[2] != "0":
            socket.create_connection((tcp[1], int(tcp[2])), timeout=1.0).close()
            return True
    return False


# --- what the machine gives -------------------------------------------------------------------------------------------


def clock(now_s: float, state: int | None) -> Iterator[Finding]:
    """Whether it can be right. Waiting and leases do not hang on it; the names of checkpoints and the log do."""
    if now_s < EARLIEST_S:
        yield Finding("clock", FAIL, f"it shows {time.strftime('%Y-%m-%d', time.gmtime(now_s))}", "set it")
    elif state == _TIME_ERROR:
        advice = "timedatectl set-ntp true, or chrony: times of checkpoints and of the log hang on it"
        yield Finding("clock", WARN, "nothing keeps it right", advice)
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))


def _clock_state() -> int | None:
    """What adjtimex(2) returns; None where there is no such call."""
    call = getattr(ctypes.CDLL(None), "adjtimex", None)
    return None if call is None else int(call(ctypes.create_string_buffer(1024)))


def this_process() -> Process:
    """What a daemon may have that is started from here."""
    files = most_open_files()
    return Process("a daemon started here", limit_bytes(), address_space_bytes(), files, DESCRIPTORS_APART, 0)


def process_of(info: Mapping[str, Any]) -> Process:
    """What the daemon that says this of itself may have; where it is too old to say it, what one started here may."""
    of, memory, connected = info.get("process"), info["memory"], info["peers"]["connected"]
    if of is None:
        return this_process()
    apart = max(of["open_files"] - connected, DESCRIPTORS_APART)
    whose = f"the daemon (process {of['pid']})"
    limits = memory["limit_bytes"], memory["address_space_bytes"], of["most_open_files"]
    return Process(whose, *limits, apart, connected)


def memory(config: Config | None, process: Process) -> Iterator[Finding]:
    """What the process may have, and what the tables will want of it."""
    limit, space = process.memory_bytes, process.address_space_bytes
    if space:
        yield Finding(
            "memory",
            WARN,
            f"the address space of {process.whose} is limited to {size_text(space)} (ulimit -v)",
            "ulimit -v unlimited: libraries reserve more than they use; MemoryMax limits what counts",
        )
    doubts = [] if config is None else memory_warnings(config, limit)
    for doubt in doubts:
        yield Finding("memory", WARN, doubt, "set max_bytes of the table or of the server")
    if not doubts:
        wanted = "" if config is None else f"; {memory_text(config)}"
        may = f"{process.whose} may have {size_text(limit)}" if limit else f"no limit known of {process.whose}"
        yield Finding("memory", OK, f"{may}{wanted}")


def descriptors(process: Process, peers: int) -> Iterator[Finding]:
    """Each peer takes one, and so do the daemon's own files."""
    most = process.most_open_files
    peers = max(peers, process.connected)
    needed = peers + process.files_apart
    text = f"{process.whose} may have {most or 'any number'} open, {peers} peers need {needed}"
    if most and most < needed:
        advice = f"LimitNOFILE={2 * needed} in the service and a restart, or ulimit -n {2 * needed} before the start"
        yield Finding("file descriptors", WARN, text, advice)
    else:
        yield Finding("file descriptors", OK, text)


def disk(config: Config | None) -> Iterator[Finding]:
    """Whether the store's directory can be written, and has room."""
    if config is None:
        return
    if config.store is None:
        yield Finding("data directory", OK, "none is set: what is held ends with the daemon")
        return
    path = Path(config.store.path)
    if hidden := unseen(path):
        yield Finding("data directory", WARN, hidden, AS_ITS_USER)
        return
    if trouble := unwritable(path):
        advice = "set store.path elsewhere, give the directory to the daemon's user, or run this as that user"
        yield Finding("data directory", FAIL, trouble, advice)
        return
    free, wanted = shutil.disk_usage(_nearest(path)).free, total_bytes(config)
    text = f"{path}: {size_text(free)} free; {tables_text(config)}"
    if free < wanted:
        yield Finding("data directory", WARN, text, "make room, or limit the tables: a checkpoint must fit")
    else:
        yield Finding("data directory", OK, text)


def unseen(path: Path) -> str:
    """That this user may not look at this directory, which others may use; empty if it may."""
    try:
        _nearest(path)
    except PermissionError:
        return f"{path} cannot be looked at by this user"
    return ""


def unwritable(path: Path) -> str:
    """Why this user could not make or write this directory, which it may look at; empty if nothing speaks against it.
    Changes nothing."""
    there = _nearest(path)
    if not there.is_dir():
        return f"{path} cannot be a directory: {there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{path} cannot be {'written' if there == path.absolute() else 'made'} by this user"
    # Of a file system like /proc, where even root makes nothing.
    if os.statvfs(there).f_blocks == 0:
        return f"{path} cannot be {'written' if there == path.absolute() else 'made'}: there is no disk behind {there}"
    return ""


def _nearest(path: Path) -> Path:
    """The directory itself, or the nearest above it that is there. Raises PermissionError where one may not look."""
    for place in (path.absolute(), *path.absolute().parents):
        try:
            place.stat()
        except PermissionError:
            raise
        except OSError:
            continue
        return place
    raise AssertionError(f"nothing is above {path}, not even /")
