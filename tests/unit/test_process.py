"""What the system says that a process may have, of trees of control groups as machines and containers have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replayd.process import cgroup_limits, limit_bytes, most_open_files, open_files, resident_bytes

GIB = 1 << 30
V1_NONE = "9223372036854771712"

# (lines of /proc/self/cgroup, files below /sys/fs/cgroup, limits)
MACHINES: dict[str, tuple[str, dict[str, str], list[int]]] = {
    "a service": (
        "0::/system.slice/replayd.service",
        {"system.slice/replayd.service/memory.max": f"{2 * GIB}", "system.slice/memory.max": "max"},
        [2 * GIB],
    ),
    "a group within groups": (
        "0::/a/b/c",
        {"a/memory.max": f"{GIB}", "a/b/memory.max": "max", "a/b/c/memory.max": f"{3 * GIB}"},
        [3 * GIB, GIB],
    ),
    "no limit anywhere": ("0::/a", {"a/memory.max": "max"}, []),
    "a container with a name space": ("0::/", {"memory.max": f"{GIB}"}, [GIB]),
    "a container that is told its path outside": ("0::/docker/1234", {"memory.max": f"{GIB}"}, [GIB]),
    "a group beside the root of its name space": ("0::/../other", {"memory.max": f"{GIB}"}, [GIB]),
    "a file missing in the middle": ("0::/a/b", {"memory.max": f"{GIB}", "a/b/other": ""}, [GIB]),
    "a name with a colon": ("0::/a:b", {"a:b/memory.max": f"{GIB}"}, [GIB]),
    "nonsense": ("0::/a", {"a/memory.max": "much", "memory.max": ""}, []),
    "version 1": (
        "5:cpu,cpuacct:/x\n4:memory:/user/1\n0::/user",
        {
            "memory/user/1/memory.limit_in_bytes": f"{GIB}",
            "memory/user/memory.limit_in_bytes": V1_NONE,
            "memory/memory.limit_in_bytes": V1_NONE,
            "cpu/x/memory.limit_in_bytes": "1",
        },
        [GIB],
    ),
    "version 1 in a container": (
        "4:memory:/docker/1234",
        {"memory/memory.limit_in_bytes": f"{GIB}"},
        [GIB],
    ),
    "both versions": (
        "4:cpuset:/\n0::/a",
        {"unified/a/memory.max": f"{GIB}", "unified/memory.max": "max"},
        [GIB],
    ),
    "no groups": ("", {}, []),
    "lines of another kind": ("nonsense\n\n:\n", {"memory.max": f"{GIB}"}, []),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_are_those_of_all_groups_that_a_process_is_in(machine: str, tmp_path: Path) -> None:
    lines, files, limits = MACHINES[machine]
    own, mounted = tmp_path / "cgroup", tmp_path / "sys"
    own.write_text(f"{lines}\n")
    for name, text in files.items():
        file = mounted / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert cgroup_limits(own, mounted) == limits


def test_a_system_without_groups_has_no_limits_of_theirs(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path / "nowhere", tmp_path) == []
    # A directory where a file should be, and nothing mounted.
    assert cgroup_limits(tmp_path, tmp_path / "nowhere") == []


def test_this_process_may_have_no_more_than_the_machine_and_no_less_than_it_has() -> None:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < resident_bytes() <= limit_bytes() <= machine


def test_files_that_are_opened_are_counted() -> None:
    before = open_files()
    with open(os.devnull), open(os.devnull):
        assert open_files() == before + 2
    assert before <= (most_open_files() or before)
