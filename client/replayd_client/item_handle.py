"""An item that a writer has created, as its creator sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from replayd_client.arguments import checked_timeout
from replayd_client.errors import ReplaydError
from replayd_client.insert_message import Receipt


class ItemHandle:
    """An item on its way to its table. Made by a writer's `create_item`."""

    __slots__ = ("_index", "_wait", "receipt", "table")

    def __init__(
        self, table: str, wait: Callable[[ItemHandle, float | Literal["own"] | None], None] | None = None
    ) -> None:
        self.table = table
        self._wait = wait
        self.receipt: Receipt | None = None
        """Of the message it left in; None before that."""
        self._index = 0

    @property
    def done(self) -> bool:
        """Whether the server has answered."""
        return self.receipt is not None and self.receipt.done

    @property
    def key(self) -> int | None:
        """The item's key in its table; None until it is acknowledged, and for ever if it was refused."""
        if self.receipt is None or self.receipt.first_key is None:
            return None
        return self.receipt.first_key + self._index

    @property
    def error(self) -> ReplaydError | None:
        """Why the server refused the item; None if it did not, or has not answered."""
        return None if self.receipt is None else self.receipt.error

    def wait(self, timeout_ms: float | Literal["own"] | None = "own") -> int:
        """Wait until the item is in its table; return its key. Its chunk is finished for that, however short it is.

        The deadline is the writer's own `timeout_ms` unless another is given.

        Raises the server's error if the item was refused, DataError if it shows a step that is still open and for a
        deadline that is none, ClosedError
        if its writer was closed before, and DeadlineExceededError with what the server says holds it back; the item is
        on its way all the same, and one may wait again.
        """
        if timeout_ms != "own":
            checked_timeout(timeout_ms)
        if not self.done:
            assert self._wait is not None, "an item that was created has a writer"
            self._wait(self, timeout_ms)
        if self.error is not None:
            raise self.error
        key = self.key
        assert key is not None, "what was acknowledged has a key"
        return key

    @staticmethod
    def shipped(handles: Iterable[ItemHandle], receipt: Receipt) -> None:
        """The items left, in this order, as those of one message."""
        for index, handle in enumerate(handles):
            handle.receipt = receipt
            handle._index = index

    def __repr__(self) -> str:
        state = "refused" if self.error is not None else f"key {self.key}" if self.done else "on its way"
        return f"<ItemHandle {self.table!r}: {state}>"
