"""`replayd serve`: from options, environment and file to a daemon that runs until a signal ends it.

Owns the order in which a daemon starts and ends. Imports nothing heavy before it runs, nor what it alone needs of
Python, since `replayd --help` imports it for its first line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replayd.cli_operator import fail
from replayd.cli_options import Place, variables_of
from replayd.exit_codes import of_keys, of_store

if TYPE_CHECKING:
    from replayd.board import Board
    from replayd.config_model import Config
    from replayd.http import StatusServer
    from replayd.server import Daemon

SELECTORS_AND_LIMITERS = """\b
Samplers and removers, with the keys of each:
  uniform, fifo, lifo, min_heap, max_heap
  prioritized             priority_exponent

\b
Limiters:
  min_size                min_size_to_sample
  sample_to_insert_ratio  samples_per_insert, min_size_to_sample, error_buffer
  queue, stack            size
  rate_limiter            samples_per_insert, min_size_to_sample, min_diff, max_diff
"""


@click.command(epilog=SELECTORS_AND_LIMITERS)
@click.option("--config", "config_path", type=Place(exists=True, dir_okay=False), help="TOML file of settings.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME[,KEY=VALUE…]",
    help="A table besides those of the file. Keys: sampler, remover, priority_exponent, max_size, max_times_sampled, "
    "max_bytes (4GiB), when_full (evict, block or reject), "
    "limiter, samples_per_insert, min_size_to_sample, error_buffer (number or lo:hi), min_diff, max_diff, size; or "
    "preset (queue or stack) and max_size.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    help="Where requests are taken: tcp://HOST:PORT, HOST a number, `*` or localhost; or ipc://PATH.  "
    "[default: tcp://127.0.0.1:7077]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65533),
    help="Port of requests; 0 is any free one.  [default: 7077, or that of --listen or the file]",
)
@click.option(
    "--ingest-port",
    type=click.IntRange(0, 65535),
    help="Port of PUSH inserts, on loopback.  [default: port + 2; at a path, PATH-ingest]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where the status page and metrics are served, or `off`.  [default: 127.0.0.1, port + 1]",
)
@click.option("--endpoint-file", type=Place(dir_okay=False), help="Write the addresses there, as JSON, when bound.")
@click.option("--max-bytes", metavar="SIZE", help="Most that all tables may hold, such as 16GiB.  [default: no limit]")
@click.option("--seed", type=click.IntRange(0), help="Draw the same items for the same messages.")
@click.option("--insecure-public", is_flag=True, help="Allow addresses that other machines can reach, unauthenticated.")
@click.option("--data-dir", type=Place(file_okay=False), help="Keep what is held in a store in this directory.")
@click.option(
    "--journal",
    type=click.Choice(("off", "interval", "sync")),
    help="What a crash may take: all since the last checkpoint, the last second, nothing that was acknowledged.",
)
@click.option("--log-level", type=click.Choice(("debug", "info", "warning", "error")), help="Least that is logged.")
@click.option(
    "--log-format",
    type=click.Choice(("auto", "text", "json", "journald")),
    help="How the log is written; auto: to the journal if stderr goes there, else text.",
)
@click.option("--strict", is_flag=True, help="Refuse a store of which a part is damaged.")
@click.option("--allow-empty", is_flag=True, help="Begin empty if the store cannot be read; it is put aside.")
@click.option("--reset-limiter", is_flag=True, help="Let the limiters of restored tables count anew.")
@click.option("--drop-removed-tables", is_flag=True, help="Leave tables behind that are not configured any more.")
@click.option("--shrink-tables", is_flag=True, help="Let restored items go that are beyond the configured limits.")
def serve(
    config_path: str | None,
    tables: tuple[str, ...],
    listen: str | None,
    port: int | None,
    ingest_port: int | None,
    http: str | None,
    endpoint_file: str | None,
    max_bytes: str | None,
    seed: int | None,
    insecure_public: bool,
    data_dir: str | None,
    journal: str | None,
    log_level: str | None,
    log_format: str | None,
    strict: bool,
    allow_empty: bool,
    reset_limiter: bool,
    drop_removed_tables: bool,
    shrink_tables: bool,
) -> None:
    """Run the daemon in the foreground, until SIGTERM or SIGINT.

    Without a file and without tables it serves one table, `replay`: uniform sampling, oldest out first. Options win
    over variables of the environment, those over the file, and that over the defaults; `replayd default-config`
    explains every key and names its variable. SIGHUP has the file read again.

    \b
    Examples:
      replayd serve
      replayd serve --table replay,sampler=prioritized,priority_exponent=0.6,max_size=100000
      replayd serve --config /etc/replayd/replayd.toml --log-level debug
    """
    import faulthandler
    import logging
    import signal
    import warnings

    from replayd import activation, logs
    from replayd.access import AccessError
    from replayd.announcer import Announcer
    from replayd.board import Board
    from replayd.config import build_tables, read_config
    from replayd.config_faults import ConfigError
    from replayd.errors import BindError, StoreError
    from replayd.forecast import memory_warnings
    from replayd.heap import keep_freed_memory
    from replayd.journal import JournalOptions
    from replayd.keeper import StoreOptions
    from replayd.notify import manager_of
    from replayd.process import limit_bytes
    from replayd.reloading import Reloader
    from replayd.restoring import RestoreRules
    from replayd.server import Daemon
    from replayd.taken import another, told

    # A stuck loop is ended by a signal: what it was at is told then.
    faulthandler.enable()
    manager = manager_of(os.environ)
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            read = partial(
                read_config,
                config_path,
                environment=os.environ,
                tables=tables,
                listen=listen,
                port=port,
                ingest_port=ingest_port,
                http=http,
                seed=seed,
                max_bytes=max_bytes,
                insecure_public=insecure_public,
                data_dir=data_dir,
                journal=journal,
                log_level=log_level,
                log_format=log_format,
                variables=variables_of(click.get_current_context()),
            )
            config = read()
            built = build_tables(config)
    except ConfigError as error:
        fail(os.EX_CONFIG, *error.problems)
    announcer = Announcer(logs.begin(config.log.format, config.log.level, os.environ) == "text")
    # A limiter is made once when the file is checked and once for its table, so it doubts twice.
    for doubt in (*dict.fromkeys(str(doubt.message) for doubt in doubts), *memory_warnings(config, limit_bytes())):
        logging.getLogger("replayd").warning("%s", doubt, extra={"event": "config"})
    server, store = config.server, None
    if config.store is not None:
        rules = RestoreRules(strict, reset_limiter, drop_removed_tables, shrink_tables)
        said = config.store
        kept = JournalOptions(said.journal, said.journal_interval, said.journal_max_bytes)
        interval_s, on_stop = said.checkpoint_interval, said.checkpoint_on_stop
        store = StoreOptions(Path(said.path), interval_s, on_stop, rules, allow_empty, kept)
    elif strict or allow_empty or reset_limiter or drop_removed_tables or shrink_tables:
        raise click.UsageError(
            "--strict, --allow-empty, --reset-limiter, --drop-removed-tables and --shrink-tables need --data-dir"
        )
    try:
        fds = activation.assigned(
            activation.handed_over(os.environ), [each for each in (server.listen, server.ingest) if each]
        )
    except activation.Misfit as error:
        announcer.fail(os.EX_CONFIG, str(error))
    board = Board() if config.http.is_on or manager else None
    daemon = Daemon(
        built,
        listen=server.listen,
        ingest=server.ingest or None,
        seed=server.seed,
        max_bytes=server.max_bytes,
        lease_s=server.lease,
        trimmer=keep_freed_memory(),
        store=store,
        board=board,
        reload=Reloader(read, config, Path(config_path)) if config_path else None,
        manager=manager,
        fds=fds,
        keys=Path(config.access.keys) if config.access else None,
    )
    # From here on a signal means what it will mean to the loop, which takes over the handlers when it runs.
    signal.signal(signal.SIGHUP, lambda *_: daemon.read_settings_again())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    try:
        daemon.bind()
        status = _status_server(board, config) if board and config.http.is_on else None
    except BindError as error:
        announcer.fail(os.EX_CANTCREAT, f"{told(error)}; {another(config, error.endpoint)}")
    except AccessError as error:
        announcer.fail(of_keys(error), str(error))
    with _endpoint_file(endpoint_file, daemon, status), status or nullcontext():
        announcer.begin(
            config, daemon.router_address, daemon.ingest_address, None if status is None else status.address
        )
        try:
            daemon.run(stop_on_signals=True)
        except StoreError as error:
            announcer.fail(of_store(error), str(error))
        except Exception:
            announcer.fail(
                os.EX_SOFTWARE, "stopped by a fault of replayd itself; the lines above belong in a report of it"
            )
    announcer.end()


COMMANDS: tuple[click.Command, ...] = (serve,)


def _status_server(board: Board, config: Config) -> StatusServer:
    """The status page, elsewhere if the default port is taken: nobody asked for it, so it must not keep the daemon from
    serving. Raises BindError where the address was chosen."""
    import logging

    from replayd.errors import BindError
    from replayd.http import StatusServer
    from replayd.taken import told

    try:
        return StatusServer(board, config.http.listen)
    except BindError as error:
        if ("http", "listen") in config.origins:
            raise
        status = StatusServer(board, "127.0.0.1:0")
        logging.getLogger("replayd").warning(
            "%s, so the status page is at %s; `--http` (`[http] listen`) settles where it is, or that there is none",
            *(told(error), status.address),
            extra={"event": "config"},
        )
        return status


@contextmanager
def _endpoint_file(path: str | None, daemon: Daemon, status: StatusServer | None) -> Iterator[None]:
    """While inside, the file at `path` says where the daemon is. It appears whole or not at all."""
    if path is None:
        yield
        return
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    endpoint = {
        "router": daemon.router_address,
        "ingest": daemon.ingest_address,
        "http": None if status is None else status.address,
        "pid": os.getpid(),
    }
    try:
        draft.write_text(json.dumps(endpoint) + "\n")
        draft.replace(target)
    except OSError as error:
        fail(os.EX_CANTCREAT, f"cannot write the endpoint file: {error}")
    try:
        yield
    finally:
        target.unlink(missing_ok=True)
