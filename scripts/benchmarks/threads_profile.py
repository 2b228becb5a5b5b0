"""Where the CPU time of a process goes by function, in all its threads: cProfile, one for each thread.

The standard library alone, since workers import it. A thread is profiled from its start on if that is after the
profile was made. cProfile makes each call dearer, so shares say more than times, and they flatter compiled code.
"""

from __future__ import annotations

import cProfile
import threading
import time
from pathlib import Path
from typing import Any


class ThreadsProfile:
    """`begin` and `end` bound what is told; threads must have been started in between the making and the end."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []
        self._before: dict[str, float] = {}
        threading.setprofile(self._new_thread)

    def begin(self) -> None:
        """From now on, and this thread too."""
        self._here = cProfile.Profile(time.thread_time)
        self._before = self._so_far()
        self._profiles.append(self._here)
        self._here.enable()

    def end(self) -> dict[str, float]:
        """Seconds of CPU by function since the beginning, callees not included."""
        self._here.disable()
        so_far = self._so_far()
        self._profiles.remove(self._here)
        used_s = {function: spent - self._before.get(function, 0.0) for function, spent in so_far.items()}
        return {function: spent for function, spent in used_s.items() if spent > 0}

    def _new_thread(self, *_: Any) -> None:
        """What a new thread calls first, in place of which it is profiled from then on."""
        profile = cProfile.Profile(time.thread_time)
        self._profiles.append(profile)
        profile.enable()

    def _so_far(self) -> dict[str, float]:
        used_s: dict[str, float] = {}
        for profile in list(self._profiles):
            for entry in profile.getstats():
                name = _name(entry.code)
                used_s[name] = used_s.get(name, 0.0) + entry.inlinetime
        return used_s


def _name(code: Any) -> str:
    """`module.Class.function`; of compiled functions what Python calls them."""
    return code if isinstance(code, str) else f"{Path(code.co_filename).stem}.{code.co_qualname}"
