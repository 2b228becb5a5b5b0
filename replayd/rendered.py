"""Bulletins as bytes, made once for all who ask for the same one.

Owns the last of them. Whoever asks waits for whoever makes it, so that many who ask at once cost one rendering a second
and not theirs each; the loop has no part in it. Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from replayd.board import Bulletin


class Rendered:
    """What `render` makes of the newest bulletin. Used by any thread."""

    def __init__(self, render: Callable[[Bulletin], bytes]) -> None:
        self._render = render
        self._lock = Lock()
        self._last: tuple[Bulletin, bytes] | None = None

    def get(self, bulletin: Bulletin) -> bytes:
        """The bytes of this one."""
        with self._lock:
            last = self._last
            if last is None or last[0] is not bulletin:
                last = self._last = (bulletin, self._render(bulletin))
            return last[1]
