"""Staleness: by how many policy versions what a table draws lags behind the newest that has come into it.

Owns the newest version and the counts of one table. A writer may say of a chunk which version of the policy acted in
it; an item is as stale as its first chunk. Costs nothing as long as nobody says one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from replayd.chunks import ChunkStore
from replayd.messages import Int64s

STALENESS_BOUNDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0)
"""In versions: a learner that publishes each step is soon hundreds ahead, one that does so each epoch a few."""

DRAWS_PER_BATCH = 16
"""Draws of one batch that are looked at, evenly spread over it; each stands for as many as it was taken from."""


class Staleness:
    """Of one table whose chunks are in this store."""

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self.newest = 0
        """Newest version of what has entered since the table was made, reset or restored; 0: none said one."""
        self._counts = np.zeros(len(STALENESS_BOUNDS) + 1)
        self._sum = 0.0

    def enter(self, slots: Int64s) -> None:
        """Items enter that show these chunks."""
        versions = self._chunks.policy_versions
        if versions is not None and len(slots):
            self.newest = max(self.newest, int(versions[slots].max()))

    def draw(self, first: Int64s) -> None:
        """Items are drawn of which these are the first chunks, one entry for each draw."""
        versions, n = self._chunks.policy_versions, len(first)
        if versions is None or self.newest == 0 or n == 0:
            return
        step = -(-n // DRAWS_PER_BATCH)
        looked_at = versions[first[step // 2 :: step]]
        said = looked_at[looked_at > 0]
        behind = self.newest - said
        weight = n / len(looked_at)
        at = np.searchsorted(STALENESS_BOUNDS, behind)
        self._counts += np.bincount(at, minlength=len(self._counts)) * weight
        self._sum += float(behind.sum()) * weight

    def clear(self) -> None:
        """The table begins anew: so may its policy. What has been counted stays, as ages do."""
        self.newest = 0

    def report(self) -> dict[str, Any]:
        """`newest_policy_version` and `staleness_versions`, for `info`; nothing where no version was said."""
        if self.newest == 0 and not self._counts.any():
            return {}
        # Rounded as sums, so that the counts add up.
        counts = np.diff(np.rint(np.cumsum(self._counts)), prepend=0.0).astype(int)
        return {
            "newest_policy_version": self.newest,
            "staleness_versions": {"bounds": list(STALENESS_BOUNDS), "counts": counts.tolist(), "sum": self._sum},
        }
