"""The command line: `replayd serve`, `replayd info`, `replayd ping`.

Owns words for people, and exit codes: those of sysexits.h, so that a service manager can tell a wrong configuration,
which a restart does not cure, from a taken port, which it may. Imports nothing heavy before a command runs, so that
`replayd --help` is instant.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from replayd import __version__

if TYPE_CHECKING:
    from replayd.config_model import Config
    from replayd.server import Daemon
    from replayd_client.connection import Connection

DEFAULT_ADDRESS = "tcp://127.0.0.1:7077"
PING_S = 1.0
"""How long `ping` gives a daemon that is there to say so."""


def _address(context: click.Context, option: click.Parameter, address: str) -> str:
    if not re.fullmatch(r"tcp://.+:\d+|ipc://.+", address):
        raise click.BadParameter(f"expected tcp://HOST:PORT or ipc://PATH, got {address!r}")
    return address


ADDRESS = click.option(
    "--address", default=DEFAULT_ADDRESS, show_default=True, callback=_address, help="Where the daemon answers."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "REPLAYD"})
@click.version_option(__version__, prog_name="replayd")
def main() -> None:
    """Experience replay as a service: actors insert, learners sample, the daemon keeps the two in step.

    Every option can be given in the environment: `serve --config` is REPLAYD_SERVE_CONFIG.
    """


# --- serve ------------------------------------------------------------------------------------------------------------


@main.command()
@click.option("--config", "config_path", type=click.Path(exists=True, dir_okay=False), help="TOML file of settings.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME[,KEY=VALUE…]",
    help="A table besides those of the file. Keys: sampler, remover, priority_exponent, max_size, max_times_sampled, "
    "limiter, samples_per_insert, min_size_to_sample, error_buffer (number or lo:hi), min_diff, max_diff, size; or "
    "preset (queue or stack) and max_size.",
)
@click.option("--port", type=click.IntRange(0, 65533), help="Port of requests; 0 is any free one.")
@click.option("--ingest-port", type=click.IntRange(0, 65535), help="Port of PUSH inserts  [default: port + 2]")
@click.option(
    "--endpoint-file", type=click.Path(dir_okay=False), help="Write the addresses there, as JSON, when bound."
)
@click.option("--seed", type=click.IntRange(0), help="Draw the same items for the same messages.")
@click.option("--insecure-public", is_flag=True, help="Allow addresses that other machines can reach, unauthenticated.")
def serve(
    config_path: str | None,
    tables: tuple[str, ...],
    port: int | None,
    ingest_port: int | None,
    endpoint_file: str | None,
    seed: int | None,
    insecure_public: bool,
) -> None:
    """Run the daemon in the foreground, until SIGTERM or SIGINT.

    Without a file and without tables it serves one table, `replay`: uniform sampling, oldest out first.
    """
    from replayd.config import ConfigError, build_tables, read_config
    from replayd.errors import BindError
    from replayd.server import Daemon

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            config = read_config(
                config_path,
                tables=tables,
                port=port,
                ingest_port=ingest_port,
                seed=seed,
                insecure_public=insecure_public,
            )
            built = build_tables(config)
    except ConfigError as error:
        _fail(os.EX_CONFIG, *error.problems)
    # A limiter is made once when the file is checked and once for its table, so it doubts twice.
    for doubt in dict.fromkeys(str(doubt.message) for doubt in doubts):
        click.echo(f"replayd: warning: {doubt}", err=True)
    server = config.server
    daemon = Daemon(
        built,
        listen=server.listen,
        ingest=server.ingest or None,
        seed=server.seed,
        lease_s=server.lease,
    )
    # From here on a signal means an orderly end, also before the loop runs and takes over the handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    try:
        daemon.bind()
    except BindError as error:
        _fail(os.EX_CANTCREAT, str(error))
    with _endpoint_file(endpoint_file, daemon):
        _announce(config, daemon)
        try:
            daemon.run(stop_on_signals=True)
        except Exception:
            traceback.print_exc()
            _fail(os.EX_SOFTWARE, "stopped by a fault of replayd itself; the lines above belong in a report of it")
    click.echo("stopped")


@contextmanager
def _endpoint_file(path: str | None, daemon: Daemon) -> Iterator[None]:
    """While inside, the file at `path` says where the daemon is. It appears whole or not at all."""
    if path is None:
        yield
        return
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    endpoint = {"router": daemon.router_address, "ingest": daemon.ingest_address, "pid": os.getpid()}
    try:
        draft.write_text(json.dumps(endpoint) + "\n")
        draft.replace(target)
    except OSError as error:
        _fail(os.EX_CANTCREAT, f"cannot write the endpoint file: {error}")
    try:
        yield
    finally:
        target.unlink(missing_ok=True)


def _announce(config: Config, daemon: Daemon) -> None:
    click.echo(f"replayd {__version__} listens, process {os.getpid()}")
    click.echo(f"  requests  {daemon.router_address}")
    if daemon.ingest_address is not None:
        click.echo(f"  ingest    {daemon.ingest_address}  (PUSH: inserts only, at most once)")
    for table in config.table:
        click.echo(f"  table     {table.name}: {table}")
    click.echo(f"try: replayd info --address {daemon.router_address}")


# --- info and ping ----------------------------------------------------------------------------------------------------


@main.command()
@ADDRESS
@click.option("--timeout", "timeout_s", default=5.0, show_default=True, help="Seconds to wait for the answer.")
@click.option("--json", "as_json", is_flag=True, help="Print what the daemon said, as JSON.")
def info(address: str, timeout_s: float, as_json: bool) -> None:
    """Show each table of a running daemon, and who waits there for what."""
    from replayd_client.wire import InfoReply, encode_info

    with _connected(address) as connection:
        reply = connection.call("info", encode_info, time.monotonic() + timeout_s)
    assert isinstance(reply, InfoReply), "info is answered by info"
    answer = {name: value for name, value in reply.fields.items() if name not in ("v", "op", "id")}
    if as_json:
        click.echo(json.dumps(answer, indent=2, default=bytes.hex))
        return
    chunks, streams = answer["chunks"], answer["streams"]
    click.echo(f"{answer['server']} at {address}")
    click.echo(
        f"  {_count(chunks['count'], 'chunk')}, {_bytes(chunks['bytes'])}, of which {_bytes(chunks['orphan_bytes'])} "
        f"in no item yet; {_count(streams['open'], 'open stream')}"
    )
    for table in answer["tables"]:
        click.echo("")
        for line in _table_lines(table):
            click.echo(line)


@main.command()
@ADDRESS
@click.option("--wait", "wait_s", type=float, help="Keep trying for so many seconds.")
def ping(address: str, wait_s: float | None) -> None:
    """Ask whether a daemon answers.

    Exit code 0 if it does, 69 if not, 75 if it still did not when --wait was over.
    """
    with _connected(address, os.EX_UNAVAILABLE if wait_s is None else os.EX_TEMPFAIL) as connection:
        hello = connection.open_session(time.monotonic() + (PING_S if wait_s is None else wait_s))
    click.echo(f"{hello.server} at {address}")


def _table_lines(table: Mapping[str, Any]) -> Iterator[str]:
    limiter = table["limiter"]
    yield f"{table['name']}"
    yield f"  items    {table['size']} of at most {table['max_size']}"
    yield (
        f"  done     {_count(limiter['inserts'], 'insert')}, {_count(limiter['samples'], 'sample')}, "
        f"{_count(limiter['deletes'], 'delete')}"
    )
    yield f"  limiter  {_limiter_text(limiter)}"
    for waiting in table["waiting"]:
        requests = _count(waiting["requests"], f"{waiting['side']} request")
        yield (
            f"  waiting  {requests} ({_count(waiting['items'], 'item')}), the oldest for {waiting['waited_s']:.1f} s: "
            f"{waiting['why']}"
        )


def _limiter_text(limiter: Mapping[str, Any]) -> str:
    lowest, highest = limiter.get("min_diff"), limiter.get("max_diff")
    text = f"samples from {_count(limiter['min_size_to_sample'], 'item')} on"
    if lowest is None and highest is None:
        return text
    band = " ".join(f"{word} {bound:g}" for word, bound in (("from", lowest), ("to", highest)) if bound is not None)
    return f"{text}; cursor {limiter['cursor']:g} {band}, samples_per_insert {limiter['samples_per_insert']:g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(number: int) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(max(number.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{number / 1024**power:.4g} {units[power]}"


@contextmanager
def _connected(address: str, unreachable: int = os.EX_UNAVAILABLE) -> Iterator[Connection]:
    """A connection to the daemon. What goes wrong with it ends the command, in code `unreachable` if nobody answers."""
    from replayd_client.errors import ConnectionLostError, DeadlineExceededError, ReplaydError
    from replayd_client.pool import ConnectionPool

    pool = ConnectionPool(address)
    try:
        with pool.connection() as connection:
            yield connection
    except ConnectionLostError as error:
        _fail(unreachable, str(error))
    except DeadlineExceededError as error:
        _fail(os.EX_TEMPFAIL, str(error))
    except ReplaydError as error:
        _fail(1, str(error))
    finally:
        pool.close()


def _fail(code: int, *lines: str) -> NoReturn:
    for line in lines:
        click.echo(f"replayd: {line}", err=True)
    sys.exit(code)
