"""What the system says of this process: the memory it has, and the most it may have.

Owns paths below /proc and /sys. Where a system has neither, a number is 0, which stands for not known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from replayd import heap

_CGROUPS = Path("/sys/fs/cgroup")


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with suppress(OSError):
        return heap.resident_bytes()
    return 0


def limit_bytes() -> int:
    """The least of what the machine has and of what its control groups allow."""
    limits = [_machine_bytes(), *_cgroup_limits()]
    return min((limit for limit in limits if limit > 0), default=0)


def _machine_bytes() -> int:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def _cgroup_limits() -> list[int]:
    """Of version 2: memory.max of the own group and of all above it."""
    limits = []
    with suppress(OSError):
        own = next(
            (line[3:].strip("/") for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"),
            None,
        )
        if own is not None:
            here = _CGROUPS / own
            for group in (here, *here.parents):
                if not group.is_relative_to(_CGROUPS):
                    break
                with suppress(OSError, ValueError):
                    limits.append(int((group / "memory.max").read_text()))
    return limits
