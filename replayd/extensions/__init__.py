"""Table extensions: objects that the loop tells of what happens in a table, a batch at a time.

An extension is any object with one or more of these methods:

- `on_insert(access, items)`: items are in the table.
- `on_sample(access, items)`: one entry a draw, `times_sampled` as of that draw; before items leave by their last one.
- `on_update(access, items)`: priorities were set by a request.
- `on_delete(access, items)`: items are about to leave: evicted, expired or deleted.
- `on_reset(access)`: all items are about to leave.

`items` is an `ItemsView` (keys u64[n], priorities f64[n], times_sampled i64[n]; copies of the extension's own),
`access` a `TableAccess`: it reads the table, and takes wishes (`set_priorities`, `copy_to`) that are carried out when
the request at hand is done. Wishes do not call `on_update`; what a copy sets off may wish again, a few rounds long
(limit `wish_rounds`). Methods run on the daemon's only thread: what they take, everybody waits. One that raises is
counted (`extension_faults` in info) and logged, first with its traceback, then in a line each ten seconds with the
number of times; the table and the daemon go on, and so does the extension.

An extension may name in `copies_to`, a tuple, the tables that it copies to: a server does not start without them. One
object serves one table, so it must allow `copy.deepcopy`, by which `Table.replace` makes one for the new table; what
has state of a table, or cannot be copied, says by `__deepcopy__` how a fresh one is made.
"""

from __future__ import annotations

from replayd.extensions.insert_on_sample import InsertOnSample
from replayd.extensions.priority_diffusion import PriorityDiffusion
from replayd.hooks import ItemsView, TableAccess

__all__ = ["InsertOnSample", "ItemsView", "PriorityDiffusion", "TableAccess"]
