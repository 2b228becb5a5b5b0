"""Run a command under the restrictions that a unit of systemd sets: `python confined.py UNIT [WITHOUT] -- COMMAND…`.

Owns what of a unit becomes a filter of system calls, loaded by libseccomp as systemd does it: address families, memory
that is written and executed, real-time scheduling, and, where `systemd-analyze` knows the groups, the calls themselves.
WITHOUT is an address family that is left out although the unit allows it. Knows nothing of what the command is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

LIBRARY = "libseccomp.so.2"
FAMILIES = 64
"""More than Linux has: 46."""
_ALLOW = 0x7FFF0000
_EQUAL, _AT_LEAST, _MASKED = 4, 5, 7
_WRITE, _EXECUTE, _SHARED_EXECUTE = 2, 4, 0o100000
_REAL_TIME = (1, 2, 6)
"""SCHED_FIFO, SCHED_RR and SCHED_DEADLINE."""


class _Comparison(ctypes.Structure):
    """What an argument of a call is compared with: seccomp_rule_add(3)."""

    _fields_ = (("argument", ctypes.c_uint), ("how", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class Filter:
    """A filter of system calls, which holds for the process and its children from `load` on."""

    def __init__(self, otherwise: int) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(otherwise)))

    def rule(self, action: int, call: str, *comparisons: tuple[int, int, int, int]) -> None:
        """Do this with a call of such arguments (which one, how it is compared, and with what)."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        # Groups name calls of other processors and of newer kernels as well.
        if number < 0:
            return
        rows = (_Comparison * len(comparisons))(*(_Comparison(*each) for each in comparisons))
        failed = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, ctypes.c_uint(len(comparisons)), rows
        )
        assert failed == 0, f"{call}: {os.strerror(-failed)}"

    def load(self) -> None:
        failed = self._library.seccomp_load(self._context)
        assert failed == 0, os.strerror(-failed)


def refuse(number: int) -> int:
    """The action that answers with this error."""
    return 0x00050000 | number


def can_confine() -> bool:
    """Whether there is libseccomp, which systemd and apt bring along."""
    with suppress(OSError):
        return bool(ctypes.CDLL(LIBRARY))
    return False


def confine(settings: Sequence[tuple[str, str]], without: str) -> None:
    """Load what the settings of a unit say, in their order; the caller is bound by it from then on."""
    families = [name for key, value in settings if key == "RestrictAddressFamilies" for name in value.split()]
    confine_families({name for name in families if name != without})
    if ("MemoryDenyWriteExecute", "yes") in settings:
        confine_memory()
    if ("RestrictRealtime", "yes") in settings:
        realtime = Filter(_ALLOW)
        for policy in _REAL_TIME:
            realtime.rule(refuse(errno.EPERM), "sched_setscheduler", (1, _EQUAL, policy, 0))
        realtime.load()
    if shutil.which("systemd-analyze"):
        confine_calls([value for key, value in settings if key == "SystemCallFilter"])


def confine_families(names: Iterable[str]) -> None:
    """Let sockets be opened of these families alone."""
    allowed = {int(getattr(socket, name)) for name in names}
    assert allowed, "a unit that restricts nothing shows nothing"
    families = Filter(_ALLOW)
    for family in set(range(FAMILIES)) - allowed:
        families.rule(refuse(errno.EAFNOSUPPORT), "socket", (0, _EQUAL, family, 0))
    families.rule(refuse(errno.EAFNOSUPPORT), "socket", (0, _AT_LEAST, FAMILIES, 0))
    families.load()


def confine_memory() -> None:
    """Let no memory be both written and executed, nor become executable."""
    memory = Filter(_ALLOW)
    both = _WRITE | _EXECUTE
    memory.rule(refuse(errno.EPERM), "mmap", (2, _MASKED, both, both))
    memory.rule(refuse(errno.EPERM), "mprotect", (2, _MASKED, _EXECUTE, _EXECUTE))
    memory.rule(refuse(errno.EPERM), "pkey_mprotect", (2, _MASKED, _EXECUTE, _EXECUTE))
    memory.rule(refuse(errno.EPERM), "shmat", (2, _MASKED, _SHARED_EXECUTE, _SHARED_EXECUTE))
    memory.load()


def confine_calls(lines: Sequence[str]) -> None:
    """Allow what these lines of SystemCallFilter come to: a list that the first begins and the later ones change."""
    # systemd allows what every process needs besides what a list names.
    allowed = set(calls_of("@default")) | {"execve", "exit_group", "rt_sigreturn"}
    for line in lines:
        called = {call for name in line.removeprefix("~").split() for call in calls_of(name)}
        allowed = allowed - called if line.startswith("~") else allowed | called
    calls = Filter(refuse(errno.EPERM))
    for call in allowed:
        calls.rule(_ALLOW, call)
    calls.load()


def calls_of(name: str) -> Iterator[str]:
    """The calls of a group, or the call itself."""
    if not name.startswith("@"):
        yield name
        return
    for each in _groups()[name]:
        yield from calls_of(each)


@cache
def _groups() -> dict[str, list[str]]:
    """What groups there are, and what is in each: calls and groups."""
    listing = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, timeout=60, check=True
    )
    groups: dict[str, list[str]] = {}
    for line in listing.stdout.splitlines():
        word = line.partition("#")[0].strip()
        if word and not line.startswith(" "):
            groups[word] = current = []
        elif word:
            current.append(word)
    return groups


def settings_in(unit: Path) -> list[tuple[str, str]]:
    """Keys and values of a unit, in their order."""
    lines = (line.partition("=") for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return [(key, value) for key, _, value in lines]


if __name__ == "__main__":
    at = sys.argv.index("--")
    unit, *without = sys.argv[1:at]
    # A library that aborts leaves no core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    confine(settings_in(Path(unit)), *(without or [""]))
    os.execv(sys.argv[at + 1], sys.argv[at + 1 :])
