"""What the command line does about stores: `checkpoint`, which asks a daemon and may copy, and `restore`.

Copies are made by this process and with its rights: a daemon takes no paths from whoever reaches its port. Imports
nothing heavy before a command runs.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replayd.cli_operator import connected, fail, print_json
from replayd.cli_options import ADDRESS, Place, Time
from replayd.cli_served import served
from replayd.exit_codes import of_store
from replayd.wording import size_text

if TYPE_CHECKING:
    from replayd.store_copies import Copied
    from replayd_client.inspection import Checkpointed
    from replayd_client.pool import ConnectionPool

TIMEOUT = "10min"
REACHED_S = 10.0
"""A daemon that does not answer by then is not there."""
ANSWER_S = 1.0
"""How long an answer about progress is waited for."""


@click.command()
@ADDRESS
@click.option(
    "--timeout", "timeout_s", type=Time(), default=TIMEOUT, show_default=True, help="How long to wait for it."
)
@click.option("--to", "target", type=Place(path_type=Path), help="Copy the store there: compact, self-contained.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Take --to for a directory of copies: add one, named after the time, and remove all but the last N.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was done, as JSON.")
def checkpoint(address: str, timeout_s: float, target: Path | None, keep: int | None, as_json: bool) -> None:
    """Have a daemon write all that it holds to its store, while it goes on serving.

    A copy is a store of its own: `replayd serve --data-dir` takes it, `replayd restore` brings it back.

    \b
    Examples:
      replayd checkpoint
      replayd checkpoint --to /backup/replayd --keep 7
    """
    from replayd.progress import shown
    from replayd_client import inspection

    if keep is not None and target is None:
        raise click.UsageError("--keep needs --to")
    with connected(address) as pool:
        # To write takes as long as it takes; to find nobody there does not.
        with pool.connection() as connection:
            connection.open_session(time.monotonic() + min(timeout_s, REACHED_S))
        with shown("checkpoint", lambda: _written(pool)):
            done = inspection.checkpoint(pool, time.monotonic() + timeout_s)
    answer = done._asdict()
    if target is None:
        if as_json:
            print_json(answer)
        else:
            click.echo(_done_text(done))
        return
    if not as_json:
        click.echo(_done_text(done))
    copied, removed = _copy(done, target, keep)
    if as_json:
        print_json({**answer, "copy": {**_fields(copied), "removed": [str(path) for path in removed]}})
        return
    click.echo(f"copied to {copied.path}: checkpoint {copied.generation}, {size_text(copied.size_bytes)}")
    for path in removed:
        click.echo(f"removed {path}")


@click.command()
@click.argument("source", metavar="FROM", type=Place(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--data-dir", type=Place(file_okay=False, path_type=Path), help="Directory of the store that is brought back."
)
@click.option(
    "--config",
    "config_path",
    type=Place(exists=True, dir_okay=False),
    help="TOML file that names it, as `replayd serve` takes it, with the same variables: store.path.",
)
@click.option("--replace", is_flag=True, help="If there is a store in it, put that aside there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done, as JSON.")
def restore(source: Path, data_dir: Path | None, config_path: str | None, replace: bool, as_json: bool) -> None:
    """Bring back the copy FROM, which `replayd checkpoint --to` made, for the daemon's next start.

    The daemon must not be running.

    \b
    Examples:
      replayd restore /backup/replayd/20260501T120000Z-checkpoint-7 --data-dir /var/lib/replayd/store --replace
    """
    from replayd.errors import StoreError
    from replayd.progress import shown
    from replayd.store_copies import bring_back

    directory = data_dir or _store_path(config_path)
    try:
        size, before = _size_bytes(source), _size_bytes(directory)
        with shown("copying", lambda: (_size_bytes(directory) - before, size)):
            copied, aside = bring_back(source, directory, replace=replace)
    except StoreError as error:
        fail(of_store(error), str(error))
    if as_json:
        print_json({"data_dir": str(directory), **_fields(copied), "aside": None if aside is None else str(aside)})
        return
    if aside is not None:
        click.echo(f"the store that was there is put aside in {aside}")
    made = datetime.fromtimestamp(copied.saved_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    click.echo(
        f"{directory} has checkpoint {copied.generation} of {made}, {size_text(copied.size_bytes)}; `replayd serve` "
        "with this directory begins with it"
    )


COMMANDS: tuple[click.Command, ...] = (checkpoint, restore)


def _written(pool: ConnectionPool) -> tuple[float, float] | None:
    """How far a daemon's checkpoint is: chunks that are written, and all that must be."""
    from replayd_client.errors import ReplaydError
    from replayd_client.inspection import info

    with suppress(ReplaydError):
        running = info(pool, time.monotonic() + ANSWER_S).get("store", {}).get("running")
        if running and running["chunks_total"]:
            return running["chunks"], running["chunks_total"]
    return None


def _size_bytes(directory: Path) -> int:
    """What the files there take, also while they come and go."""
    size = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size += os.stat(os.path.join(place, name)).st_size
    return size


def _done_text(done: Checkpointed) -> str:
    return (
        f"checkpoint {done.generation} of {done.items} items is in {done.path} on {done.host}: {done.chunks} chunks, "
        f"{size_text(done.nbytes)} written in {done.duration_s:.1f} s, of which requests waited {done.held_ms:.0f} ms"
    )


def _copy(done: Checkpointed, target: Path, keep: int | None) -> tuple[Copied, list[Path]]:
    from replayd.errors import StoreError
    from replayd.store_copies import copy_into_rotation, copy_store

    source = Path(done.path)
    if done.host != os.uname().nodename:
        fail(os.EX_UNAVAILABLE, f"the store is on {done.host}, in {done.path}: run this there to copy it")
    from replayd.progress import shown

    # What is being copied has a name of its own until it is whole, beside its place.
    parent, size = (target.absolute().parent if keep is None else target), _size_bytes(source)
    parts = f".*.part-{os.getpid()}-*"
    try:
        with shown("copying", lambda: (sum(map(_size_bytes, parent.glob(parts))), size)):
            return (copy_store(source, target), []) if keep is None else copy_into_rotation(source, target, keep)
    except StoreError as error:
        fail(of_store(error), f"the checkpoint is made, and not copied: {error}")


def _fields(copied: Copied) -> dict[str, object]:
    return {"path": str(copied.path), "generation": copied.generation, "size_bytes": copied.size_bytes}


def _store_path(config_path: str | None) -> Path:
    """The store that `serve` would begin with, by this file."""
    from replayd.config_faults import ConfigError

    if config_path is None:
        raise click.UsageError("which store? --data-dir or --config says it")
    told = served(click.get_current_context(), config_path)
    if told.unread:
        fail(os.EX_CONFIG, f"{told.unread}: which store the service has may stand there; --data-dir says it")
    try:
        store = told.read().store
    except ConfigError as error:
        fail(told.exit_code(error.faults), *error.problems)
    if store is None:
        fail(os.EX_CONFIG, f"{told.name} has no [store]")
    return Path(store.path)
