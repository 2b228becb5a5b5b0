"""Batches that are gathered make few messages, which hold what the batches held, in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client import batch_log, batch_messages
from replayd_client.batch_log import BatchLog
from replayd_client.batch_messages import LARGE_MESSAGE_BYTES, MESSAGE_BYTES, MESSAGE_CHUNKS
from replayd_client.batch_rows import priorities_of, rows_of_batch
from replayd_client.equal_chunks import OWN_FRAME_BYTES
from replayd_client.outbox import FULL, READY, Message

LIMIT = 4096


def add(log: BatchLog, data: Any, priorities: dict[str, Any], now: float = 0.0) -> None:
    rows = rows_of_batch(data)
    checked = priorities_of(priorities, rows.count)
    for part in log.begin(rows, checked):
        log.add(rows, checked, part, now)


def messages_of(log: BatchLog) -> list[Message]:
    taken = []
    while (message := log.take_message()) is not None:
        taken.append(message)
    return taken


def items_of(message: Message) -> list[tuple[str, int, float]]:
    """Table, chunk and priority of each item."""
    items = message.items
    assert items is not None
    table_of = np.zeros(len(items), int) if items.table_of is None else items.table_of
    return [
        (items.tables[table], chunk, priority)
        for table, chunk, priority in zip(table_of.tolist(), items.chunk.tolist(), items.priority.tolist(), strict=True)
    ]


def noise(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@given(
    batches=st.lists(
        st.tuples(
            st.integers(1, 12),
            st.integers(1, 3),
            st.sampled_from([{"t": 1.0}, {"u": 2.0}, {"u": 0.5, "t": "max"}, {"t": 0.5, "v": 0.25, "u": 1.0}]),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    ),
    is_raw=st.booleans(),
)
def test_messages_hold_what_the_batches_held(batches: list[Any], is_raw: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_messages, "MESSAGE_BYTES", LIMIT)
        patch.setattr(batch_log, "MESSAGE_CHUNKS", 20)
        log = BatchLog("raw" if is_raw else "auto")
        payloads: list[bytes] = []
        wanted: list[tuple[str, int, float]] = []
        taken: list[Message] = []
        for seed, (count, steps, priorities, takes) in enumerate(batches):
            data = {"a": noise(seed, count, steps, 30), "b": noise(seed, count, steps)}
            add(log, data, priorities)
            for table, priority in priorities.items():
                value = np.nan if priority == "max" else priority
                wanted += [(table, len(payloads) + number, value) for number in range(count)]
            payloads += [data["a"][i].tobytes() + data["b"][i].tobytes() for i in range(count)]
            # What was given may change afterwards.
            data["a"][:] = 0
            if takes:
                taken += messages_of(log)
                assert log.items == 0
        taken += messages_of(log)
    chunks = [message.chunks for message in taken if message.chunks is not None]
    assert b"".join(bytes(frame) for each in chunks for frame in each.body) == b"".join(payloads)
    assert [each.first for each in chunks] == np.cumsum([0, *map(len, chunks)])[:-1].tolist()
    assert [message.keep_from for message in taken] == [each.end for each in chunks]
    np.testing.assert_equal([item for message in taken for item in items_of(message)], wanted)
    steps_of = np.concatenate([np.full(count, steps) for count, steps, _, _ in batches])
    assert np.array_equal(np.concatenate([each.rows for each in chunks]), steps_of)
    for each in chunks:
        if len(each) > max(count for count, _, _, _ in batches):
            assert each.nbytes <= LIMIT
            assert len(each) <= 20


@pytest.mark.parametrize("columns", [1, 2])
def test_small_batches_share_a_message_and_a_frame(columns: int) -> None:
    log = BatchLog("raw")
    for number in range(MESSAGE_CHUNKS // 64):
        assert not log.standing & FULL
        add(log, {str(column): noise(number, 64, 1, 50) for column in range(columns)}, {"t": 1.0})
    assert log.standing == READY | FULL
    (message,) = messages_of(log)
    assert message.chunks is not None
    assert len(message.chunks) == MESSAGE_CHUNKS
    assert len(message.chunks.body) == 1


def test_large_payloads_that_are_gathered_have_frames_of_their_own() -> None:
    log = BatchLog("raw")
    for number in range(2):
        add(log, noise(number, 2, 1, OWN_FRAME_BYTES), {"t": 1.0})
    (message,) = messages_of(log)
    assert message.chunks is not None
    assert [frame.nbytes for frame in message.chunks.body] == [OWN_FRAME_BYTES] * 4


@pytest.mark.parametrize(
    ("payload_bytes", "most_bytes"), [(100_000, MESSAGE_BYTES), (OWN_FRAME_BYTES + 16, LARGE_MESSAGE_BYTES)]
)
def test_a_message_leaves_when_another_batch_like_the_last_would_not_fit(payload_bytes: int, most_bytes: int) -> None:
    count = most_bytes // (3 * payload_bytes)
    log = BatchLog("raw")
    for number in range(3):
        assert not log.standing & FULL
        add(log, np.zeros((count, 1, payload_bytes - 16), np.uint8), {"t": 1.0}, now=number)
    assert log.standing == READY | FULL
    (message,) = messages_of(log)
    assert message.chunks is not None
    assert len(message.chunks) == 3 * count


def test_what_is_gathered_is_ready_from_the_first_batch_on() -> None:
    log = BatchLog("auto")
    assert log.ready_since() is None
    add(log, noise(0, 2, 1, 10), {"t": 1.0}, now=3.0)
    add(log, noise(1, 2, 1, 10), {"t": 1.0}, now=4.0)
    assert (log.ready_since(), log.ready_items, log.items) == (3.0, 4, 4)
    assert len(messages_of(log)) == 1
    assert (log.ready_since(), log.ready_items, log.standing) == (None, 0, 0)
