"""Workload 6: frames of real games in chunks of 40 steps: how small, and what that costs actor and learner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.contest import contest, measured, tell
from benchmarks.crew import Crew, Job
from benchmarks.daemon import rss_bytes
from benchmarks.figures import Figure
from benchmarks.settings import Settings
from benchmarks.systems import replayd, reverb

GAMES = ("pong", "breakout", "seaquest")
TABLE, STEPS, BATCH = "frames", 40, 32
FRAME_BYTES = 84 * 84
FRAMES, QUICK_FRAMES = 8_000, 400
ITEMS, QUICK_ITEMS = 2_000, 64
"""In the table: 80 000 frames, 564 MB as the game gives them."""


def atari(settings: Settings) -> Iterator[Figure]:
    """Real frames in chunks of 40 steps: how small, and what that costs actor and learner."""
    items = QUICK_ITEMS if settings.quick else ITEMS
    for game in GAMES[:1] if settings.quick else GAMES:
        path = _frames(settings, game)
        if path is None:
            tell("atari: left out, since no environment has ale-py: scripts/bench-peers-setup makes one")
            return
        frames: dict[str, Any] = {"frames": str(path)}
        with ExitStack() as stack:
            ours = stack.enter_context(replayd(settings, [f"{TABLE},max_size={2 * items}"]))
            theirs = stack.enter_context(reverb(settings, {"name": TABLE, "max_size": 2 * items}))
            for served in filter(None, (ours, theirs)):
                # What a server grows by at its first work, whatever that is, has no part in what an item costs; what it
                # takes in advance for a tenth of them would hide it.
                served.once("write_frames", table=TABLE, steps=STEPS, fill=1, **frames)
                before = rss_bytes(served.pid)
                written = served.once("write_frames", table=TABLE, steps=STEPS, fill=items, **frames)
                if served is ours:
                    yield measured("atari", f"{game}, stored of raw", "%", 100 * written["stored"])
                share = (rss_bytes(served.pid) - before) / (items * STEPS * FRAME_BYTES)
                yield measured("atari", f"{game}, memory of raw", "%", 100 * share, system=served.system)
            with Crew([ours.job("time_frames", steps=STEPS, table=TABLE, **frames)]) as crew:
                took_us = [crew.turn()[0]["compress_us"] for _ in range(settings.rounds)]
            yield measured("atari", f"{game}, compression on the actor", "µs/step", *took_us)
            sides = [
                served.side(f"{game}, written", "write_frames", table=TABLE, steps=STEPS, **frames)
                for served in (ours, theirs)
                if served is not None
            ]
            yield from contest(settings, "atari", sides, unit="frames/s")
            sides = [ours.side(f"{game}, read", "read_sequences", table=TABLE, batch=BATCH, steps=STEPS)]
            if theirs is not None:
                sides.append(theirs.side(f"{game}, read", "read_frames", table=TABLE, batch=BATCH, steps=STEPS))
            yield from contest(settings, "atari", sides, unit="frames/s")


def _frames(settings: Settings, game: str) -> Path | None:
    """The file of the game's frames, which is made once; None if it would have to be made and nothing can."""
    count = QUICK_FRAMES if settings.quick else FRAMES
    path = settings.directory / f"{game}-{count}.npy"
    if not path.exists():
        if settings.peers.atari is None:
            return None
        tell(f"atari: playing {count} steps of {game}")
        with Crew(
            [Job("drive_atari", "play", {"game": game, "frames": count, "path": str(path)}, settings.peers.atari)]
        ):
            pass
    return path
