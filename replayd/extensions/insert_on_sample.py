"""Insert on sample: the first time an item is drawn, another table gets a copy of its view.

The copy shows the same chunks, has a key of its own and the item's priority. The idea is that of Reverb's extension of
this name.
"""

from __future__ import annotations

from replayd.hooks import ItemsView, TableAccess


class InsertOnSample:
    """`to` names the other table, which must be one of the same server. A copy waits there like any insert; it is
    dropped, and counted, if too much waits.
    """

    def __init__(self, to: str) -> None:
        self.copies_to = (to,)
        """What a server checks before it begins."""

    def on_sample(self, access: TableAccess, items: ItemsView) -> None:
        """Wish for a copy of each item whose first draw this is, with its priority."""
        first = items.times_sampled == 1
        if first.any():
            access.copy_to(*self.copies_to, items.keys[first], items.priorities[first])
