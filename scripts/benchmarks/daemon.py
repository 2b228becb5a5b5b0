"""Our daemon as an operator starts it, and what the kernel says of a process: its CPU time and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.nursery import environment

START_S = 60.0


@dataclass(frozen=True, slots=True)
class Daemon:
    address: str
    http: str
    pid: int


@contextmanager
def daemon(
    tables: Sequence[str], *, ipc: bool = False, profile: Path | None = None, stores: bool = False
) -> Iterator[Daemon]:
    """`replayd serve` with these tables for as long as the block lasts; sampled (see `profiled`) with `profile`, a file
    that is written at the end. `stores`: with a store, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="replayd-bench-") as directory:
        endpoint_file, log = Path(directory) / "endpoint.json", Path(directory) / "log"
        module = ["-m", "replayd"] if profile is None else ["-m", "benchmarks.profiled", str(profile)]
        where = ["--listen", f"ipc://{directory}/socket"] if ipc else ["--port", "0"]
        command = [sys.executable, *module, "serve", *where, "--endpoint-file", str(endpoint_file)]
        command += ["--http", "127.0.0.1:0", *(["--data-dir", f"{directory}/store"] if stores else [])]
        for table in tables:
            command += ["--table", table]
        with log.open("wb") as said:
            process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + START_S
            while not endpoint_file.exists():
                try:
                    process.wait(timeout=0.01)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        raise click.ClickException(f"the daemon did not listen within {START_S:.0f} s") from None
                else:
                    raise click.ClickException(f"the daemon ended:\n{log.read_text()}")
            endpoint = json.loads(endpoint_file.read_text())
            yield Daemon(endpoint["router"], endpoint["http"], process.pid)
            if process.poll() is not None:
                raise click.ClickException(f"the daemon ended:\n{log.read_text()}")
        finally:
            process.terminate()
            process.wait()


def cpu_s(pid: int) -> float:
    """Seconds of CPU that all threads of a process have used."""
    return sum(cpu_s_of_threads(pid).values())


def cpu_s_of_threads(pid: int) -> dict[str, float]:
    """The same by the names of threads: libzmq's are called `ZMQbg/…`."""
    used: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        used[name] = used.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """What processes can have before the machine swaps."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise click.ClickException("/proc/meminfo does not tell what memory is available")
