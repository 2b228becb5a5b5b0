"""A forked child that does something and ends; it is waited for with a deadline, so that a hang fails the test."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable

import pytest

from tests.daemon.embedded import DEADLINE_S


def forked(work: Callable[[], None]) -> int:
    """The exit code of a child that does this; one that hangs is killed and fails the test."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail(f"a forked child hung for {DEADLINE_S} s")
        threading.Event().wait(0.005)
