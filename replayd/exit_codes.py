"""Exit codes of the command line: those of sysexits.h, each with its meaning, and which one an error ends in.

A service manager tells by them a wrong configuration, which no restart cures, from a taken port, which one may. Nothing
else decides one. Imports nothing heavy before there is an error to judge.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from replayd.cli_options import NotPermitted, variable_of

MEANINGS: Mapping[int, str] = {
    os.EX_OK: "done",
    os.EX_USAGE: "misused: no such command, option, value, table or name, or one that is taken",
    os.EX_DATAERR: "a store is damaged",
    os.EX_UNAVAILABLE: "nobody answers at the address",
    os.EX_SOFTWARE: "a fault of replayd itself, or of its installation",
    os.EX_OSERR: "the machine's clock is wrong",
    os.EX_CANTCREAT: "an address, a directory or a file cannot be had, or is there already",
    os.EX_IOERR: "the disk failed, and with it the last checkpoint; or nobody reads the output",
    os.EX_TEMPFAIL: "not now: not in time, or the daemon loads, stops, or has no room; try again",
    os.EX_PROTOCOL: "the daemon does not understand this program, or this one the daemon: update one of them",
    os.EX_NOPERM: "no permission: a key is refused, a file of keys has the wrong rights, a path is not for this user",
    os.EX_CONFIG: "the settings are faulty or lack something, or a file of keys is: a restart cures nothing",
    128 + signal.SIGINT: "interrupted by the user",
}
"""Every code there is. `doctor` ends in that of the first failure that it finds."""

OF_REFUSALS: Mapping[str, int] = {
    "bad_message": os.EX_PROTOCOL,
    "bad_request": os.EX_USAGE,
    "unsupported_version": os.EX_PROTOCOL,
    "unknown_op": os.EX_PROTOCOL,
    "unknown_table": os.EX_USAGE,
    "unknown_stream": os.EX_PROTOCOL,
    "sequence_gap": os.EX_PROTOCOL,
    "missing_chunk": os.EX_PROTOCOL,
    "signature_mismatch": os.EX_USAGE,
    "bad_priority": os.EX_USAGE,
    "limit_exceeded": os.EX_USAGE,
    "table_full": os.EX_TEMPFAIL,
    "never_grantable": os.EX_USAGE,
    "timeout": os.EX_TEMPFAIL,
    "withdrawn": os.EX_SOFTWARE,
    "forbidden": os.EX_NOPERM,
    "shutting_down": os.EX_TEMPFAIL,
    "loading": os.EX_TEMPFAIL,
    "not_durable": os.EX_TEMPFAIL,
    "no_store": os.EX_CONFIG,
    "checkpoint_failed": os.EX_IOERR,
}
"""By the wire's error codes."""

OF_FINDINGS: Mapping[str, int] = {
    "versions": os.EX_SOFTWARE,
    "settings": os.EX_CONFIG,
    "daemon": os.EX_UNAVAILABLE,
    "addresses": os.EX_CANTCREAT,
    "keys": os.EX_NOPERM,
    "clock": os.EX_OSERR,
    "data directory": os.EX_CANTCREAT,
}
"""By the checks of `doctor` that may fail."""


def of_refusal(error: Any, unreachable: int = os.EX_UNAVAILABLE) -> int:
    """Of a ReplaydError that a call raised; `unreachable` if nobody answers."""
    from replayd_client.errors import ConnectionLostError, DataError

    if error.code in OF_REFUSALS:
        return OF_REFUSALS[error.code]
    if isinstance(error, ConnectionLostError):
        return unreachable
    return os.EX_USAGE if isinstance(error, DataError) else os.EX_PROTOCOL


def of_client_keys(error: Exception) -> int:
    """Of what is wrong with the file of a client's keys."""
    from replayd_client.keys import KeyRightsError

    return os.EX_NOPERM if isinstance(error, KeyRightsError) else os.EX_CONFIG


def of_keys(error: Exception) -> int:
    """Of an AccessError: what is wrong with the daemon's files of keys."""
    from replayd.access import NoRights, NotMade

    if isinstance(error, NoRights):
        return os.EX_NOPERM
    return os.EX_CANTCREAT if isinstance(error, NotMade) else os.EX_CONFIG


def of_store(error: Exception) -> int:
    """Of a StoreError."""
    from replayd.errors import StoreForbidden, StoreInUse, StoreMismatch, StoreNotMade, StoreUnreadable

    if isinstance(error, StoreUnreadable):
        return os.EX_DATAERR
    if isinstance(error, StoreForbidden):
        return os.EX_NOPERM
    if isinstance(error, StoreMismatch):
        return os.EX_CONFIG
    return os.EX_CANTCREAT if isinstance(error, StoreInUse | StoreNotMade) else os.EX_IOERR


class Commands(click.Group):
    """A group whose commands end in these codes also where click has others, and where nobody foresaw how they end."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """As click's."""
        with _judged():
            return super().make_context(*arguments, **options)

    def invoke(self, context: click.Context) -> Any:
        """As click's."""
        with _judged():
            return super().invoke(context)


@contextmanager
def _judged() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        # Who has typed no such option must hear where its value is from.
        if isinstance(error, click.BadParameter) and (context := error.ctx) and (option := error.param):
            variable = variable_of(context, option)
            error.param_hint = f"{option.get_error_hint(context)}{variable and f' ({variable})'}"
        error.show()
        raise click.exceptions.Exit(os.EX_NOPERM if isinstance(error, NotPermitted) else os.EX_USAGE) from None
    except (KeyboardInterrupt, EOFError, click.Abort):
        click.echo("\nreplayd: interrupted", err=True)
        raise click.exceptions.Exit(128 + signal.SIGINT) from None
    except (click.exceptions.Exit, SystemExit):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            # What is left in the buffer has nowhere to go, and Python would complain of it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(os.EX_IOERR) from None
        import traceback  # Needed for this alone.

        traceback.print_exc()
        click.echo("replayd: a fault of replayd itself; the lines above belong in a report of it", err=True)
        raise click.exceptions.Exit(os.EX_SOFTWARE) from error
