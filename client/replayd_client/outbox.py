"""What a writer's core needs of a writer's steps: messages that can be taken, and what there is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replayd_client.array_messages import ChunkBatch, ItemBatch
from replayd_client.item_handle import ItemHandle
from replayd_client.writer_report import WriterReport

READY, WAITING, FULL = 1, 2, 4
"""Flags of `Outbox.standing`: there are items that can leave; there are items that wait for a cut; and the next message
would not get better, so that it should leave at once."""


@dataclass(slots=True, eq=False)
class Message:
    """What goes in one insert message."""

    chunks: ChunkBatch | None
    items: ItemBatch | None
    keep_from: int
    handles: Sequence[ItemHandle]


class Outbox(Protocol):
    policy_version: int
    """Version of the policy that acts in the steps that come next; 0: not said. Set after a `cut`."""

    @property
    def items(self) -> int:
        """Items that have not left, ready or not."""

    @property
    def ready_items(self) -> int:
        """Items which `take_message` gives sooner or later without a cut."""

    @property
    def waiting_items(self) -> int:
        """Items that a cut makes ready."""

    @property
    def standing(self) -> int:
        """Which of READY, WAITING and FULL hold, in one answer: it is asked for after every call."""

    def ready_since(self) -> float | None:
        """When the oldest ready item was made; None if there is none."""

    def waiting_since(self) -> float | None:
        """When the oldest waiting item was made; None if there is none."""

    def close_step(self) -> None:
        """The open step gets no more columns."""

    def cut(self) -> None:
        """Finish the chunks that are being filled."""

    def take_message(self) -> Message | None:
        """The next message, or None if no item is ready."""

    def report(self) -> WriterReport:
        """What has been written."""
