"""The measured process's end of a measurement: prepare, say so, and then work for as long as it is told.

A driver hands its roles to `main`; `crew` is the other end, with a line of JSON each way. Knows no system under test,
and imports the standard library alone: it runs in the environments of the peers too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Turns = Iterator[Any]
"""What a role does: up to its first `yield` it prepares, and what that yields is told to the parent (a dict or None).
Each later `next` is one turn of work and yields how many items it was, or a dict of results, which is told as it is."""


def main(roles: Mapping[str, Callable[..., Turns]]) -> None:
    """Run `driver ROLE SETTINGS`, SETTINGS being a JSON object of keyword arguments.

    Each order on standard input is answered by what was done: {"seconds", "settle_s"} lets the role run for so long and
    counts after the first `settle_s`; {"turn"} is one turn, whose dict is the answer; {"free"} runs until the end.
    """
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What libraries print is no answer.
    turns = roles[sys.argv[1]](**json.loads(sys.argv[2]))
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
            answers.write(json.dumps(_timed(turns, order["seconds"], order["settle_s"])) + "\n")
    os._exit(0)  # Threads and sockets of the systems under test may take their time to end, or for ever.


def _timed(turns: Turns, seconds: float, settle_s: float) -> dict[str, float]:
    clock = time.perf_counter
    before = items = 0
    used_s, began = time.process_time(), clock()
    while clock() - began < settle_s:
        before += next(turns)
    started = now = clock()
    while now - started < seconds:
        items += next(turns)
        now = clock()
    used_s = time.process_time() - used_s
    return {"items": items, "seconds": now - started, "items_with_settling": before + items, "cpu_s": used_s}


def _end_with(orders: Any) -> None:
    """End the process when the parent closes the orders, whatever it is doing then."""

    def watch() -> None:
        orders.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
