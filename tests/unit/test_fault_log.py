"""Lines that may repeat: faults, the first of a kind in full, and others; then few lines, and no count lost."""

from __future__ import annotations

import logging

import pytest

from replayd.errors import BadMessage, Fault
from replayd.fault_log import BURST, INTERVAL_S, KINDS, FaultLog


def taken(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What has been logged since this was last asked."""
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return texts


def raised(error: Exception) -> Exception:
    """The error with a traceback, as foreign code's has."""
    try:
        raise error
    except Exception as caught:
        return caught


def hook_fault(text: str = "broken on purpose") -> Fault:
    return Fault("table t: on_insert of extension Faulty failed", raised(RuntimeError(text)), "mend it", "t")


def test_the_first_fault_is_told_with_its_traceback_and_the_next_ones_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = FaultLog()
    faults.tell(hook_fault(), now=100.0)
    [first] = taken(caplog)
    assert first.startswith("table t: on_insert of extension Faulty failed: Traceback (most recent call last):\n")
    assert first.endswith("RuntimeError: broken on purpose\nmend it")
    for i in range(50):
        faults.tell(hook_fault(f"number {i}"), now=100.0 + i / 10)
    assert taken(caplog) == []
    faults.tell(hook_fault("one more"), now=100.0 + INTERVAL_S)
    assert taken(caplog) == [
        "table t: on_insert of extension Faulty failed: RuntimeError: one more (the last of 51 since the line before)"
    ]


def test_what_was_counted_is_told_when_the_interval_is_over_though_nothing_more_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = FaultLog()
    assert faults.tick(now=0.0) is None
    for now in (1.0, 2.0, 3.0):
        faults.tell(hook_fault(f"at {now}"), now)
    taken(caplog)
    assert faults.tick(now=4.0) == 1.0 + INTERVAL_S
    assert taken(caplog) == []
    assert faults.tick(now=1.0 + INTERVAL_S) is None
    assert taken(caplog) == [
        "table t: on_insert of extension Faulty failed: RuntimeError: at 3.0 (the last of 2 since the line before)"
    ]
    # The line was told just now, so the next one is counted again.
    faults.tell(hook_fault(), now=2.0 + INTERVAL_S)
    assert taken(caplog) == []


def test_what_was_counted_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    for _ in range(9):
        faults.tell(hook_fault(), now=0.0)
    taken(caplog)
    faults.close(now=0.1)
    faults.close(now=0.1)
    [line] = taken(caplog)
    assert "the last of 8 since" in line


def test_a_fault_that_comes_seldom_is_told_each_time_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    for i in range(3):
        faults.tell(hook_fault(), now=i * INTERVAL_S)
    first, *others = taken(caplog)
    assert "Traceback" in first
    assert others == ["table t: on_insert of extension Faulty failed: RuntimeError: broken on purpose"] * 2


def test_kinds_do_not_silence_each_other(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    faults.tell(hook_fault(), now=0.0)
    for _ in range(3):
        faults.tell(Fault("refused a pushed message: bad_message", BadMessage("no header"), "look for it"), now=0.0)
    assert [line.splitlines()[0] for line in taken(caplog)] == [
        "table t: on_insert of extension Faulty failed: Traceback (most recent call last):",
        "refused a pushed message: bad_message: no header; look for it",
    ]
    faults.close(now=0.0)
    assert taken(caplog) == ["refused a pushed message: bad_message: no header (the last of 2 since the line before)"]


def test_kinds_without_end_share_their_lines_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog()
    for i in range(KINDS + 10):
        faults.tell(Fault(f"kind {i}", RuntimeError("x"), "mend it"), now=0.0)
    assert len(taken(caplog)) == KINDS + 1
    faults.close(now=0.0)
    assert taken(caplog) == [f"kind {KINDS + 9}: RuntimeError: x (the last of 9 since the line before)"]


def test_an_error_that_cannot_say_what_it_is_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    faults = FaultLog()
    for _ in range(2):
        faults.tell(Fault("hook", raised(Mute()), "mend it"), now=0.0)
    faults.close(now=0.0)
    assert len(taken(caplog)) == 2


# --- other lines that may repeat --------------------------------------------------------------------------------------


def test_a_burst_of_lines_is_told_whole_and_what_goes_beyond_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    lines = FaultLog()
    for i in range(BURST + 30):
        lines.say(f"table t: max_size is {i}", kind="table t", now=100.0, level=logging.WARNING)
    assert taken(caplog) == [f"table t: max_size is {i}" for i in range(BURST)]
    assert lines.tick(100.1) == 100.0 + INTERVAL_S
    assert lines.tick(100.0 + INTERVAL_S) is None
    assert taken(caplog) == [f"table t: max_size is {BURST + 29} (the last of 30 since the line before)"]


def test_lines_that_come_slowly_are_all_told(caplog: pytest.LogCaptureFixture) -> None:
    lines = FaultLog()
    for i in range(3 * BURST):
        lines.say(f"line {i}", kind="slow", now=i * INTERVAL_S / BURST, level=logging.WARNING)
    assert taken(caplog) == [f"line {i}" for i in range(3 * BURST)]


@pytest.mark.parametrize("times", [1, BURST, BURST + 1, 1000])
def test_no_line_is_lost_to_the_count(caplog: pytest.LogCaptureFixture, times: int) -> None:
    lines = FaultLog()
    for i in range(times):
        lines.say("again", kind="k", now=i * 0.07, level=logging.WARNING)
    lines.close(times * 0.07)
    counts = [int(text.partition("last of ")[2].split()[0]) if "last of" in text else 1 for text in taken(caplog)]
    assert sum(counts) == times
    assert len(counts) <= (times * 0.07 / INTERVAL_S + 1) * (BURST + 1)


def test_a_line_has_the_level_it_was_said_with(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "replayd")
    FaultLog().say("changed", kind="k", now=0.0)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.INFO, "changed")]
