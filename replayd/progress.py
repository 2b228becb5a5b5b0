"""How far long work is, shown on a terminal while one waits for it; nothing where nobody looks.

Draws with rich, which it imports when there is something to draw. Must not know what the work is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INTERVAL_S = 0.2
Look = Callable[[], tuple[float, float] | None]
"""How much is done, and of how much; None: not known (yet)."""


@contextmanager
def shown(text: str, look: Look) -> Iterator[None]:
    """While inside, a bar on stderr tells how far the work is, if that is a terminal. `look` is called by a thread."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    ended = threading.Event()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=None)

        def follow() -> None:
            while not ended.wait(INTERVAL_S):
                seen = look()
                if seen is not None:
                    progress.update(task, completed=seen[0], total=seen[1])

        follower = threading.Thread(target=follow, name="replayd progress", daemon=True)
        follower.start()
        try:
            yield
        finally:
            ended.set()
            follower.join()
