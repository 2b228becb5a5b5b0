"""What the system says of this process: the memory and the files it has, and the most it may have.

Owns paths below /proc and /sys. Where a system has neither, a number is 0, which stands for not known.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from replayd import heap

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 62
"""Version 1 has a number near 2^63 for a group without a limit."""


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with suppress(OSError):
        return heap.resident_bytes()
    return 0


def limit_bytes() -> int:
    """The least of what the machine has and of what its control groups allow."""
    limits = [_machine_bytes(), *cgroup_limits(_OWN_GROUPS, _GROUPS)]
    return min((limit for limit in limits if limit > 0), default=0)


def cgroup_limits(own: Path, mounted: Path) -> list[int]:
    """What control groups allow, bytes: those that the file `own` names and all above them, of the trees at `mounted`.

    Of version 2 that is `memory.max`, of version 1 `memory.limit_in_bytes` in the tree of the controller `memory`; a
    system may have both. A group that sets no limit, that cannot be seen (as those outside of a container), or whose
    file cannot be read says nothing.
    """
    limits = []
    for tree, path, name in _memory_groups(own, mounted):
        group = tree.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
        for each in (group, *group.parents):
            if not each.is_relative_to(tree):
                break
            with suppress(OSError, ValueError):
                limits.append(int((each / name).read_text()))
    return [limit for limit in limits if limit < _NO_LIMIT]


def _memory_groups(own: Path, mounted: Path) -> Iterator[tuple[Path, str, str]]:
    """Of each tree that limits memory: where it is, the group in it, and the file of a group that has its limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # cgroups(7): number of the hierarchy, its controllers, path of the group.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            # Beside trees of version 1 the one of version 2 has a place of its own.
            for tree in (mounted, mounted / "unified"):
                yield tree, path, "memory.max"
        elif "memory" in controllers.split(","):
            yield mounted / "memory", path, "memory.limit_in_bytes"


def open_files() -> int:
    """File descriptors that are open; takes 0.1 ms where there are some hundreds."""
    with suppress(OSError):
        # One is that of the look itself.
        return len(os.listdir("/proc/self/fd")) - 1
    return 0


def most_open_files() -> int:
    """How many may be open; 0: as many as it likes."""
    return _limit(resource.RLIMIT_NOFILE)


def address_space_bytes() -> int:
    """The most address space that it may have (ulimit -v); 0: as much as it likes."""
    return _limit(resource.RLIMIT_AS)


def _limit(kind: int) -> int:
    soft, _ = resource.getrlimit(kind)
    return 0 if soft == resource.RLIM_INFINITY else soft


def _machine_bytes() -> int:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0
