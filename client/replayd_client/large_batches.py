"""Batches that are larger than what one sample request may ask for: drawn with several, and decoded as one.

Knows of datasets only how their thread draws.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from replayd_client.array_messages import SampleReply
from replayd_client.connection import Call
from replayd_client.errors import ConnectionLostError, DeadlineExceededError
from replayd_client.prefetcher import GRACE_S, Prefetcher
from replayd_client.sampling import ITEMS_OF_REQUEST, encode_draw, most_items, sampled_batch

if TYPE_CHECKING:
    from replayd_client.batches import SampledBatch

T = TypeVar("T")


class LargeBatchPrefetcher(Prefetcher[T]):
    """A prefetcher none of whose requests asks for more than the server's limit `samples`.

    As `sample_batch` does it: until the least batch is there each request waits, and then, as long as each was granted
    whole, the next one takes what there is at once. So a batch smaller than asked for tells that the table had no more.
    """

    @property
    def _most(self) -> int:
        return ITEMS_OF_REQUEST if self._connection is None else most_items(self._connection)

    def _wanted(self, drawn: int) -> tuple[int, int]:
        n, least = super()._wanted(drawn)
        return min(n, self._most), min(least, self._most)

    def _draw(self) -> list[SampledBatch]:
        parts = super()._draw()
        rest = self.plan.batch_size - sum(map(len, parts))
        while rest > 0 and len(parts[-1]) == self._most:
            part = self._at_once(rest)
            if part is None:
                break
            parts.append(part)
            rest -= len(part)
        return parts

    def _at_once(self, n: int) -> SampledBatch | None:
        """What of so many items is granted without waiting; None if nothing is."""
        connection = self._connection
        assert connection is not None, "the thread starts with a connection"

        def encode(request_id: int) -> list[Any]:
            return encode_draw(connection, request_id, self.plan.table, n, 1, 0)

        what = f"sample of table {self.plan.table!r}"
        try:
            reply = Call(connection, what, encode, time.monotonic() + GRACE_S).answer()
        except (ConnectionLostError, DeadlineExceededError):
            return None
        assert isinstance(reply, SampleReply), "sample is answered by sample"
        return sampled_batch(reply)
