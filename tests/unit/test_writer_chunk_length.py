"""The chunk length that is learned: it goes where steps cost least, and stays within its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client.chunk_length import CHUNK_COST_BYTES, MOST_LENGTH, START_LENGTH, ChunkLength
from replayd_client.chunk_log import MAX_CHUNK_BYTES
from tests.unit.test_writer import Pen


def settled(step_bytes: float, saved_bytes: float, window: int, rounds: int = 2000) -> int:
    """The length after many chunks of K steps, K · step_bytes + saved_bytes long, which windows lie anywhere in."""
    tuner = ChunkLength()
    for _ in range(rounds):
        length = tuner.length
        nbytes = int(length * step_bytes + saved_bytes)
        tuner.saw_chunk(nbytes, length)
        chunks = 1 + (window - 1) / length
        tuner.saw_item(int(nbytes * chunks), 1, length, window)
    return tuner.length


def test_nothing_is_changed_before_enough_was_seen() -> None:
    tuner = ChunkLength()
    for _ in range(ChunkLength.CHUNKS):
        tuner.saw_chunk(1000, START_LENGTH)
    for _ in range(ChunkLength.ITEMS - 1):
        tuner.saw_item(1000, 1, START_LENGTH, 4)
    assert tuner.length == START_LENGTH
    tuner.saw_item(1000, 1, START_LENGTH, 4)
    assert tuner.length == START_LENGTH + ChunkLength.UP


def test_chunks_that_were_cut_early_teach_nothing() -> None:
    tuner = ChunkLength()
    for _ in range(100):
        tuner.saw_chunk(100, 2)
        tuner.saw_item(100, 1, 2, 2)
    assert tuner.length == START_LENGTH


def test_large_steps_that_do_not_compress_make_short_chunks_and_small_steps_longer_ones() -> None:
    assert settled(step_bytes=28_000, saved_bytes=0, window=4) <= 4
    assert settled(step_bytes=26, saved_bytes=0, window=2) >= 6
    assert settled(step_bytes=4, saved_bytes=0, window=200) >= 40


def test_what_compresses_over_time_makes_longer_chunks() -> None:
    assert settled(step_bytes=300, saved_bytes=20_000, window=8) > settled(step_bytes=3000, saved_bytes=0, window=8)


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 300), st.integers(1, 300)), max_size=200))
def test_the_length_stays_within_its_bounds(seen: list[tuple[int, int, int]]) -> None:
    tuner = ChunkLength()
    tuner.bound(7)
    for nbytes, window, chunks in seen:
        tuner.saw_chunk(nbytes, tuner.length)
        tuner.saw_item(nbytes, chunks, chunks * tuner.length, window)
        assert 1 <= tuner.length <= 7 <= MOST_LENGTH


def test_a_writer_learns_from_what_it_writes_and_stores_it_rightly() -> None:
    pen = Pen(4)
    noise = np.random.default_rng(2).integers(0, 256, (400, 3000), np.uint8)
    for number, frame in enumerate(noise):
        pen.append(frame)
        if number >= 3:
            pen.create(pen.history[-4:])
        pen.ship()
    pen.finish()
    assert CHUNK_COST_BYTES < 3000
    assert pen.log.report().chunk_length < START_LENGTH
    for number in range(0, 397, 31):
        np.testing.assert_array_equal(pen.store.item(number), noise[number : number + 4])


@pytest.mark.parametrize(
    ("step_bytes", "expected"), [(MAX_CHUNK_BYTES, 1), (MAX_CHUNK_BYTES // 3, 3), (8, START_LENGTH)]
)
def test_chunks_of_large_steps_are_bounded_in_bytes(step_bytes: int, expected: int) -> None:
    pen = Pen(4)
    pen.append(np.zeros(step_bytes, np.uint8))
    assert pen.log.report().chunk_length == expected
