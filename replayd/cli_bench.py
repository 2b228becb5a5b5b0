"""`replayd bench`: how fast batches go in and come out, by the public client, of a daemon that runs or one of its own.

Owns the measuring of a glance; scripts/bench measures each workload, and beside others. Imports nothing heavy before it
runs.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replayd.cli_completion import tables_there
from replayd.cli_operator import fail, print_json
from replayd.cli_options import ADDRESS_VARIABLE, Size, Time, endpoint_of, variable_of
from replayd.exit_codes import of_refusal
from replayd.wording import aligned, short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from replayd_client import Client

START_S = 60.0
CALL_MS = 5000.0
"""The longest that one call may wait: then something else than speed holds it up."""
HELD_BYTES = 256 << 20
"""What the table of a daemon of its own holds, at most."""
OWN_TABLE = "bench"


@dataclass(frozen=True, slots=True)
class Figures:
    """What one kind of call came to."""

    what: str
    items: int
    items_per_s: float
    megabytes_per_s: float
    calls: int
    p50_ms: float
    p99_ms: float
    held_up: str
    """Why it ended before its time, empty if it did not."""


def _daemon_of(context: click.Context, option: click.Parameter, address: str | None) -> str | None:
    """The daemon that is measured. One that is merely the usual one is left alone unless a table of it is named: it
    would be written to."""
    if context.params["table"] is None and variable_of(context, option) == ADDRESS_VARIABLE:
        return None
    return endpoint_of(context, option, address)


@click.command()
@click.option(
    "--address",
    callback=_daemon_of,
    help=f"A daemon that runs.  [default: with --table {ADDRESS_VARIABLE}; else one is started, and ended]",
)
@click.option(
    "--table",
    is_eager=True,
    shell_complete=tables_there,
    help="Table of that daemon. Items are inserted there, and removed at the end.",
)
@click.option(
    "--seconds", "seconds", type=Time(0.1, 600), default="3s", show_default=True, help="How long, for each kind."
)
@click.option("--batch", type=click.IntRange(1, 16384), default=256, show_default=True, help="Items of one call.")
@click.option(
    "--item-bytes",
    type=Size(4, 16 << 20),
    default="4KiB",
    show_default=True,
    help="Payload of an item, float32 of random bits, which nothing compresses.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench(address: str | None, table: str | None, seconds: float, batch: int, item_bytes: int, as_json: bool) -> None:
    """Measure how fast batches are inserted and sampled, one client, one call at a time.

    Without --table a daemon is started for it, on loopback, and ended. With it the daemon of --address is measured, or
    else that of REPLAYD_ADDRESS: the table's remover makes room for the new items as for any, its limiter may hold
    calls up, and draws count.

    \b
    Examples:
      replayd bench
      replayd bench --item-bytes 28224 --batch 32
      replayd bench --address actor-box:7077 --table scratch --seconds 10
    """
    if (address is None) != (table is None):
        raise click.UsageError("--address and --table go together: a table is named, since items are inserted into it")
    with _daemon(address, batch, item_bytes) as endpoint:
        figures = _measure(endpoint, table or OWN_TABLE, seconds, batch, item_bytes)
    if as_json:
        from dataclasses import asdict

        print_json({"batch": batch, "item_bytes": item_bytes, "figures": [asdict(each) for each in figures]})
        return
    click.echo(f"batches of {batch} items of {item_bytes} bytes, one client, {seconds:g} s each")
    rows = [("items/s", "MB/s", "p50 ms", "p99 ms", "calls", "what"), *map(_row, figures)]
    for line in aligned(rows):
        click.echo(line)


COMMANDS: tuple[click.Command, ...] = (bench,)


def _row(figures: Figures) -> tuple[str, ...]:
    return (
        short(figures.items_per_s),
        short(figures.megabytes_per_s),
        f"{figures.p50_ms:.2f}",
        f"{figures.p99_ms:.2f}",
        str(figures.calls),
        f"{figures.what}{figures.held_up and f' (held up: {figures.held_up})'}",
    )


@contextmanager
def _daemon(address: str | None, batch: int, item_bytes: int) -> Iterator[str]:
    """The address of the daemon to measure: that one, or one that lives as long as one is inside."""
    if address is not None:
        yield address
        return
    import subprocess
    from tempfile import TemporaryDirectory

    size = max(2 * batch, min(100_000, HELD_BYTES // item_bytes))
    with TemporaryDirectory(prefix="replayd-bench-") as directory:
        endpoint, log = Path(directory, "endpoint.json"), Path(directory, "log")
        command = [sys.executable, "-m", "replayd", "serve", "--port", "0", "--http", "off"]
        command += ["--table", f"{OWN_TABLE},max_size={size}", "--endpoint-file", str(endpoint)]
        # Settings and keys in the environment are for the daemon that serves, not for this one.
        os.environ.pop("REPLAYD_KEY_FILE", None)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REPLAYD_")}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + START_S
            while not endpoint.exists():
                try:
                    process.wait(timeout=0.02)
                except subprocess.TimeoutExpired:
                    if time.monotonic() < deadline:
                        continue
                fail(os.EX_UNAVAILABLE, "the daemon to measure does not start:", *log.read_text().splitlines())
            yield json.loads(endpoint.read_text())["router"]
        finally:
            process.terminate()
            process.wait()


def _measure(address: str, table: str, seconds: float, batch: int, item_bytes: int) -> list[Figures]:
    import numpy as np

    from replayd_client import Client
    from replayd_client.errors import ReplaydError

    words = np.random.default_rng(0).integers(0, 1 << 32, (batch, 1, item_bytes // 4), np.uint32)
    # The top bits of a float's exponent are taken away: a NaN is no payload that one would send.
    data = {"bench": (words & np.uint32(0xBFFFFFFF)).view(np.float32)}
    inserted: list[NDArray[np.uint64]] = []

    def insert() -> int:
        keys = client.insert_batch(data, {table: 1.0}, timeout_ms=CALL_MS)
        assert not isinstance(keys, dict), "one table has one array of keys"
        inserted.append(keys)
        return len(keys)

    def sample() -> int:
        return len(client.sample_batch(table, batch, min_n=1, timeout_ms=CALL_MS).info.key)

    try:
        with Client(address) as client:
            try:
                return [
                    _timed(what, call, seconds, 4 * (item_bytes // 4))
                    for what, call in (("insert_batch", insert), ("sample_batch", sample))
                ]
            finally:
                _remove(client, table, inserted)
    except ReplaydError as error:
        fail(of_refusal(error), str(error))


def _remove(client: Client, table: str, inserted: list[NDArray[Any]]) -> None:
    """Take the items out again, as far as the table still has them."""
    import numpy as np

    if inserted:
        client.mutate_priorities(table, deletes=np.concatenate(inserted))


def _timed(what: str, call: Callable[[], int], seconds: float, item_bytes: int) -> Figures:
    """Make calls for so long, after one that does not count."""
    import numpy as np

    from replayd.progress import shown
    from replayd_client.errors import DeadlineExceededError

    items, took_s, held_up = 0, [], ""
    began = math.inf
    with shown(what, lambda: None if began == math.inf else (min(time.monotonic() - began, seconds), seconds)):
        try:
            call()
            began = time.monotonic()
            now = began
            while now < began + seconds:
                items += call()
                before, now = now, time.monotonic()
                took_s.append(now - before)
        except DeadlineExceededError as error:
            held_up = str(error)
    elapsed_s = sum(took_s)
    p50_s, p99_s = np.percentile(took_s, (50, 99)) if took_s else (0.0, 0.0)
    rate = items / elapsed_s if elapsed_s else 0.0
    return Figures(
        what,
        items,
        rate,
        rate * item_bytes / 1e6,
        len(took_s),
        float(p50_s) * 1000,
        float(p99_s) * 1000,
        held_up,
    )
