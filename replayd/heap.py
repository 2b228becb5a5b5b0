"""The C heap of the process, where large payloads lie: what it keeps of freed memory, and when it gives that back.

With glibc alone; elsewhere nothing happens. It concerns the whole process, so only a process of our own asks for it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

KEPT_BLOCK_BYTES = 32 << 20
KEPT_TOP_BYTES = 256 << 20
"""Blocks up to the first stay in the heap when they are freed, and the heap's end up to the second.

By itself glibc adapts both to what it sees: the end to twice the largest block. But large messages come several at a
time, so half of the memory that they were received in was fresh each time: with payloads of 40 kB in messages of 4 MB
the I/O thread took 17 µs a payload, and takes 11 with these. The first is the largest that glibc allows.
"""

CHECK_S = 1.0
SLACK_SHARE, SLACK_BYTES = 0.125, 64 << 20
"""Free memory that is kept for the payloads to come: a share of those there are, and so much besides.

Payloads of mixed sizes leave holes that the next ones do not fill: the heap grew to 1.4 times its payloads. To give the
holes back takes some ten milliseconds for a gigabyte, and a fault for each of their pages when they are filled again,
so it is done rarely.
"""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_STATM = Path("/proc/self/statm")


def keep_freed_memory() -> Trimmer | None:
    """Let the heap keep what payloads give free, for the next ones; who holds it down from then on. None: no glibc."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or not _STATM.exists():
        return None
    libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, KEPT_TOP_BYTES)
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    return Trimmer(resident_bytes, lambda: libc.malloc_trim(0))


def resident_bytes() -> int:
    """Memory of this process that is in RAM (Linux)."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Trimmer:
    """Gives free memory back when there is much of it. `resident` tells the process's bytes, `trim` gives back."""

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        # What is resident besides payloads and is not free either: code, indices, messages being read.
        self._other_bytes = resident()
        self._payload_bytes = 0
        self._check_at = 0.0

    def tick(self, now: float, payload_bytes: int) -> float | None:
        """Look, if it is time; when to look again, None while nothing has changed since the last look."""
        if payload_bytes == self._payload_bytes:
            return None
        if now < self._check_at:
            return self._check_at
        self._payload_bytes = payload_bytes
        self._check_at = now + CHECK_S
        free = self._resident() - payload_bytes - self._other_bytes
        if free > SLACK_BYTES + SLACK_SHARE * payload_bytes:
            self._trim()
            # What is left was not free; were it taken for that, nothing would be found again and again.
            free = 0
            self._other_bytes = self._resident() - payload_bytes
        self._other_bytes += min(free, 0)
        return None
