"""Memory of batches that were dropped is used again, and never that of which anything is still in somebody's hands."""

from __future__ import annotations

import platform
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from replayd_client.batch_memory import REMEMBERED_BLOCKS, REUSED_BYTES, SPARE_BLOCKS, BatchMemory

FLOATS = np.dtype(np.float32)
SHAPE = (REUSED_BYTES // 1024, 256)


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_large_array_lies_where_one_was_that_nobody_has_any_more() -> None:
    memory = BatchMemory()
    first = memory.empty(SHAPE, FLOATS)
    where = address(first)
    second = memory.empty(SHAPE, FLOATS)
    assert not np.shares_memory(first, second)
    del first
    third = memory.empty((SHAPE[0], 1, SHAPE[1]), FLOATS)
    assert address(third) == where
    assert third.shape == (SHAPE[0], 1, SHAPE[1])
    assert third.dtype == FLOATS
    assert third.flags.c_contiguous
    assert third.flags.writeable


KEEPERS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "itself": lambda array: array,
    "one element of it": lambda array: array[3, 4:5],
    "its transpose": lambda array: array.T,
    "a view of another dtype": lambda array: array.view(np.uint8)[5],
    "a view of a view": lambda array: array[2:][::3][:, ::2][1],
    "an iterator": lambda array: iter(array),
    "a memoryview": lambda array: memoryview(array),
    "an array over a buffer of it": lambda array: np.frombuffer(memoryview(array)[7:9], np.int32),
    "what another library would have": lambda array: np.from_dlpack(array),
    "a subclass": lambda array: array.view(np.recarray),
    "a nest": lambda array: [{"x": array[0]}],
}


@pytest.mark.parametrize("what", KEEPERS)
def test_memory_of_which_somebody_keeps_anything_is_not_used_again(what: str) -> None:
    memory = BatchMemory()
    array = memory.empty(SHAPE, FLOATS)
    low, high = address(array), address(array) + array.nbytes
    kept = KEEPERS[what](array)
    del array
    for _ in range(3):
        assert not low <= address(memory.empty(SHAPE, FLOATS)) < high
    del kept
    assert low <= address(memory.empty(SHAPE, FLOATS)) < high


@pytest.mark.parametrize("seed", range(5))
def test_arrays_that_live_never_share_memory(seed: int) -> None:
    rng = random.Random(seed)
    memory = BatchMemory()
    alive: list[tuple[NDArray[Any], float]] = []
    for number in range(200):
        rows = int(SHAPE[0] * rng.uniform(0.5, 3))
        array = memory.empty((rows, 256), FLOATS)
        array[...] = number
        alive.append((array[rng.randrange(rows) :] if rng.random() < 0.3 else array, number))
        del array
        while len(alive) > rng.randrange(1, 2 * REMEMBERED_BLOCKS):
            alive.pop(rng.randrange(len(alive)))
        assert all((one == value).all() for one, value in alive[-3:])
    assert all((one == value).all() for one, value in alive)


def test_of_many_batches_that_were_kept_and_dropped_little_stays() -> None:
    memory = BatchMemory()
    kept = [memory.empty(SHAPE, FLOATS) for _ in range(2 * REMEMBERED_BLOCKS)]
    kept.clear()
    assert len(memory._blocks) == REMEMBERED_BLOCKS
    kept.append(memory.empty(SHAPE, FLOATS))
    assert len(memory._blocks) <= 1 + SPARE_BLOCKS


def test_a_much_larger_block_is_not_spent_on_a_small_batch() -> None:
    memory = BatchMemory()
    large = address(memory.empty((3 * SHAPE[0], 256), FLOATS))
    assert address(memory.empty(SHAPE, FLOATS)) != large


@pytest.mark.parametrize(("shape", "dtype"), [((8, 4), FLOATS), ((0, 9), FLOATS), ((REUSED_BYTES,), np.dtype(object))])
def test_small_arrays_and_those_of_objects_are_plain_ones(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    array = BatchMemory().empty(shape, dtype)
    assert (array.shape, array.dtype, array.base) == (shape, dtype, None)


def test_threads_get_memory_of_their_own() -> None:
    memory = BatchMemory()

    def work(number: int) -> bool:
        for turn in range(50):
            array = memory.empty(SHAPE, FLOATS)
            array[...] = 100 * number + turn
            if not (array == 100 * number + turn).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


HEAP = """
import ctypes, resource, threading
import numpy as np
from replayd_client.batch_memory import REUSED_BYTES, BatchMemory

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
faults = []

def receive():
    # As libzmq's thread does, which has a heap of its own: many blocks, touched, and then freed together.
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc(40_000) for _ in range(512)]
        for block in blocks:
            ctypes.memset(block, 1, 40_000)
        for block in blocks:
            libc.free(block)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

BatchMemory().empty((REUSED_BYTES,), np.dtype(np.uint8))
thread = threading.Thread(target=receive)
thread.start()
thread.join()
print(faults[0], faults[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another heap")
def test_what_large_replies_were_received_in_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", HEAP], check=True, capture_output=True, text=True)
    first, last = map(int, done.stdout.split())
    assert last < first / 10
