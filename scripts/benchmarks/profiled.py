"""`replayd` under a sampling profiler: `python -m benchmarks.profiled OUT serve …` writes OUT, JSON, at the end.

Each time a tick of the kernel finds that the main thread has used CPU time, a signal notes the function that it is in;
what libzmq's threads use does not count, and compiled code counts for its caller. Unlike cProfile that costs calls
nothing, of which a request makes hundreds.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import replayd.server
from replayd.cli import main

INTERVAL_S = 0.001
"""Of the main thread's CPU time; ticks are longer on most machines, and then decide."""


def run(out: Path, arguments: list[str]) -> None:
    samples: Counter[str] = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        assert frame is not None, "the main thread is in Python"
        if _is_in_loop(frame):
            samples[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"] += 1

    signal.signal(signal.SIGALRM, note)
    _start_timer()
    try:
        main(arguments, standalone_mode=False)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        out.write_text(json.dumps(samples))


def _start_timer() -> None:
    """SIGALRM by the calling thread's CPU time. Python's own timers count that of all threads, which would book
    libzmq's work to wherever the main thread happens to be."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    interval_ns = round(INTERVAL_S * 1e9)
    every = (ctypes.c_long * 4)(0, interval_ns, 0, interval_ns)  # struct itimerspec: the interval, then the first.
    if libc.timer_create(time.CLOCK_THREAD_CPUTIME_ID, None, ctypes.byref(timer)) or libc.timer_settime(
        timer, 0, every, None
    ):
        raise OSError(ctypes.get_errno(), "no timer of the thread's CPU time")


def _is_in_loop(frame: FrameType | None) -> bool:
    """Whether the daemon serves, and does not start or end."""
    while frame is not None and frame.f_code is not replayd.server.Daemon._loop.__code__:
        frame = frame.f_back
    return frame is not None


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
