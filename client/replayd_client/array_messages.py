"""What client and server say to each other of experience: what an insert carries, and the replies that hold arrays.

Arrays are numpy, payloads opaque buffers. `array_wire` makes frames from the former and the latter from frames. Knows
nothing of sessions, tables' settings and limiters: those are in `messages`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd_client.messages import Buffer

Numbers = NDArray[Any]

BLOB_RECORD = np.dtype([("stored_bytes", "<u4"), ("codec", "u1"), ("flags", "u1"), ("zero", "<u2")])
"""One column blob of a chunk (protocol §4.2)."""


# --- what an insert carries -------------------------------------------------------------------------------------------

AT_MAX = math.nan
"""Among the priorities of items: the largest there is when the item enters. No priority is NaN."""
PRIORITY_MAX = 1e90
"""The largest priority that a server takes (protocol.md §4)."""


@dataclass(slots=True, eq=False)
class ChunkBatch:
    """Consecutive chunks of one stream, numbered `first`, `first + 1`, …"""

    first: int
    rows: Numbers
    """Steps in each chunk, [n]."""
    schemas: Sequence[bytes]
    records: Buffer
    """Packed blob records: the columns of the first chunk, of the second, …"""
    body: Sequence[Buffer]
    """Payloads in chunk order; each frame holds whole payloads."""
    episodes: Numbers | None = None
    schema_of: Numbers | None = None
    policy_versions: Numbers | None = None
    """Version of the policy that acted in each chunk, [n]; 0, or None for all: not said."""
    is_lent: bool = False
    """Whether `body` is the memory of a caller, who may write to it once the call is over."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        return self.first + len(self.rows)

    @property
    def nbytes(self) -> int:
        return sum(nbytes_of(frame) for frame in self.body) + nbytes_of(self.records)


@dataclass(slots=True, eq=False)
class ItemBatch:
    """m items, each a window over chunks of the same stream. An absent array stands for its default."""

    tables: Sequence[str]
    chunk: Numbers
    length: Numbers
    priority: Numbers
    """NaN (`AT_MAX`): the item enters with the largest priority in its table, 1.0 if that is empty."""
    table_of: Numbers | None = None
    chunks: Numbers | None = None
    offset: Numbers | None = None
    templates: Sequence[bytes] = (b"",)
    template_of: Numbers | None = None

    def __len__(self) -> int:
        return len(self.priority)

    @property
    def nbytes(self) -> int:
        return 48 * len(self.priority) + sum(map(len, self.templates))


# --- replies ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class InsertReply:
    id: int
    first_key: int | None
    items: int
    duplicate: bool


@dataclass(slots=True, eq=False)
class ShownItems:
    """m items over n distinct chunks, as a sample and a peek show them; `records` has one entry a column blob.

    `template_of` and `schema_of` may be None where all are 0.
    """

    keys: NDArray[np.uint64]
    priorities: NDArray[np.float64]
    times_sampled: NDArray[np.uint32]
    chunk: NDArray[np.uint32]
    chunks: NDArray[np.uint32]
    offset: NDArray[np.uint32]
    length: NDArray[np.uint32]
    templates: Sequence[bytes]
    template_of: NDArray[np.uint16] | None
    rows: NDArray[np.uint32]
    schemas: Sequence[bytes]
    schema_of: NDArray[np.uint16] | None
    records: NDArray[np.void]
    body: Sequence[Buffer]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(slots=True, eq=False)
class SampleReply:
    id: int
    shown: ShownItems
    probabilities: NDArray[np.float64]
    table_sizes: NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class PeekReply:
    """Items with their ages, and the keys that were not there."""

    id: int
    shown: ShownItems
    ages_s: NDArray[np.float64]
    missing: NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class UpdateReply:
    id: int
    updated: int
    deleted: int
    missing: NDArray[np.uint64]


def nbytes_of(buffer: Buffer) -> int:
    """Bytes of a buffer."""
    return buffer.nbytes if hasattr(buffer, "nbytes") else len(buffer)
