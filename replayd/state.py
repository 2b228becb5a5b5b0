"""State: what an object is made of, as a tree of maps of plain values, so that it can be kept and made again.

A class that owns state has `dump()` beside it, and `load()`. A dump is taken between two requests and costs little: its
arrays are views into what goes on being used, to be copied before the next request (`frozen`), and what takes longer is
a `Later`, worked out afterwards on any thread (`settled`). What follows from other state is not in it. Knows no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]
"""Text keys; values are arrays, integers, floats, text, bools, None, or lists and maps of these."""

Copy = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Later:
    """A part of a dump that is worked out afterwards, from values that change no more."""

    work: Callable[[], Any]


def frozen(state: Any, copy: Copy) -> Any:
    """The same tree with a copy of each array: what it says no longer changes."""
    return _mapped(state, lambda leaf: copy(leaf) if isinstance(leaf, np.ndarray) else leaf)


def settled(state: Any) -> Any:
    """The same tree with every Later worked out."""
    return _mapped(state, lambda leaf: leaf.work() if isinstance(leaf, Later) else leaf)


def arrays_of(state: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a dump, those of what comes later left out."""
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, dict | list):
        for inner in state.values() if isinstance(state, dict) else state:
            yield from arrays_of(inner)


def packed(blobs: Sequence[bytes]) -> State:
    """Strings of bytes as two arrays."""
    return {
        "lengths": np.array([len(blob) for blob in blobs], np.int64),
        "bytes": np.frombuffer(b"".join(blobs), np.uint8),
    }


def unpacked(state: State) -> list[bytes]:
    """The strings of bytes that `packed` was given."""
    whole, ends = state["bytes"].tobytes(), np.cumsum(state["lengths"])
    return [whole[end - length : end] for end, length in zip(ends.tolist(), state["lengths"].tolist(), strict=True)]


def _mapped(state: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(state, dict):
        return {name: _mapped(inner, change) for name, inner in state.items()}
    if isinstance(state, list):
        return [_mapped(inner, change) for inner in state]
    return change(state)
