"""How much memory tables will take when they are full, as far as their configuration tells.

A signature tells what an item holds before it is compressed, if items share no steps; without one, and for columns of
any length, there is no telling. An item is taken for one chunk. The process takes more than its tables hold:
`limits.resident_most` says how much. Owns the estimate and its warnings; measures nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from replayd.config_model import Config, TableConfig
from replayd.limits import CHUNK_BYTES, COLUMN_BYTES, ITEM_BYTES, RESIDENT_SHARE, held_most, resident_most
from replayd.wording import size_text


@dataclass(frozen=True, slots=True)
class Forecast:
    """One table when it is full."""

    name: str
    max_size: int
    item_bytes: int
    """Of one item: its payload, uncompressed, and what it and a chunk count beside it. A free dimension counts as 1."""
    is_known: bool
    """False: items may hold more than that."""
    max_bytes: int | None

    @property
    def nbytes(self) -> int:
        """What the table will take."""
        wanted = self.max_size * self.item_bytes
        return wanted if self.max_bytes is None else min(self.max_bytes, wanted) if self.is_known else self.max_bytes

    @property
    def is_unbounded(self) -> bool:
        """Whether it may take more than that."""
        return not self.is_known and self.max_bytes is None

    def __str__(self) -> str:
        about = "about" if self.is_known else "at least"
        if self.max_bytes is not None and not (self.is_known and self.nbytes < self.max_bytes):
            return f"at most {size_text(self.max_bytes)}"
        return (
            f"{about} {size_text(self.nbytes)} when it is full ({about} {self.item_bytes} bytes an item of one chunk)"
        )


def forecast(config: Config) -> list[Forecast]:
    """Each table when it is full."""
    return [_of_table(table) for table in config.table]


def total_bytes(config: Config) -> int:
    """All tables when they are full: as much as the server may hold, if one may come to any size."""
    tables, most = forecast(config), config.server.max_bytes
    total = sum(each.nbytes for each in tables)
    if most is None:
        return total
    return most if any(each.is_unbounded for each in tables) else min(total, most)


def resident_bytes(config: Config) -> int:
    """The process at most, when all tables are full; requests and replies on their way come beside it."""
    return resident_most(total_bytes(config), has_store=config.store is not None)


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
    held, resident, has_store = total_bytes(config), resident_bytes(config), config.store is not None
    if limit_bytes and resident > limit_bytes:
        most = held_most(limit_bytes, has_store=has_store)
        constant = size_text(resident_most(0, has_store=has_store))
        fits = f"{size_text(most)} of tables would fit" if most else "that is too little for any table"
        come = f"come to {_how_surely(config, held)}" if is_bounded(config) else "may come to"
        found.append(
            f"tables {come} {size_text(held)} when they are full, the process then to {size_text(resident)} "
            f"({RESIDENT_SHARE:g} times that and {constant}), and it may have {size_text(limit_bytes)}; {fits}: "
            "lower max_size or max_bytes, or allow it more (MemoryMax of the service)"
        )
    return found


def is_bounded(config: Config) -> bool:
    """Whether something ends what all tables come to."""
    return config.server.max_bytes is not None or not any(each.is_unbounded for each in forecast(config))


def tables_text(config: Config) -> str:
    """What all tables come to when they are full, in words: the same words whoever asks."""
    if not is_bounded(config):
        some = [each for each in forecast(config) if each.is_unbounded]
        least = ", ".join(f"{size_text(each.nbytes)} in {each.name!r}" for each in some)
        what = f"nothing bounds what tables come to when they are full, at least {least}"
        return f"{what}: max_bytes would, of the table or of the server"
    total = total_bytes(config)
    return f"tables come to {_how_surely(config, total)} {size_text(total)} when they are full"


def memory_text(config: Config) -> str:
    """The same, and what the process comes to then; requests and replies on their way come beside it."""
    if not is_bounded(config):
        return tables_text(config)
    return f"{tables_text(config)}, the process then to {size_text(resident_bytes(config))}"


def _how_surely(config: Config, total: int) -> str:
    """`at most` where a limit of bytes ends the tables' growth, `about` where their items do."""
    foretold = sum(each.max_size * each.item_bytes for each in forecast(config))
    return "about" if all(each.is_known for each in forecast(config)) and foretold == total else "at most"


def _of_table(table: TableConfig) -> Forecast:
    payload, is_known = 0, table.signature is not None
    for column in table.signature or ():
        if column.dtype in ("bytes", "str"):
            is_known = False
            continue
        is_known = is_known and -1 not in column.shape
        payload += np.dtype(column.dtype).itemsize * math.prod(max(size, 1) for size in column.shape)
    nbytes = payload + CHUNK_BYTES + COLUMN_BYTES * len(table.signature or (None,)) + ITEM_BYTES
    return Forecast(table.name, table.max_size, nbytes, is_known, table.max_bytes)
