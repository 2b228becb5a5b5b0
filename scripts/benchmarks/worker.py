"""The measured process's end of a measurement: prepare, say so, and then work for as long as it is told.

A driver hands its roles to `main`; `nursery` and `crew` are the other end. What a driver imports, it imports once: each
worker is forked from a process that has done it (dm-reverb's clients take five seconds of CPU for it). Knows no system
under test, and imports the standard library alone: it runs in the environments of the peers too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from benchmarks.threads_profile import ThreadsProfile

Turns = Iterator[Any]
"""What a role does: up to its first `yield` it prepares, and what that yields is told to the parent (a dict or None).
Each later `next` is one turn of work and yields how many items it was, or a dict of results, which is told as it is."""

MESSAGE_BYTES = 1 << 16


def main(roles: Mapping[str, Callable[..., Turns]]) -> None:
    """Run `driver SOCKET`, SOCKET being the number of a Unix socket with a message of JSON each way.

    {"role", "settings"} comes with three file descriptors, of orders, of answers and of what is said otherwise, and
    makes a worker; {"end"} kills the one with this process id. Ends with all of them when the socket is closed.
    """
    parent = socket.socket(fileno=int(sys.argv[1]))
    workers: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(parent, MESSAGE_BYTES, 3)
        if not message:
            break
        order = json.loads(message)
        if "role" in order:
            pid = os.fork()
            if pid == 0:
                parent.close()
                _work(roles, order["role"], order["settings"], *fds)
            workers.add(pid)
            for fd in fds:
                os.close(fd)
            parent.send(json.dumps(pid).encode())
        else:
            _end(order["end"])
            workers.discard(order["end"])
            parent.send(b"0")
    for pid in workers:
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _work(
    roles: Mapping[str, Callable[..., Turns]], role: str, settings: dict[str, Any], read: int, write: int, said: int
) -> NoReturn:
    """Be a worker, with an order and an answer a line of JSON: what preparing told is the first answer, and each order
    is answered by what was done. {"seconds", "settle_s"} lets the role run for so long and counts after the first
    `settle_s`; {"turn"} is one turn, whose dict is the answer; {"free"} runs until the end. With "profile" among the
    settings each answer to {"seconds"} has the CPU time of functions, see `threads_profile`.
    """
    status = 1
    try:
        for standard in (1, 2):
            os.dup2(said, standard)  # What libraries print is no answer.
        orders, answers = os.fdopen(read), os.fdopen(write, "w", buffering=1)
        profile = ThreadsProfile() if settings.pop("profile", False) else None
        turns = roles[role](**settings)
        answers.write(json.dumps(next(turns) or {}) + "\n")
        for line in orders:
            order = json.loads(line)
            if "free" in order:
                _end_with(orders)
                for _ in turns:
                    pass
            elif "turn" in order:
                answers.write(json.dumps(next(turns)) + "\n")
            else:
                answers.write(json.dumps(_timed(turns, order["seconds"], order["settle_s"], profile)) + "\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # Threads and sockets of the systems under test may take their time to end, or for ever.


def _timed(turns: Turns, seconds: float, settle_s: float, profile: ThreadsProfile | None) -> dict[str, Any]:
    clock = time.perf_counter
    before = items = 0
    used_s, began = time.process_time(), clock()
    while clock() - began < settle_s:
        before += next(turns)
    if profile is not None:
        profile.begin()
    started = now = clock()
    while now - started < seconds:
        items += next(turns)
        now = clock()
    functions = {} if profile is None else {"functions": profile.end()}
    used_s = time.process_time() - used_s
    done = {"items": items, "seconds": now - started, "items_with_settling": before + items, "cpu_s": used_s}
    return {**done, **functions}


def _end_with(orders: Any) -> None:
    """End the process when the parent closes the orders, whatever it is doing then."""

    def watch() -> None:
        orders.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
