"""An item that a writer has created, as its creator sees it."""

from __future__ import annotations

from replayd_client.errors import ReplaydError
from replayd_client.insert_message import Receipt


class ItemHandle:
    """An item on its way: `key` is None until it is acknowledged, and stays None if it was refused (see `error`)."""

    __slots__ = ("_index", "_receipt", "table")

    def __init__(self, table: str) -> None:
        self.table = table
        self._receipt: Receipt | None = None
        self._index = 0

    @property
    def done(self) -> bool:
        """Whether the server has answered."""
        return self._receipt is not None and self._receipt.done

    @property
    def key(self) -> int | None:
        if self._receipt is None or self._receipt.first_key is None:
            return None
        return self._receipt.first_key + self._index

    @property
    def error(self) -> ReplaydError | None:
        return None if self._receipt is None else self._receipt.error

    def shipped(self, receipt: Receipt, index: int) -> None:
        """The item left as number `index` of this message."""
        self._receipt, self._index = receipt, index

    def __repr__(self) -> str:
        state = "refused" if self.error is not None else f"key {self.key}" if self.done else "on its way"
        return f"<ItemHandle {self.table!r}: {state}>"
