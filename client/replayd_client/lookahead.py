"""How many batches a dataset draws ahead of its consumers: as many as it was told, or as many as they turn out to need.

Pure: it is told what was drawn and whether somebody waited for it, and knows no thread, no clock and no request.
"""

from __future__ import annotations

from typing import Literal

LEAST_BATCHES, MOST_BATCHES = 2, 32
"""Between these "auto" chooses. Requests for small batches are then for 16 of them at most: what more would save is
less than what a learner loses by older samples."""
MOST_BYTES = 16 << 20
"""Decoded, of all batches that "auto" draws ahead, unless two are more."""
FORGET_AFTER = 8
"""Lengths of what is drawn ahead for which nobody had to wait, before it is halved."""

PrefetchBatches = int | Literal["auto"]


class Lookahead:
    """The number of batches that may be drawn and not yet taken, `batches`, now.

    "auto" begins with 2. It doubles them when a consumer was already waiting for the batches that come, as TensorFlow's
    autotuned prefetching does: then several batches in one request cost both sides much less than several requests. It
    halves them when the server grants less than was asked for, since then it is the limiter or the inserts that are
    waited for and nothing is gained, and when nobody has waited for long. So a learner whose steps take longer than a
    request has samples that are at most two batches old.
    """

    __slots__ = ("_is_first", "_unawaited", "batches")

    def __init__(self, prefetch_batches: PrefetchBatches) -> None:
        self.batches = LEAST_BATCHES if prefetch_batches == "auto" else prefetch_batches
        self._is_first = True
        self._unawaited = 0

    def drawn(self, batches: int, batch_bytes: int, *, is_awaited: bool, is_whole: bool) -> None:
        """With "auto": so many batches came, of how many decoded bytes each, whether a consumer waited for them, and
        whether they are all that was asked for."""
        # Whatever the learner is like, it waits for its first batch.
        is_first, self._is_first = self._is_first, False
        self._unawaited = 0 if is_awaited else self._unawaited + batches
        if not is_whole or self._unawaited >= FORGET_AFTER * self.batches:
            self._unawaited = 0
            self.batches //= 2
        elif is_awaited and not is_first:
            self.batches *= 2
        most = min(MOST_BATCHES, MOST_BYTES // max(batch_bytes, 1))
        self.batches = max(min(self.batches, most), LEAST_BATCHES)
