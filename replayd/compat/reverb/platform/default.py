"""Where the incumbent's default platform keeps its checkpointers."""

from __future__ import annotations

from replayd.compat.reverb.platform import checkpointers_lib as checkpointers

__all__ = ["checkpointers"]
