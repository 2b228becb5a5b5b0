"""Addresses that cannot be had: which setting chooses another one, and who has it, as far as the kernel tells.

Owns these words. Reads /proc, where there is one; binds nothing.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from replayd.addresses import collide
from replayd.config_model import Config
from replayd.errors import BindError

PROC = Path("/proc")
_LISTENS = "0A"
"""The state of a TCP socket that listens, in /proc/net/tcp; see proc(5)."""
_ACCEPTS = 1 << 16
"""The flag of a Unix socket that listens, in /proc/net/unix."""


def told(error: BindError) -> str:
    """What could not be bound, why, and who is there if that is why."""
    who = holder(error.endpoint) if error.is_taken else ""
    return f"{error}, {who} has it" if who else str(error)


def another(config: Config, endpoint: str) -> str:
    """What one may do where this address of the daemon's cannot be had, by its setting or its option."""
    server, page = config.server, config.http.listen
    if endpoint in (f"http://{page}", config.http.address):
        return 'set `[http] listen` (--http) to another address, or to "off"'
    if endpoint == server.ingest:
        return 'set `[server] ingest` (--ingest-port) to another address, or to "" for none'
    return "set `[server] listen` (--listen, --port) to another address"


def holder(endpoint: str) -> str:
    """Who listens there: `process 4711 (python3)`, or whose process it is, if one may not look into it. Empty where
    nobody does, or nobody can tell."""
    with suppress(OSError, ValueError):
        for inode, uid in _listening(endpoint.replace("http://", "tcp://")):
            return _process_of(inode) or _user_of(uid)
    return ""


def _listening(endpoint: str) -> Iterator[tuple[str, int | None]]:
    """The inode of each socket that listens there, and its owner where that is told."""
    if path := endpoint.removeprefix("ipc://") if endpoint.startswith("ipc://") else "":
        for line in (PROC / "self/net/unix").read_text().splitlines()[1:]:
            _, _, _, flags, _, _, inode, *bound = line.split(maxsplit=7)
            if bound == [path] and int(flags, 16) & _ACCEPTS:
                yield inode, None
        return
    for kind in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (PROC / "self/net" / kind).read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
                if state == _LISTENS and collide(endpoint, _endpoint(local)):
                    yield inode, int(uid)


def _endpoint(local: str) -> str:
    """An address as the kernel prints it: words of four bytes, of the network's order read as this machine's."""
    words, port = local.split(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(packed) == 4:
        return f"tcp://{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    return f"tcp://[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"


def _process_of(inode: str) -> str:
    """The process that has this socket open, among those that this user may look into."""
    for process in PROC.iterdir():
        if not process.name.isdecimal():
            continue
        # It may end, or be somebody else's.
        with suppress(OSError):
            if any(os.readlink(file) == f"socket:[{inode}]" for file in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _user_of(uid: int | None) -> str:
    if uid is None:
        return "a process of another user"
    try:
        return f"a process of {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"a process of user {uid}"
