"""`replayd` under a sampling profiler: `python -m benchmarks.profiled OUT serve …` writes OUT, JSON, at the end.

Each time a tick of the kernel finds that CPU time was used, a signal notes the function that the main thread is in;
compiled code counts for its caller. Unlike cProfile that costs calls nothing, of which a request makes hundreds.
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import replayd.server
from replayd.cli import main

INTERVAL_S = 0.001
"""Of CPU time; ticks are longer on most machines, and then decide."""


def run(out: Path, arguments: list[str]) -> None:
    samples: Counter[str] = Counter()

    def note(_: int, frame: FrameType | None) -> None:
        assert frame is not None, "the main thread is in Python"
        if not _is_in_loop(frame):
            return
        samples[f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"] += 1

    signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        main(arguments, standalone_mode=False)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        out.write_text(json.dumps(samples))


def _is_in_loop(frame: FrameType | None) -> bool:
    """Whether the daemon serves, and does not start or end."""
    while frame is not None and frame.f_code is not replayd.server.Daemon._loop.__code__:
        frame = frame.f_back
    return frame is not None


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
