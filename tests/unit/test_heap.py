"""Free memory goes back to the system when there is much of it, and only then."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from replayd.heap import CHECK_S, SLACK_BYTES, SLACK_SHARE, Trimmer

GB = 1 << 30
CODE = 50 << 20


class Process:
    """Memory as an operator sees it: payloads, what is free among them, and the rest."""

    def __init__(self) -> None:
        self.payloads = 0
        self.free = 0
        self.rest = CODE
        self.trims = 0
        self.now = 0.0
        self.trimmer = Trimmer(lambda: self.payloads + self.free + self.rest, self.trim)

    def trim(self) -> None:
        self.trims += 1
        self.free = 0

    def look(self) -> float | None:
        self.now += CHECK_S
        return self.trimmer.tick(self.now, self.payloads)


def test_holes_among_payloads_stay_below_a_share_of_them() -> None:
    process = Process()
    for number in range(100):
        process.payloads = GB + number
        process.free += 20 << 20
        process.look()
        assert process.free <= SLACK_BYTES + SLACK_SHARE * process.payloads
    assert 5 <= process.trims <= 15


def test_what_is_not_free_is_looked_for_once() -> None:
    process = Process()
    process.payloads, process.rest = GB, CODE + GB
    process.look()
    for number in range(10):
        process.payloads += number
        process.look()
    assert process.trims == 1
    process.free = GB
    process.payloads += 1
    process.look()
    assert process.trims == 2


def test_memory_that_was_in_use_for_a_while_counts_as_free_when_it_is() -> None:
    process = Process()
    process.payloads, process.rest = GB, CODE + GB
    process.look()
    process.payloads, process.rest = GB + 1, CODE
    process.look()
    process.payloads, process.free = GB + 2, GB
    process.look()
    assert process.trims == 2


def test_payloads_that_leave_are_given_back_though_nothing_comes_after() -> None:
    process = Process()
    process.payloads = GB
    process.look()
    process.payloads, process.free = 0, GB
    due = process.trimmer.tick(process.now + CHECK_S / 2, process.payloads)
    assert due == process.now + CHECK_S
    assert process.trims == 0
    assert process.trimmer.tick(due, process.payloads) is None
    assert process.trims == 1
    assert process.look() is None


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_glibc_gives_back_what_lies_between_payloads() -> None:
    program = """
        import random
        from replayd.heap import keep_freed_memory, resident_bytes
        trimmer = keep_freed_memory()
        if trimmer is None:
            print("no glibc")
            raise SystemExit
        payloads = [b"x" * random.randrange(20_000, 300_000) for _ in range(2_000)]
        trimmer.tick(1.0, sum(map(len, payloads)))
        before = resident_bytes()
        payloads = random.sample(payloads, 500)
        kept = sum(map(len, payloads))
        assert before - resident_bytes() < kept, "the heap keeps what was freed"
        trimmer.tick(9.0, kept)
        assert before - resident_bytes() > 2 * kept, (before, resident_bytes(), kept)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
