"""What the daemon says of itself when it begins and ends: to people on stdout, else in its log.

Owns these words: where it listens, what it serves, and which settings are not the defaults. Opens nothing.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import NoReturn

import click

from replayd import __version__, logs
from replayd.addresses import is_public, is_wildcard
from replayd.cli_operator import fail
from replayd.config_differences import settings_text
from replayd.config_model import Config

log = logging.getLogger("replayd")


@dataclass(frozen=True, slots=True)
class Announcer:
    """Of one daemon. `is_for_people`: somebody may read stdout; otherwise all goes into the log, a line an entry."""

    is_for_people: bool

    def begin(self, config: Config, requests: str, ingest: str | None, status: str | None) -> None:
        """It is bound to these addresses."""
        self._say(f"replayd {__version__} listens, process {os.getpid()}", "start")
        self._say(f"  requests  {requests}", "start")
        if ingest is not None:
            here = ", from this machine alone" if is_public(requests) and not is_public(ingest) else ""
            self._say(f"  ingest    {ingest}  (PUSH: inserts only, at most once{here})", "start")
        if status is not None:
            self._say(f"  status    {status}/  (metrics at {status}/metrics)", "start")
        for table in config.table:
            self._say(f"  table     {table.name}: {table}", "start", table.name)
        if config.store is not None:
            self._say(f"  store     {config.store}", "start")
        self._say(f"  settings  {settings_text(config)}", "start")
        # What is in the store may yet end the start.
        when = "try" if config.store is None else "once the store is read, try"
        info = "replayd info" if config.access is None else "REPLAYD_KEY_FILE=FILE replayd info"
        if not is_wildcard(requests):
            self._say(f"{when}: {info} --address {requests}", "start")
            return
        port = requests.rpartition(":")[2]
        loopback = "[::1]" if "[" in requests else "127.0.0.1"
        self._say(f"{when}: {info} --address tcp://{loopback}:{port}", "start")
        self._say(f"from another machine: {info} --address tcp://{socket.gethostname()}:{port}", "start")

    def end(self) -> None:
        """It ended as it was told to."""
        self._say("stopped", "stop")

    def fail(self, code: int, text: str) -> NoReturn:
        """It cannot go on. Exits with this code."""
        if self.is_for_people:
            logs.end_line()
            fail(code, text)
        log.error("%s", text, extra={"event": "stop"})
        raise SystemExit(code)

    def _say(self, line: str, event: str, table: str | None = None) -> None:
        if self.is_for_people:
            logs.end_line()
            click.echo(line)
        else:
            log.info("%s", " ".join(line.split()), extra={"event": event, "table": table})
