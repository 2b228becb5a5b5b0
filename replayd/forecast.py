"""How much memory tables will take when they are full, as far as their configuration tells.

A signature tells what an item holds before it is compressed, if items share no steps; without one, and for columns of
any length, there is no telling. Owns the estimate and its warnings; measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from replayd.config_model import Config, TableConfig
from replayd.limits import ITEM_BYTES
from replayd.wording import size_text


@dataclass(frozen=True, slots=True)
class Forecast:
    """One table when it is full."""

    name: str
    max_size: int
    item_bytes: int
    """Of one item: its payload, uncompressed, and ITEM_BYTES. A free dimension counts as 1."""
    is_known: bool
    """False: items may hold more than that."""
    max_bytes: int | None

    @property
    def nbytes(self) -> int:
        """What the table will take."""
        wanted = self.max_size * self.item_bytes
        return wanted if self.max_bytes is None else min(self.max_bytes, wanted) if self.is_known else self.max_bytes

    def __str__(self) -> str:
        about = "about" if self.is_known else "at least"
        if self.max_bytes is not None:
            return f"at most {size_text(self.max_bytes)}"
        return f"{about} {size_text(self.nbytes)} when it is full ({about} {self.item_bytes} bytes an item)"


def forecast(config: Config) -> list[Forecast]:
    """Each table when it is full."""
    return [_of_table(table) for table in config.table]


def total_bytes(config: Config) -> int:
    """All tables when they are full."""
    total = sum(each.nbytes for each in forecast(config))
    return total if config.server.max_bytes is None else min(total, config.server.max_bytes)


def memory_warnings(config: Config, limit_bytes: int) -> list[str]:
    """What will not fit, in words. `limit_bytes` is what the process may have, 0 if that is not known."""
    found = []
    for each in forecast(config):
        wanted = each.max_size * each.item_bytes
        if each.max_bytes is not None and wanted > each.max_bytes:
            found.append(
                f"table {each.name!r}: {each.max_size} items of {each.item_bytes} bytes are {size_text(wanted)}, more "
                f"than its max_bytes, {size_text(each.max_bytes)}: unless they compress well, that limit is met first; "
                "lower max_size, or raise max_bytes"
            )
    tables = sum(each.nbytes for each in forecast(config))
    whole = config.server.max_bytes
    if whole is not None and tables > whole:
        found.append(
            f"all tables together may come to {size_text(tables)}, and server.max_bytes is {size_text(whole)}: lower "
            "max_size or max_bytes of tables, or each table's when_full says what happens when that is met"
        )
    predicted = total_bytes(config)
    if limit_bytes and predicted > limit_bytes:
        found.append(
            f"tables may come to {size_text(predicted)} when they are full, and this process may have "
            f"{size_text(limit_bytes)}: lower max_size or max_bytes, or allow it more (MemoryMax of the service)"
        )
    return found


def memory_notes(config: Config, limit_bytes: int) -> list[str]:
    """What cannot be foretold, in words, where nothing bounds it: no fault, but worth a thought."""
    names = ", ".join(repr(e.name) for e in forecast(config) if not e.is_known and e.max_bytes is None)
    if not limit_bytes or not names or config.server.max_bytes is not None:
        return []
    return [
        f"nobody can tell what {names} will take of the {size_text(limit_bytes)} that this process may have: "
        "max_bytes would bound it, of the table or of the server"
    ]


def _of_table(table: TableConfig) -> Forecast:
    payload, is_known = 0, table.signature is not None
    for column in table.signature or ():
        if column.dtype in ("bytes", "str"):
            is_known = False
            continue
        is_known = is_known and -1 not in column.shape
        payload += np.dtype(column.dtype).itemsize * math.prod(max(size, 1) for size in column.shape)
    return Forecast(table.name, table.max_size, payload + ITEM_BYTES, is_known, table.max_bytes)
